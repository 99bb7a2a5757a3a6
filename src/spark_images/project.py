"""A clone of the repository as values: pins, targets, images, locks, templates and scripts, read once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from spark_images.errors import ConfigError, DriftError, UsageError, nearest
from spark_images.images import Image
from spark_images.images_file import read_images
from spark_images.ingredients import BUILD_SDISTS, built_with, installed_pin, source_of
from spark_images.locks import DebsLock, WheelsLock, read_debs_lock, read_wheels_lock
from spark_images.pins import DebsPin, ImagePin, Pins, RequirementsPin, SdistPin, WheelsPin
from spark_images.pins_file import read_pins
from spark_images.plan import Plan, image_config, make_plan
from spark_images.render import render_dockerfile
from spark_images.targets import Target, read_targets

if TYPE_CHECKING:
    from spark_images.compat.check import Refusal
    from spark_images.compat.command import CompileCommand
    from spark_images.compat.facts import Facts
    from spark_images.sources import SourcesLock
    from spark_images.vllm.check import Checker

WHEEL = "-wheel"  # how the name of a base ends whose images are made of what a project itself released
Named = TypeVar("Named", Image, Target)
PARTS = ("images", "templates", "scripts")  # besides pins.yaml: what plans are made from, and the images' tests


@dataclass(frozen=True)
class Project:
    """The files below `root`. Everything is read when first asked for, validated, and kept."""

    root: Path
    builder: str = ""  # the platform that compiles, in plans; "" for this machine's, the only one that builds here

    @cached_property
    def pins(self) -> Pins:
        return read_pins(self.root / "pins.yaml")

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        return read_targets(self.root / "images" / "targets.yaml")

    @cached_property
    def images(self) -> tuple[Image, ...]:
        return read_images(self.root, pins=self.pins, targets=self.targets)

    @cached_property
    def templates(self) -> dict[str, str]:
        """File name -> text of everything in templates/."""
        return {path.name: path.read_text() for path in sorted((self.root / "templates").glob("*.j2"))}

    @cached_property
    def facts(self) -> Facts | None:
        """What is known of releases and of what goes together; None for a project without images/compat.yaml."""
        from spark_images.compat.file import read_facts

        return read_facts(self._compat) if self._compat.exists() else None

    @property
    def required_facts(self) -> Facts:
        """As facts; ConfigError where there are none."""
        from spark_images.compat.file import read_facts

        return self.facts or read_facts(self._compat)

    @cached_property
    def checker(self) -> Checker | None:
        """What releases of vLLM know by name; None for a project without images/vllm-knowledge.json."""
        from spark_images.vllm.check import Checker
        from spark_images.vllm.history import read_knowledge

        path = self.root / "images" / "vllm-knowledge.json"
        return Checker(read_knowledge(path)) if path.exists() else None

    @property
    def _compat(self) -> Path:
        return self.root / "images" / "compat.yaml"

    @cached_property
    def debs_lock(self) -> DebsLock:
        for pin in self.pins.pins:
            if isinstance(pin, DebsPin):
                return read_debs_lock(self.root / pin.lock, pin)
        raise ConfigError("pins.yaml has no pin of kind `debs`", hint="add one: build steps run in its packages")

    def wheels_lock(self, name: str) -> WheelsLock:
        """The lock of the wheels or requirements pin `name`."""
        if name not in self._wheels_locks:
            pin = self.pins[name]
            assert isinstance(pin, WheelsPin | RequirementsPin)  # images.py has checked what image.yaml names
            self._wheels_locks[name] = read_wheels_lock(self.root / pin.lock, pin)
        return self._wheels_locks[name]

    def sources_lock(self, name: str) -> SourcesLock:
        """The lock of what the build of the sdist pin `name` fetches."""
        from spark_images.sources import read_sources_lock, sources_input

        if name not in self._sources_locks:
            pin = self.pins[name]
            assert isinstance(pin, SdistPin)
            made = sources_input(pin, pins=self.pins, facts=self.required_facts)
            self._sources_locks[name] = read_sources_lock(self.root / pin.lock, made)
        return self._sources_locks[name]

    @cached_property
    def _wheels_locks(self) -> dict[str, WheelsLock]:
        return {}  # those that were asked for

    @cached_property
    def _sources_locks(self) -> dict[str, SourcesLock]:
        return {}

    def buildkit_image(self, env: Mapping[str, str]) -> str:
        """What BuildKit runs from: the pin `buildkit`, or SPARK_IMAGES_BUILDKIT_IMAGE where no registry has that."""
        if named := env.get("SPARK_IMAGES_BUILDKIT_IMAGE"):
            return named
        pin = next((pin for pin in self.pins.pins if pin.name == "buildkit"), None)
        return f"{pin.ref}@{pin.digest}" if isinstance(pin, ImagePin) else ""

    def image(self, name: str) -> Image:
        """The image of this name; UsageError offers the nearest one."""
        return _named(name, self.images, "image")

    def target(self, name: str) -> Target:
        """The target of this name; UsageError offers the nearest one."""
        return _named(name, self.targets, "target")

    def variant(
        self, image: Image, target: str | None, base: str | None, origin: str | None = None
    ) -> tuple[Target, str]:
        """Target and base as asked, or the image's first; UsageError when it does not support them.

        origin: `source` or `wheel`, which a base's name ends in where it is not compiled; None: either.
        """
        supported = dict(image.supports)
        if target is not None:
            _named(target, self.targets, "target")
        target = target or next(iter(supported))
        if target not in supported:
            raise UsageError(
                f"image `{image.name}` does not support target `{target}`",
                hint=f"supported: {', '.join(f'`{name}`' for name in supported)} ({image.path}, `supports`)",
            )
        if origin == "wheel" and base and not base.endswith(WHEEL):
            base += WHEEL
        fitting = [one for one in supported[target] if origin is None or one.endswith(WHEEL) == (origin == "wheel")]
        if not fitting:
            raise UsageError(
                f"image `{image.name}` is not made `--from {origin}` for target `{target}`",
                hint=f"supported: {', '.join(f'`{name}`' for name in supported[target])} ({image.path}, `supports`)",
            )
        base = base or fitting[0]
        if base not in fitting:
            raise UsageError(
                f"image `{image.name}` has no base `{base}` for target `{target}`{nearest(base, supported[target])}",
                hint=f"supported: {', '.join(f'`{name}`' for name in supported[target])} ({image.path}, `supports`)",
            )
        return _named(target, self.targets, "target"), base

    def variants(self, image: Image) -> Iterable[tuple[Target, str]]:
        """Every target and base that the image supports."""
        return ((_named(name, self.targets, "target"), base) for name, bases in image.supports for base in bases)

    @staticmethod
    def compiles_on(platform: str, image: Image, target: Target, base: str) -> bool:
        """Whether a machine of this platform can compile it: any, but for what is compiled inside a pinned image."""
        return not image.on(base).compile.image or platform == target.platform

    def dockerfile_path(self, image: Image, target: Target, base: str) -> Path:
        """Where the rendered Dockerfile is committed."""
        return self.root / "images" / image.name / f"{target.name}-{base}.Dockerfile"

    def rendered(self, image: Image, target: Target, base: str) -> str:
        """The Dockerfile as the sources render to now."""
        image = image.on(base)
        return render_dockerfile(
            image=image,
            target=target,
            base=base,
            source=source_of(image, self.pins),
            config=image_config(image=image, target=target, base=base, pins=self.pins),
            templates=self.templates,
            command=command.line() if (command := self._compile_command(image, target)) else "",
        )

    def dockerfiles(self) -> Iterable[tuple[Path, str]]:
        """Every committed Dockerfile's path with the text that it should have."""
        for image in self.images:
            for target, base in self.variants(image):
                yield self.dockerfile_path(image, target, base), self.rendered(image, target, base)

    def plan(self, image: Image, target: Target, base: str, *, builder: str | None = None) -> Plan:
        """The plan of one variant, as built on `builder` (the project's, unless named).

        The committed Dockerfile is what is built; DriftError when it is not what the sources render to.
        """
        from spark_images.debian import ROOT_FORM
        from spark_images.host import host_platform
        from spark_images.oci import CANONICAL_FORM
        from spark_images.patches import require_frozen
        from spark_images.together import require_together, traps_in, unverified

        builder = builder or self.builder or host_platform()
        image = image.on(base)
        self.require_fitting(image, target, base)
        if not self.compiles_on(builder, image, target, base):
            raise UsageError(
                f"on base `{base}` `{image.name}` is compiled inside `{image.compile.image}`, an image for the target",
                why=[f"the target is {target.platform}, this builds on {builder}"],
                hint=f"build it on a {target.platform} machine, or take another base: "
                + ", ".join(f"`{one}`" for one in dict(image.supports)[target.name] if one != base),
            )
        wheels = {name: self.wheels_lock(name) for name in self._locked(image, target)}
        found = self.refusals(image, target, base, wheels=wheels, debs=self.debs_lock)
        require_together(found, title=f"{image.name} for {target.name} on {base}")
        command = self._compile_command(image, target)
        text = self.rendered(image, target, base)
        committed = self.dockerfile_path(image, target, base)
        if not committed.exists() or committed.read_text() != text:
            raise DriftError(
                f"{committed.relative_to(self.root)} is not what its sources render to now",
                hint="look with `./noxw -s render -- --check`, accept with `./noxw -s render`, then build again",
            )
        plan = make_plan(
            image=image,
            target=target,
            base=base,
            builder=builder,
            pins=self.pins,
            wheels=wheels,
            sources=self.sources_of(image),
            components={
                one.name: self.plan(one, target, base, builder=builder).plan_id for one in self.components(image)
            },
            debs=self.debs_lock,
            dockerfile=text,
            config=image_config(image=image, target=target, base=base, pins=self.pins),
            scripts=self.script_digests(image),
            forms=(CANONICAL_FORM, ROOT_FORM),
            patches=command.patches if command else (),
            unverified=unverified(found),
            traps=traps_in(image, target, base, pins=self.pins, facts=self.facts) if self.facts else (),
        )
        require_frozen(plan, self.root)
        return plan

    def refusals(
        self,
        image: Image,
        target: Target,
        base: str,
        *,
        wheels: Mapping[str, WheelsLock] = MappingProxyType({}),
        debs: DebsLock | None = None,
    ) -> tuple[Refusal, ...]:
        """What images/compat.yaml says against a variant, by the pins alone or by their locks as well.

        () where there is no such file. Raises UsageError for a release that it does not know.
        """
        from spark_images.together import refusals

        if self.facts is None:
            return ()
        return refusals(image, target, base, pins=self.pins, facts=self.facts, wheels=wheels, debs=debs)

    def require_fitting(self, image: Image, target: Target, base: str) -> None:
        """Raise CompatError where releases do not go together for a variant, ConfigError for a variable that one lacks.

        By the pins alone: of a lock that is not made yet, or another machine, there is nothing to say then.
        """
        from spark_images.together import releases_in, require_env, require_flashinfer_env, require_together

        found = self.refusals(image, target, base)
        require_together(found, title=f"{image.name} for {target.name} on {base}")
        release = releases_in(image.on(base), self.pins).get("vllm")
        if release and self.checker:
            require_env(image, base, release, self.checker)
        if self.facts:
            require_flashinfer_env(image, target, base, pins=self.pins, facts=self.facts)

    def sources_of(self, image: Image) -> SourcesLock | None:
        """What the build of the image's own source fetches, where that is known."""
        pin = self.pins[image.compile.pin]
        return self.sources_lock(pin.name) if isinstance(pin, SdistPin) and pin.lock else None

    def components(self, image: Image) -> Iterable[Image]:
        """The images whose files become part of this one."""
        return (self.image(name) for name in image.compile.components)

    def _compile_command(self, image: Image, target: Target) -> CompileCommand | None:
        """What a build step runs to compile the image's sdist, as its release asks for it; None where no rule says."""
        from spark_images.compat.command import WITH_RULES, sdist_command

        pin = self.pins[image.compile.pin]
        if not isinstance(pin, SdistPin) or pin.project not in WITH_RULES or self.facts is None:
            return None
        cuda, ground = self.pins["cuda"], self.pins[image.compile.image] if image.compile.image else None
        assert isinstance(cuda, WheelsPin)
        provided = dict(ground.provides) if isinstance(ground, ImagePin) else {"cuda": cuda.version}
        return sdist_command(
            pin.project,
            pin.version,
            target,
            facts=self.facts,
            cuda=provided["cuda"],
            kernels=image.compile.kernels,
            image_python=provided.get("python", ""),
        )

    def _locked(self, image: Image, target: Target) -> Iterable[str]:
        uses = (use.pin for use in image.compile.wheels_for(target.name))
        installed = installed_pin(image, self.pins)
        names = (*uses, installed.name if installed else "", built_with(image, self.pins))
        return dict.fromkeys(filter(None, names))

    def script_digests(self, image: Image) -> dict[str, str]:
        """Name -> sha256 of what the image's build steps run; ConfigError where a script is not there."""
        more = (BUILD_SDISTS,) if built_with(image, self.pins) else ()
        paths = {name: self.root / "scripts" / name for name in (*image.scripts, *more)}
        if missing := [name for name, path in paths.items() if not path.is_file()]:
            why = ("it makes wheels of the sdists",) if missing[0] in more else ()
            raise ConfigError(f"{image.path}: scripts: there is no file `scripts/{missing[0]}`", why=why)
        return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}


def _named(name: str, known: tuple[Named, ...], what: str) -> Named:
    for candidate in known:
        if candidate.name == name:
            return candidate
    names = [candidate.name for candidate in known]
    raise UsageError(f"no {what} `{name}`{nearest(name, names)}", hint=f"known: {', '.join(names)}")

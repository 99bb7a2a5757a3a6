"""The plan: everything that determines an image, and the plan_id that names it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from spark_images.compat.command import Kernels
from spark_images.contents import deb_content
from spark_images.exact_json import exact_json
from spark_images.imageconfig import (
    BASE_LABEL,
    KERNELS_LABEL,
    PINS_LABEL,
    TARGET_LABEL,
    TITLE_LABEL,
    VERSION_LABEL,
    ImageConfig,
)
from spark_images.images import Image
from spark_images.ingredients import Input, inputs_of, pin_names, pins_in_words, source_of
from spark_images.locks import DebsLock, LockedDeb, WheelsLock
from spark_images.pins import (
    Content,
    DebsPin,
    ImagePin,
    Pins,
)
from spark_images.sources import SourcesLock
from spark_images.targets import Target

if TYPE_CHECKING:
    from spark_images.compat.facts import Patch, Trap

SPARK_USER = ("spark", 10001, 10001, "/home/spark")  # who the images run as: name, uid, gid, home


@dataclass(frozen=True, kw_only=True)
class Root:
    """What a stage starts FROM or copies from: a root file system of .debs, a pinned image, or a component."""

    name: str  # "build-root" or "runtime-root"
    arch: str
    debs: tuple[LockedDeb, ...]
    slim: bool  # without what no image needs: documentation, locales
    users: tuple[tuple[str, int, int, str], ...]
    folders: tuple[tuple[str, int, int], ...] = ()
    image: ImagePin | None = None  # then all above but the name and arch is empty
    component: str = ""  # the plan_id of the image that it is; then all above but the name and arch is empty


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One image x target x base at one state of the pins. Equal plan_id, equal image.

    It holds no job counts, memory limits, host names or times: they must not change the result.
    """

    image: str
    target: str
    base: str
    builder: str  # platform that compiles: "linux/amd64"
    platform: str  # platform of the image
    config: ImageConfig
    dockerfile: str  # its text
    scripts: tuple[tuple[str, str], ...]  # name -> sha256 of the file in scripts/
    inputs: tuple[Input, ...]
    roots: tuple[Root, ...]
    forms: tuple[str, ...]  # versions of what turns inputs into bytes: canonical form, root assembly
    pins: tuple[tuple[str, str], ...]  # every pin that takes part -> version and digest, for people
    unverified: tuple[str, ...]  # sentences about what nobody could check: values of pins, releases together
    deb_contents: tuple[Content, ...]  # of all roots
    patches: tuple[tuple[str, str], ...] = ()  # of the source: path in the project -> sha256
    traps: tuple[str, ...] = ()  # sentences about what goes wrong with these releases on the target

    @property
    def title(self) -> str:
        """For people: `vllm for gb10 on ngc`."""
        return f"{self.image} for {self.target} on {self.base}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person has to know before it is built, a line each; no part of the document."""
        return (*(f"unverified {one}" for one in self.unverified), *(f"trap {one}" for one in self.traps))

    @property
    def plan_id(self) -> str:
        """64 hex digits: sha256 of the canonical JSON of document()."""
        return plan_id_of(self.document())

    @property
    def contents(self) -> tuple[Content, ...]:
        """Everything that must be in the store before the build, each content once."""
        every = (*(entry.content for entry in self.inputs), *self.deb_contents)
        return tuple({content.digest: content for content in every}.values())

    def root(self, name: str) -> Root:
        """The root that stages start FROM by this name."""
        return next(root for root in self.roots if root.name == name)

    @property
    def images(self) -> tuple[tuple[ImagePin, str], ...]:
        """The pinned images that must be in the store before the build, each with the platform that is needed of it."""
        return tuple(dict.fromkeys((root.image, f"linux/{root.arch}") for root in self.roots if root.image))

    def document(self) -> dict[str, object]:
        """The plan as JSON-able data: what plan_id is taken over and what two plans are compared by."""
        patches = {"patches": dict(self.patches)} if self.patches else {}
        return {
            "image": self.image,
            "target": self.target,
            "base": self.base,
            "builder": self.builder,
            "platform": self.platform,
            "config": asdict(self.config),
            "dockerfile": self.dockerfile,
            "scripts": dict(self.scripts),
            **patches,
            "inputs": {entry.path: entry.content.digest for entry in self.inputs},
            "roots": {
                root.name: {
                    "arch": root.arch,
                    "slim": root.slim,
                    "users": [list(user) for user in root.users],
                    "folders": [list(folder) for folder in root.folders],
                    "debs": {deb.package: f"{deb.version} {deb.arch} sha256:{deb.sha256}" for deb in root.debs},
                    "image": root.image.digest if root.image else "",
                    "component": root.component,
                }
                for root in self.roots
            },
            "forms": list(self.forms),
            "pins": dict(self.pins),
        }


def image_config(*, image: Image, target: Target, base: str, pins: Pins) -> ImageConfig:
    """The image's configuration: settings of image.yaml, labels from the pins, times from the source's commit."""
    source = source_of(image, pins)
    labels = {
        BASE_LABEL: base,
        PINS_LABEL: json.dumps(dict(pins_in_words(image, target, pins)), sort_keys=True, separators=(",", ":")),
        TARGET_LABEL: target.name,
        "org.opencontainers.image.description": image.description,
        "org.opencontainers.image.licenses": image.licenses,
        "org.opencontainers.image.source": image.source_url,
        TITLE_LABEL: image.name,
        VERSION_LABEL: source.version,
    }
    if source.commit:
        labels["org.opencontainers.image.revision"] = source.commit
    if image.compile.kernels is not Kernels.SERVING:
        labels[KERNELS_LABEL] = image.compile.kernels.value
    runtime = image.runtime
    return ImageConfig(
        architecture=target.arch,
        user=runtime.user,
        env=runtime.env,
        entrypoint=runtime.entrypoint,
        command=runtime.command,
        ports=runtime.ports,
        workdir=runtime.workdir,
        stop_signal=runtime.stop_signal,
        labels=tuple(sorted(labels.items())),
        epoch=source.epoch,
    )


def make_plan(
    *,
    image: Image,
    target: Target,
    base: str,
    builder: str,
    pins: Pins,
    wheels: Mapping[str, WheelsLock],
    sources: SourcesLock | None = None,
    components: Mapping[str, str] = MappingProxyType({}),
    debs: DebsLock,
    dockerfile: str,
    config: ImageConfig,
    scripts: Mapping[str, str],
    forms: Iterable[str],
    patches: Iterable[Patch] = (),
    unverified: Iterable[str] = (),
    traps: Iterable[Trap] = (),
) -> Plan:
    """Decide everything about one image.

    builder: the platform that compiles. wheels: pin name -> lock. sources: what the source's own build fetches.
    components: image -> plan_id. scripts: name -> sha256 of the image's scripts. forms: versions of the programs that
    turn inputs into bytes. unverified: what else nobody could check. traps: of the releases on the target.
    """
    ground = build_root(image, target, builder, pins, debs)
    roots: tuple[Root, ...] = (
        ground,
        Root(
            name="runtime-root",
            arch=target.arch,
            debs=_debs(debs, image.runtime.debs, target.arch),
            slim=True,
            users=() if image.runtime.image else (SPARK_USER,),
            folders=tuple((path, *SPARK_USER[1:3]) for path in image.runtime.folders),
            image=_image_pin(image.runtime.image, pins),
        ),
    )
    if toolkit := image.compile.toolkit(target.name):
        pin = _image_pin(toolkit.image, pins)
        roots += (Root(name="toolkit", arch=ground.arch, debs=(), slim=False, users=(), image=pin),)
    for name, plan_id in components.items():
        roots += (Root(name=name, arch=target.arch, debs=(), slim=False, users=(), component=plan_id),)
    debs_pin = next(pin for pin in pins.pins if isinstance(pin, DebsPin))
    taking_part = [pins[name] for name in pin_names(image, target, pins)]
    return Plan(
        image=image.name,
        target=target.name,
        base=base,
        builder=builder,
        platform=target.platform,
        config=config,
        dockerfile=dockerfile,
        scripts=tuple(sorted(scripts.items())),
        inputs=tuple(sorted(inputs_of(image, target, builder, pins, wheels, sources), key=lambda entry: entry.path)),
        roots=roots,
        forms=tuple(forms),
        pins=pins_in_words(image, target, pins),
        unverified=(
            *(f"pin {pin.name}: {pin.unverified}" for pin in taking_part if pin.unverified),
            *unverified,
        ),
        traps=tuple(f"{trap.name}: {trap.what}; {trap.instead}" for trap in traps),
        deb_contents=tuple(deb_content(debs_pin, deb) for root in roots for deb in root.debs),
        patches=tuple((patch.path, patch.sha256) for patch in patches),
    )


def build_root(image: Image, target: Target, builder: str, pins: Pins, debs: DebsLock) -> Root:
    """What compiling stands on: the builder's, with what it takes besides where the target is another machine."""
    arch = builder.split("/")[1]
    sets = [*image.compile.debs]
    if arch != target.arch:
        sets += dict(image.compile.cross_debs).get(target.arch, ())
    return Root(
        name="build-root",
        arch=arch,
        debs=_debs(debs, sets, arch),
        slim=False,
        users=(),
        image=_image_pin(image.compile.image, pins),
    )


def plan_id_of(document: Mapping[str, object]) -> str:
    """The plan_id of a plan's document: 64 hex digits."""
    return hashlib.sha256(exact_json(document)).hexdigest()


def _image_pin(name: str, pins: Pins) -> ImagePin | None:
    pin = pins[name] if name else None
    assert pin is None or isinstance(pin, ImagePin)  # the reader has made sure
    return pin


def _debs(lock: DebsLock, sets: Iterable[str], arch: str) -> tuple[LockedDeb, ...]:
    wanted = {f"{name}/{arch}" for name in sets}
    return tuple(deb for deb in lock.debs if wanted.intersection(deb.sets))

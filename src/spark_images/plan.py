"""The plan: everything that determines an image, and the plan_id that names it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import assert_never

from spark_images.contents import deb_content, sdist_content, tree_content, wheel_content
from spark_images.errors import ConfigError
from spark_images.imageconfig import ImageConfig
from spark_images.images import Image, WheelUse
from spark_images.locks import DebsLock, LockedDeb, WheelsLock
from spark_images.pins import (
    ArchivePin,
    Content,
    DebsPin,
    GitPin,
    ImagePin,
    Pin,
    Pins,
    RequirementsPin,
    SdistPin,
    WheelsPin,
)
from spark_images.sources import SourcesLock
from spark_images.targets import Target

SPARK_USER = ("spark", 10001, 10001, "/home/spark")  # who the images run as: name, uid, gid, home


@dataclass(frozen=True, kw_only=True)
class Input:
    """One pinned content as the build sees it: a file at `path` below the context `inputs`."""

    path: str
    content: Content


@dataclass(frozen=True, kw_only=True)
class Source:
    """What an image takes its version and its time from, as its template sees it."""

    version: str
    epoch: int  # seconds since 1970 UTC
    commit: str = ""  # 40 hex digits, where it is a commit
    python: str = ""  # "3.11", where it is installed for one
    layers: tuple[str, ...] = ()  # lowest first, where it is installed in several
    without: tuple[str, ...] = ()  # files that are not installed


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
    unverified: tuple[str, ...]  # sentences about pins whose value nobody could check
    deb_contents: tuple[Content, ...]  # of all roots

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
        return {
            "image": self.image,
            "target": self.target,
            "base": self.base,
            "builder": self.builder,
            "platform": self.platform,
            "config": asdict(self.config),
            "dockerfile": self.dockerfile,
            "scripts": dict(self.scripts),
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
        "io.spark-images.base": base,
        "io.spark-images.pins": json.dumps(dict(_pins_of(image, target, pins)), sort_keys=True, separators=(",", ":")),
        "io.spark-images.target": target.name,
        "org.opencontainers.image.description": image.description,
        "org.opencontainers.image.licenses": image.licenses,
        "org.opencontainers.image.source": image.source_url,
        "org.opencontainers.image.title": image.name,
        "org.opencontainers.image.version": source.version,
    }
    if source.commit:
        labels["org.opencontainers.image.revision"] = source.commit
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
) -> Plan:
    """Decide everything about one image.

    builder: the platform that compiles. wheels: pin name -> lock. sources: what the source's own build fetches.
    components: image -> plan_id. scripts: name -> sha256 of the image's scripts. forms: versions of the programs that
    turn inputs into bytes.
    """
    builder_arch = builder.split("/")[1]
    build_sets = [*image.compile.debs]
    if builder_arch != target.arch:
        build_sets += dict(image.compile.cross_debs).get(target.arch, ())
    roots: tuple[Root, ...] = (
        Root(
            name="build-root",
            arch=builder_arch,
            debs=_debs(debs, build_sets, builder_arch),
            slim=False,
            users=(),
            image=_image_pin(image.compile.image, pins),
        ),
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
        roots += (Root(name="toolkit", arch=builder_arch, debs=(), slim=False, users=(), image=pin),)
    for name, plan_id in components.items():
        roots += (Root(name=name, arch=target.arch, debs=(), slim=False, users=(), component=plan_id),)
    debs_pin = next(pin for pin in pins.pins if isinstance(pin, DebsPin))
    taking_part = [pins[name] for name in _pin_names(image, target, pins)]
    return Plan(
        image=image.name,
        target=target.name,
        base=base,
        builder=builder,
        platform=target.platform,
        config=config,
        dockerfile=dockerfile,
        scripts=tuple(sorted(scripts.items())),
        inputs=tuple(sorted(_inputs(image, target, builder, pins, wheels, sources), key=lambda entry: entry.path)),
        roots=roots,
        forms=tuple(forms),
        pins=_pins_of(image, target, pins),
        unverified=tuple(f"{pin.name}: {pin.unverified}" for pin in taking_part if pin.unverified),
        deb_contents=tuple(deb_content(debs_pin, deb) for root in roots for deb in root.debs),
    )


def plan_id_of(document: Mapping[str, object]) -> str:
    """The plan_id of a plan's document: 64 hex digits."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """What changed between two plan documents, a sentence each, outermost cause first; empty when nothing did."""
    old, new = (json.loads(json.dumps(document)) for document in (old, new))  # one may have been read from a record
    found = []
    for key in ("pins", "scripts", "inputs", "config"):
        found += _changed(key.removesuffix("s"), _mapping(old.get(key)), _mapping(new.get(key)))
    old_roots, new_roots = _mapping(old.get("roots")), _mapping(new.get("roots"))
    for name in sorted(old_roots.keys() | new_roots.keys()):
        before, after = _mapping(old_roots.get(name)), _mapping(new_roots.get(name))
        found += _changed(f"{name} package", _mapping(before.get("debs")), _mapping(after.get("debs")))
        for option in ("arch", "slim", "users", "folders", "image", "component"):
            if (before.get(option) or "") != (after.get(option) or ""):  # older records do not have them all
                found.append(f"{name}: {option} was {before.get(option)}, is {after.get(option)}")
    for key in ("builder", "platform", "forms"):
        if old.get(key) != new.get(key):
            found.append(f"{key}: was {old.get(key)}, is {new.get(key)}")
    if old.get("dockerfile") != new.get("dockerfile"):
        found.append("Dockerfile: its text changed (template, pin or image.yaml)")
    return tuple(found)


def source_of(image: Image, pins: Pins) -> Source:
    """Where the image's version and time come from, and what is installed beside it."""
    pin, installed = pins[image.compile.pin], installed_pin(image, pins)
    if isinstance(pin, GitPin):
        return Source(version=pin.version, epoch=int(pin.committed.timestamp()), commit=pin.commit)
    if installed is None:
        assert isinstance(pin, SdistPin)
        assert pin.released is not None  # the reader has made sure of both
        return Source(version=pin.version, epoch=int(pin.released.timestamp()))
    elsewhere = {installed.requirements.layer_of(project) for project in image.compile.compiled}
    layers = (layer.name for layer in installed.requirements.layers)
    released = pin.released if isinstance(pin, SdistPin) else None
    return Source(
        version=pin.version if isinstance(pin, SdistPin) else installed.packages[0].partition("==")[2],
        epoch=int((released or installed.exclude_newer).timestamp()),
        python=installed.python,
        layers=tuple(name for name in layers if name not in elsewhere),
        without=tuple(file.name for file in installed.requirements.without),
    )


def installed_pin(image: Image, pins: Pins) -> RequirementsPin | None:
    """The pin whose wheels are installed into the image's layers."""
    pin = pins[image.compile.installs or image.compile.pin]
    return pin if isinstance(pin, RequirementsPin) else None


def _inputs(
    image: Image,
    target: Target,
    builder: str,
    pins: Pins,
    wheels: Mapping[str, WheelsLock],
    sources: SourcesLock | None,
) -> Iterable[Input]:
    for name in (image.compile.pin, *image.compile.sources):
        pin = pins[name]
        if isinstance(pin, GitPin):
            yield Input(path=f"trees/{name}.tar", content=tree_content(pin))
        elif isinstance(pin, SdistPin):
            content = sdist_content(pin)
            yield Input(path=f"sources/{content.label}", content=content)
    for source, tree in sources.contents if sources else ():
        yield Input(path=f"trees/{source.label}.tar", content=tree)
    if installed := installed_pin(image, pins):
        for wheel in wheels[installed.name].wheels:
            if wheel.project not in image.compile.compiled:
                path = f"layers/{wheel.layer}/{wheel.filename}"
                yield Input(path=path, content=wheel_content(installed.name, wheel))
    for use in image.compile.wheels_for(target.name):
        yield from wheel_inputs(image.path, use, wheels[use.pin], builder=builder, platform=target.platform)


def wheel_inputs(place: str, use: WheelUse, lock: WheelsLock, *, builder: str, platform: str) -> Iterable[Input]:
    """The wheels that a compile stands on. place: who names them, for ConfigError where the lock has none."""
    for role, of, projects in (("builder", builder, use.builder), ("target", platform, use.target)):
        for project in projects:
            found = [wheel for wheel in lock.wheels if wheel.project == project and wheel.platform in (of, "any")]
            if not found:
                raise ConfigError(f"{place}: wheels: {use.pin}: {lock.path} has no `{project}` for {of}")
            for wheel in found:
                yield Input(path=f"wheels/{role}/{wheel.filename}", content=wheel_content(use.pin, wheel))


def _image_pin(name: str, pins: Pins) -> ImagePin | None:
    pin = pins[name] if name else None
    assert pin is None or isinstance(pin, ImagePin)  # the reader has made sure
    return pin


def _debs(lock: DebsLock, sets: Iterable[str], arch: str) -> tuple[LockedDeb, ...]:
    wanted = {f"{name}/{arch}" for name in sets}
    return tuple(deb for deb in lock.debs if wanted.intersection(deb.sets))


def _pin_names(image: Image, target: Target, pins: Pins) -> tuple[str, ...]:
    compiled = image.compile
    # Of a requirements pin some wheels take part, which stand among the inputs; the rest of it may move.
    wheels = (use.pin for use in compiled.wheels_for(target.name) if isinstance(pins[use.pin], WheelsPin))
    installs = (compiled.installs,) if compiled.installs else ()
    debs = (pin.name for pin in pins.pins if isinstance(pin, DebsPin) and (compiled.debs or image.runtime.debs))
    toolkit = compiled.toolkit(target.name)
    images = (compiled.image, image.runtime.image, toolkit.image if toolkit else "")
    return tuple(dict.fromkeys((compiled.pin, *compiled.sources, *installs, *wheels, *debs, *filter(None, images))))


def _pins_of(image: Image, target: Target, pins: Pins) -> tuple[tuple[str, str], ...]:
    return tuple((name, describe_pin(pins[name])) for name in _pin_names(image, target, pins))


def describe_pin(pin: Pin) -> str:
    """A pin's value in one line: version, then what makes it exact."""
    match pin:
        case GitPin():
            return f"{pin.version} {pin.commit}"
        case SdistPin() | ArchivePin():
            return f"{pin.version} sha256:{pin.sha256}"
        case WheelsPin():
            return f"{pin.version} {' '.join(pin.packages)}"
        case DebsPin():
            return f"{pin.suite} {pin.snapshot:%Y-%m-%dT%H:%M:%SZ}"
        case ImagePin():
            return f"{pin.ref}@{pin.digest}"
        case RequirementsPin():
            return f"{' '.join(pin.packages)} {pin.exclude_newer:%Y-%m-%dT%H:%M:%SZ}"
        case _:
            assert_never(pin)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _changed(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        if key not in old:
            found.append(f"{what} `{key}`: new")
        elif key not in new:
            found.append(f"{what} `{key}`: gone")
        elif old[key] != new[key]:
            found.append(f"{what} `{key}`: was {_short(old[key])}, is {_short(new[key])}")
    return found


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

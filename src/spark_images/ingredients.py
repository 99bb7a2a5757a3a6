"""What an image is made of: its source, the inputs of its build, and the pins behind them in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import assert_never

from spark_images.contents import archive_content, sdist_content, tree_content, wheel_content
from spark_images.errors import ConfigError
from spark_images.images import Image, WheelUse
from spark_images.locks import LockedWheel, WheelsLock
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

BUILD_SDISTS = "build_sdists"  # in scripts/; the template names it where it is needed


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
    sdists: tuple[str, ...] = ()  # projects of which a build step makes the wheels
    provided: tuple[tuple[str, str], ...] = ()  # what the image that it is compiled in is known to have: name, version

    @property
    def wheels(self) -> str:
        """Where a build step finds what is installed, a folder for each layer: as it came, or beside what is built."""
        return "/build/layers" if self.sdists else "/spark/inputs/layers"


def source_of(image: Image, pins: Pins) -> Source:
    """Where the image's version and time come from, and what is installed beside it."""
    pin, installed = pins[image.compile.pin], installed_pin(image, pins)
    ground = pins[image.compile.image] if image.compile.image else None
    provided = ground.provides if isinstance(ground, ImagePin) else ()
    if isinstance(pin, GitPin):
        return Source(version=pin.version, epoch=int(pin.committed.timestamp()), commit=pin.commit)
    if installed is None:
        assert isinstance(pin, SdistPin)
        assert pin.released is not None  # the reader has made sure of both
        return Source(version=pin.version, epoch=int(pin.released.timestamp()), provided=provided)
    elsewhere = {installed.requirements.layer_of(project) for project in image.compile.compiled}
    layers = (layer.name for layer in installed.requirements.layers)
    released = pin.released if isinstance(pin, SdistPin) else None
    return Source(
        version=pin.version if isinstance(pin, SdistPin) else installed.packages[0].partition("==")[2],
        epoch=int((released or installed.exclude_newer).timestamp()),
        python=installed.python,
        layers=tuple(name for name in layers if name not in elsewhere),
        without=tuple(file.name for file in installed.requirements.without),
        sdists=tuple(one.name for one in installed.requirements.sdists if one.name not in image.compile.compiled),
        provided=provided,
    )


def installed_pin(image: Image, pins: Pins) -> RequirementsPin | None:
    """The pin whose wheels are installed into the image's layers."""
    pin = pins[image.compile.installs or image.compile.pin]
    return pin if isinstance(pin, RequirementsPin) else None


def built_with(image: Image, pins: Pins) -> str:
    """The wheels pin of what makes wheels of the image's sdists; "" where it has none."""
    installed = installed_pin(image, pins)
    return installed.build_with if installed and source_of(image, pins).sdists else ""


def inputs_of(
    image: Image,
    target: Target,
    builder: str,
    pins: Pins,
    wheels: Mapping[str, WheelsLock],
    sources: SourcesLock | None,
) -> Iterable[Input]:
    """All that build steps see of the pins. wheels: pin name -> lock. sources: what the source's own build fetches."""
    yield from compile_inputs(image, target, builder, pins, wheels, sources)
    if installed := installed_pin(image, pins):
        for wheel in wheels[installed.name].wheels:
            if wheel.project not in image.compile.compiled:
                folder = "sdists" if wheel.is_sdist else "layers"
                path = f"{folder}/{wheel.layer}/{wheel.filename}"
                yield Input(path=path, content=wheel_content(installed.name, wheel))
    if name := built_with(image, pins):
        for project in dict.fromkeys(tool.project for tool in wheels[name].wheels):
            for tool in _wheels_of(project, builder, wheels[name], place=f"{image.path}: {name}"):
                yield Input(path=f"sdist-tools/{tool.filename}", content=wheel_content(name, tool))


def compile_inputs(
    image: Image,
    target: Target,
    builder: str,
    pins: Pins,
    wheels: Mapping[str, WheelsLock],
    sources: SourcesLock | None,
) -> Iterable[Input]:
    """What the compile alone stands on."""
    for name in (image.compile.pin, *image.compile.sources):
        pin = pins[name]
        if isinstance(pin, GitPin):
            yield Input(path=f"trees/{name}.tar", content=tree_content(pin))
        elif isinstance(pin, SdistPin | ArchivePin):
            content = sdist_content(pin) if isinstance(pin, SdistPin) else archive_content(pin)
            yield Input(path=f"sources/{content.label}", content=content)
    for source, tree in sources.contents if sources else ():
        yield Input(path=f"trees/{source.label}.tar", content=tree)
    for use in image.compile.wheels_for(target.name):
        yield from _wheel_inputs(image.path, use, wheels[use.pin], builder=builder, platform=target.platform)


def _wheel_inputs(place: str, use: WheelUse, lock: WheelsLock, *, builder: str, platform: str) -> Iterable[Input]:
    for role, of, projects in (("builder", builder, use.builder), ("target", platform, use.target)):
        for project in projects:
            for wheel in _wheels_of(project, of, lock, place=f"{place}: wheels: {use.pin}"):
                yield Input(path=f"wheels/{role}/{wheel.filename}", content=wheel_content(use.pin, wheel))


def _wheels_of(project: str, platform: str, lock: WheelsLock, *, place: str) -> list[LockedWheel]:
    fitting = (wheel for wheel in lock.wheels if wheel.platform in (platform, "any") and not wheel.is_sdist)
    found = [wheel for wheel in fitting if wheel.project == project]
    if not found:
        raise ConfigError(f"{place}: {lock.path} has no wheel of `{project}` for {platform}")
    return found


def pin_names(image: Image, target: Target, pins: Pins) -> tuple[str, ...]:
    """Every pin that takes part in the image."""
    compiled = image.compile
    # Of a requirements pin some wheels take part, which stand among the inputs; the rest of it may move.
    wheels = (use.pin for use in compiled.wheels_for(target.name) if isinstance(pins[use.pin], WheelsPin))
    installing = (compiled.installs, built_with(image, pins))
    debs = (pin.name for pin in pins.pins if isinstance(pin, DebsPin) and (compiled.debs or image.runtime.debs))
    toolkit = compiled.toolkit(target.name)
    images = (compiled.image, image.runtime.image, toolkit.image if toolkit else "")
    names = (compiled.pin, *compiled.sources, *installing, *wheels, *debs, *images)
    return tuple(dict.fromkeys(filter(None, names)))


def pins_in_words(image: Image, target: Target, pins: Pins) -> tuple[tuple[str, str], ...]:
    """These, each with its value in one line."""
    return tuple((name, describe_pin(pins[name])) for name in pin_names(image, target, pins))


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

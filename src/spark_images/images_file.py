"""images/<name>/image.yaml, read: everything that it names exists, and every mistake is told at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from spark_images import forms
from spark_images.compat.command import WITH_RULES, Kernels
from spark_images.document import Section, reading
from spark_images.errors import ConfigError
from spark_images.images import AuditSpec, CompileSpec, Excuse, Image, RuntimeSpec, Toolkit, Way, WheelUse
from spark_images.pins import ArchivePin, DebsPin, GitPin, ImagePin, Pin, Pins, RequirementsPin, SdistPin, WheelsPin
from spark_images.smoke_commands import CHECKS, FIRST
from spark_images.targets import Target

BASES = ("debian", "debian-wheel", "ngc")  # `-wheel`: what the project itself released, in place of a compile

_LIBRARY = forms.matching("a library's name, as `libcudart.so.13`", r"lib[\w+-]+\.so(?:\.\d+)*")


def read_images(root: Path, *, pins: Pins, targets: tuple[Target, ...]) -> tuple[Image, ...]:
    """Every folder of images/ that has an image.yaml, by name. Raises ConfigError for the first file with mistakes."""
    files = sorted((root / "images").glob("*/image.yaml"))
    images = tuple(read_image(file, pins=pins, targets=targets) for file in files)
    supported = {(image.name, target, base) for image in images for target, bases in image.supports for base in bases}
    for image in images:
        for target, bases in image.supports:
            for base in bases:
                for component in image.on(base).compile.components:
                    if (component, target, base) not in supported:
                        raise ConfigError(
                            f"{image.path}: `{image.name}` on `{base}` has the component `{component}`,"
                            f" and no image of this name supports `{target}` on `{base}`",
                            hint=f"images: {', '.join(f'`{one.name}`' for one in images)}",
                        )
    return images


def read_image(path: Path, *, pins: Pins, targets: tuple[Target, ...]) -> Image:
    """One image; its name is its folder's. Raises ConfigError with every mistake of the file.

    What it names must exist: pins of the right kind, wheels and sets in them, targets.
    """
    with reading(path) as top:
        top.value("schema", forms.schema(1))
        name = path.parent.name
        if forms.NAME.read(name) is None:
            top.refuse("", f"the folder `{name}` is not called by {forms.NAME.expected}")
        supports = top.section("supports")
        arguments = top.section("arguments", optional=True)
        bases = top.section("bases", optional=True)
        way = _read_way(top, None, pins)
        image = Image(
            name=name,
            path=str(path),
            description=top.value("description", forms.TEXT),
            licenses=top.value("licenses", forms.LICENSES),
            source_url=top.value("source-url", forms.URL),
            template=way.template,
            scripts=way.scripts,
            supports=tuple(
                (target, supports.values(target, forms.one_of(*BASES)))
                for target in supports.names(forms.one_of(*(target.name for target in targets), what="a target,"))
            ),
            compile=way.compile,
            runtime=way.runtime,
            arguments=tuple(
                (key, arguments.value(key, forms.ARGUMENT)) for key in arguments.names(forms.ARGUMENT_NAME)
            ),
            others=tuple(
                (base, _read_way(bases.section(base), way, pins)) for base in bases.names(forms.one_of(*BASES))
            ),
            audit=_read_audit(top.section("audit", optional=True)),
            smoke=top.values("smoke", forms.one_of(*smoke_checks(path.parents[2])), optional=True),
        )
        if supports.given and supports.empty:
            top.refuse("supports", "names no target")
        _check_arches(top, image, pins, targets)
        return image


def smoke_checks(root: Path) -> tuple[str, ...]:
    """The checks that come with spark-images, then those that a project has of its own: programs in scripts/smoke."""
    programs = (path for path in sorted((root / "scripts/smoke").glob("*.py")) if '"__main__"' in path.read_text())
    return tuple(name for name in dict.fromkeys((*CHECKS, *(path.stem for path in programs))) if name != FIRST)


def _read_way(section: Section, otherwise: Way | None, pins: Pins) -> Way:
    """What the section says; what it does not say is as `otherwise`."""

    return Way(
        template=otherwise.template
        if otherwise and not section.has("template")
        else section.value("template", forms.FILE_NAME),
        scripts=otherwise.scripts
        if otherwise and not section.has("scripts")
        else section.values("scripts", forms.FILE_NAME),
        compile=otherwise.compile
        if otherwise and not section.has("compile")
        else _read_compile(section.section("compile"), pins),
        runtime=otherwise.runtime
        if otherwise and not section.has("runtime")
        else _read_runtime(section.section("runtime"), pins),
    )


def _read_compile(section: Section, pins: Pins) -> CompileSpec:
    cross_debs = section.section("cross-debs", optional=True)
    wheels = section.section("wheels", optional=True)
    toolkits = section.section("toolkits", optional=True)
    source = section.value("source", _pin_of(pins, "git, sdist or requirements", GitPin, SdistPin, RequirementsPin))
    return CompileSpec(
        pin=source,
        **_stands_on(section, pins),
        cross_debs=tuple((arch, cross_debs.values(arch, _deb_set(pins))) for arch in cross_debs.names(forms.ARCH)),
        wheels=tuple(
            _read_wheels(wheels.section(name), name, pins)
            for name in wheels.names(_pin_of(pins, "wheels or requirements", WheelsPin, RequirementsPin))
        ),
        gib_per_job=section.value("gib-per-job", forms.GIB),
        toolkits=tuple(_read_toolkit(toolkits.section(name), name, pins) for name in toolkits.names(forms.NAME)),
        installs=section.optional("installs", _pin_of(pins, "requirements", RequirementsPin), ""),
        compiled=section.values("compiled", forms.PROJECT, optional=True),
        components=section.values("components", forms.NAME, optional=True),
        kernels=_read_kernels(section, source, pins),
        sources=section.values(
            "sources", _pin_of(pins, "git, sdist or archive", GitPin, SdistPin, ArchivePin), optional=True
        ),
    )


def _read_kernels(section: Section, source: str, pins: Pins) -> Kernels:
    if not section.has("kernels") or not source:  # a wrong source has been told
        return Kernels.SERVING
    pin = pins[source]
    choices = WITH_RULES.get(pin.project, ()) if isinstance(pin, SdistPin) else ()
    if not choices:
        section.refuse("kernels", f"`{source}` leaves no choice of kernels; sdists of {' and '.join(WITH_RULES)} do")
        return Kernels.SERVING
    return Kernels(section.value("kernels", forms.one_of(*(one.value for one in choices))) or Kernels.SERVING)


def _read_toolkit(section: Section, target: str, pins: Pins) -> Toolkit:
    return Toolkit(
        target=target,
        image=section.value("image", _pin_of(pins, "image", ImagePin)),
        instead_of=section.value("instead-of", _pin_of(pins, "wheels", WheelsPin)),
    )


def _read_wheels(section: Section, name: str, pins: Pins) -> WheelUse:
    pin = pins[name]
    project = forms.PROJECT  # of a requirements pin only the lock knows them
    if isinstance(pin, WheelsPin):
        project = forms.one_of(*(package.partition("==")[0] for package in pin.packages))
    return WheelUse(
        pin=name,
        builder=section.values("builder", project, optional=True),
        target=section.values("target", project, optional=True),
    )


def _read_runtime(section: Section, pins: Pins) -> RuntimeSpec:
    env = section.section("env", optional=True)
    if section.given and not (section.has("entrypoint") or section.has("command")):
        section.refuse("entrypoint", "is not there, and no `command`: nothing would start")
    return RuntimeSpec(
        **_stands_on(section, pins),
        user=section.value("user", forms.USER),
        env=tuple((name, env.value(name, forms.ENV_VALUE)) for name in env.names(forms.ENV_NAME)),
        folders=section.values("folders", forms.ABSOLUTE_PATH, optional=True),
        entrypoint=section.values("entrypoint", forms.WORD, optional=True, distinct=False),
        command=section.values("command", forms.WORD, optional=True, distinct=False),
        ports=section.values("ports", forms.PORT, optional=True),
        workdir=section.value("workdir", forms.ABSOLUTE_PATH),
        stop_signal=section.value("stop-signal", forms.STOP_SIGNAL),
    )


def _read_audit(section: Section) -> AuditSpec:
    def excuses(key: str, name: str, form: forms.Form[str]) -> tuple[Excuse, ...]:
        entries = (item.section() for item in section.items(key))
        return tuple(Excuse(pattern=one.value(name, form), because=one.value("because", forms.TEXT)) for one in entries)

    return AuditSpec(
        never_called=excuses("never-called", "path", forms.PATH_PATTERN),
        absent=excuses("absent", "distribution", forms.PROJECT),
        brought=excuses("brought", "library", _LIBRARY),
    )


class _Ground(TypedDict):
    debs: tuple[str, ...]
    image: str


def _stands_on(section: Section, pins: Pins) -> _Ground:
    if section.has("image") and section.has("debs"):
        section.refuse("image", "beside `debs`: it stands on one or on the other")
    if section.has("image"):
        return {"debs": (), "image": section.value("image", _pin_of(pins, "image", ImagePin))}
    return {"debs": section.values("debs", _deb_set(pins)), "image": ""}


def _pin_of(pins: Pins, kind: str, *classes: type[Pin]) -> forms.Form[str]:
    return forms.one_of(*(pin.name for pin in pins.pins if isinstance(pin, classes)), what=f"a pin of kind {kind},")


def _deb_set(pins: Pins) -> forms.Form[str]:
    return forms.one_of(*(name for name, _ in _arches_of_sets(pins)), what="a set of the debs pin,")


def _arches_of_sets(pins: Pins) -> Iterable[tuple[str, tuple[str, ...]]]:
    return ((entry.name, entry.arches) for pin in pins.pins if isinstance(pin, DebsPin) for entry in pin.sets)


def _check_arches(top: Section, image: Image, pins: Pins, targets: tuple[Target, ...]) -> None:
    arches = dict(_arches_of_sets(pins))
    sources = {pin.name: pin for pin in pins.pins}
    platforms = {target.name: target for target in targets}
    for name, bases in image.supports:
        for base in bases if name in platforms else ():
            target, made = platforms[name], image.on(base)
            for debs in made.runtime.debs:
                if target.arch not in arches.get(debs, (target.arch,)):
                    top.refuse("runtime", f"set `{debs}` is not resolved for {target.arch}, which target `{name}` is")
            named = (made.compile.pin, made.compile.installs, *(use.pin for use in made.compile.wheels_for(name)))
            for pin in dict.fromkeys(map(sources.get, named)):
                if isinstance(pin, RequirementsPin) and pin.platform != target.platform:
                    text = f"`{pin.name}` is resolved for {pin.platform}; `{name}` is {target.platform}"
                    top.refuse("compile", text)
            installed = sources.get(made.compile.installs or made.compile.pin)
            if isinstance(installed, RequirementsPin) and installed.base != made.runtime.image:
                on = (
                    f"`{one}`" if one else "an image of Debian packages" for one in (installed.base, made.runtime.image)
                )
                top.refuse(
                    "compile", f"`{installed.name}` is resolved for {next(on)}; on base `{base}` this is {next(on)}"
                )
            source, ground = sources.get(made.compile.pin), sources.get(made.compile.image)
            if isinstance(source, SdistPin) and isinstance(ground, ImagePin):
                for what in sorted({"cuda", "python"}.difference(dict(ground.provides))):
                    top.refuse("compile", f"`{ground.name}` does not say under `provides` which {what} it has")
            if isinstance(source, SdistPin) and source.released is None:
                top.refuse(
                    "compile", f"`{source.name}` has no time: `released` in pins.yaml says when the index got it"
                )

"""pins.yaml, read and validated once."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TypedDict

from spark_images import forms
from spark_images.document import Item, Section, reading
from spark_images.pins import (
    ArchivePin,
    ArchiveRoute,
    DebSet,
    DebsPin,
    GitPin,
    GitRoute,
    Hold,
    ImagePin,
    Pin,
    Pins,
    RequirementsPin,
    SdistPin,
    SdistRoute,
    TreeRoute,
    UrlRoute,
    WheelsPin,
)
from spark_images.requirements import Requirements, read_requirements

FRONTEND = "build"  # pypa/build


class _Common(TypedDict):
    name: str
    line: int
    unverified: str
    hold: Hold | None
    verified: date | None


def read_pins(path: Path) -> Pins:
    """The pins of a project. Raises ConfigError with every mistake of the file, each with line and key."""
    with reading(path, if_missing="run this in a clone of a spark-images project; its pins stand there") as top:
        top.value("schema", forms.schema(1))
        pins: list[Pin] = []
        resolved: list[tuple[RequirementsPin, Section]] = []
        for name in top.names(forms.NAME):
            section = top.section(name)
            pin = _read_pin(name, section, path.parent)
            if isinstance(pin, DebsPin) and any(isinstance(other, DebsPin) for other in pins):
                section.refuse("kind", "a second pin of kind `debs`; all images take their packages from one")
            if pin is not None:
                pins.append(pin)
                if isinstance(pin, RequirementsPin):
                    resolved.append((pin, section))
        releases = {pin.name: f"{pin.project}=={pin.version}" for pin in pins if isinstance(pin, SdistPin)}
        bases = {pin.name: dict(pin.provides) for pin in pins if isinstance(pin, ImagePin)}
        tools = {pin.name: pin for pin in pins if isinstance(pin, WheelsPin)}
        for pin, section in resolved:
            named = section.values("for", forms.one_of(*releases, what="a pin of kind sdist,"))
            added = (f"{one.name}=={one.version}" for one in pin.requirements.additions)
            packages = (*(releases[name] for name in named if name), *added)
            build_with = section.optional("build-with", forms.one_of(*tools, what="a pin of kind wheels,"), "")
            _check_sdists(pin, tools.get(build_with), section)
            base = section.optional("on", forms.one_of(*bases, what="a pin of kind image,"), "")
            provides = bases.get(base, {})
            if provides.get("python", pin.python) != pin.python:
                section.refuse("python", f"`{base}` has Python {provides['python']}")
            provided = tuple(one for one in provides.items() if one[0] not in ("cuda", "python"))
            for name, version in provided:
                if forms.RELEASE.read(version) is None:
                    section.refuse("on", f"`{base}` provides {name} {version}, which is no version of a Python project")
            pins[pins.index(pin)] = replace(pin, packages=packages, build_with=build_with, base=base, provided=provided)
        return Pins(path=str(path), pins=tuple(pins))


def _read_pin(name: str, section: Section, root: Path) -> Pin | None:
    if not section.given:
        return None
    kind = section.value("kind", _KIND)
    common = _Common(
        name=name,
        line=section.line,
        unverified=section.optional("unverified", forms.TEXT, ""),
        hold=_read_hold(section),
        verified=section.optional("verified", _VERIFIED, None),
    )
    match kind:
        case "image":
            provides = section.section("provides", optional=True)
            return ImagePin(
                **common,
                ref=section.value("ref", forms.IMAGE_REF),
                digest=section.value("digest", forms.DIGEST),
                provides=tuple((key, provides.value(key, forms.VERSION)) for key in provides.names(forms.NAME)),
            )
        case "git":
            url, commit = section.value("url", forms.URL), section.value("commit", forms.COMMIT)
            return GitPin(
                **common,
                url=url,
                version=section.value("version", forms.VERSION),
                commit=commit,
                committed=section.value("committed", forms.TIME),
                tree=section.value("tree", forms.DIGEST),
                paths=section.values("paths", forms.RELATIVE_PATH, optional=True),
                follow=section.optional("follow", forms.FOLLOWED_REFS, ""),
                routes=read_tree_routes(section, GitRoute(url=url, commit=commit)),
            )
        case "archive":
            return ArchivePin(
                **common,
                version=section.value("version", forms.VERSION),
                sha256=section.value("sha256", forms.SHA256),
                routes=tuple(UrlRoute(url=url) for url in section.values("urls", forms.URL)),
            )
        case "sdist":
            return SdistPin(
                **common,
                project=section.value("name", forms.PROJECT),
                version=section.value("version", forms.VERSION),
                sha256=section.value("sha256", forms.SHA256),
                released=section.value("released", forms.TIME) if section.has("released") else None,
                path=section.optional("path", forms.RELATIVE_PATH, ""),
                lock=section.optional("lock", forms.RELATIVE_PATH, ""),
            )
        case "wheels":
            return WheelsPin(
                **common,
                version=section.value("version", forms.VERSION),
                lock=section.value("lock", forms.RELATIVE_PATH),
                platforms=section.values("platforms", forms.PLATFORM),
                packages=_read_packages(section),
            )
        case "debs":
            return DebsPin(
                **common,
                suite=section.value("suite", forms.SUITE),
                lock=section.value("lock", forms.RELATIVE_PATH),
                snapshot=section.value("snapshot", forms.TIME),
                routes=section.values("routes", forms.DEB_ROUTE),
                sets=_read_deb_sets(section),
            )
        case "requirements":
            return RequirementsPin(
                **common,
                lock=section.value("lock", forms.RELATIVE_PATH),
                platform=section.value("platform", forms.PLATFORM),
                python=section.value("python", forms.PYTHON),
                exclude_newer=section.value("exclude-newer", forms.TIME),
                packages=(),  # known when all pins are read
                requirements=_read_requirements(section, root),
            )
        case _:
            section.abandon()  # the kind is missing or wrong, so nobody knows what belongs here
            return None


_VERIFIED: forms.Form[date | None] = forms.Form(forms.DATE.expected, forms.DATE.read, None)
_KIND = forms.one_of("image", "git", "archive", "sdist", "wheels", "debs", "requirements")


def _read_hold(section: Section) -> Hold | None:
    hold = section.section("hold", optional=True)
    if not hold.given:
        return None
    return Hold(until=hold.value("until", forms.DATE), because=hold.value("because", forms.TEXT))


def _check_sdists(pin: RequirementsPin, tools: WheelsPin | None, section: Section) -> None:
    """What makes wheels of sdists is named where there are some, and nowhere else."""
    path, sdists = pin.requirements.path, ", ".join(one.name for one in pin.requirements.sdists)
    if tools is None:
        if sdists and not section.has("build-with"):
            section.refuse("build-with", f"missing: {path} has sdists ({sdists}), and this pin of wheels builds them")
    elif not sdists:
        section.refuse("build-with", f"{path} has no sdists, so there is nothing to build")
    elif FRONTEND not in (package.partition("==")[0] for package in tools.packages):
        section.refuse("build-with", f"`{tools.name}` has no `{FRONTEND}`, the program that makes wheels of sdists")


def _read_requirements(section: Section, root: Path) -> Requirements:
    path = section.value("requirements", forms.RELATIVE_PATH)
    if path and (root / path).is_file():
        return read_requirements(root / path)
    if path:
        section.refuse("requirements", f"there is no file `{path}`")
    return Requirements(path=path, layers=())


def read_tree_routes(section: Section, git: GitRoute | None) -> tuple[TreeRoute, ...]:
    """The key `routes` of a pin or a lock's entry. git: what `git` means in it, the only route where the key is not."""
    routes: list[TreeRoute] = []
    for item in section.items("routes"):
        if route := _read_tree_route(item, git):
            routes.append(route)
        else:
            section.refuse("routes", "`git` without a `commit` to be had by it")
    return tuple(routes) or ((git,) if git else ())


def _read_tree_route(item: Item, git: GitRoute | None) -> TreeRoute | None:
    if item.is_scalar:
        item.value(forms.one_of("git", what="`{archive: URL}`, `{sdist: name==version}` or"))
        return git
    route = item.section()
    path = route.optional("path", forms.RELATIVE_PATH, "")
    if route.has("sdist"):
        project, _, version = route.value("sdist", forms.PACKAGE).partition("==")
        return SdistRoute(project=project, version=version, path=path)
    return ArchiveRoute(url=route.value("archive", forms.URL), path=path)


def _read_packages(section: Section) -> tuple[str, ...]:
    packages = section.values("packages", forms.PACKAGE)
    projects = [package.partition("==")[0] for package in packages]
    for project in {project for project in projects if project and projects.count(project) > 1}:
        section.refuse("packages", f"`{project}` stands in it at two versions")
    return packages


def _read_deb_sets(section: Section) -> tuple[DebSet, ...]:
    sets = section.section("sets")
    return tuple(
        DebSet(
            name=name,
            packages=(entry := sets.section(name)).values("packages", forms.DEB_PACKAGE),
            arches=entry.values("arches", forms.ARCH),
            without=entry.values("without", forms.DEB_PACKAGE, optional=True),
        )
        for name in sets.names(forms.NAME)
    )

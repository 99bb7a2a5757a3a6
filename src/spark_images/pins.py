"""pins.yaml: every external input, exact. Read and validated once, into frozen values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import TypeAlias, TypedDict

from spark_images import forms
from spark_images.document import Item, Section, reading
from spark_images.requirements import Requirements, read_requirements

# --- routes: where a pinned content can be had ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UrlRoute:
    """A file at an address (http, https or file)."""

    url: str


@dataclass(frozen=True, kw_only=True)
class IndexRoute:
    """A file of a project on a Python package index, found by the simple API (PEP 503, PEP 691)."""

    project: str
    filename: str


@dataclass(frozen=True, kw_only=True)
class GitRoute:
    """The tree of one commit of a git repository."""

    url: str
    commit: str  # 40 hex digits


@dataclass(frozen=True, kw_only=True)
class ArchiveRoute:
    """A tarball with one top folder; the tree is that folder, or what lies below `path` in it."""

    url: str
    path: str = ""


@dataclass(frozen=True, kw_only=True)
class SdistRoute:
    """An sdist on a package index; the tree is its top folder, or what lies below `path` in it."""

    project: str
    version: str
    path: str = ""


FileRoute: TypeAlias = UrlRoute | IndexRoute
TreeRoute: TypeAlias = GitRoute | ArchiveRoute | SdistRoute


@dataclass(frozen=True, kw_only=True)
class FileContent:
    """One file that a pin or a lock names by its sha256."""

    pin: str  # the pin's name in pins.yaml
    label: str  # what a person sees: the file's name
    digest: str  # "sha256:<64 hex digits>" of the file
    size_bytes: int | None  # None where the pin does not say
    routes: tuple[FileRoute, ...]


@dataclass(frozen=True, kw_only=True)
class TreeContent:
    """One source tree; its digest is that of the canonical tar that tree.py writes, whatever route served it."""

    pin: str
    label: str
    digest: str  # "sha256:<64 hex digits>" of the canonical tar
    paths: tuple[str, ...]  # the parts of the tree that count; empty: all of it
    without: tuple[str, ...] = ()  # parts that do not count: submodules, which are contents of their own
    routes: tuple[TreeRoute, ...]


Content: TypeAlias = FileContent | TreeContent

# --- pins -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why a pin must not move for now."""

    until: date
    because: str


@dataclass(frozen=True, kw_only=True)
class _Pin:
    name: str  # the key in pins.yaml
    line: int  # where in pins.yaml, from 1
    unverified: str = ""  # where the value was read, if it could not be checked against upstream
    hold: Hold | None = None
    verified: date | None = None  # when images at this value were last built and tested by `update-pins --verify`


@dataclass(frozen=True, kw_only=True)
class ImagePin(_Pin):
    """A container image by manifest (or index) digest."""

    ref: str
    digest: str
    provides: tuple[tuple[str, str], ...] = ()  # what is known to be in it: (("torch", "2.10.0a0"), …)


@dataclass(frozen=True, kw_only=True)
class GitPin(_Pin):
    """A source tree of a git repository."""

    url: str
    version: str
    commit: str  # 40 hex digits
    committed: datetime  # UTC; gives SOURCE_DATE_EPOCH
    tree: str  # "sha256:…", see TreeContent
    paths: tuple[str, ...] = ()
    follow: str = ""  # the refs among which newer versions are, e.g. "tags/b*"
    routes: tuple[TreeRoute, ...]


@dataclass(frozen=True, kw_only=True)
class ArchivePin(_Pin):
    """A file (tarball, patch, …) at one or more addresses."""

    version: str
    sha256: str  # 64 hex digits
    routes: tuple[UrlRoute, ...]


@dataclass(frozen=True, kw_only=True)
class SdistPin(_Pin):
    """A source distribution on a package index."""

    project: str
    version: str
    sha256: str
    released: datetime | None = None  # UTC; when the index got it; gives SOURCE_DATE_EPOCH
    path: str = ""  # the part of it that is used, below its top folder
    lock: str = ""  # where the sources stand that its build fetches; path from the project's root


@dataclass(frozen=True, kw_only=True)
class WheelsPin(_Pin):
    """Wheels at exact versions; their files and hashes stand in the lock."""

    version: str
    lock: str  # path from the project's root
    platforms: tuple[str, ...]  # "linux/amd64", "linux/arm64"
    packages: tuple[str, ...]  # "nvidia-cuda-nvcc==13.0.88"


@dataclass(frozen=True, kw_only=True)
class DebSet:
    """Packages that are wanted together; the lock adds what they depend on."""

    name: str
    packages: tuple[str, ...]
    arches: tuple[str, ...]  # Debian's names: "amd64", "arm64"
    without: tuple[str, ...] = ()  # dependencies that are left out all the same


@dataclass(frozen=True, kw_only=True)
class DebsPin(_Pin):
    """Debian packages of one suite at one moment; their files and hashes stand in the lock."""

    suite: str
    lock: str
    snapshot: datetime  # UTC
    routes: tuple[str, ...]  # URL templates with {archive}, {path} and, for snapshot archives, {snapshot}
    sets: tuple[DebSet, ...]


@dataclass(frozen=True, kw_only=True)
class RequirementsPin(_Pin):
    """What releases need at run time on one platform, resolved; the wheels and their hashes stand in the lock."""

    lock: str
    platform: str  # "linux/arm64"
    python: str  # "3.11"
    exclude_newer: datetime  # UTC; files that an index got later do not count
    packages: tuple[str, ...]  # the releases of the sdist pins in `for`, "vllm==0.20.2", and then the additions
    requirements: Requirements


Pin: TypeAlias = ImagePin | GitPin | ArchivePin | SdistPin | WheelsPin | DebsPin | RequirementsPin


@dataclass(frozen=True, kw_only=True)
class Pins:
    """All pins of a project, in the order of pins.yaml."""

    path: str  # as it was given, for messages
    pins: tuple[Pin, ...]

    def __getitem__(self, name: str) -> Pin:
        return next(pin for pin in self.pins if pin.name == name)


# --- reading ----------------------------------------------------------------------------------------------------------


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
        for pin, section in resolved:
            named = section.values("for", forms.one_of(*releases, what="a pin of kind sdist,"))
            added = (f"{one.name}=={one.version}" for one in pin.requirements.additions)
            pins[pins.index(pin)] = replace(pin, packages=(*(releases[name] for name in named if name), *added))
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

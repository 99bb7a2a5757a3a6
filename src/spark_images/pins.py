"""Every external input of a project, exact: the values that pins.yaml becomes (pins_file)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import TypeAlias

from spark_images.errors import UsageError, did_you_mean
from spark_images.requirements import Requirements

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
    build_with: str = ""  # the wheels pin of what makes wheels of the sdists among them
    base: str = ""  # the image pin of what they are installed on, where that has some of it itself
    provided: tuple[tuple[str, str], ...] = ()  # the Python distributions that it is known to have, torch among them

    @property
    def base_torch(self) -> tuple[str, ...]:
        """What the base has of torch: which is asked for does not count, as a build on the base's drops that."""
        return tuple(name for name, _ in self.provided if "torch" in name)

    @property
    def departed(self) -> frozenset[str]:
        """Projects of which the image may have another version than is asked for, or none."""
        apart = (*self.requirements.overrides, *self.requirements.exclusions)
        return frozenset((*(one.name for one in apart), *self.base_torch))


Pin: TypeAlias = ImagePin | GitPin | ArchivePin | SdistPin | WheelsPin | DebsPin | RequirementsPin


@dataclass(frozen=True, kw_only=True)
class Pins:
    """All pins of a project, in the order of pins.yaml."""

    path: str  # as it was given, for messages
    pins: tuple[Pin, ...]

    def __getitem__(self, name: str) -> Pin:
        return next(pin for pin in self.pins if pin.name == name)

    def chosen(self, names: Sequence[str]) -> tuple[Pin, ...]:
        """The pins that a user names, all where he names none; UsageError for an unknown name."""
        known = [pin.name for pin in self.pins]
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f"the pins: {', '.join(known)}"
                raise UsageError(f"there is no pin `{name}`", hint=hint)
        return tuple(pin for pin in self.pins if not names or pin.name in names)

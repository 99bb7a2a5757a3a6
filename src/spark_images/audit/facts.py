"""What an audit knows of its subject, as values: read by the rim, judged by the checks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from spark_images.compat.build import Component
from spark_images.cuda_arch import Capability, Module, parse_arch
from spark_images.imagechecks import Tree
from spark_images.images import Excuse
from spark_images.targets import Target


@dataclass(frozen=True, kw_only=True)
class Library:
    """One file with GPU code."""

    path: str
    modules: tuple[Module, ...] = ()
    problem: str = ""  # why its code could not be read


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """One line of a distribution's RECORD."""

    path: str  # absolute, as in the image
    sha256: str = ""  # hex; "" where RECORD says nothing, as of itself and of bytecode
    size_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """An installed Python distribution, or a wheel: its dist-info folder."""

    name: str  # as an index normalises it: "flash-attn"
    version: str
    info: str  # the folder
    files: tuple[Recorded, ...] = ()  # () where there is no RECORD: Debian's own packages have none
    entry_points: tuple[tuple[str, str], ...] = ()  # of console_scripts: name -> "module:function"
    requires: tuple[str, ...] = ()  # what it asks for at run time: "numpy>=2; python_version < '3.12'"

    @property
    def site(self) -> str:
        """The folder that Python imports from."""
        return self.info.rpartition("/")[0]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """An image's configuration."""

    platform: str  # "linux/arm64", of the config
    indexed: str = ""  # the platform that the index gives the manifest; "" where it gives none
    env: tuple[tuple[str, str], ...] = ()
    user: str = ""
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()  # "8080/tcp"
    history: tuple[str, ...] = ()  # the commands that made the layers
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The Python files that the entry points of the distributions come to import, read but not run."""

    read: int = 0
    missing: tuple[str, ...] = ()  # entry points whose module is not there
    refused: tuple[tuple[str, str], ...] = ()  # file -> why it does not compile
    newest: tuple[int, int] = (3, 11)  # the Python whose grammar was used


@dataclass(frozen=True, kw_only=True, eq=False)  # equal only to itself, so that what is computed of it can be kept
class Subject:
    """What is audited. Paths are absolute, those of a wheel as if it were unpacked in /."""

    name: str
    target: Target
    tree: Tree
    settings: Settings | None = None  # None: a wheel
    wheel_platforms: tuple[str, ...] = ()  # of a wheel: "linux/arm64", none where it is for any
    libraries: tuple[Library, ...] = ()
    digests: Mapping[str, str] = field(default_factory=dict)  # path -> sha256 of its content, in hex
    distributions: tuple[Distribution, ...] = ()
    loader_cache: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # soname -> paths of /etc/ld.so.cache
    secrets: tuple[tuple[str, str], ...] = ()  # where -> what kind
    texts: Mapping[str, str] = field(default_factory=dict)  # path -> content of the few files that checks read
    marked: Mapping[str, frozenset[str]] = field(default_factory=dict)  # ptxas -> the architectures that it knows
    stale_bytecode: tuple[str, ...] = ()  # .pyc that compare the time of their source
    sources: Sources = Sources()
    # Of an image of this repository:
    meant: frozenset[tuple[str, str]] = frozenset()  # variables that its image.yaml sets, with their values
    never_called: tuple[Excuse, ...] = ()
    absent: tuple[Excuse, ...] = ()  # distributions
    brought: tuple[Excuse, ...] = ()  # libraries of the images that take its files
    locked: tuple[tuple[str, str], ...] | None = None  # project -> version of what its lock installs
    departed: frozenset[str] = frozenset()  # projects of which it may lack what others ask for
    given: tuple[tuple[str, str], ...] = ()  # likewise, public version, of the image that it stands on
    stands_on: bool = False  # an image with distributions of its own, more than those of `given`
    predicted: tuple[Component, ...] = ()  # what its compile of vLLM is to hold
    unknown_variables: tuple[str, ...] = ()  # of its environment: what the release does not know

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """The variables of its configuration; () of a wheel."""
        return self.settings.env if self.settings else ()

    def variable(self, name: str) -> str:
        """The value of a variable, the last one where it is set twice; "" where it is not set."""
        return dict(self.env).get(name, "")

    @property
    def gpu(self) -> Capability | None:
        """The target's compute capability; None where it has no GPU."""
        return parse_arch(self.target.compute_capability).capability if self.target.compute_capability else None


def excused(subject: Subject, path: str) -> bool:
    """Whether image.yaml says that nothing on the target ever calls this file. What cannot be read is not excused."""
    return any(fnmatchcase(path, one.pattern) for one in subject.never_called)

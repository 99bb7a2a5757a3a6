"""The lock of a release's sources: the trees that its build would fetch, exact, and where each can be had."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from spark_images import forms
from spark_images.compat.build import CUTLASS
from spark_images.compat.facts import Facts
from spark_images.compat.release import Source, vllm_release
from spark_images.document import Section, reading
from spark_images.errors import ConfigError, StaleLockError
from spark_images.locks import REMAKE, find_change, stated_made_from, with_entries_digest
from spark_images.pins import GitRoute, Pins, SdistPin, SdistRoute, TreeContent, TreeRoute
from spark_images.pins_file import read_tree_routes
from spark_images.yaml_nodes import read_text

CUTLASS_PATHS = ("include", "tools/util/include")  # all that is used of it, and all that the carrier has of it
CARRIER = "flashinfer-python"  # a project whose sdists carry a CUTLASS, and where in them it lies
CARRIED_AT = "3rdparty/cutlass"


@dataclass(frozen=True, kw_only=True)
class LockedSource:
    """One tree: a repository that the build would fetch, or a submodule of one."""

    name: str  # of the repository, as images/compat.yaml has it
    at: str = ""  # where in that repository the submodule stands; "" for the repository itself
    url: str = ""  # "" for a submodule of a tree that nobody has seen yet
    ref: str = ""  # tag or commit, as the release names it; "" for a submodule
    commit: str = ""  # 40 hex digits; "" where nobody knows it
    tree: str = ""  # "sha256:…", see TreeContent; "" as long as no route has shown the tree
    paths: tuple[str, ...] = ()
    without: tuple[str, ...] = ()  # its submodules: entries of their own where the build needs them
    routes: tuple[TreeRoute, ...] = ()
    unverified: str = ""  # what nobody could check, and why

    @property
    def label(self) -> str:
        """`deepgemm`, `deepgemm/third-party/fmt`."""
        return f"{self.name}/{self.at}" if self.at else self.name


@dataclass(frozen=True, kw_only=True)
class SourcesLock:
    """The sources behind one SdistPin, each repository before its submodules."""

    path: str
    pin: str
    made_from: str
    sources: tuple[LockedSource, ...]

    @property
    def unverified(self) -> tuple[str, ...]:
        """Sentences about what nobody could check, for people."""
        return tuple(f"{source.label}: {source.unverified}" for source in self.sources if source.unverified)

    @property
    def contents(self) -> tuple[tuple[LockedSource, TreeContent], ...]:
        """What to fetch: every tree that is known."""
        return tuple((source, _content(self.pin, source)) for source in self.sources if source.tree)

    def require_trees(self) -> None:
        """Raise ConfigError if a tree is not known: planning goes without it, building an image does not."""
        missing = [source for source in self.sources if not source.tree]
        if missing:
            raise ConfigError(
                f"{self.path}: {len(missing)} of {len(self.sources)} sources are not yet verified, so nothing is built",
                why=[f"`{source.label}`: {source.unverified}" for source in missing],
                hint=f"run `./noxw -s lock -- {self.pin}` where these hosts are reached, and commit the lock",
            )


@dataclass(frozen=True, kw_only=True)
class SourcesInput:
    """What a lock of sources is made from."""

    pin: SdistPin  # the release
    sources: tuple[Source, ...]  # what is written down of it
    carrier: SdistPin | None  # an sdist that carries the CUTLASS of this release

    @property
    def digest(self) -> str:
        """`sha256:…` over all of it."""
        sdists = [one and [one.project, one.version, one.sha256] for one in (self.pin, self.carrier)]
        sources = [[one.name, one.url, one.ref, one.commit, paths_of(one), one.submodules] for one in self.sources]
        return "sha256:" + hashlib.sha256(json.dumps([sdists, sources]).encode()).hexdigest()


def sources_input(pin: SdistPin, *, pins: Pins, facts: Facts) -> SourcesInput:
    """What the lock behind `pin` is made from. UsageError for a release that images/compat.yaml does not know."""
    if pin.project != "vllm":
        place = f"{pins.path}:{pin.line}: {pin.name}.lock"
        raise ConfigError(f"{place}: only of vllm it is known what its build fetches, not of `{pin.project}`")
    sources = vllm_release(facts.vllm, pin.version).sources
    cutlass = {source.ref for source in sources if source.name == CUTLASS}
    carriers = (
        other
        for other in pins.pins
        if isinstance(other, SdistPin)
        and other.project == CARRIER
        and (version := Version(other.version)) in facts.flashinfer.releases
        and facts.flashinfer.cutlass.at(version).value in cutlass
    )
    return SourcesInput(pin=pin, sources=sources, carrier=next(carriers, None))


def paths_of(source: Source) -> tuple[str, ...]:
    """The parts of its tree that count; empty: all of it."""
    if source.name == CUTLASS:
        return CUTLASS_PATHS
    return (source.folder,) if source.folder else ()


def carrier_route(carrier: SdistPin) -> SdistRoute:
    """The route to CUTLASS by an sdist that carries it."""
    return SdistRoute(project=carrier.project, version=carrier.version, path=CARRIED_AT)


def read_sources_lock(path: Path, made: SourcesInput) -> SourcesLock:
    """The sources of a release, every one that is written down of it.

    Raises StaleLockError when the lock was made from something else or is not as it was written, ConfigError for every
    mistake in it.
    """
    name = made.pin.name
    text = read_text(path, if_missing=REMAKE.format(name))
    if change := find_change(path, text, hint=REMAKE.format(name)):
        _require_made_from(path, stated_made_from(text), made)
        raise change
    with reading(path, text=text) as top:
        made_from = _read_head(top)
        _require_made_from(path, made_from, made)
        sources = _read_sources(top)
        found = {source.label for source in sources}
        for stated in made.sources:
            for label in (stated.name, *(f"{stated.name}/{at}" for at in stated.submodules)):
                if label not in found:
                    top.refuse("sources", f"there is none of `{label}`: {REMAKE.format(name)}")
    return SourcesLock(path=str(path), pin=name, made_from=made_from, sources=sources)


def read_known_trees(path: Path) -> tuple[LockedSource, ...]:
    """The sources of a lock whatever it was made from, for those whose trees were seen. Errors as above.

    One that was written before locks had a digest is taken as it is.
    """
    text = read_text(path)
    if change := find_change(path, with_entries_digest(text)):
        raise change
    with reading(path, text=text) as top:
        _read_head(top)
        return _read_sources(top)


def _content(pin: str, source: LockedSource) -> TreeContent:
    label = f"{source.label} {source.ref[:12] or source.commit[:12]}"
    return TreeContent(
        pin=pin,
        label=label,
        digest=source.tree,
        paths=source.paths,
        without=source.without,
        routes=source.routes,
    )


def _read_head(top: Section) -> str:
    top.value("schema", forms.schema(1))
    top.optional("entries", forms.DIGEST, "")
    return top.value("made-from", forms.DIGEST)


def _require_made_from(path: Path, stated: str, made: SourcesInput) -> None:
    if stated and stated != made.digest:
        raise StaleLockError(
            f"`{path}` was made from another `{made.pin.name}` than the pins and images/compat.yaml now say",
            why=[f"it was made from {stated}", f"it would be made from {made.digest} now"],
            hint=REMAKE.format(made.pin.name),
        )


def _read_sources(top: Section) -> tuple[LockedSource, ...]:
    sources: list[LockedSource] = []
    for item in top.items("sources", "sources"):
        section = item.section()
        source = _read_source(section)
        if source.name and source.label in {other.label for other in sources}:
            section.refuse("name", f"`{source.label}` stands in the list twice")
        sources.append(source)
    return tuple(sources)


def _read_source(section: Section) -> LockedSource:
    at = section.optional("at", forms.RELATIVE_PATH, "")
    url = section.optional("url", forms.URL, "") if at else section.value("url", forms.URL)
    commit = section.optional("commit", forms.COMMIT, "")
    tree = section.optional("tree", forms.DIGEST, "")
    unverified = section.optional("unverified", forms.TEXT, "")
    routes = read_tree_routes(section, GitRoute(url=url, commit=commit) if url and commit else None)
    if section.given and not unverified:
        for key, value in (("commit", commit), ("tree", tree)):
            if not value and not section.has(key):
                section.refuse(key, "missing, and no `unverified` says why")
    if tree and not routes:
        section.refuse("routes", "a tree without any route to it")
    return LockedSource(
        name=section.value("name", forms.NAME),
        at=at,
        url=url,
        ref=section.optional("ref", forms.VERSION, "") if at else section.value("ref", forms.VERSION),
        commit=commit,
        tree=tree,
        paths=section.values("paths", forms.RELATIVE_PATH, optional=True),
        without=section.values("without", forms.RELATIVE_PATH, optional=True),
        routes=routes,
        unverified=unverified,
    )

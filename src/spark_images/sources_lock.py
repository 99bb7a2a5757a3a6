"""Making the lock of a release's sources: its own CMake files name them, git and sdists show their trees."""

from __future__ import annotations

import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, assert_never

from spark_images import forms
from spark_images.compat.build import CUTLASS
from spark_images.compat.release import Source
from spark_images.errors import ContentError, RouteError, UpstreamError
from spark_images.files import write_text
from spark_images.git_tree import Submodule, list_submodules, resolve_tag, tree_from_git
from spark_images.locks import lock_text
from spark_images.pins import ArchiveRoute, GitRoute, SdistRoute, TreeRoute
from spark_images.sources import LockedSource, SourcesInput, carrier_route, paths_of
from spark_images.tree import UNREADABLE, SourceTree, tree_from_archive
from spark_images.vllm.external_sources import refuse_differences, release_fetches

T = TypeVar("T")

NOT_REACHED = "no repository showed it when this lock was made"


def read_cmake_files(sdist: Path) -> dict[str, str]:
    """Path below the top folder -> text of every CMake file in an sdist. UpstreamError where there is none."""
    found: dict[str, str] = {}
    try:
        with tarfile.open(sdist) as tar:
            for member in tar:
                path = member.name.partition("/")[2]
                if member.isreg() and (path.endswith(".cmake") or path.rpartition("/")[2] == "CMakeLists.txt"):
                    content = tar.extractfile(member)
                    assert content is not None
                    found[path] = content.read().decode()
    except UNREADABLE as err:
        raise ContentError(f"`{sdist.name}` cannot be read as an archive") from err
    except UnicodeDecodeError as err:
        raise UpstreamError(f"{path}: is no UTF-8") from err
    if "CMakeLists.txt" not in found:
        raise UpstreamError("there is no CMakeLists.txt in the sdist")
    return found


def resolve_sources(
    made: SourcesInput,
    *,
    sdist: Path,
    carrier: Path | None,
    known: Sequence[LockedSource],
    work: Path,
    stall_s: float,
    say: Callable[[str], None],
) -> tuple[LockedSource, ...]:
    """Every source of the release, with the trees of those whose repositories are reached.

    sdist, carrier: files of the two sdists in `made`. known: of an earlier lock; what it has verified stays where it is
    wanted still and its repository is not reached now. work: a folder with room for the largest repository.
    stall_s: git is ended when nothing arrives for that long. say: gets a line about each that could not be had.
    Raises UpstreamError where the release fetches something else than is written down, a tag has moved, or a submodule
    is missing; ContentError where two routes show different trees.
    """
    release = f"{made.pin.project} {made.pin.version}"
    try:
        fetches = release_fetches(read_cmake_files(sdist))
    except UpstreamError as err:
        raise UpstreamError(f"{release}: {err.what}", why=err.why, hint=err.hint) from None
    refuse_differences(fetches, made.sources, release=release)
    git = _Git(work, stall_s, say)
    found: list[LockedSource] = []
    for source in made.sources:
        top, *submodules = _see(source, git) or _kept(source, known) or _unseen(source)
        if source.name == CUTLASS and made.carrier and carrier:
            top = _carried(top, carrier, carrier_route(made.carrier), work)
        found += (top, *submodules)
    return tuple(found)


def write_sources_lock(made: SourcesInput, sources: Sequence[LockedSource], path: Path) -> None:
    """Write the lock in one go, a line per tree, in the order of images/compat.yaml."""
    comments = (
        f"What the build of the pin `{made.pin.name}` of pins.yaml would fetch, a line per tree (submodules: `at`).",
        f"Remade by `nox -s lock -- {made.pin.name}`; do not edit.",
    )
    entries = []
    for source in sources:
        # Quotes where YAML could see a number or the start of a comment.
        fields = {
            "name": source.name,
            "at": source.at,
            "url": source.url,
            "ref": source.ref and f'"{source.ref}"',
            "commit": source.commit and f'"{source.commit}"',
            "tree": source.tree and f'"{source.tree}"',
            "paths": _flow(source.paths),
            "without": _flow(source.without),
            "routes": _flow(tuple(map(_written, source.routes))),
            "unverified": source.unverified and f'"{source.unverified}"',
        }
        entries.append(f"{{{', '.join(f'{key}: {value}' for key, value in fields.items() if value)}}}")
    write_text(path, lock_text(*comments, made=made.digest, key="sources", entries=entries))


def _flow(values: Sequence[str]) -> str:
    return f"[{', '.join(values)}]" if values else ""


def _written(route: TreeRoute) -> str:
    match route:
        case GitRoute():
            return "git"
        case SdistRoute():
            place = f"sdist: {route.project}=={route.version}"
        case ArchiveRoute():
            place = f"archive: {route.url}"
        case _:
            assert_never(route)
    return f"{{{place}, path: {route.path}}}" if route.path else f"{{{place}}}"


# --- what a repository shows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """A commit: its tree without submodules, and these."""

    tree: str
    submodules: tuple[Submodule, ...]

    @property
    def without(self) -> tuple[str, ...]:
        return tuple(one.path for one in self.submodules)


class _Git:
    """Asks repositories. What is not reached is None, and said."""

    def __init__(self, work: Path, stall_s: float, say: Callable[[str], None]) -> None:
        self._work, self._stall_s, self._say = work, stall_s, say
        self._stop = threading.Event()

    def commit_of(self, source: Source) -> str | None:
        """The commit of a source's tag, by its repository."""

        def ask(work: Path) -> str:
            return resolve_tag(source.url, source.ref, work=work, stall_s=self._stall_s, stop=self._stop)

        return self._asked(source.name, ask)

    def see(self, label: str, url: str, commit: str, paths: tuple[str, ...] = ()) -> _Seen | None:
        """A commit. paths: the parts of the tree that count."""
        if forms.URL.read(url) is None:
            raise UpstreamError(f"`{label}` comes from `{url}`, which is no address that can be pinned")

        def ask(work: Path) -> _Seen:
            stall_s, stop = self._stall_s, self._stop
            with tree_from_git(url, commit, work=work, stall_s=stall_s, stop=stop) as tree:
                seen = _Seen("", list_submodules(url, commit, work=work, stall_s=stall_s, stop=stop))
                return replace(seen, tree=_digest(tree, paths, seen.without))

        return self._asked(label, ask)

    def _asked(self, label: str, ask: Callable[[Path], T]) -> T | None:
        with tempfile.TemporaryDirectory(dir=self._work) as folder:
            try:
                return ask(Path(folder))
            except RouteError as err:
                self._say(f"  `{label}` is not seen: {err.what}")
                return None


def _see(source: Source, git: _Git) -> tuple[LockedSource, ...]:
    """The source and its submodules as its repository shows them; nothing where that is not reached."""
    commit = forms.COMMIT.read(source.ref) or git.commit_of(source)
    if commit is None:
        return ()
    if source.commit and source.commit != commit:
        raise UpstreamError(
            f"tag `{source.ref}` of {source.url} is commit {commit[:12]} now; it was {source.commit[:12]}",
            hint=f"find out why it moved, then correct `vllm.sources.{source.name}.tags` in images/compat.yaml",
        )
    paths = paths_of(source)
    if (seen := git.see(source.name, source.url, commit, paths)) is None:
        return ()
    if missing := set(source.submodules).difference(seen.without):
        has = ", ".join(f"`{path}`" for path in seen.without) or "none"
        raise UpstreamError(
            f"`{source.name}` at {source.ref} has no submodule `{min(missing)}`; it has {has}",
            hint=f"correct `vllm.sources.{source.name}.submodules` in images/compat.yaml",
        )
    top = _locked(source.name, "", source.url, commit, seen)
    return (replace(top, ref=source.ref, paths=paths), *_submodules(source.name, "", seen, source.submodules, git))


def _submodules(name: str, at: str, seen: _Seen, wanted: Sequence[str], git: _Git) -> Iterator[LockedSource]:
    """The wanted submodules of a commit, each with all of its own, as git takes them."""
    for one in seen.submodules:
        if one.path in wanted:
            here = f"{at}/{one.path}" if at else one.path
            inner = git.see(f"{name}/{here}", one.url, one.commit)
            yield _locked(name, here, one.url, one.commit, inner)
            if inner is not None:
                yield from _submodules(name, here, inner, inner.without, git)


def _locked(name: str, at: str, url: str, commit: str, seen: _Seen | None) -> LockedSource:
    routes = (GitRoute(url=url, commit=commit),)
    if seen is None:
        return LockedSource(name=name, at=at, url=url, commit=commit, routes=routes, unverified=NOT_REACHED)
    return LockedSource(name=name, at=at, url=url, commit=commit, tree=seen.tree, without=seen.without, routes=routes)


# --- where no repository is reached -----------------------------------------------------------------------------------


def _kept(source: Source, known: Sequence[LockedSource]) -> tuple[LockedSource, ...]:
    """What an earlier lock has seen of the same source; nothing where it has not seen all of it."""
    kept = tuple(one for one in known if one.name == source.name)
    if not kept or any(one.unverified for one in kept) or not {one.at for one in kept} >= {"", *source.submodules}:
        return ()
    same = (kept[0].url, kept[0].ref, kept[0].paths) == (source.url, source.ref, paths_of(source))
    return kept if same and source.commit in ("", kept[0].commit) else ()


def _unseen(source: Source) -> tuple[LockedSource, ...]:
    """The source as it is written down."""
    note = NOT_REACHED
    if not forms.COMMIT.read(source.ref):
        quoted = "as images/compat.yaml quotes it" if source.commit else "not known"
        note = f"commit of the tag {quoted}; {note}"
    top = LockedSource(
        name=source.name,
        url=source.url,
        ref=source.ref,
        commit=source.commit,
        paths=paths_of(source),
        routes=(GitRoute(url=source.url, commit=source.commit),) if source.commit else (),
        unverified=note,
    )
    return (top, *(LockedSource(name=source.name, at=at, unverified=NOT_REACHED) for at in source.submodules))


def _carried(source: LockedSource, sdist: Path, route: SdistRoute, work: Path) -> LockedSource:
    """The same with the route by an sdist; the tree is that in the sdist."""
    name = f"the sdist of {route.project} {route.version}"
    with tree_from_archive(sdist, route.path, work=work, source=name) as tree:
        digest = _digest(tree, source.paths, source.without)
    if source.tree not in ("", digest):
        raise ContentError(
            f"{name} carries another `{source.name}` than its repository has at {source.ref}",
            why=(f"in the repository {source.tree}", f"in the sdist {digest}"),
            hint="correct `flashinfer.cutlass` in images/compat.yaml",
        )
    note = source.unverified.replace(NOT_REACHED, f"tree seen in {name} alone")
    git = tuple(known for known in source.routes if isinstance(known, GitRoute))
    return replace(source, tree=digest, routes=(*git, route), unverified=note)


def _digest(tree: SourceTree, paths: tuple[str, ...], without: tuple[str, ...]) -> str:
    with Path(os.devnull).open("wb") as nowhere:
        return tree.write(nowhere, paths=paths, without=without)

"""Making the lock of a release's sources, against real git repositories and sdists of a few files."""

from __future__ import annotations

import io
import tarfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from cmake_excerpts import cmake_files
from file_server import digest
from test_tree import by_archive, by_git, commit_all, git

from spark_images.cache import Cache
from spark_images.compat.facts import HandOver
from spark_images.compat.file import read_facts
from spark_images.compat.release import Source
from spark_images.errors import ContentError, UpstreamError
from spark_images.fetch import fetch
from spark_images.git_tree import list_submodules, tree_from_git
from spark_images.pins import ArchiveRoute, GitRoute, SdistPin, SdistRoute
from spark_images.project import Project
from spark_images.relock import relock
from spark_images.sources import LockedSource, SourcesInput, read_sources_lock, sources_input
from spark_images.sources_lock import read_cmake_files, resolve_sources, write_sources_lock
from spark_images.store import Store

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "file:///nowhere/at/all"


def make_repository(
    folder: Path, files: Mapping[str, str], submodules: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """A repository with one commit, which is returned. submodules: path -> (url as it is written, commit)."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if submodules:
        entries = (f'[submodule "{path}"]\n\tpath = {path}\n\turl = {url}\n' for path, (url, _) in submodules.items())
        (folder / ".gitmodules").write_text("".join(entries))
    commit_all(folder)
    for path, (_, commit) in (submodules or {}).items():
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{commit},{path}")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "with submodules")
    return git(folder, "rev-parse", "HEAD")


def make_sdist(path: Path, files: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{path.name.removesuffix('.tar.gz')}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def source(name: str, url: str, ref: str, *, submodules: tuple[str, ...] = (), commit: str = "") -> Source:
    return Source(
        name=name,
        url=url,
        ref=ref,
        commit=commit or (ref if len(ref) == 40 else ""),
        submodules=submodules,
        hand_over=HandOver.ENVIRONMENT,
        variable=f"{name.upper()}_SRC",
        folder="",
        source="",
    )


def made_of(*sources: Source, carrier: SdistPin | None = None) -> SourcesInput:
    pin = SdistPin(name="vllm", line=1, project="vllm", version="1.0", sha256="1" * 64, lock="sources.lock")
    return SourcesInput(pin=pin, sources=sources, carrier=carrier)


CARRIER = SdistPin(name="flashinfer", line=2, project="flashinfer-python", version="2.0", sha256="2" * 64)


class Locking:
    """A release whose CMake says what `made` says, and its lock."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.said: list[str] = []
        self.known: tuple[LockedSource, ...] = ()

    def __call__(self, made: SourcesInput, *, carrier: Path | None = None) -> tuple[LockedSource, ...]:
        cmake = "".join(
            f"if(DEFINED ENV{{{one.variable}}})\n"
            f"FetchContent_Declare({one.name} SOURCE_DIR $ENV{{{one.variable}}})\n"
            "else()\n"
            f"FetchContent_Declare({one.name} GIT_REPOSITORY {one.url} GIT_TAG {one.ref}\n"
            f'SOURCE_SUBDIR "{one.folder}")\n'
            "endif()\n"
            f"FetchContent_MakeAvailable({one.name})\n"
            for one in made.sources
        )
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        sources = resolve_sources(
            made,
            sdist=make_sdist(self.folder / "vllm-1.0.tar.gz", {"CMakeLists.txt": cmake}),
            carrier=carrier,
            known=self.known,
            work=work,
            stall_s=20,
            say=self.said.append,
        )
        assert list(work.iterdir()) == []
        return sources


@pytest.fixture
def locking(tmp_path: Path) -> Locking:
    return Locking(tmp_path)


@pytest.fixture
def lib(tmp_path: Path) -> Source:
    """A repository with a submodule that is wanted, which has one of its own, and one that is not wanted."""
    deep = make_repository(tmp_path / "deep", {"deep.h": "deep"})
    fmt = make_repository(tmp_path / "fmt", {"fmt.h": "fmt"}, {"vendor/deep": ("../deep", deep)})
    submodules = {"csrc/fmt": (f"file://{tmp_path}/fmt", fmt), "docs/theme": (NOWHERE, "1" * 40)}
    commit = make_repository(tmp_path / "lib", {"csrc/lib.cu": "lib", "README": "lib"}, submodules)
    return source("lib", f"file://{tmp_path}/lib", commit, submodules=("csrc/fmt",))


# --- where the repository is reached ----------------------------------------------------------------------------------


def test_a_repository_gives_its_tree_and_those_of_the_wanted_submodules(
    tmp_path: Path, locking: Locking, lib: Source
) -> None:
    top, fmt, deep = locking(made_of(lib))
    assert (top.label, fmt.label, deep.label) == ("lib", "lib/csrc/fmt", "lib/csrc/fmt/vendor/deep")
    assert top.without == ("csrc/fmt", "docs/theme")
    assert (fmt.commit, deep.commit) == tuple(git(tmp_path / name, "rev-parse", "HEAD") for name in ("fmt", "deep"))
    assert deep.url == f"file://{tmp_path}/deep"  # it was written as ../deep
    assert deep.tree == by_git(tmp_path / "deep", deep.commit, tmp_path / "look")
    assert not any(one.unverified for one in (top, fmt, deep))
    assert locking.said == []


def test_what_is_locked_is_what_a_fetch_then_brings(tmp_path: Path, locking: Locking, lib: Source) -> None:
    made, path, store = made_of(lib), tmp_path / "sources.lock", Store(tmp_path / "store")
    write_sources_lock(made, locking(made), path)
    locked = read_sources_lock(path, made)
    locked.require_trees()
    assert fetch([content for _, content in locked.contents], store=store, quiet=True).files == 3
    with tarfile.open(store.path(locked.sources[0].tree)) as tar:
        assert tar.getnames() == [".gitmodules", "README", "csrc/lib.cu"]


def test_writing_and_reading_a_lock_changes_nothing(tmp_path: Path, locking: Locking, lib: Source) -> None:
    made, path = made_of(lib, source("gone", NOWHERE, "v1", commit="2" * 40)), tmp_path / "sources.lock"
    sources = locking(made)
    write_sources_lock(made, sources, path)
    assert read_sources_lock(path, made).sources == sources


def test_every_kind_of_route_can_be_written(tmp_path: Path) -> None:
    made, path = made_of(source("lib", NOWHERE, "v1")), tmp_path / "sources.lock"
    routes = (
        GitRoute(url=NOWHERE, commit="1" * 40),
        ArchiveRoute(url="https://example.org/a.zip"),
        ArchiveRoute(url="https://example.org/a.zip", path="a"),
        SdistRoute(project="some-lib", version="1.0"),
    )
    tree = "sha256:" + "a" * 64
    locked = LockedSource(name="lib", url=NOWHERE, ref="v1", commit="1" * 40, tree=tree, routes=routes)
    write_sources_lock(made, [locked], path)
    assert read_sources_lock(path, made).sources == (locked,)


@pytest.mark.parametrize("kind", ["light", "annotated"])
def test_a_tag_is_resolved_to_its_commit(tmp_path: Path, locking: Locking, kind: str) -> None:
    commit = make_repository(tmp_path / "lib", {"a": "1"})
    git(tmp_path / "lib", "tag", *(("--annotate", "--message", "one") if kind == "annotated" else ()), "v1")
    make_repository(tmp_path / "lib", {"a": "2"})
    (top,) = locking(made_of(source("lib", f"file://{tmp_path}/lib", "v1", commit=commit)))
    assert (top.ref, top.commit, top.unverified) == ("v1", commit, "")


def test_a_tag_that_has_moved_is_an_error(tmp_path: Path, locking: Locking) -> None:
    make_repository(tmp_path / "lib", {"a": "1"})
    git(tmp_path / "lib", "tag", "v1")
    with pytest.raises(UpstreamError, match=r"tag `v1` of .* now; it was 222222222222"):
        locking(made_of(source("lib", f"file://{tmp_path}/lib", "v1", commit="2" * 40)))


def test_a_wanted_submodule_that_is_missing_is_an_error(locking: Locking, lib: Source) -> None:
    with pytest.raises(UpstreamError, match="has no submodule `csrc/cutlass`; it has `csrc/fmt`, `docs/theme`"):
        locking(made_of(replace(lib, submodules=("csrc/cutlass",))))


def test_a_submodule_with_an_address_that_cannot_be_pinned_is_an_error(tmp_path: Path, locking: Locking) -> None:
    commit = make_repository(tmp_path / "lib", {"a": "1"}, {"fmt": ("git@example.org:fmt.git", "1" * 40)})
    with pytest.raises(UpstreamError, match=r"`lib/fmt` comes from `git@example\.org:fmt\.git`, which is no address"):
        locking(made_of(source("lib", f"file://{tmp_path}/lib", commit, submodules=("fmt",))))


def test_a_submodule_without_an_address_is_an_error(tmp_path: Path) -> None:
    make_repository(tmp_path / "lib", {"a": "1"}, {"fmt": (NOWHERE, "1" * 40)})
    git(tmp_path / "lib", "rm", "--quiet", ".gitmodules")
    git(tmp_path / "lib", "commit", "--quiet", "--message", "without")
    url, commit, work = f"file://{tmp_path}/lib", git(tmp_path / "lib", "rev-parse", "HEAD"), tmp_path / "look"
    work.mkdir()
    with tree_from_git(url, commit, work=work, stall_s=20, stop=threading.Event()):
        pass
    with pytest.raises(ContentError, match="does not say where its submodule `fmt` comes from"):
        list_submodules(url, commit, work=work, stall_s=20, stop=threading.Event())


# --- where it is not --------------------------------------------------------------------------------------------------


def test_a_source_that_is_not_reached_is_locked_without_a_tree(locking: Locking) -> None:
    top, fmt = locking(made_of(source("lib", NOWHERE, "1" * 40, submodules=("csrc/fmt",))))
    assert (top.commit, top.tree, top.routes) == ("1" * 40, "", (GitRoute(url=NOWHERE, commit="1" * 40),))
    assert (fmt.label, fmt.commit, fmt.tree) == ("lib/csrc/fmt", "", "")
    assert top.unverified == fmt.unverified == "no repository showed it when this lock was made"
    assert locking.said[0].startswith("  `lib` is not seen: ")


def test_a_tag_that_is_not_reached_has_the_commit_that_is_quoted_or_none(locking: Locking) -> None:
    quoted, unknown = locking(made_of(source("lib", NOWHERE, "v1", commit="1" * 40), source("other", NOWHERE, "v1")))
    assert (quoted.commit, unknown.commit, unknown.routes) == ("1" * 40, "", ())
    assert quoted.unverified.startswith("commit of the tag as images/compat.yaml quotes it; ")
    assert unknown.unverified.startswith("commit of the tag not known; ")


def test_a_submodule_that_is_not_reached_still_has_its_commit(tmp_path: Path, locking: Locking) -> None:
    commit = make_repository(tmp_path / "lib", {"a": "1"}, {"fmt": (NOWHERE, "1" * 40)})
    top, fmt = locking(made_of(source("lib", f"file://{tmp_path}/lib", commit, submodules=("fmt",))))
    assert top.tree
    assert (fmt.url, fmt.commit, fmt.tree) == (NOWHERE, "1" * 40, "")
    assert fmt.unverified


def test_what_an_earlier_lock_has_verified_is_kept(tmp_path: Path, locking: Locking, lib: Source) -> None:
    locking.known = locking(made_of(lib))
    (tmp_path / "lib").rename(tmp_path / "gone")
    assert locking(made_of(lib)) == locking.known


@pytest.mark.parametrize(
    "changes", [{"ref": "1" * 40, "commit": "1" * 40}, {"submodules": ("csrc/fmt", "csrc/more")}, {"folder": "csrc"}]
)
def test_what_an_earlier_lock_has_of_something_else_is_not_kept(
    tmp_path: Path, locking: Locking, lib: Source, changes: dict[str, object]
) -> None:
    locking.known = locking(made_of(lib))
    (tmp_path / "lib").rename(tmp_path / "gone")
    assert not locking(made_of(replace(lib, **changes)))[0].tree  # type: ignore[arg-type]


# --- the sdist that carries CUTLASS -----------------------------------------------------------------------------------

HEADERS = {"include/cutlass.h": "//\n", "include/cute/a.hpp": "// a\n", "tools/util/include/util.h": "// util\n"}


def make_carrier(folder: Path, **changes: str) -> Path:
    files = {**HEADERS, **{f"include/{name}.h": text for name, text in changes.items()}, "python/setup.py": "#\n"}
    path = folder / "flashinfer_python-2.0.tar.gz"
    return make_sdist(path, {f"3rdparty/cutlass/{name}": text for name, text in files.items()})


@pytest.fixture
def cutlass(tmp_path: Path) -> Source:
    commit = make_repository(tmp_path / "cutlass", {**HEADERS, "CMakeLists.txt": "", "examples/x.cu": "x"})
    git(tmp_path / "cutlass", "tag", "v4")
    return source("cutlass", f"file://{tmp_path}/cutlass", "v4", commit=commit)


def test_the_sdist_and_the_repository_show_the_same_tree_over_the_same_paths(
    tmp_path: Path, locking: Locking, cutlass: Source
) -> None:
    carrier = make_carrier(tmp_path)
    paths = ("include", "tools/util/include")
    expected = by_archive(carrier, "3rdparty/cutlass", paths=paths)
    assert by_git(tmp_path / "cutlass", cutlass.commit, tmp_path / "look", paths=paths) == expected
    (top,) = locking(made_of(cutlass, carrier=CARRIER), carrier=carrier)
    assert (top.tree, top.paths, top.unverified) == (expected, paths, "")
    git_route, sdist = top.routes
    assert isinstance(git_route, GitRoute)
    assert sdist == SdistRoute(project="flashinfer-python", version="2.0", path="3rdparty/cutlass")


def test_the_sdist_alone_gives_the_tree_and_says_so(tmp_path: Path, locking: Locking, cutlass: Source) -> None:
    (reached,) = locking(made_of(cutlass, carrier=CARRIER), carrier=make_carrier(tmp_path))
    (top,) = locking(made_of(replace(cutlass, url=NOWHERE), carrier=CARRIER), carrier=make_carrier(tmp_path))
    assert top.tree == reached.tree
    assert top.unverified == (
        "commit of the tag as images/compat.yaml quotes it; tree seen in the sdist of flashinfer-python 2.0 alone"
    )


def test_an_sdist_that_carries_something_else_is_an_error(tmp_path: Path, locking: Locking, cutlass: Source) -> None:
    with pytest.raises(ContentError, match="carries another `cutlass` than its repository has at v4"):
        locking(made_of(cutlass, carrier=CARRIER), carrier=make_carrier(tmp_path, cutlass="// other\n"))


# --- the release itself -----------------------------------------------------------------------------------------------


def test_a_release_that_fetches_something_else_is_not_locked(tmp_path: Path, locking: Locking, lib: Source) -> None:
    sdist = make_sdist(tmp_path / "vllm-1.0.tar.gz", {"CMakeLists.txt": "project(x)\n"})
    with pytest.raises(UpstreamError, match=r"vllm 1\.0 fetches other sources than are written down of it"):
        resolve_sources(
            made_of(lib), sdist=sdist, carrier=None, known=(), work=tmp_path, stall_s=20, say=locking.said.append
        )


def test_all_cmake_files_of_an_sdist_are_read_and_nothing_else(tmp_path: Path) -> None:
    names = ("CMakeLists.txt", "cmake/utils.cmake", "csrc/CMakeLists.txt", "setup.py", "docs/CMakeLists.txt.md")
    files = read_cmake_files(make_sdist(tmp_path / "vllm-1.0.tar.gz", dict.fromkeys(names, "# é\n")))
    assert files == dict.fromkeys(names[:3], "# é\n")


def test_what_is_not_understood_is_named_with_the_release_and_its_place(tmp_path: Path, locking: Locking) -> None:
    sdist = make_sdist(tmp_path / "vllm-1.0.tar.gz", {"CMakeLists.txt": "\ninclude(CPM)\n"})
    with pytest.raises(UpstreamError, match=r"^vllm 1\.0: CMakeLists\.txt:2: `CPM` is included") as caught:
        resolve_sources(
            made_of(), sdist=sdist, carrier=None, known=(), work=tmp_path, stall_s=1, say=locking.said.append
        )
    assert "cmake/fetches.py" in caught.value.hint


def test_an_sdist_without_cmake_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UpstreamError, match=r"there is no CMakeLists\.txt in the sdist"):
        read_cmake_files(make_sdist(tmp_path / "x-1.tar.gz", {"setup.py": ""}))


def test_what_is_no_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x-1.tar.gz").write_bytes(b"no")
    with pytest.raises(ContentError, match=r"`x-1\.tar\.gz` cannot be read as an archive"):
        read_cmake_files(tmp_path / "x-1.tar.gz")


# --- the verb ---------------------------------------------------------------------------------------------------------

SUBMODULES = {
    "vllm-project/flash-attention": ["csrc/cutlass"],
    "vllm-project/FlashMLA": ["csrc/cutlass"],
    "deepseek-ai/DeepGEMM": ["third-party/cutlass", "third-party/fmt"],
}
COMMITS = {
    "NVIDIA/cutlass": "da5e086dab31d63815acafdac9a9c5893b1c69e2",
    "vllm-project/flash-attention": "f5bc33cfc02c744d24a2e9d50e6db656de40611c",
    "vllm-project/FlashMLA": "a6ec2ba7bd0a7dff98b3f4d3e6b52b159c48d78b",
    "IST-DASLab/qutlass": "830d2c4537c7396e14a02a46fbddd18b5d107c65",
    "triton-lang/triton": "3" * 40,
    "deepseek-ai/DeepGEMM": "891d57b4db1071624b5c8fa0d1e51cb317fa709f",
}


def test_the_verb_locks_a_release_from_its_own_cmake(tmp_path: Path) -> None:
    """vLLM 0.20.2 as it is, but that its repositories are small ones on this disk."""
    host, words = tmp_path / "host", {"https://github.com/": f"file://{tmp_path}/host/"}
    fmt = make_repository(host / "any" / "fmt", {"fmt.h": ""})
    folder = {"triton-lang/triton": "python/triton_kernels/triton_kernels/a.py"}
    for name, commit in COMMITS.items():
        files = HEADERS if name == "NVIDIA/cutlass" else {folder.get(name, "a.cu"): name}
        submodules = {at: ("../../any/fmt", fmt) for at in SUBMODULES.get(name, ())}
        words[commit] = make_repository(host / name, files, submodules)
    git(host / "NVIDIA/cutlass", "tag", "v4.4.2")
    git(host / "triton-lang/triton", "tag", "v3.6.0")

    def here(text: str) -> str:
        for word, other in words.items():
            text = text.replace(word, other)
        return text

    store, pins = Store(Cache(tmp_path / "cache").store), ["schema: 1"]
    sdist = make_sdist(
        tmp_path / "vllm-0.20.2.tar.gz", {name: here(text) for name, text in cmake_files("0.20.2").items()}
    )
    for file, project, version, more in (
        (sdist, "vllm", "0.20.2", ", lock: images/vllm/sources.lock"),
        (make_carrier(tmp_path), "flashinfer-python", "0.6.8.post1", ""),
    ):
        sha256 = digest(file.read_bytes())
        store.add_file(file, sha256)
        sha256 = sha256.removeprefix("sha256:")
        pins.append(f'{project}: {{kind: sdist, name: {project}, version: {version}, sha256: "{sha256}"{more}}}')
    root = tmp_path / "project"
    (root / "images").mkdir(parents=True)
    (root / "pins.yaml").write_text("\n".join(pins) + "\n")
    (root / "images/compat.yaml").write_text(here((REPOSITORY / "images/compat.yaml").read_text()))
    (root / "images/targets.yaml").write_text("{}\n")

    relock(Project(root), names=["vllm"], cache=Cache(tmp_path / "cache"))

    made = made_of_project(root)
    locked = read_sources_lock(root / "images/vllm/sources.lock", made)
    locked.require_trees()
    assert [one.label for one in locked.sources] == [
        "cutlass",
        "vllm-flash-attn",
        "vllm-flash-attn/csrc/cutlass",
        "flashmla",
        "flashmla/csrc/cutlass",
        "qutlass",
        "triton-kernels",
        "deepgemm",
        "deepgemm/third-party/cutlass",
        "deepgemm/third-party/fmt",
    ]
    assert locked.unverified == ()
    assert {one.commit for one in locked.sources if one.at} == {fmt}
    assert locked.sources[6].commit == words["3" * 40]  # nothing but the repository says it


def made_of_project(root: Path) -> SourcesInput:
    pins = Project(root).pins
    pin = pins["vllm"]
    assert isinstance(pin, SdistPin)
    return sources_input(pin, pins=pins, facts=read_facts(root / "images/compat.yaml"))

"""The lock of a release's sources: read, stale, wrong; and what a plan and a fetch get from it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from spark_images.compat.facts import HandOver
from spark_images.compat.file import read_facts
from spark_images.compat.release import Source
from spark_images.errors import ConfigError, StaleLockError, UsageError
from spark_images.locks import lock_text
from spark_images.pins import GitRoute, Pins, SdistPin, SdistRoute, TreeContent
from spark_images.pins_file import read_pins
from spark_images.sources import (
    LockedSource,
    SourcesInput,
    SourcesLock,
    read_known_trees,
    read_sources_lock,
    sources_input,
)

REPOSITORY = Path(__file__).parents[2]
FACTS = read_facts(REPOSITORY / "images" / "compat.yaml")
PIN = SdistPin(name="vllm", line=7, project="vllm", version="0.20.2", sha256="1" * 64, lock="images/vllm/sources.lock")
CARRIER = SdistPin(name="flashinfer", line=8, project="flashinfer-python", version="0.6.8.post1", sha256="2" * 64)
COMMIT, TREE = "0123456789" * 4, "sha256:" + "a" * 64


def source(name: str, *, submodules: tuple[str, ...] = ()) -> Source:
    return Source(
        name=name,
        url=f"https://example.org/{name}",
        ref="v1",
        commit="",
        submodules=submodules,
        hand_over=HandOver.ENVIRONMENT,
        variable="X",
        folder="",
        source="",
    )


MADE = SourcesInput(pin=PIN, sources=(source("lib", submodules=("csrc/fmt",)),), carrier=None)
LIB = (
    f'- {{name: lib, url: https://example.org/lib, ref: v1, commit: "{COMMIT}", tree: "{TREE}", without: [csrc/fmt]}}\n'
)
FMT = "- {name: lib, at: csrc/fmt, unverified: not reached}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "sources.lock"


def write(file: Path, *lines: str, made_from: str = MADE.digest) -> Path:
    file.write_text(lock_text(made=made_from, key="sources", entries=(line.removesuffix("\n")[2:] for line in lines)))
    return file


def mistakes(file: Path, *lines: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_sources_lock(write(file, *lines), MADE)
    return caught.value.render()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_the_projects_own_lock_fits_its_pins_and_its_facts() -> None:
    pins = read_pins(REPOSITORY / "pins.yaml")
    pin = pins["vllm"]
    assert isinstance(pin, SdistPin)
    lock = read_sources_lock(REPOSITORY / pin.lock, sources_input(pin, pins=pins, facts=FACTS))
    cutlass = lock.sources[0]
    assert (cutlass.name, cutlass.ref, cutlass.paths) == ("cutlass", "v4.4.2", ("include", "tools/util/include"))
    assert cutlass.routes[1:] == (
        SdistRoute(project="flashinfer-python", version="0.6.8.post1", path="3rdparty/cutlass"),
    )
    assert "deepgemm/third-party/fmt" in {one.label for one in lock.sources}


def test_a_lock_is_read(file: Path) -> None:
    lock = read_sources_lock(write(file, LIB, FMT), MADE)
    assert lock.sources == (
        LockedSource(
            name="lib",
            url="https://example.org/lib",
            ref="v1",
            commit=COMMIT,
            tree=TREE,
            without=("csrc/fmt",),
            routes=(GitRoute(url="https://example.org/lib", commit=COMMIT),),
        ),
        LockedSource(name="lib", at="csrc/fmt", unverified="not reached"),
    )


def test_every_tree_that_is_known_can_be_fetched(file: Path) -> None:
    routed = LIB.replace("}\n", ", routes: [{sdist: other==2.0, path: src}, git], paths: [a]}\n")
    lock = read_sources_lock(write(file, routed, FMT), MADE)
    ((locked, content),) = lock.contents
    assert locked.label == "lib"
    assert content == TreeContent(
        pin="vllm",
        label="lib v1",
        digest=TREE,
        paths=("a",),
        without=("csrc/fmt",),
        routes=(
            SdistRoute(project="other", version="2.0", path="src"),
            GitRoute(url="https://example.org/lib", commit=COMMIT),
        ),
    )


def test_what_nobody_could_check_is_said_and_stops_a_build(file: Path) -> None:
    lock = read_sources_lock(write(file, LIB, FMT), MADE)
    assert lock.unverified == ("lib/csrc/fmt: not reached",)
    with pytest.raises(ConfigError, match="1 of 2 sources are not yet verified") as caught:
        lock.require_trees()
    assert "`lib/csrc/fmt`: not reached" in caught.value.why
    assert "./noxw -s lock -- vllm" in caught.value.hint


def test_a_lock_with_all_trees_lets_a_build_begin() -> None:
    whole = LockedSource(name="lib", tree=TREE, unverified="the commit is quoted")
    SourcesLock(path="", pin="vllm", made_from=MADE.digest, sources=(whole,)).require_trees()


# --- stale ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        replace(MADE, pin=replace(PIN, sha256="3" * 64)),
        replace(MADE, carrier=CARRIER),
        replace(MADE, sources=(replace(MADE.sources[0], ref="v2"),)),
        replace(MADE, sources=(replace(MADE.sources[0], commit=COMMIT),)),
        replace(MADE, sources=(replace(MADE.sources[0], submodules=()),)),
        replace(MADE, sources=(replace(MADE.sources[0], folder="python"),)),
    ],
)
def test_a_lock_of_something_else_is_stale(file: Path, changed: SourcesInput) -> None:
    with pytest.raises(StaleLockError, match="was made from another `vllm`") as caught:
        read_sources_lock(write(file, LIB, FMT), changed)
    assert "./noxw -s lock -- vllm" in caught.value.hint


def test_a_lock_of_something_else_is_stale_however_its_digest_is_written(file: Path) -> None:
    write(file, LIB, FMT)
    file.write_text(file.read_text().replace(MADE.digest, f'"{MADE.digest}"'))
    assert read_sources_lock(file, MADE).sources
    with pytest.raises(StaleLockError, match="was made from another `vllm`"):
        read_sources_lock(file, replace(MADE, carrier=CARRIER))


def test_where_a_fact_was_read_does_not_make_a_lock_stale(file: Path) -> None:
    moved = replace(MADE, sources=(replace(MADE.sources[0], source="elsewhere:9", variable="Y"),))
    assert read_sources_lock(write(file, LIB, FMT), moved).sources


def test_trees_of_a_stale_lock_can_still_be_read(file: Path) -> None:
    (known, _) = read_known_trees(write(file, LIB, FMT, made_from="sha256:" + "0" * 64))
    assert known.tree == TREE


def test_no_tree_of_an_edited_lock_is_known(file: Path) -> None:
    """What `lock` keeps of it gets a new digest, so an edit would become valid by the command that is advised."""
    write(file, LIB, FMT)
    file.write_text(file.read_text().replace(TREE, "sha256:" + "b" * 64))
    with pytest.raises(StaleLockError, match="is not as it was written"):
        read_known_trees(file)


def test_trees_of_a_lock_from_before_the_digest_are_known(file: Path) -> None:
    write(file, LIB, FMT)
    file.write_text(re.sub("entries: .*\n", "", file.read_text()))
    (known, _) = read_known_trees(file)
    assert known.tree == TREE


def test_a_lock_that_is_cut_in_a_line_is_stale(file: Path) -> None:
    write(file, LIB, FMT)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(StaleLockError, match="is not as it was written"):
        read_sources_lock(file, MADE)
    with pytest.raises(StaleLockError, match="was made from another `vllm`"):
        read_sources_lock(file, replace(MADE, carrier=CARRIER))


def test_a_lock_that_lost_a_line_is_refused(file: Path) -> None:
    inner = FMT.replace("csrc/fmt", "csrc/fmt/more")  # what is a submodule of a submodule nobody else misses
    write(file, LIB, FMT, inner)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(StaleLockError, match="is not as it was written") as caught:
        read_sources_lock(file, MADE)
    assert caught.value.hint == "make it with `./noxw -s lock -- vllm`"


def test_a_missing_lock_says_how_to_make_it(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_sources_lock(file, MADE)
    assert caught.value.hint == "make it with `./noxw -s lock -- vllm`"


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([LIB.replace("ref", "rfe"), FMT], "sources.lock:5: sources[0].rfe: unknown key; did you mean `ref`?"),
        ([LIB.replace(COMMIT, "v1"), FMT], "sources.lock:5: sources[0].commit: expected 40 hex digits, got `v1`"),
        ([LIB.replace(f'"{TREE}"', "abc"), FMT], "sources[0].tree: expected `sha256:` and 64 hex digits"),
        ([LIB.replace("https://example.org/lib", "git@example.org"), FMT], "sources[0].url: expected an address"),
        ([LIB.replace("csrc/fmt", "../fmt"), FMT], "sources[0].without[0]: expected a relative path"),
        ([LIB.replace(", ref: v1", ""), FMT], "sources[0].ref: missing; expected a version"),
        ([LIB.replace(f', tree: "{TREE}"', ""), FMT], "sources[0].tree: missing, and no `unverified` says why"),
        ([LIB.replace(f', commit: "{COMMIT}"', ""), FMT], "sources[0].commit: missing, and no `unverified` says why"),
        ([LIB.replace("}\n", ", routes: [gti]}\n"), FMT], "sources[0].routes[0]: expected `{archive: URL}`"),
        ([LIB, FMT.replace("}", ", routes: [git]}")], "sources[1].routes: `git` without a `commit` to be had by it"),
        ([LIB, FMT.replace("}", f', tree: "{TREE}"}}')], "sources[1].routes: a tree without any route to it"),
        ([LIB, LIB, FMT], "sources[1].name: `lib` stands in the list twice"),
        ([LIB], "sources: there is none of `lib/csrc/fmt`: make it with `./noxw -s lock -- vllm`"),
        ([LIB.replace("name: lib", "name: other"), FMT], "sources: there is none of `lib`"),
    ],
)
def test_a_mistake_is_named_with_its_line_and_key(file: Path, lines: list[str], message: str) -> None:
    assert message in mistakes(file, *lines)


# --- what it is made from ---------------------------------------------------------------------------------------------


def pins(*others: SdistPin) -> Pins:
    return Pins(path="pins.yaml", pins=(PIN, *others))


def test_the_carrier_is_the_pinned_sdist_with_the_same_cutlass() -> None:
    older = replace(CARRIER, name="older", version="0.6.6")  # it carries v4.2.1
    assert sources_input(PIN, pins=pins(older, CARRIER), facts=FACTS).carrier == CARRIER
    assert sources_input(PIN, pins=pins(older), facts=FACTS).carrier is None
    assert sources_input(replace(PIN, version="0.19.1"), pins=pins(CARRIER, older), facts=FACTS).carrier == older


def test_a_carrier_of_an_unknown_release_carries_nothing() -> None:
    assert sources_input(PIN, pins=pins(replace(CARRIER, version="0.6.9")), facts=FACTS).carrier is None


def test_a_release_that_nobody_has_read_has_no_sources() -> None:
    with pytest.raises(UsageError, match="nothing is known of vllm 9"):
        sources_input(replace(PIN, version="9.0"), pins=pins(), facts=FACTS)


def test_only_releases_of_vllm_have_a_lock_of_sources() -> None:
    with pytest.raises(ConfigError, match=r"pins\.yaml:8: flashinfer\.lock: only of vllm"):
        sources_input(CARRIER, pins=pins(), facts=FACTS)

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from file_server import FileServer
from package_server import publish, upstream_of
from small_project import make_project, render, write_locks

from spark_images.bisect.candidate import digest_of_project
from spark_images.bisect.ends import PinEnd, StateEnd, read_end
from spark_images.bisect.picture import range_line, range_svg
from spark_images.bisect.subject import change_set, line_of_one, line_of_pin, line_of_revisions
from spark_images.cache import Cache
from spark_images.errors import ConfigError, UsageError
from spark_images.pin_rules import refusals, required_together
from spark_images.pins import RequirementsPin
from spark_images.pins_edit import edit_pin
from spark_images.project import Project
from spark_images.repin import ToText, ToValues, edit_project, materialise, stale_locks
from spark_images.search import Verdict
from spark_images.upstream import Upstream

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as served:
        yield served


@pytest.fixture
def upstream(server: FileServer, tmp_path: Path) -> Upstream:
    return upstream_of(server, tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *words], cwd=folder, text=True).strip()


def commit(project: Project, pin: str = "", **values: str) -> str:
    """Move a pin, remake what belongs to it, and commit; the commit."""
    path = project.root / "pins.yaml"
    if pin:
        path.write_text(edit_pin(path.read_text(), pin, {(key,): value for key, value in values.items()}))
    write_locks(project.root)
    render(project.root)
    if not (project.root / ".git").exists():
        git(project.root, "init", "-q")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-q", "--allow-empty", "-m", f"move {pin}")
    return git(project.root, "rev-parse", "HEAD")


def state(project: Project, text: str, cache: Cache) -> StateEnd:
    end = read_end(text, project=Project(project.root), cache=cache)
    assert isinstance(end, StateEnd)
    return end


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_version_of_a_pin_may_say_whose_it_is(project: Project, cache: Cache) -> None:
    one = read_end("extra=2", project=project, cache=cache)
    other = read_end("hello=carrier==0.3.1", project=project, cache=cache)
    assert one == PinEnd(pin="extra", project="", version="2")
    assert other == PinEnd(pin="hello", project="carrier", version="0.3.1")


def test_two_revisions_differ_in_the_pins_that_moved_between_them(project: Project, cache: Cache) -> None:
    first = commit(project)
    commit(project, "extra", version="3", sha256="d" * 64)
    last = commit(project, "tools", version="14", packages="[nvcc==14, cublas==13]")
    good, bad = state(project, first, cache), state(project, "HEAD", cache)
    changes = change_set(good, bad, pins=project.pins)
    assert changes.told == {"extra": "2 -> 3", "tools": "13 nvcc==13 cublas==13 -> 14 nvcc==14 cublas==13"}
    assert [change.name for change in changes.changes] == ["tools", "extra"]  # what compiles nothing comes first
    (extra, tools) = changes.candidate(frozenset({"tools"})).moves
    assert isinstance(tools, ToText)
    assert isinstance(extra, ToText)
    assert 'version: "14"' in tools.block
    assert dict(tools.files)["images/tools.lock"].startswith("# The wheels behind the pin `tools`")
    assert 'version: "2"' in extra.block
    until = replace(changes, until=last)
    key = until.candidate(frozenset({"tools"})).key
    assert key == f"set:tools@{last}"
    assert until.made_by(key) == frozenset({"tools"})
    assert changes.made_by(key) is None
    line = line_of_revisions(good, bad, project=project, cache=cache)
    assert [one.key for one in line.candidates][0::2] == [f"revision:{first}", f"revision:{last}"]


def test_a_revision_is_made_as_it_was_and_the_clone_is_not_touched(
    project: Project, cache: Cache, upstream: Upstream, tmp_path: Path
) -> None:
    first = commit(project)
    commit(project, "extra", version="3", sha256="d" * 64)
    before = digest_of_project(project.root)
    end = state(project, first, cache)
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    moves = [end.move(pin) for pin in project.pins.pins]
    assert materialise(moves, project.root, folder, upstream=upstream, on_line=print) == 0
    assert Project(folder).pins["extra"].version == "2"  # type: ignore[union-attr]
    assert digest_of_project(project.root) == before


def test_the_requirements_of_a_revision_go_with_its_pin(
    project: Project, cache: Cache, upstream: Upstream, tmp_path: Path
) -> None:
    """With those of another one its pin could be a mistake: sdists without what builds them."""
    file, pins = project.root / "images/requirements.yaml", project.root / "pins.yaml"
    file.write_text("schema: 1\nlayers: {all: ['*']}\n")
    with pins.open("a") as text:
        text.write(
            "wheels: {kind: requirements, for: [extra], requirements: images/requirements.yaml, platform: linux/arm64,"
            " lock: images/wheels.lock, python: '3.11', exclude-newer: 2026-11-20T00:00:00Z}\n"
            "frontend: {kind: wheels, version: '1', lock: images/frontend.lock, platforms: [linux/amd64],"
            " packages: [build==1.6.1]}\n"
        )
    first = commit(project)
    file.write_text(f"{file.read_text()}sdists: {{extra: {{version: '2', because: no wheel}}}}\n")
    pins.write_text(pins.read_text().replace("exclude-newer:", "build-with: frontend, exclude-newer:"))
    commit(project)
    end = state(project, first, cache)
    (folder := tmp_path / "work").mkdir()
    assert list(change_set(end, state(project, "HEAD", cache), pins=Project(project.root).pins).moves) == ["wheels"]
    file.write_text(f"{file.read_text()}without: {{a.py: of no use}}\n")
    commit(project)
    before, after = (state(project, text, cache) for text in ("HEAD^", "HEAD"))
    assert list(change_set(before, after, pins=Project(project.root).pins).moves) == ["wheels"]
    move = end.move(Project(project.root).pins["wheels"])
    wheels = edit_project([move], project.root, folder, upstream=upstream).pins["wheels"]
    assert isinstance(wheels, RequirementsPin)
    assert (wheels.build_with, wheels.requirements.sdists) == ("", ())


def test_a_revision_whose_locks_are_older_than_their_digest_needs_no_resolving(
    project: Project, cache: Cache, upstream: Upstream, tmp_path: Path
) -> None:
    commit(project)
    locks = [project.root / name for name in ("images/tools.lock", "images/debian/debs.lock")]
    for lock in locks:
        lock.write_text(re.sub("entries: .*\n", "", lock.read_text()))
    git(project.root, "commit", "-q", "-a", "-m", "as locks were")
    end = state(project, "HEAD", cache)
    here = state(project, ".", cache)
    commit(project, "extra", version="3", sha256="d" * 64)

    def stale(end: StateEnd, name: str) -> list[str]:
        (folder := tmp_path / name).mkdir()
        moves = [end.move(pin) for pin in project.pins.pins]
        return stale_locks(edit_project(moves, project.root, folder, upstream=upstream), set(end.blocks))

    assert stale(end, "revision") == []
    assert set(stale(here, "files")) == {"tools", "debian"}  # for files that anybody may have edited nobody vouches


def test_revisions_the_wrong_way_round_and_states_without_a_difference_are_refused(
    project: Project, cache: Cache
) -> None:
    first, last = commit(project), commit(project, "extra", version="3", sha256="d" * 64)
    with pytest.raises(UsageError, match="no descendant"):
        line_of_revisions(state(project, last, cache), state(project, first, cache), project=project, cache=cache)
    with pytest.raises(UsageError, match="have the same pins"):
        change_set(state(project, last, cache), state(project, ".", cache), pins=project.pins)


def test_a_record_and_the_files_here_differ_in_what_the_record_names(project: Project, cache: Cache) -> None:
    folder = cache.records / "20261101T000000Z-hello-gb10-debian-aaaaaaaaaaaa-0000"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(
        f'{{"pins": {{"extra": "1 sha256:{"e" * 64}", "tools": "13 nvcc==13 cublas==13"}}}}'
    )
    changes = change_set(state(project, folder.name, cache), state(project, ".", cache), pins=project.pins)
    assert changes.told == {"extra": "1 -> 2"}
    assert changes.candidate(frozenset()).moves == (
        ToValues(pin="extra", values=((("version",), "1"), (("sha256",), "e" * 64))),
    )


def test_a_moved_pin_whose_lock_has_to_be_made_anew_gets_it(
    project: Project, server: FileServer, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple/"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    publish(server, "nvcc", {"nvcc-14-py3-none-any.whl": ""})
    publish(server, "cublas", {"cublas-13-py3-none-any.whl": ""})
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    end = PinEnd(pin="tools", project="nvcc", version="14")
    candidate = line_of_one(end, pins=project.pins, upstream=upstream, now=NOW).candidates[0]
    assert materialise(candidate.moves, project.root, folder, upstream=upstream, on_line=print) == 0
    assert "nvcc-14-py3-none-any.whl" in (folder / "images/tools.lock").read_text()


# --- lines ------------------------------------------------------------------------------------------------------------


def test_prereleases_count_only_as_ends(project: Project, server: FileServer, upstream: Upstream) -> None:
    publish(server, "extra", {f"extra-{version}.tar.gz": "" for version in ("2", "3rc1", "3", "4rc1", "4")})

    def line(good: str, bad: str) -> list[str]:
        ends = (PinEnd(pin="extra", project="", version=version) for version in (good, bad))
        found = line_of_pin(*ends, pins=project.pins, upstream=upstream, find_fix=False, commits=False, now=NOW)
        return [one.label for one in found.candidates]

    assert line("2", "4") == ["extra 2", "extra 3", "extra 4"]
    assert line("3rc1", "4") == ["extra 3rc1", "extra 3", "extra 4"]


def test_what_makes_no_line_is_refused(project: Project, server: FileServer, upstream: Upstream) -> None:
    publish(server, "extra", {"extra-2.tar.gz": "", "extra-3.tar.gz": ""})

    def refused(good: PinEnd, bad: PinEnd, *, commits: bool = False) -> str:
        with pytest.raises(UsageError) as caught:
            line_of_pin(good, bad, pins=project.pins, upstream=upstream, find_fix=False, commits=commits, now=NOW)
        return caught.value.what

    def end(pin: str, version: str, project: str = "") -> PinEnd:
        return PinEnd(pin=pin, project=project, version=version)

    assert refused(end("extra", "2"), end("hello", "3")) == "`extra` and `hello` are two pins"
    assert refused(end("tools", "13"), end("tools", "14")) == "`tools` holds several packages"
    assert refused(end("patch", "1"), end("patch", "2")) == "nobody can be asked which versions of `patch` there are"
    assert refused(end("extra", "2"), end("extra", "3"), commits=True).startswith("`extra` is no git pin")
    assert refused(end("hello", "1", "carrier"), end("hello", "2", "carrier")).startswith("no route of `hello`")


# --- compat rules -----------------------------------------------------------------------------------------------------


def test_what_one_release_moves_together_requires_each_other() -> None:
    project = Project(ROOT)
    good = {"vllm": "0.19.1 sha256:1", "flashinfer": "0.6.6 sha256:1"}
    bad = {"vllm": "0.20.2 sha256:2", "flashinfer": "0.6.8.post1 sha256:2"}
    together = required_together(good, bad, project=project)
    assert together == {"vllm": frozenset({"flashinfer"}), "flashinfer": frozenset({"vllm"})}
    assert required_together(good, {**bad, "vllm": "0.19.1 sha256:1"}, project=project) == {}


def test_a_project_without_rules_refuses_nothing(project: Project) -> None:
    target, base = project.variant(project.image("hello"), None, None)
    assert refusals(project, image="hello", target=target, base=base) == ()


def test_pins_are_refused_for_the_images_that_they_are_in_before_there_are_locks(tmp_path: Path) -> None:
    for name in ("images", "templates"):
        (tmp_path / name).symlink_to(ROOT / name)
    text = (ROOT / "pins.yaml").read_text()
    (tmp_path / "pins.yaml").write_text(re.sub(r"(?m)^(vllm:(?:\n .*)*?\n  version:) .*", r"\1 0.19.1", text))
    project = Project(tmp_path)
    gb10 = project.target("gb10")
    (why,) = refusals(project, image="vllm", target=gb10, base="debian")
    assert why == "the wheel of torch 2.10.0 on PyPI for linux/arm64 is for CPUs only"
    assert refusals(project, image="flashinfer", target=gb10, base="debian") == ()


def test_a_pin_that_this_clone_lacks_is_refused(project: Project, cache: Cache) -> None:
    good = StateEnd(name="one", pins={"torch": "1"})
    bad = StateEnd(name="other", pins={"torch": "2"})
    with pytest.raises(UsageError, match="differ in `torch`, which is no pin here"):
        change_set(good, bad, pins=project.pins)


def test_a_broken_pins_yaml_of_a_candidate_is_told_by_its_line(
    project: Project, upstream: Upstream, tmp_path: Path
) -> None:
    folder = tmp_path / "work" / "project"
    folder.mkdir(parents=True)
    move = ToValues(pin="extra", values=((("sha256",), "no digest"),))
    with pytest.raises(ConfigError, match=r"extra.sha256: expected 64 hex digits"):
        materialise([move], project.root, folder, upstream=upstream, on_line=print)


# --- the picture ------------------------------------------------------------------------------------------------------


def test_the_range_is_drawn_and_the_rest_of_a_long_line_is_left_out() -> None:
    good, bad, skip = Verdict.GOOD, Verdict.BAD, Verdict.SKIP
    known = [good, None, good, skip, None, bad, None, bad]
    assert range_line(known, first=2, last=5) == "+.[+?.x].x"
    long = [good, *([None] * 200), *known]
    assert len(range_line(long, first=203, last=206)) < 110
    svg = range_svg("range", "", [f"v{number}" for number in range(8)], known, first=2, last=5)
    assert "<title>v3: cannot tell</title>" in svg

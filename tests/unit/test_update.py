from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from file_server import FileServer
from package_server import publish, upstream_of
from small_project import make_project

from spark_images.cli import main
from spark_images.package_index import PipConfig
from spark_images.project import Project
from spark_images.rot import Health, check_routes
from spark_images.update import Row, Rules, State, find_updates
from spark_images.upstream import Upstream

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as served:
        publish(
            served,
            "extra",
            {
                "extra-2.tar.gz": "2026-01-01",
                "extra-3.tar.gz": "2026-10-01",
                "extra-4.tar.gz": "2026-10-02",
                "extra-5.tar.gz": "2026-11-20",
                "extra-6rc1.tar.gz": "2026-10-03",
            },
        )
        for package in ("nvcc", "cublas"):
            wheels = {f"{package}-{version}-py3-none-any.whl": "2026-01-01" for version in ("13", "13.0.1", "13.1")}
            publish(served, package, wheels)
        yield served


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture
def upstream(server: FileServer, tmp_path: Path) -> Upstream:
    return upstream_of(server, tmp_path)


def row(project: Project, upstream: Upstream, name: str, **rules: object) -> Row:
    (found,) = find_updates(project, upstream, Rules(now=NOW, **rules), names=[name])  # type: ignore[arg-type]
    return found


def edit(project: Project, old: str, new: str) -> Project:
    path = project.root / "pins.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return Project(project.root)


def test_the_newest_release_that_is_old_enough_is_proposed(project: Project, upstream: Upstream) -> None:
    found = row(project, upstream, "extra")
    assert (found.state, found.now, found.newer, found.span) == (State.PROPOSED, "2", "4", 2)
    assert found.why == "passed over 5: 5 is 1 days old, 7 are asked for"
    assert found.title == "extra: 2 -> 4"
    assert row(project, upstream, "extra", cool_down_days=0).newer == "5"


def test_a_pin_that_has_the_newest_says_so_and_one_whose_newer_are_too_young(
    project: Project, upstream: Upstream, server: FileServer
) -> None:
    publish(server, "extra", {"extra-2.tar.gz": "2026-01-01", "extra-3.tar.gz": "2026-11-19"})
    assert row(project, upstream, "extra").state is State.COOLING


def test_withdrawn_releases_are_not_proposed(project: Project, upstream: Upstream, server: FileServer) -> None:
    files = {"extra-2.tar.gz": "2026-01-01", "extra-3.tar.gz": "2026-01-02"}
    publish(server, "extra", files, yanked=("extra-3.tar.gz",))
    assert row(project, upstream, "extra").state is State.NEWEST


def test_a_release_of_unknown_age_waits_unless_no_age_is_asked_for(
    project: Project, upstream: Upstream, server: FileServer
) -> None:
    publish(server, "extra", {"extra-2.tar.gz": "", "extra-3.tar.gz": ""})
    assert "nobody says how old it is" in row(project, upstream, "extra").why
    assert row(project, upstream, "extra", cool_down_days=0).newer == "3"


def test_a_held_pin_stays_until_its_day(project: Project, upstream: Upstream) -> None:
    held = edit(project, "  name: extra\n", "  name: extra\n  hold: {until: 2026-12-01, because: 3 breaks hello}\n")
    found = row(held, upstream, "extra")
    assert (found.state, found.why) == (State.HELD, "until 2026-12-01: 3 breaks hello")
    over = edit(held, "2026-12-01", "2026-11-21")
    assert row(over, upstream, "extra").state is State.PROPOSED


def test_what_rules_refuse_is_passed_over_for_an_older_one(project: Project, upstream: Upstream) -> None:
    def refusals(moved: Project) -> tuple[str, ...]:
        version = moved.pins["extra"].version  # type: ignore[union-attr]
        return (f"extra {version} does not go with hello",) if version == "4" else ()

    found = row(project, upstream, "extra", refusals=refusals)
    assert (found.newer, found.why) == ("3", "passed over 5: 5 is 1 days old, 7 are asked for")
    refused = row(project, upstream, "extra", cool_down_days=0, refusals=lambda moved: ("nothing goes with it",))
    assert (refused.state, refused.newer, refused.why) == (State.REFUSED, "5", "nothing goes with it")


def test_packages_of_a_series_move_together_and_stay_in_it(
    project: Project, upstream: Upstream, server: FileServer
) -> None:
    series = edit(project, 'version: "13"\n', 'version: "13.0"\n')
    found = row(series, upstream, "tools")
    assert (found.state, found.newer) == (State.PROPOSED, "nvcc 13.0.1, cublas 13.0.1")


def test_packages_of_a_pin_that_carries_one_s_version_move_by_themselves(project: Project, upstream: Upstream) -> None:
    rows = find_updates(project, upstream, Rules(now=NOW), names=["tools"])
    assert [(one.package, one.newer) for one in rows] == [("nvcc", "13.1"), ("cublas", "13.1")]


def test_an_upstream_that_does_not_answer_is_said_and_the_others_are_asked(
    project: Project, upstream: Upstream, server: FileServer
) -> None:
    del server.files["/simple/nvcc/"]
    rows = {one.pin: one for one in find_updates(project, upstream, Rules(now=NOW), names=["tools", "extra", "patch"])}
    assert rows["tools"].state is State.UNKNOWN
    assert rows["extra"].state is State.PROPOSED
    assert (rows["patch"].state, rows["patch"].why) == (State.UNKNOWN, "nobody can be asked for newer files")


# --- through the command line -----------------------------------------------------------------------------------------


@pytest.fixture
def command(project: Project, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("PIP_INDEX_URL", server.url("/simple/"))  # for verbs that run as processes of their own
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    config = PipConfig(indexes=(server.url("/simple/"),))  # to ask pip for it takes a second each time
    monkeypatch.setattr("spark_images.package_index.read_pip_config", lambda env: config)
    monkeypatch.setenv("SPARK_IMAGES_CACHE", str(tmp_path / "cache"))
    return ["--project", str(project.root)]


def test_proposals_are_a_table_and_json_and_change_nothing(
    command: list[str], project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    before = (project.root / "pins.yaml").read_text()
    assert main([*command, "update-pins", "extra", "--json", str(tmp_path / "rows.json")]) == 0
    assert "proposed" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "rows.json").read_text())
    assert (found["title"], found["state"], found["line"]) == ("extra: 2 -> 4", "proposed", 14)
    assert (project.root / "pins.yaml").read_text() == before


def test_what_is_applied_touches_only_the_lines_of_its_values(command: list[str], project: Project) -> None:
    before = (project.root / "pins.yaml").read_text().splitlines()
    assert main([*command, "update-pins", "extra", "--apply"]) == 0
    after = (project.root / "pins.yaml").read_text().splitlines()
    changed = [new for old, new in zip(before, after, strict=True) if old != new]
    assert [line.split(":")[0].strip() for line in changed] == ["version", "sha256"]
    assert changed[0] == '  version: "4"'


def test_what_somebody_else_has_moved_is_completed(command: list[str], project: Project, server: FileServer) -> None:
    edit(project, 'name: extra\n  version: "2"', 'name: extra\n  version: "4"')
    edit(project, "packages: [nvcc==13, cublas==13]", "packages: [nvcc==13.1, cublas==13]")
    assert main([*command, "update-pins", "--complete", "extra", "tools"]) == 0
    done = Project(project.root)
    digest = hashlib.sha256(b"extra-4.tar.gz").hexdigest()
    assert done.pins["extra"].sha256 == digest  # type: ignore[union-attr]
    assert {wheel.version for wheel in done.wheels_lock("tools").wheels} == {"13.1", "13"}


def test_a_branch_gets_a_commit_per_bump_and_the_clone_stays_as_it_is(command: list[str], project: Project) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        return subprocess.check_output(["git", *identity, *words], cwd=project.root, text=True).strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "begin")
    git("config", "user.name", "test")
    git("config", "user.email", "test@example.org")
    before = (project.root / "pins.yaml").read_text()
    assert main([*command, "update-pins", "extra", "--branch", "bumps"]) == 0
    assert git("log", "-1", "--format=%s", "bumps") == "extra: 2 -> 4"
    assert git("diff", "--stat", "HEAD", "bumps", "--", ".").count("pins.yaml") == 1
    assert (project.root / "pins.yaml").read_text() == before
    assert git("status", "--porcelain") == ""
    assert git("worktree", "list").count("\n") == 0


def test_verified_is_read_and_is_no_part_of_the_plan(project: Project) -> None:
    image = project.image("hello")
    before = project.plan(image, *project.variant(image, None, None)).plan_id
    moved = edit(project, "  name: extra\n", "  name: extra\n  verified: 2026-11-21\n")
    assert str(moved.pins["extra"].verified) == "2026-11-21"
    assert moved.plan(image, *moved.variant(image, None, None)).plan_id == before


# --- rot --------------------------------------------------------------------------------------------------------------


def test_routes_are_asked_and_what_would_be_lost_is_named(
    project: Project, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PipConfig(indexes=(server.url("/simple/"),))  # to ask pip for it takes a second each time
    monkeypatch.setattr("spark_images.package_index.read_pip_config", lambda env: config)
    monkeypatch.setenv("SPARK_IMAGES_TIMEOUT_S", "5")
    server.files["/fix.patch"] = b"diff"
    urls = f"urls: [{server.url('/fix.patch')}, {server.url('/gone.patch')}]"
    moved = edit(project, "urls: [https://example.org/fix.patch]", urls)
    cache = upstream_of(server, tmp_path).cache
    patch, extra = check_routes(moved, cache=cache, names=["patch", "extra"])
    assert (patch.contents, patch.lost, patch.last, patch.single) == (1, (), ("fix.patch",), 0)
    assert [one.health for one in patch.dead] == [Health.GONE]
    assert extra.changed == ("extra-2.tar.gz",), "the index serves another sha256 than the pin names"
    assert extra.lost == ("extra-2.tar.gz",)


def test_check_pins_fails_where_a_route_serves_something_else(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "check-pins", "extra"]) == 21
    assert "a route serves something else than its pin names" in capsys.readouterr().err

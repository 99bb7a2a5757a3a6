"""What is to be built, on which runner, in which order; and what a forge is told of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from small_project import make_project, render, write_locks

from spark_images.cache import Cache
from spark_images.ci.matrix import AMD64, ARM64, Entry, Variant, chosen_builder, in_waves, wave_documents
from spark_images.ci.to_build import ToBuild, find_to_build, print_to_build
from spark_images.ci.variants import variants_of
from spark_images.errors import UsageError
from spark_images.project import Project

BOTH = {"SPARK_IMAGES_RUNNER_ARM64": "spark", "SPARK_IMAGES_RUNNER_AMD64": "x86"}


def variant(image: str, *components: str, builders: tuple[str, ...] = (ARM64, AMD64)) -> Variant:
    return Variant(image=image, target="gb10", base="debian", platform=ARM64, builders=builders, components=components)


def keys(waves: tuple[tuple[Variant, ...], ...]) -> list[list[str]]:
    return [[one.image for one in wave] for wave in waves]


def test_what_becomes_part_of_another_is_built_before_it() -> None:
    waves = in_waves([variant("server", "kernels"), variant("app", "server"), variant("kernels"), variant("other")])
    assert keys(waves) == [["kernels", "other"], ["server"], ["app"]]


def test_a_component_that_is_not_among_them_makes_nobody_wait() -> None:
    assert keys(in_waves([variant("server", "kernels")])) == [["server"]]


@pytest.mark.parametrize(
    ("labels", "builder"),
    [({ARM64: "spark", AMD64: "x86"}, ARM64), ({AMD64: "x86"}, AMD64), ({ARM64: "", AMD64: "x86"}, AMD64), ({}, "")],
)
def test_the_images_own_architecture_builds_it_else_one_that_cross_builds(labels: dict[str, str], builder: str) -> None:
    assert chosen_builder(variant("server"), labels) == builder


def test_what_is_compiled_inside_an_image_is_not_cross_built() -> None:
    assert chosen_builder(variant("server", builders=(ARM64,)), {AMD64: "x86"}) == ""


def test_jobs_without_entries_are_there_and_empty() -> None:
    entry = Entry(variant=variant("server"), builder=ARM64, runner="spark", plan_id="0123456789abcdef")
    first, second = wave_documents([entry], 2)
    assert [one["image"] for one in first["include"]] == ["server"]
    assert first["include"][0]["plan"] == "0123456789ab"
    assert second == {"include": []}


# --- a project --------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def offer(project: Project, tmp_path: Path, env: dict[str, str], **options: str) -> ToBuild:
    return find_to_build(
        project,
        env=env,
        cache=Cache(tmp_path / "cache"),
        images=[],
        every=False,
        registry="",
        since=options.get("since", ""),
    )


def names(offer: ToBuild) -> list[tuple[str, str, str]]:
    return [(one["image"], one["target"], one["runner"]) for one in offer.waves[0]["include"]]


def test_the_first_base_of_every_target_is_built_unless_all_are_asked_for(project: Project) -> None:
    assert {one.base for one in variants_of(project)} == {"debian"}
    assert {one.base for one in variants_of(project, every=True)} == {"debian", "ngc"}


def test_each_target_is_built_by_its_own_architecture(project: Project, tmp_path: Path) -> None:
    assert names(offer(project, tmp_path, BOTH)) == [
        ("hallway", "gb10", "spark"), ("hallway", "cpu", "x86"), ("hello", "gb10", "spark"), ("hello", "cpu", "x86")
    ]  # fmt: skip


def test_targets_may_be_left_out(project: Project, tmp_path: Path) -> None:
    made = offer(project, tmp_path, {**BOTH, "SPARK_IMAGES_TARGETS": "gb10"})
    assert {target for _, target, _ in names(made)} == {"gb10"}


def test_an_unknown_target_is_refused(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gb1"):
        offer(project, tmp_path, {**BOTH, "SPARK_IMAGES_TARGETS": "gb1"})


def test_a_variant_that_cannot_be_planned_is_said_and_keeps_no_other_from_it(project: Project, tmp_path: Path) -> None:
    (project.root / "images/hello/gb10-debian.Dockerfile").write_text("FROM scratch\n")
    made = offer(project, tmp_path, BOTH)
    assert ("hello", "gb10", "spark") not in names(made)
    assert ("hallway", "gb10", "spark") in names(made)
    (row,) = (row for row in made.rows if row[0] == "hello for gb10 on debian")
    assert "is not what its sources render to" in row[-1]


def test_the_plan_is_that_of_the_runner_that_builds(project: Project, tmp_path: Path) -> None:
    crossed = offer(project, tmp_path, {"SPARK_IMAGES_RUNNER_AMD64": "x86", "SPARK_IMAGES_TARGETS": "gb10"})
    native = offer(project, tmp_path, {"SPARK_IMAGES_RUNNER_ARM64": "spark", "SPARK_IMAGES_TARGETS": "gb10"})
    image, target = project.image("hello"), project.target("gb10")
    for made, builder in ((crossed, AMD64), (native, ARM64)):
        plan = project.plan(image, target, "debian", builder=builder).plan_id[:12]
        assert [one["plan"] for one in made.waves[0]["include"] if one["image"] == "hello"] == [plan]


def test_a_forge_gets_json_outputs_and_a_table(
    project: Project, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs, page = tmp_path / "outputs", tmp_path / "page"
    made = offer(project, tmp_path, BOTH)
    print_to_build(made, {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(page)})

    assert json.loads(capsys.readouterr().out)["waves"] == list(made.waves)
    written = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    assert json.loads(written["wave-0"]) == made.waves[0]
    assert written["gpu"] == '{"include":[]}'  # as the workflows compare it
    assert "| hello for gb10 on debian |" in page.read_text()


# --- a change ---------------------------------------------------------------------------------------------------------


def git(project: Project, *words: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    return subprocess.check_output(["git", *identity, *words], cwd=project.root, text=True).strip()


def commit(project: Project) -> str:
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "a state")
    return git(project, "rev-parse", "HEAD")


def test_only_what_a_change_makes_anew_is_built(project: Project, tmp_path: Path) -> None:
    git(project, "init", "--quiet")
    base = commit(project)
    image = project.root / "images/hallway/image.yaml"
    image.write_text(image.read_text().replace("another image", "a hallway"))
    (project.root / "README.md").write_text("text\n")
    render(project.root)
    commit(project)

    changed = names(offer(Project(project.root), tmp_path, BOTH, since=base))
    assert changed == [("hallway", "gb10", "spark"), ("hallway", "cpu", "x86")]


def test_a_change_is_seen_from_where_it_left_the_line(project: Project, tmp_path: Path) -> None:
    git(project, "init", "--quiet", "--initial-branch=main")
    commit(project)
    git(project, "checkout", "--quiet", "-b", "change")
    (project.root / "README.md").write_text("text\n")
    commit(project)
    git(project, "checkout", "--quiet", "main")
    pins = project.root / "pins.yaml"
    pins.write_text(pins.read_text().replace("version: b12", "version: b13"))
    render(project.root)
    main = commit(project)
    git(project, "checkout", "--quiet", "change")

    assert names(offer(Project(project.root), tmp_path, BOTH, since=main)) == []


def test_an_unknown_commit_is_refused(project: Project, tmp_path: Path) -> None:
    git(project, "init", "--quiet")
    commit(project)
    with pytest.raises(UsageError, match="no commit in common"):
        offer(project, tmp_path, BOTH, since="0" * 40)


def test_what_was_not_there_before_is_new(project: Project, tmp_path: Path) -> None:
    pins = (project.root / "pins.yaml").read_text()
    (project.root / "pins.yaml").unlink()
    git(project, "init", "--quiet")
    base = commit(project)
    (project.root / "pins.yaml").write_text(pins)
    write_locks(project.root)
    commit(project)
    assert len(names(offer(Project(project.root), tmp_path, BOTH, since=base))) == 4

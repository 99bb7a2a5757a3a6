"""A clone as values: what is chosen where nothing is said, and what a plan refuses to stand on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from small_project import make_project, render

from spark_images.errors import ConfigError, DriftError, SparkImagesError, StaleLockError, UsageError
from spark_images.host import host_platform
from spark_images.plan import Plan
from spark_images.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "clone")


def plan(project: Project, *, builder: str | None = None) -> Plan:
    image = project.image("hello")
    return project.plan(image, *project.variant(image, None, None), builder=builder)


def edit(project: Project, name: str, old: str, new: str) -> Project:
    """The clone after an edit of one file, read anew."""
    path = project.root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return Project(project.root)


@pytest.mark.parametrize(
    ("target", "base", "expected"),
    [
        (None, None, ("gb10", "debian")),
        (None, "ngc", ("gb10", "ngc")),
        ("cpu", None, ("cpu", "debian")),
        ("gb10", "ngc", ("gb10", "ngc")),
    ],
)
def test_a_variant_is_what_was_asked_for_and_else_the_images_first(
    project: Project, target: str | None, base: str | None, expected: tuple[str, str]
) -> None:
    chosen, chosen_base = project.variant(project.image("hello"), target, base)
    assert (chosen.name, chosen_base) == expected


@pytest.mark.parametrize(
    ("target", "base", "what", "hint"),
    [
        ("gb1", None, "no target `gb1` (did you mean `gb10`?)", "known: gb10, cpu, hopper"),
        ("hopper", None, "image `hello` does not support target `hopper`", "supported: `gb10`, `cpu` ("),
        ("cpu", "ngc", "image `hello` has no base `ngc` for target `cpu`", "supported: `debian` ("),
        (None, "debain", "image `hello` has no base `debain` for target `gb10` (did you mean `debian`?)", "`ngc`"),
    ],
)
def test_a_variant_that_is_not_supported_is_refused_with_those_that_are(
    project: Project, target: str | None, base: str | None, what: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        project.variant(project.image("hello"), target, base)
    assert caught.value.what == what
    assert hint in caught.value.hint


def test_an_unknown_image_offers_the_nearest_and_lists_all(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        project.image("helo")
    assert caught.value.what == "no image `helo` (did you mean `hello`?)"
    assert caught.value.hint == "known: hallway, hello"


def test_a_word_that_is_near_to_none_offers_none(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        project.image("pytorch")
    assert caught.value.what == "no image `pytorch`"


def test_every_variant_has_its_dockerfile(project: Project) -> None:
    found = {path.relative_to(project.root).as_posix(): text for path, text in project.dockerfiles()}
    assert sorted(found) == [
        f"images/{image}/{variant}.Dockerfile"
        for image in ("hallway", "hello")
        for variant in ("cpu-debian", "gb10-debian", "gb10-ngc")
    ]
    assert found["images/hello/gb10-ngc.Dockerfile"].startswith("# hello for gb10 on ngc\n")


def test_a_plan_holds_the_committed_dockerfile_and_the_digests_of_the_scripts(project: Project) -> None:
    made = plan(project)
    assert made.dockerfile == (project.root / "images/hello/gb10-debian.Dockerfile").read_text()
    assert dict(made.scripts) == {"step": hashlib.sha256((project.root / "scripts/step").read_bytes()).hexdigest()}
    assert made.builder == host_platform()


def test_a_plan_can_be_made_for_another_builder(project: Project) -> None:
    made = [plan(project, builder=builder) for builder in ("linux/amd64", "linux/arm64")]
    assert [{deb.arch for deb in one.roots[0].debs} for one in made] == [{"amd64"}, {"arm64"}]
    assert made[0].plan_id != made[1].plan_id


def test_the_plan_is_the_same_wherever_the_clone_lies(project: Project, tmp_path: Path) -> None:
    assert plan(make_project(tmp_path / "elsewhere")).plan_id == plan(project).plan_id


def test_an_edited_script_changes_the_plan(project: Project) -> None:
    before = plan(project).plan_id
    assert plan(edit(project, "scripts/step", "#!/bin/sh\n", "#!/bin/sh -e\n")).plan_id != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("images/hello/gb10-debian.Dockerfile", "USER 10001:10001", "USER 0:0"),
        ("images/hello/image.yaml", "10001:10001", "10002:10002"),
        ("templates/hello.Dockerfile.j2", "USER", "EXPOSE 80\nUSER"),
    ],
)
def test_a_plan_refuses_a_dockerfile_that_is_not_what_renders_now(
    project: Project, file: str, old: str, new: str
) -> None:
    edited = edit(project, file, old, new)
    with pytest.raises(DriftError, match=r"images/hello/gb10-debian\.Dockerfile is not what") as caught:
        plan(edited)
    assert "render" in caught.value.hint


def test_a_plan_refuses_a_missing_dockerfile(project: Project) -> None:
    (project.root / "images/hello/gb10-debian.Dockerfile").unlink()
    with pytest.raises(DriftError):
        plan(project)


def test_a_missing_script_names_the_image_yaml_that_wants_it(project: Project) -> None:
    edited = edit(project, "images/hello/image.yaml", "[step]", "[step, compile_hello]")
    with pytest.raises(ConfigError) as caught:
        plan(edited)
    assert caught.value.what == (
        f"{project.root}/images/hello/image.yaml: scripts: there is no file `scripts/compile_hello`"
    )


def test_a_lock_is_read_once(project: Project) -> None:
    before = plan(project), project.wheels_lock("tools")
    (project.root / "images/tools.lock").unlink()
    assert (plan(project), project.wheels_lock("tools")) == before


def test_a_project_without_a_pin_of_debian_packages_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "pins.yaml").write_text("schema: 1\n")
    with pytest.raises(ConfigError, match="no pin of kind `debs`"):
        _ = Project(tmp_path).debs_lock


@pytest.mark.parametrize(
    ("old", "new", "lock"),
    [
        ("nvcc==13,", "nvcc==14,", "images/tools.lock"),
        ("2026-11-01T", "2026-11-02T", "images/debian/debs.lock"),
    ],
)
def test_a_lock_of_another_pin_is_stale(project: Project, old: str, new: str, lock: str) -> None:
    edited = edit(project, "pins.yaml", old, new)
    render(project.root)
    with pytest.raises(StaleLockError, match=lock) as caught:
        plan(edited)
    assert caught.value.hint.startswith("make it with `./noxw -s lock -- ")


def test_buildkit_runs_from_its_pin(project: Project) -> None:
    assert project.buildkit_image({}) == f"docker.io/moby/buildkit:v0.32.2@sha256:{'d' * 64}"


def test_the_environment_can_name_another_buildkit(project: Project) -> None:
    assert project.buildkit_image({"SPARK_IMAGES_BUILDKIT_IMAGE": "mine/buildkit:1"}) == "mine/buildkit:1"


def test_a_project_without_the_pin_names_no_buildkit(project: Project) -> None:
    text = (project.root / "pins.yaml").read_text()
    (project.root / "pins.yaml").write_text(text.partition("buildkit:")[0])
    assert Project(project.root).buildkit_image({}) == ""


def test_a_machine_that_no_build_runs_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(SparkImagesError, match="no builds on `riscv64` machines"):
        host_platform()

"""The workflow files of both forges: what they say, and that what is on disk says the same."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_project import make_project

from spark_images.ci.install import check_workflows, rendered, write_workflows
from spark_images.ci.workflows import FORGES, WORKFLOWS, Forge, first_difference, is_unedited, job_id, sealed
from spark_images.errors import DriftError
from spark_images.project import Project

ROOT = Path(__file__).parents[2]
ALL = [(forge, name) for forge in FORGES for name in WORKFLOWS]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path)


def parsed(forge: Forge, name: str) -> dict[str, Any]:
    return dict(yaml.safe_load(rendered(Project(ROOT), forge)[f"{name}.yaml"]))


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(("forge", "name"), ALL, ids=lambda value: getattr(value, "name", value))
def test_workflows_run_git_and_nox_and_use_nobodys_actions(forge: Forge, name: str) -> None:
    for step in steps(parsed(forge, name)):
        assert "uses" not in step
        assert step["run"].startswith(("git init ", "./noxw -s "))


@pytest.mark.parametrize(("forge", "name"), ALL, ids=lambda value: getattr(value, "name", value))
def test_no_expression_stands_in_a_shell_line(forge: Forge, name: str) -> None:
    assert not [step["run"] for step in steps(parsed(forge, name)) if "${{" in step["run"]]


@pytest.mark.parametrize(("forge", "name"), ALL, ids=lambda value: getattr(value, "name", value))
def test_a_job_may_do_what_it_lists_and_no_more(forge: Forge, name: str) -> None:
    workflow = parsed(forge, name)
    assert workflow["permissions"] == {}
    written = {
        job: [what for what, may in spec["permissions"].items() if may == "write"]
        for job, spec in workflow["jobs"].items()
    }
    assert {what for every in written.values() for what in every} <= {
        "main": {"packages"}, "schedule": {"contents"}, "rollback": {"packages"}
    }.get(name, set())  # fmt: skip


@pytest.mark.parametrize("name", WORKFLOWS)
def test_gitea_gets_no_matrix_that_it_would_have_to_wait_for(name: str) -> None:
    (gitea,) = (forge for forge in FORGES if forge.name == "gitea")
    for job in parsed(gitea, name)["jobs"].values():
        assert "strategy" not in job
        assert "timeout-minutes" not in job


def test_every_image_and_target_has_its_job_on_gitea() -> None:
    (gitea,) = (forge for forge in FORGES if forge.name == "gitea")
    jobs = parsed(gitea, "main")["jobs"]
    project = Project(ROOT)
    for image in project.images:
        for target, bases in image.supports:
            assert f"{image.name}-{target}-{bases[0]}" in jobs


@pytest.mark.parametrize("forge", FORGES, ids=lambda forge: forge.name)
def test_strangers_code_builds_on_no_runner_of_ours(forge: Forge) -> None:
    jobs = parsed(forge, "pull-request")["jobs"]
    guarded = [job for job, spec in jobs.items() if "head.repo.full_name == github.repository" in spec.get("if", "")]
    building = [job for job, spec in jobs.items() if "ci-job -- audit" in spec["steps"][-1]["run"]]
    assert building
    for job in building:
        assert job in guarded or "matrix" in jobs[job]["needs"]


def test_the_workflows_of_this_repository_are_current() -> None:
    check_workflows(Project(ROOT))


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_what_was_written_has_not_drifted(project: Project) -> None:
    write_workflows(project, "gitea", force=False)
    check_workflows(project)
    assert (project.root / ".gitea/workflows/main.yaml").read_text() == (
        project.root / "ci/gitea/main.yaml"
    ).read_text()


def test_drift_names_file_and_line(project: Project) -> None:
    write_workflows(project, "gitea", force=False)
    path = project.root / ".gitea/workflows/main.yaml"
    lines = path.read_text().splitlines()
    lines[4] += "  # mine"
    path.write_text("\n".join(lines) + "\n")

    with pytest.raises(DriftError) as caught:
        check_workflows(project)

    assert caught.value.why == (".gitea/workflows/main.yaml:5: it was edited by hand",)


def test_a_hand_edited_workflow_is_overwritten_by_force_alone(project: Project) -> None:
    write_workflows(project, "github", force=False)
    path = project.root / ".github/workflows/schedule.yaml"
    wanted = path.read_text()
    edited = wanted.replace("17 3 * * 1", "0 0 * * *")
    path.write_text(edited)

    with pytest.raises(DriftError) as caught:
        write_workflows(project, "github", force=False)
    line = edited.splitlines().index('    - cron: "0 0 * * *"  # Mondays; not on the hour, when everybody asks') + 1
    assert caught.value.why == (f".github/workflows/schedule.yaml:{line}: it was edited by hand",)
    assert path.read_text() == edited

    write_workflows(project, "github", force=True)
    assert path.read_text() == wanted


def test_a_workflow_of_an_older_version_is_overwritten(project: Project) -> None:
    write_workflows(project, "github", force=False)
    path = project.root / ".github/workflows/main.yaml"
    wanted = path.read_text()
    path.write_text(sealed("name: main\n"))

    with pytest.raises(DriftError) as caught:
        check_workflows(project)
    assert "it is of another version" in caught.value.why[0]

    write_workflows(project, "github", force=False)
    assert path.read_text() == wanted


def test_a_seal_knows_every_edit() -> None:
    text = sealed("name: main\n")
    assert is_unedited(text)
    assert not is_unedited(text + "# more\n")
    assert not is_unedited(text.replace("main", "Main"))
    assert not is_unedited("name: main\n")


def test_the_first_different_line_is_counted_from_one() -> None:
    assert first_difference("a\nb\n", "a\nc\n") == 2
    assert first_difference("a\n", "a\nb\n") == 2
    assert first_difference("x\n", "a\n") == 1


def test_job_ids_are_those_that_forges_accept() -> None:
    assert job_id("llama.cpp-gb10-debian") == "llama_cpp-gb10-debian"
    assert re.fullmatch("[A-Za-z_][A-Za-z0-9_-]*", job_id("3d-gb10-debian"))


# --- what others say of them ------------------------------------------------------------------------------------------


def checker(name: str) -> str | None:
    folders = (Path(sys.prefix, "bin"), Path(os.environ.get("GO_TOOLS_DIR", "/opt/go-tools"), "bin"))
    return shutil.which(name) or next((found for folder in folders if (found := shutil.which(folder / name))), None)


@pytest.mark.parametrize(
    "words", [("zizmor", "--offline", "--no-progress"), ("actionlint",)], ids=lambda words: words[0]
)
def test_checkers_find_nothing(words: tuple[str, ...]) -> None:
    program = checker(words[0])
    if program is None:
        pytest.skip(f"{words[0]} is not here")
    files = sorted(map(str, ROOT.glob("ci/gi*/*.yaml")))
    ended = subprocess.run([program, *words[1:], *files], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_zizmor_would_find_an_input_in_a_shell(tmp_path: Path) -> None:
    program = checker("zizmor")
    if program is None:
        pytest.skip("zizmor is not here")
    text = (ROOT / "ci/github/rollback.yaml").read_text()
    bad = tmp_path / ".github/workflows/rollback.yaml"
    bad.parent.mkdir(parents=True)
    bad.write_text(text.replace("ci-job -- rollback", "ci-job -- rollback '${{ inputs.because }}'"))
    ended = subprocess.run(
        [program, "--offline", "--no-progress", str(bad)], capture_output=True, text=True, timeout=120
    )
    assert "template-injection" in ended.stdout

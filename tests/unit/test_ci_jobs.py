"""A job's inside: what is tried again, what ends it, what it leaves for people."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small_project import make_project

from spark_images.cache import Cache
from spark_images.ci import machine
from spark_images.ci.image_jobs import Subject, audit_job, build_job, gpu_job
from spark_images.ci.job import Job, run_job
from spark_images.ci.machine import require_builder, require_machine
from spark_images.ci.project_jobs import bisect_job, rollback_job
from spark_images.ci.steps import Steps
from spark_images.ci.summary import End, Summary
from spark_images.ci.updates import branch_name
from spark_images.errors import (
    BuildError,
    DiskFullError,
    JobTimeoutError,
    RegistryError,
    RouteError,
    RunnerError,
    SparkImagesError,
    UsageError,
)
from spark_images.host import host_platform, read_host
from spark_images.project import Project

OTHER = {"linux/amd64": "linux/arm64", "linux/arm64": "linux/amd64"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


def make_steps(tmp_path: Path, *, timeout_s: float = 600, slept: list[float] | None = None) -> Steps:
    naps = [] if slept is None else slept
    return Steps(
        Summary(title="a job"),
        project=tmp_path,
        env=dict(os.environ),
        note=tmp_path / "note",
        timeout_s=timeout_s,
        waits_s=(1, 2),
        sleep=naps.append,
    )


def ends_with(*statuses: int, notes: Path) -> list[str]:
    """A program that ends with these statuses in turn, and says which error it is."""
    return [
        "/bin/sh",
        "-c",
        f"echo x >>{notes}; n=$(wc -l <{notes}); set -- {' '.join(map(str, statuses))}; shift $((n - 1)); "
        'echo "building"; echo "error: number $n"; echo; echo "hint: look"; exit $1',
    ]


def test_what_only_the_network_broke_is_tried_again(tmp_path: Path) -> None:
    slept: list[float] = []
    steps = make_steps(tmp_path, slept=slept)
    program = ends_with(RouteError.exit_status, RegistryError.exit_status, 0, notes=tmp_path / "notes")

    assert steps.program("push", program)

    (step,) = steps.summary.steps
    assert (step.end, step.tries, step.error) == (End.GOOD, 3, "")
    assert slept == [1, 2]


def test_an_outage_that_lasts_ends_the_job_with_its_error(tmp_path: Path) -> None:
    steps = make_steps(tmp_path)
    assert not steps.program("push", ends_with(20, 20, 20, notes=tmp_path / "notes"))
    assert steps.status == RouteError.exit_status
    assert steps.summary.steps[0].error == "error: number 3\n\nhint: look"


def test_a_compile_error_is_not_tried_again_and_nothing_runs_after_it(tmp_path: Path) -> None:
    slept: list[float] = []
    steps = make_steps(tmp_path, slept=slept)
    steps.program("build", ends_with(BuildError.exit_status, 0, notes=tmp_path / "notes"))
    steps.program("push", ["/bin/sh", "-c", f"touch {tmp_path}/pushed"])

    assert steps.status == BuildError.exit_status
    assert [step.end for step in steps.summary.steps] == [End.FAILED, End.NOT_RUN]
    assert slept == []
    assert not (tmp_path / "pushed").exists()


def test_every_error_of_a_program_is_kept_and_nothing_between_them(tmp_path: Path) -> None:
    steps = make_steps(tmp_path)
    said = "error: a test failed\\n  test_red: on purpose\\nthe next gate\\nerror: gates failed\\n\\nhint: look\\n"
    steps.program("verify", ["/bin/sh", "-c", f"printf '{said}'; exit 60"])
    assert steps.summary.steps[0].error == (
        "error: a test failed\n  test_red: on purpose\nerror: gates failed\n\nhint: look"
    )


def test_a_program_without_an_error_of_ours_leaves_its_last_lines(tmp_path: Path) -> None:
    steps = make_steps(tmp_path)
    steps.program("lint", ["/bin/sh", "-c", "seq 100; echo ::error::not for people; exit 1"])
    assert steps.summary.steps[0].error.splitlines()[-1] == "100"
    assert "1" not in steps.summary.steps[0].error.splitlines()


def test_a_job_whose_time_is_up_ends_its_program(tmp_path: Path) -> None:
    steps = make_steps(tmp_path, timeout_s=1)
    with pytest.raises(JobTimeoutError) as caught:
        steps.program("build", ["/bin/sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"])

    assert "`build`" in caught.value.what
    assert steps.summary.steps[0].end is End.FAILED
    ended_by(tmp_path / "pid")


def ended_by(pid_file: Path) -> None:
    pid, give_up = int(pid_file.read_text()), time.monotonic() + 60
    while time.monotonic() < give_up:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def test_what_a_killed_job_ran_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from spark_images.ci.steps import Steps; "
        "from spark_images.ci.summary import Summary; there = Path(sys.argv[1]); "
        "Steps(Summary(title=''), project=there, env=dict(os.environ), note=there / 'note', timeout_s=600)"
        ".program('build', ['/bin/sh', '-c', f'cd {there}; echo $$ >new; mv new pid; exec sleep 600'])"
    )
    job = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < give_up:
        time.sleep(0.1)
    job.send_signal(signal.SIGKILL)
    job.wait()
    ended_by(tmp_path / "pid")


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_job_for_another_architecture_is_refused_before_anything_is_done() -> None:
    require_builder("")
    require_builder(host_platform())
    with pytest.raises(RunnerError, match=OTHER[host_platform()]):
        require_builder(OTHER[host_platform()])


def test_a_runner_without_disk_is_told_before_anything_is_fetched(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, target = project.image("hello"), project.target("gb10")
    plan = project.plan(image, target, "debian")
    facts = replace(read_host(os.environ, versions=False), free_gib=0.5)
    monkeypatch.setattr(machine, "require", lambda *needs, **options: None)
    monkeypatch.setattr(machine, "read_host", lambda env, versions: facts)

    with pytest.raises(DiskFullError, match="too little disk for `hello`: 512 MiB of"):
        require_machine(plan, Cache(tmp_path / "cache"), os.environ)


# --- jobs -------------------------------------------------------------------------------------------------------------


def run(project: Project, tmp_path: Path, work: Callable[[Job], str], **env: str) -> str:
    """What is on the forge's page after the job, however it ends; its error's text at the end."""
    page, error = tmp_path / "page", ""
    try:
        run_job(
            "a job",
            work,
            project=project,
            cache=Cache(tmp_path / "cache"),
            env={"PATH": os.environ["PATH"], "GITHUB_STEP_SUMMARY": str(page), **env},
            engine=None,
            memory=None,
            timeout_s=60,
            results=project.root / "ci-results",
        )
    except SparkImagesError as err:
        error = type(err).__name__
    assert (project.root / "ci-results/summary.md").read_text() == page.read_text()
    return page.read_text() + error


def subject(project: Project, target: str = "gb10", builder: str = "") -> Subject:
    return Subject(image=project.image("hello"), target=project.target(target), base="debian", builder=builder)


@pytest.mark.parametrize("work", [build_job, audit_job, gpu_job])
def test_a_target_that_is_not_wanted_is_nobodys_work(
    work: Callable[[Job, Subject], str], project: Project, tmp_path: Path
) -> None:
    said = run(project, tmp_path, lambda job: work(job, subject(project)), SPARK_IMAGES_TARGETS="cpu, hopper")
    assert "Target gb10 is not among those of $SPARK_IMAGES_TARGETS: cpu, hopper." in said


def test_an_error_of_a_job_stands_in_its_summary(project: Project, tmp_path: Path) -> None:
    wrong = subject(project, builder=OTHER[host_platform()])
    said = run(project, tmp_path, lambda job: build_job(job, wrong))
    assert "| this job | failed |" in said
    assert "hint: give this label to runners of one architecture only" in said
    assert said.endswith("RunnerError")


def test_a_registry_that_refuses_ends_a_job_before_it_builds(project: Project, tmp_path: Path) -> None:
    said = run(project, tmp_path, lambda job: build_job(job, subject(project)), SPARK_IMAGES_REGISTRY="127.0.0.1:1/you")
    assert said.endswith("RegistryError")
    assert "| build |" not in said


def test_a_gpu_job_without_a_registry_has_nothing_to_do(project: Project, tmp_path: Path) -> None:
    said = run(project, tmp_path, lambda job: gpu_job(job, subject(project)))
    assert "There is nothing to pull: $SPARK_IMAGES_REGISTRY names no registry." in said


def test_a_form_runs_no_command(project: Project, tmp_path: Path) -> None:
    inputs = {"INPUT_IMAGE": "hello", "INPUT_GOOD": ".", "INPUT_BAD": "HEAD", "INPUT_CHECK": "touch /tmp/x"}
    said = run(project, tmp_path, bisect_job, **inputs)
    assert "`touch /tmp/x` is no check" in said


@pytest.mark.parametrize("inputs", [{}, {"INPUT_IMAGE": "--help"}])
def test_an_input_that_names_no_image_is_refused(inputs: dict[str, str], project: Project, tmp_path: Path) -> None:
    said = run(project, tmp_path, rollback_job, SPARK_IMAGES_REGISTRY="127.0.0.1:1/you", **inputs)
    assert said.endswith(UsageError.__name__)


def test_equal_proposals_have_one_branch() -> None:
    assert branch_name(["a: 1 -> 2", "b: 1 -> 2"]) == branch_name(["b: 1 -> 2", "a: 1 -> 2"])
    assert branch_name(["a: 1 -> 2"]) != branch_name(["a: 1 -> 3"])

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_images import smoke
from spark_images.cli import main
from spark_images.errors import CheckError
from spark_images.smoke import Place, gpu_in_containers, run_check, run_checks
from spark_images.smoke_report import say
from spark_images.smoke_results import CheckResult, SmokeResults
from spark_images.verdict import Colour

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts/smoke"


# --- the runner -------------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Checks of our own: each test writes them into `scripts`."""
    for name in ("scripts", "work"):
        (tmp_path / name).mkdir()
    for name in ("check.py", "driver.py"):
        shutil.copy(SCRIPTS / name, tmp_path / "scripts")
    return Place(scripts=tmp_path / "scripts", python=sys.executable, work=tmp_path / "work", env=dict(os.environ))


def write_check(place: Place, name: str, body: str) -> None:
    """A check whose body is these lines."""
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    head = (
        "import ctypes, os, sys, time\nfrom check import Check, Red, Skip, run\n\n\ndef body(check: Check) -> None:\n"
    )
    (place.scripts / f"{name}.py").write_text(f"{head}{lines}\n\n\nrun('{name}', '', body)\n")


def test_check_that_passes_is_green_with_its_facts_and_stages(place: Place) -> None:
    write_check(place, "toy", "with check.stage('count', 60):\n    check.facts['counted'] = 3")
    result = run_check("toy", place, None)
    assert (result.colour, result.facts) == (Colour.GREEN, {"counted": 3})
    assert [stage["stage"] for stage in result.stages] == ["count"]


@pytest.mark.parametrize(
    ("body", "why", "sentence"),
    [
        ("raise Red('2 for 3')", "wrong", "2 for 3"),
        ("{}['what']", "error", "KeyError: 'what'"),
        (
            "print('no luck'); os._exit(3)",
            "broken",
            "ended with status 3 in `its start` without a matching result: no luck",
        ),
        ("with check.stage('kernel `mix`', 1):\n    time.sleep(600)", "hangs", "`kernel `mix`` did not end within 1 s"),
    ],
    ids=["wrong", "error", "dies", "hangs"],
)
def test_check_that_fails_is_red_and_says_why(place: Place, body: str, why: str, sentence: str) -> None:
    write_check(place, "toy", body)
    result = run_check("toy", place, None)
    assert (result.colour, result.why, result.sentence) == (Colour.RED, why, sentence)


def test_check_whose_own_clock_cannot_run_is_ended_from_outside(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(smoke.CHECK_LIMIT_S, "toy", 5.0)
    # PyDLL keeps the interpreter's lock, as a library that hangs inside an extension module does.
    write_check(place, "toy", "with check.stage('kernel `mix`', 1):\n    ctypes.PyDLL(None).sleep(600)")
    result = run_check("toy", place, None)
    assert (result.colour, result.why) == (Colour.RED, "hangs")
    assert result.sentence == "`kernel `mix`` did not end within 5 s"


def test_what_a_check_prints_is_kept(place: Place) -> None:
    write_check(place, "toy", "print('a word'); raise Red('no')")
    run_check("toy", place, None)
    assert "a word" in (place.work / "toy.log").read_text()


def test_later_checks_run_after_one_that_failed(place: Place) -> None:
    write_check(place, "bad", "raise Red('no')")
    write_check(place, "good", "pass")
    first = CheckResult(check="device", colour=Colour.GREEN)
    results = run_checks(["bad", "good"], place, None, first=first, of_image=True)
    assert [one.colour for one in results.checks] == [Colour.GREEN, Colour.RED, Colour.GREEN]
    assert (results.colour, results.sentence) == (Colour.RED, "bad: no")


def test_missing_package_is_a_skip_and_a_broken_one_an_error(place: Place) -> None:
    (place.scripts / "cracked.py").write_text("import not_there_at_all\n")
    for name, package in (("absent", "not_there_at_all"), ("broken", "cracked")):
        write_check(place, name, f"import check as c\nc.module('{package}')")
    absent, broken = (run_check(name, place, None) for name in ("absent", "broken"))
    assert (absent.colour, absent.why) == (Colour.SKIPPED, "missing")
    assert (broken.colour, broken.why) == (Colour.RED, "error")


# --- what a user sees -------------------------------------------------------------------------------------------------


def results(verdict: Colour, sentence: str) -> SmokeResults:
    return SmokeResults(colour=verdict, sentence=sentence, checks=(CheckResult(check="toy", colour=verdict),))


def test_red_is_an_error() -> None:
    with pytest.raises(CheckError, match="smoke checks of toy: red"):
        say(results(Colour.RED, "toy: no"), what="toy", require_gpu=False, as_json=False, junit_file=None)


def test_skip_is_an_error_only_where_a_gpu_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    skipped = results(Colour.SKIPPED, "no GPU")
    say(skipped, what="toy", require_gpu=False, as_json=False, junit_file=None)
    assert "smoke checks of toy: skipped: no GPU" in capsys.readouterr().err
    with pytest.raises(CheckError, match="were skipped"):
        say(skipped, what="toy", require_gpu=True, as_json=False, junit_file=None)


def test_json_goes_to_stdout_and_junit_into_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "junit.xml"
    say(results(Colour.GREEN, "1 checks"), what="toy", require_gpu=True, as_json=True, junit_file=file)
    assert json.loads(capsys.readouterr().out)["checks"][0]["verdict"] == "green"
    assert 'name="toy"' in file.read_text()


def test_podman_needs_a_description_of_the_gpu(tmp_path: Path) -> None:
    folders = (tmp_path / "absent", tmp_path)
    assert gpu_in_containers("podman", folders) == "no CDI file"
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert gpu_in_containers("podman", folders) == ""
    assert gpu_in_containers("docker", (tmp_path / "absent",)) == ""


# --- the real scripts, on a driver that only says what GPU there is ---------------------------------------------------


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stand-in for NVIDIA's driver libraries."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    source = str(Path(__file__).with_name("stub_driver.c"))
    made = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(made), source], check=True)
    shutil.copy(made, folder / "libnvidia-ml.so.1")
    return folder


def run_script(name: str, *words: str, env: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Exit status and result of a script, run as a person would."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), *words]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def device(stub: Path, *words: str, **gpu: str) -> tuple[int, dict[str, Any]]:
    described = {f"STUB_{name.upper()}": value for name, value in gpu.items()}
    return run_script("device", *words, env={"LD_LIBRARY_PATH": str(stub), **described})


TARGET = ("--compute-capability", "12.1a", "--gpu-name", "GB10", "--driver", "580")


def test_device_of_the_target_is_green(stub: Path) -> None:
    status, said = device(stub, *TARGET)
    assert (status, said["verdict"]) == (0, "green")
    assert (said["facts"]["gpu"], said["facts"]["driver"]) == ("NVIDIA GB10", "580.95.05")
    assert said["facts"]["free_gib"] == 100


@pytest.mark.parametrize(
    ("gpu", "verdict", "why", "sentence"),
    [
        ({"init": "100"}, "skipped", "no-gpu", "cuInit gives CUDA_ERROR_NO_DEVICE"),
        ({"major": "9", "minor": "0", "name": "NVIDIA H200"}, "skipped", "other-gpu", "compute capability 9.0"),
        ({"name": "NVIDIA Thing"}, "skipped", "other-gpu", "this is NVIDIA Thing, the target names GB10"),
        ({"free_gib": "2"}, "skipped", "memory", "2.0 GiB are free"),
        ({"driver": "575.57.08"}, "red", "wrong", "driver 575.57.08 is older than 580"),
    ],
    ids=["none", "other", "name", "memory", "driver"],
)
def test_device_that_will_not_do_says_why(
    stub: Path, gpu: dict[str, str], verdict: str, why: str, sentence: str
) -> None:
    status, said = device(stub, *TARGET, **gpu)
    assert (status, said["verdict"], said["why"]) == (int(verdict == "red"), verdict, why)
    assert sentence in said["sentence"]


def test_device_without_the_unified_memory_that_the_target_has_is_red(stub: Path) -> None:
    assert device(stub, "--unified-memory", "yes")[1]["verdict"] == "red"
    assert device(stub, "--unified-memory", "no")[1]["verdict"] == "green"


@pytest.mark.parametrize(
    "check", ["torch_matmul", "triton_kernel", "cuda_graph", "vllm_ops", "marlin", "vllm_generate"]
)
def test_check_on_a_package_that_is_not_here_is_skipped(stub: Path, check: str) -> None:
    status, said = run_script(check, env={"LD_LIBRARY_PATH": str(stub)})
    assert (status, said["verdict"], said["why"]) == (0, "skipped", "missing")


def test_machine_without_a_gpu_is_skipped_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("nvidia-smi"):
        pytest.skip("there is a GPU here")
    assert main(["--project", str(ROOT), "smoke", "--host"]) == 0
    assert "smoke checks of this machine: skipped: no NVIDIA driver here" in capsys.readouterr().err


def test_check_that_does_not_exist_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--project", str(ROOT), "smoke", "--host", "--checks", "torch_matmull"]) == 2
    assert "did you mean `torch_matmul`?" in capsys.readouterr().err

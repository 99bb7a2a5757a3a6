"""The engine's command ends with the pipeline, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_images.engine.guard import guarded

SOURCE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
PIPELINE = """
import subprocess, sys
from pathlib import Path
from spark_images.engine.guard import guarded
subprocess.Popen(guarded(sys.argv[2:], Path(sys.argv[1])), start_new_session=True).wait()
"""


def gone(pid: int, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


def gone_file(path: Path, within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not path.exists()


@pytest.mark.parametrize(("script", "status"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)])
def test_the_status_is_the_commands(script: str, status: int, tmp_path: Path) -> None:
    ended = subprocess.run(guarded(["sh", "-c", script], tmp_path / "note"), check=False)
    assert ended.returncode == status


def test_sigterm_to_the_group_is_the_commands_to_deal_with(tmp_path: Path) -> None:
    script = "trap 'sleep 0.5; echo tidy; exit 3' TERM; echo; while :; do sleep 0.1; done"
    command = guarded(["sh", "-c", script], tmp_path / "note")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as running:
        assert running.stdout is not None
        running.stdout.readline()
        os.killpg(running.pid, signal.SIGTERM)
        assert running.stdout.read() == "tidy\n"
        assert running.wait(5) == 3


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_that_runs_below_ends_when_the_pipeline_is_killed(number: signal.Signals, tmp_path: Path) -> None:
    # deaf to SIGTERM, one of them in a session of its own whose parent has ended
    script = "trap '' TERM; sleep 61 & echo $!; (setsid sh -c 'echo $$; exec sleep 62' &); wait"
    command = [sys.executable, "-c", PIPELINE, str(tmp_path / "note"), "sh", "-c", script]
    with subprocess.Popen(command, env=SOURCE, stdout=subprocess.PIPE, text=True) as pipeline:
        assert pipeline.stdout is not None
        pids = [int(pipeline.stdout.readline()) for _ in range(2)]
        pipeline.send_signal(number)
    left = [pid for pid in pids if not gone(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_what_is_frozen_ends_with_the_pipeline_also_where_the_command_ends_before_it(tmp_path: Path) -> None:
    note = tmp_path / "note"
    frozen = subprocess.Popen(["sleep", "60"])
    try:
        started = Path(f"/proc/{frozen.pid}/stat").read_text().split()[21]
        frozen.send_signal(signal.SIGSTOP)
        note.write_text(f"process\t{frozen.pid}\t{started}\n")
        # as an engine's command ends of a closed pipe while the pipeline is still being killed
        command = [sys.executable, "-c", PIPELINE, str(note), "sh", "-c", "echo; exit 1"]
        with subprocess.Popen(command, env=SOURCE, stdout=subprocess.PIPE) as pipeline:
            assert pipeline.stdout is not None
            pipeline.stdout.readline()
            pipeline.kill()
        assert frozen.wait(5) == -signal.SIGKILL
        assert gone_file(note)
    finally:
        frozen.kill()
        frozen.wait()


def test_starting_under_guard_takes_less_than_200_ms_of_a_core(tmp_path: Path) -> None:
    times = []
    for _ in range(5):
        began = sum(os.times()[:4])
        subprocess.run(guarded(["true"], tmp_path / "note"), check=True)
        times.append(sum(os.times()[:4]) - began)
    assert min(times) < 0.2

"""A real memory hog next to a real build, on each engine that answers: frozen, thawed, given up, and killed meanwhile.

The step of the build ticks ten times a second with the machine's clock: the time in which it was frozen is a gap in its
log. Other work on the machine moves the host's memory as well: the hog takes what is missing to the floor then.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from pipeline import Pipeline, make_pipeline
from processes import guards_below

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.engine.freezer import NOTE
from spark_images.memory import host_memory
from spark_images.units import MIB

TICKS = 'echo {name}; for i in $(seq {count}); do read -r now _ </proc/uptime; echo "tick $now"; sleep 0.1; done\n'
BELOW_NOW = 700 * MIB  # the floor; what a build itself takes is 200 MiB
HOG = """
import sys
sys.path.insert(0, sys.argv[1])
from spark_images.memory import host_memory
held, floor = [], int(sys.argv[2])
while len(held) < 12 or (host_memory().available_bytes > floor - (100 << 20) and len(held) < 40):
    held.append(b"x" * (25 << 20))
print("full", flush=True)
sys.stdin.read()
"""


@dataclass
class Bench:
    """A small project whose compile step ticks, and its build on one engine."""

    pipeline: Pipeline
    engine: Engine
    earlier: frozenset[Path] = frozenset()  # the logs of the attempts before

    def ticks(self, name: str, count: int) -> None:
        self.pipeline.misbehave(TICKS.format(name=name, count=count))

    def start(self, *, floor: str, timeout_s: float = 120) -> subprocess.Popen[str]:
        self.earlier = frozenset(self.logs())
        env = {**self.pipeline.env, "SPARK_IMAGES_FLOOR": floor, "SPARK_IMAGES_FLOOR_TIMEOUT_S": str(timeout_s)}
        return replace(self.pipeline, env=env).start(*self.build)

    @property
    def build(self) -> tuple[str, ...]:
        return ("build", "hello", "--engine", self.engine.name, "--memory", "512MiB")

    @property
    def note(self) -> Path:
        return self.pipeline.cache / "engines" / self.engine.name / NOTE

    def logs(self) -> list[Path]:
        return list((self.pipeline.cache / "records").glob("*-hello-*/log.txt"))

    def ticked(self) -> list[float]:
        """When the step of the attempt that was started last ticked."""
        text = "".join(log.read_text() for log in self.logs() if log not in self.earlier)
        return [float(when) for when in re.findall(r"tick (\d+\.\d+)", text)]


@pytest.fixture
def bench(tmp_path: Path, engine: Engine, engine_caches: dict[str, Cache]) -> Iterator[Bench]:
    pipeline = make_pipeline(tmp_path, engine_caches[engine.name].root)
    yield Bench(pipeline, engine)
    cleaned = pipeline("clean", "--engine", engine.name)
    assert cleaned.returncode == 0, cleaned.stderr


@pytest.fixture(params=["pipeline", "pipeline and guard"])
def killed(request: pytest.FixtureRequest) -> str:
    """Who gets the SIGKILL."""
    return str(request.param)


def until(reached: Callable[[], object], build: subprocess.Popen[str], within_s: float = 90) -> None:
    deadline = time.monotonic() + within_s
    while not reached():
        assert build.poll() is None, build.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def now_s() -> float:
    """The clock of /proc/uptime."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextmanager
def hog(folder: Path, floor: int) -> Iterator[subprocess.Popen[str]]:
    """A process of a name of its own that takes memory until the host is below the floor."""
    folder.mkdir()
    program = folder / "memory-hog"
    program.symlink_to(Path(sys.executable).resolve())
    command = [str(program), "-I", "-S", "-c", HOG, str(Path(__file__).parents[2] / "src"), str(floor)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Crossing:
    """When the host fell below the floor, looked at a hundred times a second."""

    def __init__(self, floor: int) -> None:
        self.at_s = 0.0
        self._floor = floor
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self.at_s:
            if host_memory().available_bytes < self._floor:
                self.at_s = now_s()
            time.sleep(0.01)


@dataclass
class Frozen:
    """A build that a hog has frozen."""

    build: subprocess.Popen[str]
    hog: subprocess.Popen[str]
    crossed_s: float


@contextmanager
def frozen_by_hog(bench: Bench, folder: Path, step: str, *, ticks: int, timeout_s: float = 120) -> Iterator[Frozen]:
    """The hog is gone afterwards, the build is not.

    Other work may give back more than the hog may take: then it is tried again from where the memory is by then, with
    another step, as an engine keeps one that ended meanwhile.
    """
    for attempt in range(5):
        bench.ticks(f"{step}, try {attempt}", ticks)
        floor = host_memory().available_bytes - BELOW_NOW
        build = bench.start(floor=f"{floor // MIB}MiB", timeout_s=timeout_s)
        until(lambda: len(bench.ticked()) > 5, build)
        crossing = Crossing(floor // MIB * MIB)
        with hog(folder / f"try-{attempt}", floor) as eater:
            deadline = time.monotonic() + 6  # filling takes a second, and a busy machine's share
            while not bench.note.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            if bench.note.exists():
                yield Frozen(build, eater, crossing.at_s)
                return
        build.send_signal(signal.SIGINT)
        build.communicate(timeout=60)
    pytest.fail("the host's memory moves by more than a hog may take")


def frozen_group(note: Path) -> tuple[Path, list[int]]:
    """The file that froze the step's cgroup, and the processes in it."""
    state = Path(note.read_text().splitlines()[0].split("\t")[1])
    deadline = time.monotonic() + 5
    while state.read_text().strip() not in ("1", "FROZEN") and time.monotonic() < deadline:
        time.sleep(0.02)  # it is noted before it happens
    return state, [int(pid) for pid in (state.parent / "cgroup.procs").read_text().split()]


def gone(pids: list[int], within_s: float = 5) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.alone  # others' memory, come and gone, would move the host across the floor
def test_a_build_stands_still_while_a_hog_holds_the_memory_and_then_goes_on(bench: Bench, tmp_path: Path) -> None:
    with frozen_by_hog(bench, tmp_path, "hog beside it", ticks=60) as frozen:
        time.sleep(2)
    ended_s = now_s()
    said, _ = frozen.build.communicate(timeout=120)
    assert frozen.build.returncode == 0, said
    before_s, after_s = max(pairwise(bench.ticked()), key=lambda pair: pair[1] - pair[0])
    # Half a second from the crossing to the standstill; the last tick is up to a tenth before that.
    assert before_s - frozen.crossed_s < 0.5
    assert after_s > ended_s
    assert "the build is frozen until memory is back" in said
    assert f"`memory-hog` (pid {frozen.hog.pid}): 0 bytes -> " in said
    assert "again: the build goes on" in said
    assert not bench.note.exists()


@pytest.mark.alone
def test_a_build_that_gets_no_memory_back_is_stopped_and_names_the_hog(bench: Bench, tmp_path: Path) -> None:
    with frozen_by_hog(bench, tmp_path, "hog that stays", ticks=600, timeout_s=2) as frozen:
        state, pids = frozen_group(bench.note)
        said, _ = frozen.build.communicate(timeout=60)
    assert frozen.build.returncode == 44, said
    assert "and the build was stopped for it" in said
    assert re.search(rf"since the build began, `memory-hog` \(pid {frozen.hog.pid}\): 0 bytes -> \d+", said)
    assert "Traceback" not in said
    assert gone(pids)
    assert not state.exists()
    assert not bench.note.exists()


def test_a_build_that_is_killed_while_it_is_frozen_leaves_nothing_behind(bench: Bench, killed: str) -> None:
    bench.ticks(f"killed: {killed}", 5)
    build = bench.start(floor="1TiB")
    until(bench.note.exists, build)
    state, pids = frozen_group(bench.note)
    assert pids
    victims = [build.pid]
    if killed == "pipeline and guard":
        victims += guards_below(build.pid)
        assert len(victims) == 2
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    build.communicate(timeout=30)
    if killed == "pipeline":  # the guard has ended what was frozen
        assert gone(pids)
        deadline = time.monotonic() + 5
        while bench.note.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not bench.note.exists()
    else:  # BuildKit's runc may have ended it, podman's has not
        assert bench.note.exists()
    again = bench.pipeline(*bench.build)
    assert again.returncode == 0, again.stderr
    assert "removed what a killed build left: " in again.stderr
    assert ("left: frozen cgroup" in again.stderr) == (killed == "pipeline and guard")
    assert gone(pids)
    assert not state.exists()

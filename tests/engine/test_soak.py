"""Builds whose compilers, gates and pipeline are killed at random: each ends complete, and all with the same digest.

SPARK_IMAGES_SOAK=50 makes it fifty builds for each engine, SPARK_IMAGES_SOAK_SEED repeats a run's choices.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pipeline import Pipeline, make_pipeline, output_of

from spark_images.cache import Cache
from spark_images.engine.base import Engine

STRIKES = 3  # at one unit
BUILDS = int(os.environ.get("SPARK_IMAGES_SOAK") or 2)
SEED = int(os.environ.get("SPARK_IMAGES_SOAK_SEED") or time.time_ns() % 10**6)


@dataclass
class Killer:
    """Kills what belongs to the build of this project, and counts it.

    unit_s: how long one compile takes, at whose pace strikes come. None is struck more than three times in a build: a
    unit that is killed again and again is given up, which on a machine that has become slow chance alone would do.
    """

    choose: random.Random
    unit_s: float
    struck: Counter[str] = field(default_factory=Counter)
    killed: dict[str, int] = field(default_factory=lambda: {"compiler": 0, "gate": 0, "pipeline": 0})

    def strike(self, building: subprocess.Popen[str]) -> None:
        """SIGKILL for one process of a kind chosen at random; for none where none of that kind runs."""
        kind = self.choose.choices(("compiler", "gate", "pipeline"), (6, 6, 1))[0]
        if kind == "pipeline":
            found = [(building.pid, kind)]
        else:
            found = [(pid, unit) for pid, words, unit in of_units() if self.is_kind(kind, words)]
        if found := [(pid, unit) for pid, unit in found if self.struck[unit] < STRIKES]:
            pid, unit = self.choose.choice(found)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed[kind] += 1
                self.struck[unit] += 1

    def pause(self) -> float:
        """Seconds until the next strike."""
        return self.unit_s * self.choose.uniform(0.8, 2.6)

    @staticmethod
    def is_kind(kind: str, words: str) -> bool:
        gate = "scripts/memgate g++" in words
        return gate if kind == "gate" else not gate and "cc1plus" in words


def of_units() -> Iterator[tuple[int, str, str]]:
    """Processes that compile one of the units: pid, command line and unit."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if unit := re.search(r"\bunit_\d+", words):
                yield int(folder.name), words, unit[0]


@pytest.fixture
def pipeline(tmp_path: Path, engine: Engine, engine_caches: dict[str, Cache]) -> Iterator[Pipeline]:
    made = make_pipeline(tmp_path, engine_caches[engine.name].root, "many")
    yield made
    cleaned = made("clean", "--engine", engine.name)
    assert cleaned.returncode == 0, cleaned.stderr


@pytest.mark.timeout(900 + 300 * BUILDS)  # seconds that a machine with ten times the work takes
def test_every_build_ends_complete_and_with_the_same_digest(pipeline: Pipeline, engine: Engine) -> None:
    options = ("--engine", engine.name, "--memory", "600MiB")
    began = time.monotonic()
    first = pipeline("build", "many", *options, timeout_s=900)
    assert first.returncode == 0, first.stderr
    killer = Killer(random.Random(SEED), unit_s=(time.monotonic() - began) / 6)  # twelve units, two at a time
    again = runs = 0
    for _ in range(BUILDS):
        while True:
            building = pipeline.start("build", "many", "--rebuild", *options)
            runs += 1
            killer.struck.clear()
            said = strike_until_it_ends(killer, building)
            if building.returncode == 0:
                break
            # The pipeline itself was killed: it is run again.
            assert building.returncode == -signal.SIGKILL, f"seed {SEED}: {said}"
        assert "same digest as before" in said, f"seed {SEED}: {said}"
        again += said.count("again reason=killed") + said.count("gates were killed")
    print(f"seed {SEED}: {BUILDS} builds in {runs} runs, killed {killer.killed}")
    digest = re.findall(r"digest  (sha256:\S+)", first.stderr)[0]
    assert digest in said
    reference = re.findall(r"localhost/spark-images/many:\S+", first.stderr)[0]
    assert output_of(engine, reference) == "156\n"
    assert not list(of_units())


def strike_until_it_ends(killer: Killer, building: subprocess.Popen[str]) -> str:
    """Let a build run, and kill something now and then; what the build said."""
    assert building.stdout is not None
    pipe, said = building.stdout.fileno(), b""
    strike_at = time.monotonic() + killer.pause()
    while True:
        if select.select([pipe], [], [], 0.05)[0]:
            chunk = os.read(pipe, 65536)
            if not chunk:
                building.wait()
                return said.decode()
            said += chunk
        if time.monotonic() > strike_at:
            killer.strike(building)
            strike_at = time.monotonic() + killer.pause()

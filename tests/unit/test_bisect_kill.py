"""A search that is killed at any point goes on where it was, and comes to the same answer."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from synthetic_search import History, search

from spark_images.bisect.journal import Journal

KILLS = int(os.environ.get("SPARK_IMAGES_KILLS", "6"))  # more by hand: each takes half a second


def start(folder: Path, seed: int) -> subprocess.Popen[str]:
    program = Path(__file__).parent / "synthetic_search.py"
    path = os.pathsep.join((str(Path(__file__).parents[2] / "src"), *sys.path))
    return subprocess.Popen(
        [sys.executable, str(program), str(folder), str(seed), "0.02"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def answers(folder: Path) -> list[str]:
    found = [path.read_text(errors="replace") for path in folder.glob("bisect-toy-*/answers.jsonl")]
    return found[0].splitlines() if found else []


def test_a_search_killed_at_random_points_ends_with_the_same_answer(tmp_path: Path) -> None:
    rng, killed, seed = random.Random(KILLS), 0, 0
    while killed < KILLS:
        seed += 1
        expected = search(tmp_path / f"whole-{seed}", seed)
        folder = tmp_path / f"killed-{seed}"
        for _ in range(3):
            running = start(folder, seed)
            wanted = len(answers(folder)) + rng.randrange(0, 5)
            deadline = time.monotonic() + 60
            while running.poll() is None and len(answers(folder)) < wanted:
                assert time.monotonic() < deadline
                time.sleep(0.001)
            time.sleep(rng.random() * 0.03)  # between two answers, in one, at its end
            if running.poll() is None:
                killed += 1
            running.send_signal(signal.SIGKILL)
            running.communicate(timeout=60)
        said, _ = start(folder, seed).communicate(timeout=60)
        found = json.loads(said)
        assert (found["range"], found["failing"]) == (expected["range"], expected["failing"]), f"seed {seed}"
        journal = Journal(next(folder.glob("bisect-toy-*")))
        whole_lines = [line for line in answers(folder) if line.endswith("}")]
        assert len(whole_lines) == len(journal.answers), "a question that was answered is not asked again"
        assert len(journal.answers) == expected["tries"]


def test_the_answer_is_the_pair_and_the_revision_that_completed_it(tmp_path: Path) -> None:
    for seed in range(40):
        found, history = search(tmp_path, seed), History.random(seed)
        good, bad = found["range"]  # type: ignore[misc]
        assert good < history.culprit <= bad  # type: ignore[has-type]
        assert found["failing"] == ["torch", "vllm"]

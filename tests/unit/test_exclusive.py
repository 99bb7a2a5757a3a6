"""Locks between processes: one has it, the others wait or are told, and a killed holder holds nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_images.exclusive import alone, try_alone

HOLD = """
import sys, time
from pathlib import Path
from spark_images.exclusive import try_alone
with try_alone(Path(sys.argv[1])) as held:
    print(held, flush=True)
    time.sleep(600)
"""


@contextmanager
def another_holder(lock: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has the lock."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], text=True, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "True\n"
            yield holder
        finally:
            holder.kill()


def test_a_free_lock_is_had_at_once_and_its_folder_is_made(tmp_path: Path) -> None:
    waited: list[str] = []
    with alone(tmp_path / "new/one.lock", on_wait=lambda: waited.append("")):
        assert waited == []


def test_a_lock_that_another_process_has_is_not_taken(tmp_path: Path) -> None:
    lock = tmp_path / "one.lock"
    with another_holder(lock), try_alone(lock) as held:
        assert not held


def test_who_waits_is_told_first_and_goes_on_when_the_holder_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "one.lock"
    with another_holder(lock) as holder, alone(lock, on_wait=holder.kill):
        assert holder.wait() == -9


def test_the_file_goes_with_the_lock_and_who_waits_has_another_one(tmp_path: Path) -> None:
    lock = tmp_path / "one.lock"
    with another_holder(lock) as holder:

        def let_go() -> None:
            lock.unlink()  # as a holder does that ends in order
            holder.kill()

        with alone(lock, on_wait=let_go), try_alone(lock) as held:
            assert not held
    assert not lock.exists()


def test_an_error_inside_gives_the_lock_back(tmp_path: Path) -> None:
    lock = tmp_path / "one.lock"
    try:
        with alone(lock, on_wait=lambda: None):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        with try_alone(lock) as held:
            assert held

"""One process at a time: locks that the kernel takes back however their holder ends, in files that go with them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(lock: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Holds the lock for the block. on_wait: called first where another process has it. lock: a file that is made."""
    with try_alone(lock) as held:
        if held:
            yield
            return
    on_wait()
    with _locked(lock, fcntl.LOCK_EX):
        yield


@contextmanager
def try_alone(lock: Path) -> Iterator[bool]:
    """True, and the lock is held for the block; False where another process has it."""
    with _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) as held:
        yield held


@contextmanager
def _locked(lock: Path, operation: int) -> Iterator[bool]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with lock.open("w") as file:
            try:
                fcntl.flock(file, operation)
                if os.fstat(file.fileno()).st_ino != lock.stat().st_ino:
                    continue  # another made the file anew
            except BlockingIOError:
                yield False
                return
            except FileNotFoundError:
                continue  # who held it has just removed the file: this lock is on a dead inode
            try:
                yield True
            finally:
                lock.unlink(missing_ok=True)
            return

"""One process at a time: locks that the kernel takes back however their holder ends."""

from __future__ import annotations

import fcntl
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
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def try_alone(lock: Path) -> Iterator[bool]:
    """True, and the lock is held for the block; False where another process has it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True

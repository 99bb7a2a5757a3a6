"""Servers of a bench's own, for the time that it needs them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_images.errors import CheckError

START_S = 60.0


@contextmanager
def serving(command: Sequence[str], log: Path, answers: Callable[[], bool]) -> Iterator[None]:
    """The server runs for the block, which begins once it answers. CheckError where it does not start."""
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        last = time.monotonic() + START_S
        while not answers():
            if server.poll() is not None or time.monotonic() > last:
                raise CheckError(f"`{command[0]}` does not start", why=log.read_text().splitlines()[-3:])
            time.sleep(0.05)
        yield
    finally:
        server.terminate()
        server.wait()

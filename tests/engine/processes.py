"""Which processes run: each may end between being found and being read."""

from __future__ import annotations

import os
from pathlib import Path

from spark_images.engine import guard
from spark_images.engine.freezer import below


def command_of(pid: int) -> list[bytes]:
    """The words of a process's command line; one empty word if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def guards_below(pid: int) -> list[int]:
    """The processes below this one that guard an engine's command."""
    return [one for one in below(pid) if os.fsencode(guard.__file__) in command_of(one)]

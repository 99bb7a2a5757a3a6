"""Running a program that fetches: it must get on, or it is ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_images.errors import InterruptedByUser, RouteError
from spark_images.files import disk_full_error
from spark_images.process import Captured, capture

LOOKS = 20  # at what has grown, within the time after which a program counts as stalled


def run_watched(
    command: Sequence[str], *, folder: Path, stall_s: float, stop: threading.Event, env: Mapping[str, str]
) -> Captured:
    """Run the command to its end. folder: what it writes into; progress messages count as growth, too.

    Raises RouteError where nothing grew for stall_s seconds, InterruptedByUser when `stop` is set, HostProgramError
    where the program is not installed, DiskFullError where it failed and said so.
    """
    size, grew_s = -1, time.monotonic()
    looked_s = 0.0

    def watch(written_bytes: int) -> None:
        nonlocal size, grew_s, looked_s
        if stop.is_set():
            raise InterruptedByUser("stopped")
        now_s = time.monotonic()
        if now_s - looked_s < stall_s / LOOKS:
            return
        looked_s = now_s
        if (found := written_bytes + _size_bytes(folder)) != size:
            size, grew_s = found, now_s
        elif now_s - grew_s > stall_s:
            raise RouteError(f"nothing arrived for {stall_s:g} s")

    ended = capture(command, env=env, watch=watch)
    if ended.status != 0 and "no space left on device" in ended.stderr.lower():
        raise disk_full_error(folder)
    return ended


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue  # temporary files of the program come and go
    return total

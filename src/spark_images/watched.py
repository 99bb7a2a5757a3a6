"""Running a program that fetches: it must get on, or it is ended."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import HostProgramError
from spark_images.store import disk_full_error

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How the program ended. stalled: it was ended because nothing grew for `stall_s`."""

    status: int
    stalled: bool
    said: str  # the last lines of stdout and stderr


def run_watched(
    command: Sequence[str],
    *,
    folder: Path,
    stall_s: float,
    stop: threading.Event,
    env: Mapping[str, str],
    out: Path | None = None,
) -> Watched:
    """Run the command until it ends, `stop` is set, or neither `folder` nor its output grows for `stall_s` seconds.

    folder: what the program writes into; its output goes to `log.txt` there, so progress messages count as growth.
    out: a file in `folder` for stdout alone.
    Raises HostProgramError where the program is not installed, DiskFullError where it says so.
    """
    log = folder / "log.txt"
    stalled = False
    with log.open("wb") as err_stream, out.open("wb") if out else nullcontext(err_stream) as out_stream:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out_stream, stderr=err_stream, env=dict(env)
            )
        except FileNotFoundError as err:
            raise HostProgramError(
                f"`{command[0]}` is not installed", hint="run `nox -s doctor` to see how to get it"
            ) from err
        try:
            size, since = -1, time.monotonic()
            wait_s = 0.005  # many programs are done at once
            while process.poll() is None and not stop.wait(wait_s):
                wait_s = min(wait_s * 2, POLL_S)
                if time.monotonic() - since > stall_s / 20 and (now := _size_bytes(folder)) != size:
                    size, since = now, time.monotonic()
                if time.monotonic() - since > stall_s:
                    stalled = True
                    break
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
            status = process.wait()
    said = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").strip()
    if status != 0 and "no space left on device" in said.lower():
        raise disk_full_error(folder)
    return Watched(status=status, stalled=stalled, said="\n".join(said.splitlines()[-8:]))


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:
            continue  # temporary files of the program come and go
    return total

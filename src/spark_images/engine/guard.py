"""A program that runs an engine's command and, when the pipeline that started it is gone, ends all that it started.

Run by its path, as `python -I -S guard.py PIPELINE NOTE COMMAND...`; with the standard library alone it starts quickly.
A signal to the command at its parent's death (PR_SET_PDEATHSIG) would not do: podman dies of it and its step runs on
(measured with podman 4.3.1), as a container without anybody who watches it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_LOOK_S = 0.3  # how often: is the pipeline there?
_GIVE_UP_S = 10.0  # a process that is in the kernel for so long does not end by our waiting
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM}


def guarded(command: list[str], note: Path) -> list[str]:
    """The command under guard of a process that ends it if we die. note: freezer's, of what it then has to end too."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(note), *command]


def main(pipeline: int, note: Path, command: list[str]) -> int:
    """Run the command; its status as a shell says it."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # nothing gets away by losing its parent
    # SIGTERM reaches the whole process group: the command deals with it, and we end when that does.
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    child = os.posix_spawnp(command[0], command, os.environ, setsigmask=[])
    code = None
    while code is None and os.getppid() == pipeline:
        signal.sigtimedwait(_SIGNALS, _LOOK_S)
        code = next((os.waitstatus_to_exitcode(status) for pid, status in list(_ended()) if pid == child), None)
    if code:  # a pipeline that is being killed closes its pipe, of which the command ends, before it is gone itself
        time.sleep(_LOOK_S)
    if os.getppid() != pipeline:
        _end_all(note)
        return 128 + signal.SIGKILL
    assert code is not None
    return code if code >= 0 else 128 - code


def _end_all(note: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from spark_images.engine.freezer import below, end_left

    give_up = time.monotonic() + _GIVE_UP_S
    while True:
        pids = below(os.getpid())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_left(note)  # a builder's steps are not below us; and what is frozen may not die before
        if not pids or time.monotonic() > give_up:
            return
        time.sleep(0.05)
        list(_ended())


def _ended() -> Iterator[tuple[int, int]]:
    """Our children and orphans that ended since the last time, with their wait statuses."""
    with contextlib.suppress(ChildProcessError):  # there is none left at all
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))

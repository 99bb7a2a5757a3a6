"""A memory cgroup of a bench's own: capped, read, and removed with all that is in it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_images.bench.base import NotMeasured
from spark_images.cgroup import places

_PREFIX = "spark-images-bench-"
_END_S = 10.0  # for the killed to be gone: each has its pages to give back
_HINT = "run it as root, or where memory is delegated: `systemd-run --user --scope -p Delegate=yes …`"


@dataclass(frozen=True)
class Cgroup:
    """A memory cgroup of version 1 or 2."""

    folder: Path
    version: int

    def limit(self, size_bytes: int) -> None:
        """Cap it, swap included. Raises OSError where that is not allowed."""
        if self.version == 2:
            (self.folder / "memory.max").write_text(str(size_bytes))
            limits = {"memory.swap.max": 0}
        else:
            (self.folder / "memory.limit_in_bytes").write_text(str(size_bytes))
            limits = {"memory.memsw.limit_in_bytes": size_bytes}
        for name, value in limits.items():
            if (self.folder / name).exists():  # not there where the kernel does not account swap
                (self.folder / name).write_text(str(value))

    def inside(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command as one that first goes into the cgroup."""
        return ("sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self.members), *command)

    @property
    def members(self) -> Path:
        """The file into which a process writes its number to go in, and from which all of them can be read."""
        return self.folder / "cgroup.procs"

    def oom_kills(self) -> int:
        """Processes that the kernel has killed in it for want of memory."""
        events = self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        return int(dict(line.split() for line in events.read_text().splitlines())["oom_kill"])

    def end(self) -> None:
        """Kill what is in it, and remove it."""
        give_up = time.monotonic() + _END_S
        while True:
            for pid in self.members.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.folder.rmdir()
                return
            except OSError as err:
                if err.errno != errno.EBUSY or time.monotonic() > give_up:
                    raise
            time.sleep(0.05)


@contextmanager
def capped(limit_bytes: int) -> Iterator[Cgroup]:
    """A new, empty cgroup below one of ours that can hold not more than this; it ends with all that is in it.

    Raises NotMeasured where we may not make one.
    """
    group = _make(limit_bytes)
    try:
        yield group
    finally:
        group.end()


def _make(limit_bytes: int) -> Cgroup:
    refused = "this host shows none"
    for parent, version in parents(Path("/")):
        _remove_abandoned(parent, version)
        group = Cgroup(parent / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}", version)
        try:
            group.folder.mkdir()
        except OSError as err:
            refused = str(err)
            continue
        try:
            group.limit(limit_bytes)
            _prove_entry(group)
            return group
        except OSError as err:
            refused = str(err)
        group.end()
    raise NotMeasured(f"needs a memory cgroup of its own ({refused}); {_HINT}")


def parents(root: Path) -> tuple[tuple[Path, int], ...]:
    """Cgroups in which one of ours could be made, the nearest first, each with its version; root as in `places`."""
    found = []
    for place in places("self", "memory", root):
        below = place.below or Path()
        for folder in (place.top / part for part in (below, *below.parents)):
            # Version 2 lets children have memory only where that is delegated, which it is to none beside processes.
            switch = folder / "cgroup.subtree_control"
            if place.version == 1 or (switch.exists() and "memory" in switch.read_text().split()):
                found.append((folder, place.version))
    return tuple(found)


def _prove_entry(group: Cgroup) -> None:
    """A process of ours can go in. Raises OSError where it cannot."""
    from spark_images.process import capture

    done = capture(group.inside(["true"]))
    if done.status != 0:
        raise PermissionError(f"{group.members}: {done.stderr.strip()}")


def _remove_abandoned(parent: Path, version: int) -> None:
    """What a bench that was killed by force left behind."""
    for folder in parent.glob(f"{_PREFIX}*"):
        maker = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not Path("/proc", maker).exists():
            with contextlib.suppress(OSError):  # another's, or being removed by another bench
                Cgroup(folder, version).end()

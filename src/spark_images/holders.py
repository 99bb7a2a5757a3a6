"""Who holds the host's memory, and who took it: processes, GPU processes, and what belongs to no process."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from spark_images import process
from spark_images.errors import HostProgramError
from spark_images.units import KIB, MIB, format_size

ROOT = Path("/")
_WORTH_NAMING = 10  # who took less than this part of what the first one took explains nothing
_GPU_TIMEOUT_S = 5.0  # nvidia-smi takes under a second, and hangs where a driver does


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process and what it holds in memory (VmRSS; on unified memory a GPU's allocations are not in it)."""

    name: str
    pid: int
    rss_bytes: int


@dataclass(frozen=True, kw_only=True)
class GpuProcess:
    """A process that computes on a GPU. used_bytes: None where the driver does not say it, as on GB10."""

    name: str
    pid: int
    used_bytes: int | None

    def __str__(self) -> str:
        """As a sentence."""
        used = "an amount that nvidia-smi does not tell" if self.used_bytes is None else format_size(self.used_bytes)
        return f"`{self.name}` (pid {self.pid}) holds {used} on the GPU"


def meminfo(root: Path = ROOT) -> dict[str, int]:
    """Every field of /proc/meminfo, in bytes."""
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields[key] = int(value.split()[0]) * KIB
    return fields


def largest_processes(count: int | None = 3, root: Path = ROOT) -> tuple[Process, ...]:
    """The processes that hold most memory, largest first. count: None for all."""
    found = []
    for folder in (root / "proc").glob("[0-9]*"):
        try:
            fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
        except OSError:  # it just ended
            continue
        if "VmRSS" in fields:  # kernel threads have none
            rss_bytes = int(fields["VmRSS"].split()[0]) * KIB
            found.append(Process(name=fields["Name"].strip(), pid=int(folder.name), rss_bytes=rss_bytes))
    return tuple(sorted(found, key=lambda one: (-one.rss_bytes, one.pid))[:count])


def unowned_bytes(root: Path = ROOT) -> dict[str, int]:
    """Memory that no process shows, by what it is. A GPU's memory is there where it is the host's."""
    fields = meminfo(root)
    named = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "KernelStack", "PageTables", "Percpu")
    drivers = fields["MemTotal"] - sum(fields.get(name, 0) for name in named)
    return {"files in memory (tmpfs)": fields.get("Shmem", 0), "drivers (a GPU's among them)": max(0, drivers)}


@dataclass(frozen=True, kw_only=True)
class Held:
    """Who holds what at one moment."""

    processes: tuple[Process, ...]
    unowned: dict[str, int]

    @classmethod
    def now(cls, root: Path = ROOT) -> Held:
        """At this moment; reading it takes some 10 ms."""
        return cls(processes=largest_processes(None, root), unowned=unowned_bytes(root))


def growth(before: Held, now: Held, *, ours: Collection[int] = (), count: int = 4) -> tuple[str, ...]:
    """Who took memory since: a line for each, those who took most first. ours: processes of the build itself."""
    had = {(one.pid, one.name): one.rss_bytes for one in before.processes}
    took = [
        (f"`{one.name}` (pid {one.pid}{', of this build' if one.pid in ours else ''})", earlier, one.rss_bytes)
        for one in now.processes
        for earlier in (had.get((one.pid, one.name), 0),)
    ]
    took += [(what, before.unowned.get(what, 0), size) for what, size in now.unowned.items()]
    took.sort(key=lambda one: one[1] - one[2])
    most = max((size - earlier for _, earlier, size in took), default=0)
    took = [one for one in took if one[2] - one[1] > most / _WORTH_NAMING]
    return tuple(f"{who}: {format_size(earlier)} -> {format_size(size)}" for who, earlier, size in took[:count])


class GpuQuestion:
    """Asks nvidia-smi who computes on the GPUs, in a thread: one that hangs in a driver must not hold us up."""

    def __init__(self, program: str | None = None) -> None:
        """program: nvidia-smi's path, looked for if None."""
        self._program = program or shutil.which("nvidia-smi")
        self._found: tuple[GpuProcess, ...] = ()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def answer(self, wait_s: float = _GPU_TIMEOUT_S) -> tuple[GpuProcess, ...]:
        """The processes; none where there is no nvidia-smi, or where it has not answered within wait_s."""
        self._thread.join(wait_s)
        return self._found

    def _ask(self) -> None:
        if self._program is None:
            return
        query = ["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
        try:
            asked = process.capture([self._program, *query], timeout_s=_GPU_TIMEOUT_S)
        except HostProgramError:  # it hangs: then nobody knows
            return
        if asked.status == 0:
            self._found = tuple(_gpu_processes(asked.stdout.decode(errors="replace").splitlines()))


def _gpu_processes(lines: Iterable[str]) -> Iterable[GpuProcess]:
    for line in lines:
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not fields[0].isdigit():  # "No running processes found", or a driver's complaint
            continue
        name, used = Path(", ".join(fields[1:-1])).name, fields[-1]
        yield GpuProcess(name=name, pid=int(fields[0]), used_bytes=int(used) * MIB if used.isdigit() else None)

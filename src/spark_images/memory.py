"""What this host can give to a build: /proc/meminfo, the limits of our own cgroup, and who holds the memory."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import BudgetError, HostProgramError
from spark_images.jobs import Budget, plan_budget
from spark_images.units import GIB, KIB, format_size

# Stays with the host whatever else is said: sshd, the engine and the page cache that the compile lives on.
RESERVE_BYTES = 2 * GIB
# ... but not more than this part of a small machine.
RESERVE_PART = 8
# Where the GPU lives in the same memory its driver takes pages that no cgroup counts: 5.6 GiB were measured beside an
# inference server (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#118), and a GB10 without pages hangs instead of killing
# (NVIDIA/open-gpu-kernel-modules#1358).
RESERVE_UNIFIED_BYTES = 6 * GIB

# Version 1 says "no limit" with LONG_MAX rounded down to a page, whose size differs between machines.
_NO_LIMIT = 2**60

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """MemTotal and MemAvailable of /proc/meminfo."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process and what it holds in memory (VmRSS; on unified memory a GPU's allocations are not in it)."""

    name: str
    pid: int
    rss_bytes: int


def host_memory(root: Path = ROOT) -> HostMemory:
    """The host's memory now. root: where /proc is (tests)."""
    fields = {}
    for line in (root / "proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields[key] = int(value.split()[0]) * KIB
    if "MemAvailable" not in fields:
        raise HostProgramError("/proc/meminfo has no `MemAvailable`", hint="a build needs Linux 3.14 or later")
    return HostMemory(total_bytes=fields["MemTotal"], available_bytes=fields["MemAvailable"])


def has_unified_memory(root: Path = ROOT, machine: str | None = None) -> bool:
    """Whether the GPU takes its memory from the host's.

    True for any NVIDIA driver on arm64: GB10 and Jetson are so; a Grace Hopper is not and merely keeps 4 GiB more.
    """
    return (machine or platform.machine()) == "aarch64" and (root / "proc/driver/nvidia/version").exists()


def reserve_bytes(total_bytes: int, *, unified: bool) -> int:
    """What a build must leave to the host."""
    return min(RESERVE_UNIFIED_BYTES if unified else RESERVE_BYTES, total_bytes // RESERVE_PART)


def cgroup_room(root: Path = ROOT) -> int | None:
    """Bytes that the memory limits on the path of our own cgroup leave, the smallest one; None where nothing limits.

    Every limit counts less what is held under it and cannot be given back (anonymous memory). Understands cgroup v2,
    v1 and both at once; in a container the limits of hidden parents count as far as the kernel shows them.
    """
    rooms = []
    for folder, version in _own_cgroups(root):
        stat = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines())
        if version == 2:
            limits, held = [_read(folder / "memory.max")], stat.get("anon", "0")
        else:
            limits = [_read(folder / "memory.limit_in_bytes"), stat.get("hierarchical_memory_limit", "")]
            held = stat.get("total_rss", "0")
        rooms += [int(limit) - int(held) for limit in limits if limit.isdigit() and int(limit) < _NO_LIMIT]
    return max(0, min(rooms)) if rooms else None


def _own_cgroups(root: Path) -> list[tuple[Path, int]]:
    """Our memory cgroup and its parents, as far up as they are mounted, with the version of their hierarchy."""
    paths = {}  # hierarchy version -> our path in it
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    found = []
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and "memory" in options.split(",") else 0
        if version not in paths:
            continue
        mounted, mount_point = (field.replace("\\040", " ") for field in mount.split(" ")[3:5])
        top = root / mount_point.lstrip("/")
        # In a container the mount may show a lower part of the tree than the path is told from.
        inside = Path(paths[version])
        below = inside.relative_to(mounted) if inside.is_relative_to(mounted) else Path()
        if ".." in below.parts or not (top / below).is_dir():
            below = Path()
        found += [(top / folder, version) for folder in (below, *below.parents)]
    return list(dict.fromkeys(found))


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # not there in the root of a hierarchy, or where the controller is off
        return ""


def largest_processes(count: int = 3, root: Path = ROOT) -> tuple[Process, ...]:
    """The processes that hold most memory, largest first."""
    found = []
    for folder in (root / "proc").glob("[0-9]*"):
        fields = dict(line.split(":", 1) for line in _read(folder / "status").splitlines() if ":" in line)
        if "VmRSS" in fields:  # kernel threads and processes that just ended have none
            rss_bytes = int(fields["VmRSS"].split()[0]) * KIB
            found.append(Process(name=fields["Name"].strip(), pid=int(folder.name), rss_bytes=rss_bytes))
    return tuple(sorted(found, key=lambda process: (-process.rss_bytes, process.pid))[:count])


def budget(asked: int | None, *, gib_per_job: float = 0.0, root: Path = ROOT) -> Budget:
    """What a build may use on this host now, and why; see plan_budget. A BudgetError names who holds the memory."""
    memory = host_memory(root)
    try:
        return plan_budget(
            asked=asked,
            available=memory.available_bytes,
            reserve=reserve_bytes(memory.total_bytes, unified=has_unified_memory(root)),
            cgroup_limit=cgroup_room(root),
            gib_per_job=gib_per_job,
        )
    except BudgetError as error:
        largest = largest_processes(3, root)
        holders = ", ".join(f"`{held.name}` (pid {held.pid}) holds {format_size(held.rss_bytes)}" for held in largest)
        raise BudgetError(error.what, why=(*error.why, holders), hint=error.hint) from None

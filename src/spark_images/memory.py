"""What this host can give to a build, and what it must keep: /proc/meminfo and the limits of our own cgroup."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.cgroup import Place, places
from spark_images.errors import BudgetError, HostProgramError, UsageError
from spark_images.floor import TIMEOUT_S, FloorRule
from spark_images.holders import ROOT, GpuQuestion, largest_processes, meminfo
from spark_images.jobs import Budget, parse_size, plan_budget
from spark_images.units import GIB, format_size

# Stays with the host whatever else is said: sshd, the engine and the page cache that the compile lives on.
RESERVE_BYTES = 2 * GIB
# ... but not more than this part of a small machine.
RESERVE_PART = 8
# Where the GPU lives in the same memory its driver takes pages that no cgroup counts: 5.6 GiB were measured beside an
# inference server (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#118), and a GB10 without pages hangs instead of killing
# (NVIDIA/open-gpu-kernel-modules#1358).
RESERVE_UNIFIED_BYTES = 6 * GIB
# The floor is this part of the reserve: a build under its cap leaves the whole reserve alone, so whoever took half of
# it is another one, or the cap does not hold. The rest is for the time until the build stands still: a Spark that runs
# full loses its 119 GiB within 15 to 20 s, up to 8 GiB/s, and 0.25 s (a sample each 0.2 s) of that take 2 of 3 GiB.
FLOOR_PART = 2
FLOOR_VARIABLE = "SPARK_IMAGES_FLOOR"
FLOOR_TIMEOUT_VARIABLE = "SPARK_IMAGES_FLOOR_TIMEOUT_S"

# Version 1 says "no limit" with LONG_MAX rounded down to a page, whose size differs between machines.
_NO_LIMIT = 2**60
# Beyond memory.high a cgroup is slowed down until nothing moves, so it is a limit to a build like memory.max.
_LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
# What stays however short memory gets, without swap: anonymous memory, files in tmpfs, the kernel's own. Version 1 does
# not tell which part of the kernel's memory could be given back.
_HELD = {
    1: ("total_rss", "total_shmem"),
    2: ("anon", "shmem", "slab_unreclaimable", "kernel_stack", "pagetables", "percpu", "sock"),
}


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """MemTotal and MemAvailable of /proc/meminfo."""

    total_bytes: int
    available_bytes: int


def host_memory(root: Path = ROOT) -> HostMemory:
    """The host's memory now. root: where /proc is (tests)."""
    fields = meminfo(root)
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


def floor_rule(env: Mapping[str, str], *, unified: bool, root: Path = ROOT) -> FloorRule:
    """When a build is frozen on this host. env: two variables override it; UsageError where they make no sense.

    unified: as for budget().
    """
    unified = unified or has_unified_memory(root)
    if size := env.get(FLOOR_VARIABLE):
        floor_bytes = parse_size(size, option=FLOOR_VARIABLE)
    else:
        floor_bytes = reserve_bytes(host_memory(root).total_bytes, unified=unified) // FLOOR_PART
    timeout = env.get(FLOOR_TIMEOUT_VARIABLE) or str(TIMEOUT_S)
    try:
        timeout_s = float(timeout)
    except ValueError:
        timeout_s = -1.0
    if not 0 <= timeout_s < float("inf"):
        raise UsageError(f"`{FLOOR_TIMEOUT_VARIABLE}={timeout}`: it is not a number of seconds")
    return FloorRule(floor_bytes=floor_bytes, timeout_s=timeout_s)


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a cgroup's limit leaves. where: the file that says the limit, for people."""

    size_bytes: int
    where: str


def cgroup_room(root: Path = ROOT) -> Room | None:
    """What the memory limits on the path of our own cgroup leave, the smallest one; None where nothing limits.

    Every limit counts less what is held under it and cannot be given back. Understands cgroup v2, v1 and both at
    once; in a container the limits of hidden parents count as far as the kernel shows them.
    """
    rooms = [room for place in places("self", "memory", root) for room in _rooms(place)]
    return min(rooms, key=lambda room: room.size_bytes, default=None)


def _rooms(place: Place) -> list[Room]:
    """What every limit leaves, from the cgroup up to the top of what is mounted."""
    rooms = []
    below = place.below or Path()
    for part in (below, *below.parents):
        folder = place.top / part
        stat = dict(line.split(maxsplit=1) for line in _read(folder / "memory.stat").splitlines())
        held = sum(int(stat.get(key, 0)) for key in _HELD[place.version])
        limits = {file: _read(folder / file) for file in _LIMITS[place.version]}
        if place.version == 1:  # says what also hidden parents allow
            limits["memory.stat"] = stat.get("hierarchical_memory_limit", "")
        rooms += [
            Room(size_bytes=max(0, int(limit) - held), where=f"{file} of `/{_name(part)}` in cgroup v{place.version}")
            for file, limit in limits.items()
            if limit.isdigit() and int(limit) < _NO_LIMIT
        ]
    return rooms


def _name(part: Path) -> str:
    return "" if part == Path() else str(part)


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:  # not there in the root of a hierarchy, or where the controller is off
        return ""


def budget(asked: int | None, *, gib_per_job: float = 0.0, unified: bool = False, root: Path = ROOT) -> Budget:
    """What a build may use on this host now, and why; see plan_budget. A BudgetError names who holds the memory.

    unified: whether the build is made on the kind of machine that it is for, and a GPU shares the memory there; where
    this host's driver shows it, that counts anyway.
    """
    memory, room = host_memory(root), cgroup_room(root)
    unified = unified or has_unified_memory(root)
    try:
        return plan_budget(
            asked=asked,
            available=memory.available_bytes,
            reserve=reserve_bytes(memory.total_bytes, unified=unified),
            reserve_because="a GPU shares this memory" if unified else "no GPU shares this memory",
            cgroup_limit=room.size_bytes if room else None,
            cgroup_where=room.where if room else "",
            gib_per_job=gib_per_job,
        )
    except BudgetError as error:
        gpu = GpuQuestion()
        largest = largest_processes(3, root)
        holders = ", ".join(f"`{held.name}` (pid {held.pid}) holds {format_size(held.rss_bytes)}" for held in largest)
        raise BudgetError(error.what, why=(*error.why, holders, *map(str, gpu.answer())), hint=error.hint) from None

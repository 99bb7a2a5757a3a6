"""Simulated schedules of compilers under a memory cap: what a job count, a gate and an oracle make of them."""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A translation unit as it was measured: how long its compiler ran, and the most that it held."""

    name: str
    seconds: float
    peak_mib: float


@dataclass(frozen=True)
class Shape:
    """How a compiler's memory goes: (part of its time, part of its peak), from 0 to 1 in time, straight in between.

    Two points at the same time are a fall or a jump.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, time: float) -> float:
        """Part of the peak that is held at this part of the time, the higher one where it falls or jumps."""
        at_once = [held for when, held in self.points if when == time]
        if at_once:
            return max(at_once)
        after = bisect_right(self.points, time, key=lambda point: point[0])
        (t0, m0), (t1, m1) = self.points[after - 1], self.points[after]
        return m0 + (m1 - m0) * (time - t0) / (t1 - t0)

    def still_to_come(self) -> tuple[tuple[float, float], ...]:
        """(from this part of the time on, the most that is held from then on), as a gate could know it at best."""
        steps: list[tuple[float, float]] = []
        for number, (when, _) in enumerate(self.points):
            most = max(held for _, held in self.points[number:])
            if not steps or most < steps[-1][1]:
                steps.append((when, most))
        return tuple(steps)

    def mean(self) -> float:
        """Mean over the time, as a part of the peak."""
        return sum((t1 - t0) * (m0 + m1) / 2 for (t0, m0), (t1, m1) in pairwise(self.points))


HELD = Shape(((0, 1), (1, 1)))  # the peak for the whole life: the worst that a peak can mean
# A CUTLASS unit of GB10 (nvcc 13.0, 79d, 7.33 GB): front end, then cicc climbs to the peak, then ptxas.
NVCC = Shape(((0, 0), (0.1, 1.65 / 7.33), (0.1, 0.2 / 7.33), (0.2, 0.2 / 7.33), (0.6, 1), (0.6, 0.1), (1, 0.1)))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A unit and when it began, in seconds from the begin of all."""

    unit: Unit
    began_s: float

    @property
    def ended_s(self) -> float:
        return self.began_s + self.unit.seconds


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When each unit ran."""

    runs: tuple[Run, ...]

    @property
    def seconds(self) -> float:
        """From the begin of the first unit to the end of the last."""
        return max((run.ended_s for run in self.runs), default=0.0)

    def highest_mib(self, shape: Shape = HELD) -> float:
        """The most that all running units together hold."""
        moments = {run.began_s + when * run.unit.seconds for run in self.runs for when, _ in shape.points}
        return max((self.held_mib(moment, shape) for moment in moments), default=0.0)

    def held_mib(self, moment_s: float, shape: Shape = HELD) -> float:
        """What all running units together hold at a moment; a unit is gone at the moment of its end."""
        running = (run for run in self.runs if run.began_s <= moment_s < run.ended_s)
        return sum(run.unit.peak_mib * shape.at((moment_s - run.began_s) / run.unit.seconds) for run in running)


_ROUNDING_MIB = 1e-6  # of sums of floats

Rank = Callable[[Unit], float]  # the smallest goes first


def longest(unit: Unit) -> float:
    return -unit.seconds


def largest(unit: Unit) -> float:
    return -unit.peak_mib


def most_memory_time(unit: Unit) -> float:
    return -unit.seconds * unit.peak_mib


def fixed(units: Sequence[Unit], *, jobs: int) -> Schedule:
    """`-j JOBS`: in the given order, whatever they hold."""
    return gate(units, slots=jobs, cap_mib=math.inf)


def safe_jobs(units: Iterable[Unit], *, slots: int, cap_mib: float) -> int:
    """The job count that is safe whatever runs together: by the largest peak, at least 1."""
    return max(1, min(slots, int(cap_mib // max(unit.peak_mib for unit in units))))


def gate(
    units: Sequence[Unit], *, slots: int, cap_mib: float, rank: Rank | None = None, shape: Shape = HELD
) -> Schedule:
    """Begin what fits: where a compiler ends or gives memory back, the first by rank (None: as they came) that fits.

    shape: a compiler is reckoned with the most that it still can hold. A unit above the cap runs alone.
    """
    waiting = sorted(units, key=rank) if rank else list(units)
    still_to_come = shape.still_to_come()
    releases: list[tuple[float, float, int]] = []  # heap: when, MiB, slots
    runs = []
    now_s, free_mib, free_slots = 0.0, cap_mib, slots
    while waiting or releases:
        left = []
        for unit in waiting:
            need_mib = min(unit.peak_mib, cap_mib)
            if not free_slots or need_mib > free_mib + _ROUNDING_MIB:
                left.append(unit)
                continue
            runs.append(Run(unit=unit, began_s=now_s))
            free_mib, free_slots = free_mib - need_mib, free_slots - 1
            for (_, most), (time, less) in pairwise(still_to_come):
                heapq.heappush(releases, (now_s + time * unit.seconds, need_mib * (most - less), 0))
            heapq.heappush(releases, (now_s + unit.seconds, need_mib * still_to_come[-1][1], 1))
        waiting = left
        now_s = releases[0][0]
        while releases and releases[0][0] <= now_s:
            _, mib, count = heapq.heappop(releases)
            free_mib, free_slots = free_mib + mib, free_slots + count
    return Schedule(runs=tuple(runs))


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What no schedule can be shorter than, in seconds, for each reason there is."""

    work_s: float  # all slots always at work
    memory_s: float  # the cap always full
    longest_s: float

    @property
    def seconds(self) -> float:
        return max(self.work_s, self.memory_s, self.longest_s)


def lower_bound(units: Sequence[Unit], *, slots: int, cap_mib: float, shape: Shape = HELD) -> Bound:
    """The bound for schedules that never pass the cap."""
    return Bound(
        work_s=sum(unit.seconds for unit in units) / slots,
        memory_s=sum(unit.seconds * unit.peak_mib for unit in units) * shape.mean() / cap_mib,
        longest_s=max((unit.seconds for unit in units), default=0.0),
    )


def oracle(units: Sequence[Unit], *, slots: int, cap_mib: float, shape: Shape = HELD) -> Schedule:
    """The shortest of several list schedules that know every peak and every length."""
    bound_s = lower_bound(units, slots=slots, cap_mib=cap_mib, shape=shape).seconds

    def both(unit: Unit) -> float:
        return -(unit.seconds / bound_s + unit.peak_mib / cap_mib)

    tried = (
        gate(units, slots=slots, cap_mib=cap_mib, rank=rank, shape=shape)
        for rank in (longest, largest, most_memory_time, both)
    )
    return min(tried, key=lambda schedule: schedule.seconds)

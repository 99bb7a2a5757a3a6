"""What earlier builds teach the next one: peak and time of every unit, for scripts/memgate and for image.yaml."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_images.buildlog import UnitMeasured
from spark_images.units import GIB, KIB, MIB, format_duration, format_size

PROFILE_BYTES = 480 * KIB  # BuildKit refuses secrets above 500 KiB
_PEAKS = 3  # records whose largest peak counts: one build's measurement may have missed it
_MARGIN = 1.05  # for gib-per-job, above the largest peak that was seen
_STEP_GIB = 0.05  # gib-per-job is rounded up to a multiple of this
_PASSING = re.compile(r"/cmTC_\w+\.dir/")  # CMake's trial compiles have a random name: none comes again


@dataclass(frozen=True, kw_only=True)
class ExpectedUnit:
    """What a unit is expected to need."""

    unit: str
    peak_mib: int
    seconds: float


@dataclass(frozen=True)
class Profile:
    """The text of MEMGATE_PROFILE and what is in it."""

    text: str
    units: tuple[ExpectedUnit, ...]
    left_out: int = 0  # units that were known, but had no room

    def __str__(self) -> str:
        """For the plan: `213 units known from earlier builds, the largest 8.1 GiB, 41:05 of compilers`."""
        if not self.units:
            return "no unit known from earlier builds"
        largest = format_size(max(unit.peak_mib for unit in self.units) * MIB)
        seconds = format_duration(sum(unit.seconds for unit in self.units))
        known = f"{len(self.units)} units known from earlier builds, the largest {largest}, {seconds} of compilers"
        return known + (f"; {self.left_out} smaller ones have no room" if self.left_out else "")


def expected_units(
    same: Iterable[Sequence[UnitMeasured]], others: Iterable[Sequence[UnitMeasured]] = ()
) -> tuple[ExpectedUnit, ...]:
    """What earlier attempts say of every unit: the newest time, the largest peak of the newest three that have it.

    same: the units of each attempt for the same image and target, newest attempt first. others: of other targets;
    they count only for units that `same` does not know.
    """
    known = _newest(same)
    return tuple(({**_newest(others), **known}).values())


def _newest(attempts: Iterable[Sequence[UnitMeasured]]) -> dict[str, ExpectedUnit]:
    seen: dict[str, list[UnitMeasured]] = {}
    for units in attempts:
        for name, unit in {unit.unit: unit for unit in units}.items():  # the last one where an attempt made it twice
            if not _PASSING.search(name):
                seen.setdefault(name, []).append(unit)
    return {
        name: ExpectedUnit(unit=name, peak_mib=max(unit.peak_mib for unit in found[:_PEAKS]), seconds=found[0].seconds)
        for name, found in seen.items()
    }


def profile_text(units: Iterable[ExpectedUnit], *, limit_bytes: int = PROFILE_BYTES) -> Profile:
    """The profile: a line `peak_mib seconds unit` each, in the order of names.

    Where they do not all fit, those with the largest peaks and the longest times stay.
    """
    known = tuple(units)
    largest = max((unit.peak_mib for unit in known), default=0) or 1
    longest = max((unit.seconds for unit in known), default=0.0) or 1.0
    kept: list[tuple[str, ExpectedUnit]] = []
    room = limit_bytes
    for unit in sorted(known, key=lambda unit: -max(unit.peak_mib / largest, unit.seconds / longest)):
        line = f"{unit.peak_mib} {unit.seconds:.1f} {unit.unit}\n"
        room -= len(line.encode())
        if room < 0:
            break
        kept.append((line, unit))
    kept.sort(key=lambda entry: entry[1].unit)
    return Profile("".join(line for line, _ in kept), tuple(unit for _, unit in kept), len(known) - len(kept))


@dataclass(frozen=True)
class Proposal:
    """What `gib-per-job` of image.yaml should be, and why."""

    gib: float
    because: str


def proposed_gib_per_job(units: Iterable[ExpectedUnit]) -> Proposal | None:
    """gib-per-job as the measured units want it; None without any. Nothing writes it: a person decides."""
    largest = max(units, key=lambda unit: unit.peak_mib, default=None)
    if largest is None:
        return None
    gib = math.ceil(round(largest.peak_mib * MIB * _MARGIN / GIB / _STEP_GIB, 6)) * _STEP_GIB
    peak = f"{largest.peak_mib * MIB / GIB:.2f} GiB"
    return Proposal(round(gib, 2), f"the largest peak seen is {peak}, 5 % are added: {largest.unit}")

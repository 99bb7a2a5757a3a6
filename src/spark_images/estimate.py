"""What a whole compile would cost: by the profile that ships with a release, and by what was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from spark_images.buildlog import UnitMeasured
from spark_images.schedule import NVCC, Unit, gate, longest, lower_bound


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A part that is not compiled. cpu_s: what that saves."""

    name: str
    units: int
    cpu_s: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A whole compile, in CPU seconds of the machine that the factor is of.

    factor: CPU seconds measured here, per one of the profile; 1 where nothing is measured. overlap: how many units it
    is taken from, and their CPU seconds in the profile.
    """

    units: int
    cpu_s: float
    left_out: tuple[LeftOut, ...]
    factor: float
    overlap: int
    overlap_cpu_s: float
    largest_mib: int
    longest_s: float
    seconds: float  # with the cores and the memory that were asked for, behind the gate
    bound_s: float  # no schedule is shorter

    @property
    def saved(self) -> float:
        """The part of all CPU seconds that is not spent."""
        saved_s = sum(part.cpu_s for part in self.left_out)
        return saved_s / (saved_s + self.cpu_s)


def estimate(
    profile: Sequence[UnitMeasured],
    measured: Iterable[UnitMeasured],
    *,
    needless: Iterable[tuple[str, str]],
    cores: int,
    cap_mib: float,
) -> Estimate:
    """The compile of all units of a profile but the needless ones: (name, pattern of objects).

    measured: units as they were compiled on the machine that is asked about; one that the profile lacks says nothing.
    """
    left_out, rest = [], list(profile)
    for name, pattern in needless:
        out = [unit for unit in rest if fnmatchcase(unit.unit, pattern)]
        rest = [unit for unit in rest if unit not in out]
        left_out.append(LeftOut(name=name, units=len(out), cpu_s=sum(unit.cpu_s for unit in out)))
    known = {unit.unit: unit.cpu_s for unit in profile}
    here = {unit.unit: unit.cpu_s for unit in measured if unit.unit in known}
    overlap_s = sum(known[name] for name in here)
    factor = sum(here.values()) / overlap_s if overlap_s else 1.0
    units = [Unit(name=unit.unit, seconds=unit.cpu_s * factor, peak_mib=unit.peak_mib) for unit in rest]
    return Estimate(
        units=len(units),
        cpu_s=sum(unit.seconds for unit in units),
        left_out=tuple(
            LeftOut(name=part.name, units=part.units, cpu_s=part.cpu_s * factor) for part in left_out if part.units
        ),
        factor=factor,
        overlap=len(here),
        overlap_cpu_s=overlap_s,
        largest_mib=max((unit.peak_mib for unit in rest), default=0),
        longest_s=max((unit.seconds for unit in units), default=0.0),
        seconds=gate(units, slots=cores, cap_mib=cap_mib, rank=longest, shape=NVCC).seconds,
        bound_s=lower_bound(units, slots=cores, cap_mib=cap_mib, shape=NVCC).seconds,
    )

"""Estimates of a whole compile, from a profile and from what was measured of it."""

from __future__ import annotations

import pytest

from spark_images.buildlog import UnitMeasured
from spark_images.estimate import estimate


def unit(name: str, cpu_s: float, peak_mib: int = 1000) -> UnitMeasured:
    return UnitMeasured(step="", unit=name, peak_mib=peak_mib, seconds=cpu_s, cpu_s=cpu_s, expected_mib=0, tries=1)


PROFILE = (unit("a.dir/1.o", 100), unit("a.dir/2.o", 60), unit("b.dir/3.o", 40), unit("b.dir/4.o", 200))


def test_without_measurements_the_profile_counts_as_it_is() -> None:
    found = estimate(PROFILE, (), needless=(), cores=2, cap_mib=10_000)

    assert (found.units, found.cpu_s, found.factor, found.overlap, found.left_out) == (4, 400, 1.0, 0, ())
    assert (found.seconds, found.bound_s, found.longest_s) == (200, 200, 200)


def test_measured_units_scale_the_others_and_strangers_count_for_nothing() -> None:
    measured = (unit("a.dir/1.o", 150), unit("b.dir/3.o", 60), unit("strange.o", 1e6))

    found = estimate(PROFILE, measured, needless=(), cores=1, cap_mib=10_000)

    assert (found.factor, found.overlap, found.overlap_cpu_s) == (1.5, 2, 140)
    assert found.cpu_s == found.seconds == 600


def test_what_is_left_out_is_told_by_part_and_saved() -> None:
    found = estimate(PROFILE, (), needless=(("b", "b.dir/*"), ("nothing", "c.dir/*")), cores=1, cap_mib=10_000)

    assert [(part.name, part.units, part.cpu_s) for part in found.left_out] == [("b", 2, 240)]
    assert found.saved == pytest.approx(0.6)
    assert found.seconds == 160


def test_memory_decides_where_cores_do_not() -> None:
    wide = estimate(PROFILE, (), needless=(), cores=4, cap_mib=4000)
    tight = estimate(PROFILE, (), needless=(), cores=4, cap_mib=1000)

    assert wide.seconds == 200
    assert tight.seconds > 1.2 * wide.seconds

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.buildlog import UnitMeasured
from spark_images.profile import (
    PROFILE_BYTES,
    ExpectedUnit,
    expected_units,
    profile_text,
    proposed_gib_per_job,
)


def measured(unit: str, peak_mib: int = 400, seconds: float = 10.0) -> UnitMeasured:
    return UnitMeasured(
        step="compile", unit=unit, peak_mib=peak_mib, seconds=seconds, cpu_s=seconds, expected_mib=1, tries=1
    )


def expected(unit: str, peak_mib: int = 400, seconds: float = 10.0) -> ExpectedUnit:
    return ExpectedUnit(unit=unit, peak_mib=peak_mib, seconds=seconds)


def test_peak_is_the_largest_of_the_newest_three_and_time_the_newest() -> None:
    attempts = [[measured("a.o", peak, seconds)] for peak, seconds in ((400, 9.0), (500, 8.0), (450, 7.0), (900, 6.0))]
    assert expected_units(attempts) == (expected("a.o", 500, 9.0),)


def test_only_attempts_that_made_a_unit_count_for_it() -> None:
    attempts = [[measured("a.o")], [], [measured("b.o", 1)], [measured("b.o", 2)], [], [measured("b.o", 3)]]
    assert {unit.unit: unit.peak_mib for unit in expected_units(attempts)} == {"a.o": 400, "b.o": 3}


def test_other_targets_count_only_for_what_this_one_does_not_know() -> None:
    known = expected_units([[measured("a.o", 100, 1.0)]], [[measured("a.o", 900, 9.0), measured("b.o", 900, 9.0)]])
    assert sorted((unit.unit, unit.peak_mib) for unit in known) == [("a.o", 100), ("b.o", 900)]


def test_unit_that_one_attempt_made_twice_counts_once() -> None:
    attempts = [
        [measured("a.o", 1), measured("a.o", 2)],
        [measured("a.o", 3)],
        [measured("a.o", 4)],
        [measured("a.o", 9)],
    ]
    assert expected_units(attempts)[0].peak_mib == 4


def test_trial_compiles_of_cmake_are_not_learned() -> None:
    assert expected_units([[measured("CMakeFiles/cmTC_1a2b3.dir/testCXXCompiler.cxx.o")]]) == ()


def test_text_has_a_line_per_unit_in_the_order_of_names() -> None:
    profile = profile_text([expected("ggml/mmq.cu.o", 412, 31.24), expected("a%20b.o", 60, 0.4)])
    assert profile.text == "60 0.4 a%20b.o\n412 31.2 ggml/mmq.cu.o\n"
    assert str(profile) == "2 units known from earlier builds, the largest 412 MiB, 0:31 of compilers"


def test_nothing_known_is_an_empty_profile() -> None:
    assert profile_text([]).text == ""
    assert str(profile_text([])) == "no unit known from earlier builds"


def test_large_and_long_units_stay_where_not_all_have_room() -> None:
    small = [expected(f"{number:04}.o", 10, 0.1) for number in range(50)]
    profile = profile_text([*small, expected("large.o", 9000, 1.0), expected("long.o", 50, 960.0)], limit_bytes=120)
    assert {"large.o", "long.o"} <= {unit.unit for unit in profile.units}
    assert profile.left_out == 52 - len(profile.units) > 0
    assert str(profile).endswith(f"; {profile.left_out} smaller ones have no room")


@given(
    st.lists(
        st.builds(
            expected, st.text(min_size=1, max_size=300), st.integers(0, 200_000), st.floats(0, 1e5, allow_nan=False)
        ),
        max_size=40,
    ),
    st.integers(0, 4000),
)
def test_profile_never_exceeds_its_limit_and_counts_what_it_left_out(units: list[ExpectedUnit], limit: int) -> None:
    profile = profile_text(units, limit_bytes=limit)
    assert len(profile.text.encode()) <= limit
    assert len(profile.units) + profile.left_out == len(units)


def test_largest_known_project_fits() -> None:
    """FlashInfer ahead of time is 2,836 units with names of about 100 characters."""
    profile = profile_text([expected(f"{'x' * 100}/{number}.cuda.o", 10_500, 418.0) for number in range(2836)])
    assert profile.left_out == 0
    assert len(profile.text) <= PROFILE_BYTES


@pytest.mark.parametrize(("peak_mib", "gib"), [(712, 0.75), (9557, 9.8), (1, 0.05), (975, 1.0), (976, 1.05)])
def test_proposal_is_five_percent_above_the_largest_peak_rounded_up(peak_mib: int, gib: float) -> None:
    proposal = proposed_gib_per_job([expected("small.o", 1), expected("large.o", peak_mib)])
    assert proposal is not None
    assert proposal.gib == gib
    assert "large.o" in proposal.because or peak_mib == 1


@given(st.integers(1, 200_000))
def test_proposal_always_covers_the_peak_and_is_a_multiple_of_a_twentieth(peak_mib: int) -> None:
    proposal = proposed_gib_per_job([expected("a.o", peak_mib)])
    assert proposal is not None
    assert proposal.gib * 1024 >= 1.049 * peak_mib
    assert math.isclose(proposal.gib * 20, round(proposal.gib * 20))


def test_nothing_measured_proposes_nothing() -> None:
    assert proposed_gib_per_job([]) is None

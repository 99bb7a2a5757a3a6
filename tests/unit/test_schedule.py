"""Simulated schedules: what a job count, a gate and an oracle make of the same units, and what none can beat."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.bench.replay import measured_vllm
from spark_images.schedule import (
    HELD,
    NVCC,
    Rank,
    Schedule,
    Shape,
    Unit,
    fixed,
    gate,
    largest,
    longest,
    lower_bound,
    most_memory_time,
    oracle,
    safe_jobs,
)

GIB = 1024.0  # MiB
VLLM = measured_vllm(Path(__file__).parents[2])


def unit(name: str, seconds: float, peak_mib: float) -> Unit:
    return Unit(name=name, seconds=seconds, peak_mib=peak_mib)


def begins(schedule: Schedule) -> dict[str, float]:
    return {run.unit.name: run.began_s for run in schedule.runs}


# --- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "held"), [(0, 0), (0.05, 0.1125), (0.15, 0.027), (0.4, 0.514), (0.6, 1), (0.8, 0.1)])
def test_a_compiler_of_nvcc_shape_comes_late_to_its_peak(time: float, held: float) -> None:
    assert NVCC.at(time) == pytest.approx(held, abs=0.002)


def test_what_is_still_to_come_falls_when_the_peak_has_passed() -> None:
    assert NVCC.still_to_come() == ((0, 1), (0.6, 0.1))
    assert HELD.still_to_come() == ((0, 1),)


def test_a_second_hill_is_still_to_come_after_the_first() -> None:
    hills = Shape(((0, 0), (0.2, 1), (0.2, 0), (0.5, 0.5), (0.5, 0.1), (1, 0.1)))

    assert hills.still_to_come() == ((0, 1), (0.2, 0.5), (0.5, 0.1))


def test_the_mean_of_a_triangle_is_half_its_peak() -> None:
    assert Shape(((0, 0), (0.3, 1), (1, 0))).mean() == pytest.approx(0.5)


# --- job counts -------------------------------------------------------------------------------------------------------


def test_a_job_count_begins_units_in_their_order() -> None:
    schedule = fixed([unit("a", 4, 10), unit("b", 1, 10), unit("c", 2, 10), unit("d", 1, 10)], jobs=2)

    assert begins(schedule) == {"a": 0, "b": 0, "c": 1, "d": 3}
    assert schedule.seconds == 4


def test_a_job_count_does_not_look_at_memory() -> None:
    schedule = fixed([unit("a", 4, 700), unit("b", 4, 600)], jobs=2)

    assert schedule.highest_mib() == 1300


def test_units_that_peak_at_different_times_hold_less_together_than_their_peaks() -> None:
    schedule = fixed([unit("a", 10, 1000), unit("b", 5, 1000)], jobs=2)

    # b peaks at 3 s, where a holds a quarter of its climb; a peaks at 6 s, when b has ended.
    assert schedule.highest_mib(NVCC) == pytest.approx(1000 * (1 + NVCC.at(0.3)))
    assert schedule.highest_mib() == 2000


@pytest.mark.parametrize(("cap_gib", "jobs"), [(32, 3), (48, 5), (64, 6), (96, 10), (4, 1), (1000, 20)])
def test_the_safe_job_count_is_set_by_the_largest_peak(cap_gib: int, jobs: int) -> None:
    assert safe_jobs(VLLM, slots=20, cap_mib=cap_gib * GIB) == jobs


# --- the gate ---------------------------------------------------------------------------------------------------------


def test_the_gate_lets_pass_what_fits_beside_what_does_not() -> None:
    units = [unit("big", 4, 700), unit("also big", 4, 600), unit("small", 2, 200)]

    assert begins(gate(units, slots=2, cap_mib=1000)) == {"big": 0, "small": 0, "also big": 4}


def test_the_gate_begins_the_first_by_rank() -> None:
    units = [unit("short", 1, 100), unit("long", 9, 100), unit("fat", 2, 900)]

    assert gate(units, slots=1, cap_mib=1000, rank=longest).runs[0].unit.name == "long"
    assert gate(units, slots=1, cap_mib=1000, rank=largest).runs[0].unit.name == "fat"
    assert gate(units, slots=1, cap_mib=1000, rank=most_memory_time).runs[0].unit.name == "fat"


def test_a_unit_above_the_cap_runs_alone() -> None:
    schedule = gate([unit("over", 5, 2000), unit("a", 1, 10), unit("b", 9, 10)], slots=3, cap_mib=1000)

    assert begins(schedule) == {"over": 0, "a": 5, "b": 5}


def test_memory_that_a_compiler_gives_back_lets_the_next_begin_before_it_ends() -> None:
    units = [unit("a", 10, 900), unit("b", 10, 900)]

    assert begins(gate(units, slots=2, cap_mib=1000, shape=NVCC)) == {"a": 0, "b": 6}
    assert begins(gate(units, slots=2, cap_mib=1000)) == {"a": 0, "b": 10}


UNIT_LISTS = st.lists(
    st.builds(unit, st.just("u"), st.floats(0.1, 100), st.floats(1, 2000)), min_size=1, max_size=30
)  # some above the cap
RANKS = st.sampled_from([None, longest, largest, most_memory_time])


@given(units=UNIT_LISTS, slots=st.integers(1, 6), rank=RANKS, shape=st.sampled_from([HELD, NVCC]))
def test_the_gate_passes_neither_cap_nor_slots_and_forgets_nothing(
    units: list[Unit], slots: int, rank: Rank | None, shape: Shape
) -> None:
    fitting = [one for one in units if one.peak_mib <= 1000]
    schedule = gate(fitting, slots=slots, cap_mib=1000, rank=rank, shape=shape)

    assert sorted(run.unit.peak_mib for run in schedule.runs) == sorted(one.peak_mib for one in fitting)
    assert schedule.highest_mib(shape) <= 1000 * (1 + 1e-6)
    for run in schedule.runs:
        at_once = [other for other in schedule.runs if other.began_s <= run.began_s < other.ended_s]
        assert len(at_once) <= slots


@given(units=UNIT_LISTS, slots=st.integers(1, 6), shape=st.sampled_from([HELD, NVCC]))
def test_no_schedule_is_shorter_than_the_bound(units: list[Unit], slots: int, shape: Shape) -> None:
    fitting = [one for one in units if one.peak_mib <= 1000]
    bound = lower_bound(fitting, slots=slots, cap_mib=1000, shape=shape)

    assert oracle(fitting, slots=slots, cap_mib=1000, shape=shape).seconds >= bound.seconds * (1 - 1e-9)


# --- the measured compile of vLLM, 20 slots; minutes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap_gib", "safe", "first_come", "longest_first", "bound"),
    [(32, 242, 74, 69, 65), (48, 152, 55, 47, 43), (64, 128, 48, 37, 35), (96, 80, 48, 36, 35)],
)
def test_the_gate_makes_of_vllm_what_was_found_before(
    cap_gib: int, safe: float, first_come: float, longest_first: float, bound: float
) -> None:
    cap = cap_gib * GIB
    jobs = safe_jobs(VLLM, slots=20, cap_mib=cap)

    found = [
        fixed(VLLM, jobs=jobs).seconds,
        gate(VLLM, slots=20, cap_mib=cap).seconds,
        gate(VLLM, slots=20, cap_mib=cap, rank=longest).seconds,
        lower_bound(VLLM, slots=20, cap_mib=cap).seconds,
    ]

    assert [seconds / 60 for seconds in found] == pytest.approx([safe, first_come, longest_first, bound], abs=0.6)


def test_all_cores_at_once_want_78_gib_for_vllm() -> None:
    assert fixed(VLLM, jobs=20).highest_mib() / GIB == pytest.approx(78, abs=1)


def test_the_measured_units_are_those_of_a_whole_compile() -> None:
    assert len(VLLM) == 359
    assert sum(one.seconds for one in VLLM) == pytest.approx(42459, abs=1)
    assert max(one.peak_mib for one in VLLM) == 9557
    assert len({one.name for one in VLLM}) == 359
    assert all(math.isfinite(one.seconds) and not Path(one.name).is_absolute() for one in VLLM)

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.floor import Action, Floor, FloorRule
from spark_images.units import GIB, MIB

RULE = FloorRule(floor_bytes=1 * GIB, timeout_s=120, margin_bytes=256 * MIB, calm_s=1)
LOW, BETWEEN, HIGH = 1 * GIB - 1, 1 * GIB + 256 * MIB - 1, 1 * GIB + 256 * MIB
# Seconds since the sample before, and what is available: near the two borders, and anywhere.
SAMPLES = st.lists(
    st.tuples(
        st.floats(min_value=0.05, max_value=40),
        st.sampled_from([0, LOW, LOW + 1, BETWEEN, HIGH]) | st.integers(min_value=0, max_value=4 * GIB),
    ),
    max_size=60,
)


def feed(*samples: tuple[float, int], rule: FloorRule = RULE) -> list[Action]:
    """The actions for samples at these times."""
    floor = Floor(rule)
    return [floor.feed(now_s, available) for now_s, available in samples]


def test_above_the_floor_nothing_happens() -> None:
    assert feed((0, 1 * GIB), (0.2, 8 * GIB)) == [Action.NONE, Action.NONE]


def test_the_first_sample_below_the_floor_freezes() -> None:
    assert feed((0, HIGH), (0.2, LOW), (0.4, LOW)) == [Action.NONE, Action.FREEZE, Action.NONE]


def test_memory_that_was_back_for_a_second_thaws() -> None:
    assert feed((0, LOW), (1, HIGH), (1.9, HIGH), (2, HIGH))[1:] == [Action.NONE, Action.NONE, Action.THAW]


def test_memory_within_the_margin_is_not_back() -> None:
    assert feed((0, LOW), (1, BETWEEN), (9, BETWEEN))[1:] == [Action.NONE, Action.NONE]


def test_a_dip_while_memory_comes_back_begins_the_second_anew() -> None:
    assert feed((0, LOW), (1, HIGH), (1.5, BETWEEN), (2, HIGH), (2.9, HIGH), (3, HIGH))[-2:] == [
        Action.NONE,
        Action.THAW,
    ]


def test_after_the_time_out_it_stops_and_then_does_nothing() -> None:
    assert feed((0, LOW), (119.9, LOW), (120, BETWEEN), (121, LOW), (122, HIGH))[1:] == [
        Action.NONE,
        Action.STOP,
        Action.NONE,
        Action.NONE,
    ]


def test_memory_that_is_back_when_the_time_is_out_thaws() -> None:
    assert feed((0, LOW), (119.5, HIGH), (120.2, HIGH), (120.5, HIGH))[-2:] == [Action.NONE, Action.THAW]


def test_a_time_out_of_nothing_stops_at_the_second_sample() -> None:
    rule = FloorRule(floor_bytes=GIB, timeout_s=0)
    assert feed((0, LOW), (0.2, LOW), rule=rule) == [Action.FREEZE, Action.STOP]


@given(SAMPLES)
def test_it_never_runs_below_the_floor_nor_stays_frozen_for_long(samples: list[tuple[float, int]]) -> None:
    floor, now_s, stopped = Floor(RULE), 0.0, False
    frozen_s = back_s = None  # since when
    for passed_s, available in samples:
        now_s += passed_s
        was_frozen = floor.frozen
        action = floor.feed(now_s, available)
        if stopped:
            assert action is Action.NONE
            continue
        assert floor.frozen or available >= RULE.floor_bytes
        assert (action is Action.FREEZE) == (floor.frozen and not was_frozen)
        assert (action is Action.THAW) == (was_frozen and not floor.frozen)
        if action is Action.FREEZE:
            frozen_s, back_s = now_s, None
        elif was_frozen:
            assert frozen_s is not None
            back_s = (now_s if back_s is None else back_s) if available >= HIGH else None
            assert (action is Action.THAW) == (back_s is not None and now_s - back_s >= RULE.calm_s)
            assert (action is Action.STOP) == (back_s is None and now_s - frozen_s >= RULE.timeout_s)
        stopped = action is Action.STOP


@pytest.mark.parametrize("available", [LOW, 0])
def test_a_host_that_stays_short_is_frozen_once_and_stopped_once(available: int) -> None:
    actions = feed(*((second / 5, available) for second in range(1000)))
    assert [action for action in actions if action is not Action.NONE] == [Action.FREEZE, Action.STOP]

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.search import (
    Bracket,
    Change,
    Culprits,
    Verdict,
    after,
    bracket,
    confidence,
    isolate,
    next_probe,
    next_set,
    order_changes,
    repeats_for,
    spread_probes,
)

GOOD, BAD, SKIP = Verdict.GOOD, Verdict.BAD, Verdict.SKIP


def line(count: int, **verdicts: Iterable[int]) -> list[Verdict | None]:
    """A line that is good at its beginning and bad at its end; good=, bad=, skip= name further places."""
    known: list[Verdict | None] = [None] * count
    known[0], known[-1] = GOOD, BAD
    for name, places in verdicts.items():
        for place in places:
            known[place] = Verdict(name)
    return known


def search(count: int, culprit: int, broken: set[int], *, exhaustive: bool = False) -> tuple[Bracket, int]:
    """What is left in the end, and how many tries it took."""
    known, tries = line(count), 0
    while (probe := next_probe(known, exhaustive=exhaustive)) is not None:
        assert known[probe] is None, "the same question twice"
        known[probe] = SKIP if probe in broken else GOOD if probe < culprit else BAD
        tries += 1
    return bracket(known), tries


def plain_bisection(count: int, culprit: int, broken: set[int]) -> int:
    """Tries of the plain rule: the middle of those that are left, a broken one is dropped from the list."""
    left, tries = [place for place in range(count)], 0
    while len(left) > 2:
        middle = left[len(left) // 2]
        tries += 1
        if middle in broken:
            left.remove(middle)
        elif middle < culprit:
            left = left[len(left) // 2 :]
        else:
            left = left[: len(left) // 2 + 1]
    return tries


# --- the next probe --------------------------------------------------------------------------------------------------


def test_without_skips_the_middle_is_tried() -> None:
    assert next_probe(line(9)) == 4
    assert next_probe(line(9, good=[4])) == 6


def test_after_a_skip_half_way_between_the_broken_run_and_the_farther_end() -> None:
    assert next_probe(line(11, skip=[6])) == 3
    assert next_probe(line(11, skip=[4])) == 7


def test_a_run_is_solid_when_both_ends_are_known_and_six_members_were_seen_broken() -> None:
    solid = line(20, good=[4], bad=[14], skip=[5, 6, 8, 10, 12, 13])
    assert next_probe(solid) is None
    assert next_probe(solid, exhaustive=True) in (7, 9, 11)
    thin = line(20, good=[4], bad=[14], skip=[5, 6, 8, 12, 13])
    assert next_probe(thin) in (7, 9, 10, 11)


def test_scattered_skips_bring_back_the_plain_middle() -> None:
    assert next_probe(line(41, skip=[2, 20], good=[10])) == 25  # by the edge rule it would be 30


def test_an_answer_at_hand_near_the_middle_is_preferred() -> None:
    assert next_probe(line(41), at_hand={13, 38}) == 13
    assert next_probe(line(41), at_hand={2, 38}) == 20


def test_neighbours_end_the_search() -> None:
    known = line(9, good=[3], bad=[4])
    assert next_probe(known) is None
    assert bracket(known) == Bracket(good=3, bad=4, skipped=(), untried=())


def test_with_verdicts_that_change_twice_the_last_change_is_searched() -> None:
    left = bracket(line(12, bad=[3], good=[6]))
    assert (left.good, left.bad) == (6, 11)


def test_probes_for_several_runners_are_spread_evenly_over_what_is_untried() -> None:
    assert spread_probes(line(9), jobs=3) == (2, 4, 6)
    assert spread_probes(line(4), jobs=5) == (1, 2)
    assert spread_probes(line(4, good=[1], bad=[2]), jobs=5) == ()


def test_what_may_be_asked_next_is_known_before_the_answer() -> None:
    known = line(17)
    nexts = after(known, 8)
    for verdict in Verdict:
        then = [*known]
        then[8] = verdict
        assert next_probe(then) in nexts
    assert set(nexts) == {4, 12}


# --- the simulation of ../shared/knowledge: 2,000 cases each ---------------------------------------------------------


def cases(kind: str, size: float, *, count: int = 64, number: int = 2000) -> list[tuple[int, set[int]]]:
    """Culprits with the versions that cannot be tried: one run of `size`, or each with this chance."""
    rng, made = random.Random(8), []
    for _ in range(number):
        culprit = rng.randrange(1, count)
        if kind == "block":
            start = rng.randrange(1, count - int(size))
            broken = set(range(start, start + int(size)))
        else:
            broken = {place for place in range(1, count - 1) if rng.random() < size}
        made.append((culprit, broken - {0, count - 1}))
    return made


# Mean and 95th percentile that were simulated when the rule was chosen; one more try than that is accepted.
@pytest.mark.parametrize(
    ("kind", "size", "exhaustive", "mean", "most"),
    [
        ("scatter", 0.0, False, 6.0, 6),
        ("block", 16, False, 7.8, 12),
        ("block", 16, True, 10.5, 22),
        ("block", 40, False, 9.7, 11),
        ("block", 40, True, 31.5, 45),
        ("scatter", 0.1, False, 6.7, 9),
        ("scatter", 0.3, False, 8.7, 15),
    ],
)
def test_the_culprit_is_in_the_range_and_tries_are_as_simulated(
    kind: str, size: float, exhaustive: bool, mean: float, most: int
) -> None:
    tries = []
    for culprit, broken in cases(kind, size, number=400 if exhaustive else 2000):
        left, asked = search(64, culprit, broken, exhaustive=exhaustive)
        assert left.good < culprit <= left.bad
        tries.append(asked)
    assert statistics.mean(tries) <= mean + 1
    assert sorted(tries)[int(len(tries) * 0.95)] <= most + 1


def test_beside_a_broken_run_of_16_no_case_takes_more_than_13_tries() -> None:
    assert max(search(64, culprit, broken)[1] for culprit, broken in cases("block", 16)) <= 13


def test_a_broken_run_costs_far_fewer_tries_than_by_plain_bisection() -> None:
    blocks = cases("block", 40)
    ours = statistics.mean(search(64, culprit, broken)[1] for culprit, broken in blocks)
    plain = statistics.mean(plain_bisection(64, culprit, broken) for culprit, broken in blocks)
    assert ours * 3 < plain


@given(st.integers(2, 80), st.data())
def test_whatever_is_broken_the_culprit_is_inside_and_the_exhaustive_range_is_the_tightest(
    count: int, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(1, count - 1))
    broken = data.draw(st.sets(st.integers(1, count - 2))) if count > 2 else set()
    left, _ = search(count, culprit, broken)
    assert left.good < culprit <= left.bad
    left, _ = search(count, culprit, broken, exhaustive=True)
    assert left.good == max(place for place in range(culprit) if place not in broken)
    assert left.bad == min(place for place in range(culprit, count) if place not in broken)


# --- sets of changes -------------------------------------------------------------------------------------------------


def changes(count: int) -> tuple[Change, ...]:
    return tuple(Change(name=f"pin-{number:02}") for number in range(count))


class World:
    """Answers as a set of culprits gives them; what is asked is kept. unbuildable: sets that give no answer."""

    def __init__(self, *culprits: str, unbuildable: Sequence[frozenset[str]] = ()) -> None:
        self.culprits, self.unbuildable = frozenset(culprits), unbuildable
        self.asked: list[frozenset[str]] = []

    def __call__(self, made: frozenset[str]) -> Verdict:
        assert made not in self.asked, "the same question twice"
        self.asked.append(made)
        if made in self.unbuildable:
            return SKIP
        return BAD if self.culprits <= made else GOOD


def test_one_culprit_of_forty_is_found_in_about_the_logarithm_of_them() -> None:
    world = World("pin-23")
    assert isolate(changes(40), world).failing == ("pin-23",)
    assert len(world.asked) <= 8


def test_of_an_interacting_pair_both_were_tried_alone() -> None:
    world = World("pin-03", "pin-17")
    assert isolate(changes(20), world) == Culprits(
        failing=("pin-03", "pin-17"),
        proved=("pin-03", "pin-17"),
        passing=tuple(f"pin-{number:02}" for number in range(20) if number != 3),
    )
    assert frozenset({"pin-03"}) in world.asked
    assert frozenset({"pin-17"}) in world.asked


def test_where_a_state_cannot_be_built_the_culprit_is_found_all_the_same() -> None:
    states = [frozenset(f"pin-{number:02}" for number in range(count)) for count in (3, 4, 5)]
    assert isolate(changes(8), World("pin-03", unbuildable=states)).failing == ("pin-03",)


def test_changes_that_cannot_be_told_apart_stay_together_and_none_is_proved() -> None:
    both = frozenset({"pin-00", "pin-01"})
    halves = [frozenset({"pin-00"}), frozenset({"pin-01"})]
    found = isolate(changes(2), World(*both, unbuildable=halves))
    assert found.failing == ("pin-00", "pin-01")
    assert found.proved == ()


def test_a_change_is_never_made_without_what_it_requires() -> None:
    made = (
        Change(name="vllm", cost=3, requires=frozenset({"flashinfer", "torch"})),
        Change(name="flashinfer", cost=9, requires=frozenset({"torch"})),
        Change(name="torch", cost=2),
        Change(name="cmake", cost=0),
    )
    ordered = order_changes(made)
    assert [change.name for change in ordered] == ["cmake", "torch", "flashinfer", "vllm"]
    world = World("vllm")
    assert isolate(ordered, world).failing == ("torch", "flashinfer", "vllm")
    for state in world.asked:
        assert all(change.requires <= state for change in made if change.name in state)


@given(st.integers(1, 14), st.data())
def test_the_set_is_bad_alone_and_less_of_it_is_not(count: int, data: st.DataObject) -> None:
    made = changes(count)
    names = [change.name for change in made]
    culprits = data.draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))
    unbuildable = data.draw(st.lists(st.frozensets(st.sampled_from(names), min_size=1), max_size=6))
    every = frozenset(names)
    world = World(*culprits, unbuildable=[state for state in unbuildable if state != every])
    found = isolate(made, world)
    failing = frozenset(found.failing)
    assert culprits <= failing
    if failing != every:
        assert failing not in world.unbuildable
    if failing != culprits:  # then each that is too many could not be taken out, as nobody knows what is without it
        assert all(failing - {name} in world.unbuildable for name in failing - culprits)
    assert not culprits <= frozenset(found.passing)


def test_answers_that_are_known_lead_to_the_next_question() -> None:
    made, world = changes(12), World("pin-02", "pin-09")
    answers: dict[frozenset[str], Verdict] = {}
    while isinstance(question := next_set(made, answers), frozenset):
        answers[question] = world(question)
    assert question == isolate(made, World("pin-02", "pin-09"))


def test_64_revisions_with_a_broken_run_of_16_and_two_interacting_pins() -> None:
    """The culprits are named and the tries of the line stay within what was simulated, in 2,000 random histories."""
    rng = random.Random(64)
    for _ in range(2000):
        touched = [f"pin-{rng.randrange(8):02}" for _ in range(64)]  # the pin that each revision moves
        one, other = rng.sample(range(1, 64), 2)
        touched[one], touched[other] = "one", "other"
        start = rng.randrange(1, 48)
        broken, culprit = set(range(start, start + 16)), max(one, other)
        left, tries = search(64, culprit, broken)
        assert left.good < culprit <= left.bad
        assert tries <= 12 + 1
        moved = order_changes(Change(name=name) for name in sorted(set(touched[1 : left.bad + 1])))
        assert isolate(moved, World("one", "other")).failing == ("one", "other")


# --- flaky checks ----------------------------------------------------------------------------------------------------


def test_more_runs_make_an_answer_surer() -> None:
    chances = [confidence(failures=5, runs=10, repeat=repeat, goods=4) for repeat in (1, 3, 10)]
    assert chances == sorted(chances)
    assert chances[0] < 0.1
    assert chances[2] > 0.99


def test_the_stated_confidence_is_not_more_than_what_simulated_checks_reach() -> None:
    """A check that fails 6 times in 10 where it is bad, 4 runs each: how often is a search of 64 right?"""
    rng, right, trials = random.Random(1), 0, 2000
    stated = []
    for _ in range(trials):
        culprit, known = rng.randrange(1, 64), line(64)
        failures = sum(rng.random() < 0.6 for _ in range(10))
        while (probe := next_probe(known)) is not None:
            failed = probe >= culprit and any(rng.random() < 0.6 for _ in range(4))
            known[probe] = BAD if failed else GOOD
        right += bracket(known).bad == culprit
        goods = sum(verdict is GOOD for verdict in known[1:])
        stated.append(confidence(failures=failures, runs=10, repeat=4, goods=goods))
    assert statistics.mean(stated) <= right / trials


def test_the_repeat_that_is_proposed_reaches_what_was_wanted() -> None:
    needed = repeats_for(0.99, failures=3, runs=10, goods=5)
    assert confidence(failures=3, runs=10, repeat=needed, goods=5) >= 0.99
    assert confidence(failures=3, runs=10, repeat=needed - 1, goods=5) < 0.99

"""Which version, or which smallest set of changes, turns good into bad: what to try next, and what is known. Pure.

Nothing is remembered here: every decision is made from the verdicts so far, so a search that was killed goes on from
them, and what would be asked after an answer can be computed before the answer is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TypeAlias

SOLID = 6  # members of a broken run seen broken, its ends known: the rest is taken for broken too


class Verdict(Enum):
    """What a try says. SKIP: nothing, as there was no build, no such version, or a check that could not tell."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"


Known: TypeAlias = Sequence[Verdict | None]  # a line of versions, oldest first; None: nobody has tried it

# --- a line of versions -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Bracket:
    """What the verdicts on a line leave open: the first bad one is above `good` and at most `bad`.

    skipped, untried: what lies between the two, by whether it was tried. Both empty: `bad` is the first bad one.
    """

    good: int
    bad: int
    skipped: tuple[int, ...]
    untried: tuple[int, ...]

    @property
    def candidates(self) -> int:
        """How many could be the first bad one."""
        return self.bad - self.good


def bracket(known: Known) -> Bracket:
    """The range that is left. The line begins with a good version and ends with a bad one.

    Where verdicts of earlier runs change more than once, it is the last change from good to bad.
    """
    good = max(place for place, verdict in enumerate(known) if verdict is Verdict.GOOD)
    bad = min(place for place, verdict in enumerate(known) if verdict is Verdict.BAD and place > good)
    between = range(good + 1, bad)
    return Bracket(
        good=good,
        bad=bad,
        skipped=tuple(place for place in between if known[place] is Verdict.SKIP),
        untried=tuple(place for place in between if known[place] is None),
    )


def next_probe(known: Known, *, exhaustive: bool = False, at_hand: Collection[int] = ()) -> int | None:
    """The place to try next; None when nothing more is worth a try.

    The middle, and after a skip by the edge rule: half-way between the broken run and the farther known end. A run
    whose ends are known is left alone once SOLID of its members were seen broken, unless `exhaustive`. Where skips
    look scattered, the plain middle again. at_hand: places whose answer costs no build; one near the middle is taken.
    """
    left = bracket(known)
    middle = (left.good + left.bad) // 2
    if not left.untried:
        return None
    if not left.skipped:
        near = [place for place in left.untried if place in at_hand and abs(place - middle) <= left.candidates // 4]
        return min(near, key=lambda place: abs(place - middle), default=middle)
    first, last = left.skipped[0], left.skipped[-1]
    below, above = first - left.good - 1, left.bad - last - 1  # untried ones on either side of the broken run
    if not below and not above and len(left.skipped) >= SOLID and not exhaustive:
        return None
    if (below or above) and not _scattered(known):
        return (left.good + first) // 2 if below > above else (last + left.bad + 1) // 2
    return min(left.untried, key=lambda place: abs(place - middle))


def spread_probes(known: Known, *, jobs: int, exhaustive: bool = False) -> tuple[int, ...]:
    """What to try at once on so many runners: evenly over what is untried. Empty when nothing is worth a try."""
    if next_probe(known, exhaustive=exhaustive) is None:
        return ()
    untried = bracket(known).untried
    jobs = min(jobs, len(untried))
    return tuple(dict.fromkeys(untried[(number + 1) * len(untried) // (jobs + 1)] for number in range(jobs)))


def after(known: Known, probe: int, *, exhaustive: bool = False) -> tuple[int, ...]:
    """What may be asked after `probe`, the likelier answers first: what can be fetched while it is tried."""
    nexts = []
    for verdict in Verdict:
        then = [*known]
        then[probe] = verdict
        nexts.append(next_probe(then, exhaustive=exhaustive))
    return tuple(dict.fromkeys(place for place in nexts if place is not None))


def _scattered(known: Known) -> bool:
    """Whether a version that could be tried lies between two that could not."""
    tried = [verdict for verdict in known if verdict is not None]
    starts = sum(verdict is Verdict.SKIP and before is not Verdict.SKIP for before, verdict in pairwise(tried))
    return starts > 1


# --- a set of changes -------------------------------------------------------------------------------------------------

Ask: TypeAlias = Callable[[frozenset[str]], Verdict]  # with these changes made to the good state, and no others


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change between two states. cost: the larger, the later it is made. requires: changes it cannot be without."""

    name: str
    cost: int = 0
    requires: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Culprits:
    """failing: made alone they are bad, and without any one of them they are not known to be.

    proved: those of `failing` without which the others were seen good. passing: the largest set that was seen good.
    """

    failing: tuple[str, ...]
    proved: tuple[str, ...]
    passing: tuple[str, ...]


def order_changes(changes: Iterable[Change]) -> tuple[Change, ...]:
    """Cheap ones first, each after all that it requires. Changes that require one another keep their cost's order."""
    waiting = sorted(changes, key=lambda change: change.cost)
    names = {change.name for change in waiting}
    ordered: list[Change] = []
    while waiting:
        made = {change.name for change in ordered}
        ready = (change for change in waiting if change.requires & names <= made)
        chosen = next(ready, waiting[0])
        waiting.remove(chosen)
        ordered.append(chosen)
    return tuple(ordered)


def isolate(changes: Sequence[Change], ask: Ask) -> Culprits:
    """The smallest set of changes that is found to flip the verdict; `changes` as order_changes gives them.

    No change is good and all of them are bad: both are known, and not asked. The states "the first i changes are made"
    are a line, searched as one, and where it turns bad one culprit is found; with that one made, the changes before it
    are a shorter line, until the culprits alone are bad. What could not be told apart on the way is taken out one by
    one in the end, which makes the set 1-minimal as ddmin's are (Zeller, Hildebrandt 2002), and proves it.
    """
    every = frozenset(change.name for change in changes)
    answers: dict[frozenset[str], Verdict] = {frozenset(): Verdict.GOOD, every: Verdict.BAD}

    def verdict(made: frozenset[str]) -> Verdict:
        made = _consistent(made, changes)
        if made not in answers:
            answers[made] = ask(made)
        return answers[made]

    found: frozenset[str] = frozenset()
    pool = list(changes)
    while pool and verdict(found) is not Verdict.BAD:
        line: list[Verdict | None] = [Verdict.GOOD, *([None] * (len(pool) - 1)), Verdict.BAD]
        while (probe := next_probe(line, exhaustive=True)) is not None:
            line[probe] = verdict(found | {change.name for change in pool[:probe]})
        left = bracket(line)
        found |= {change.name for change in pool[left.good : left.bad]}
        pool = pool[: left.good]
    while bad := [less for less in _each_less(found, changes) if verdict(less) is Verdict.BAD][:1]:
        found = bad[0]
    for name in sorted(found):
        verdict(every - {name})
    proved = [name for name in found if verdict(found - {name}) is Verdict.GOOD]
    passing = max((made for made, answer in answers.items() if answer is Verdict.GOOD), key=len)
    names = [change.name for change in changes]
    return Culprits(
        failing=tuple(name for name in names if name in found),
        proved=tuple(name for name in names if name in proved),
        passing=tuple(name for name in names if name in passing),
    )


class Unanswered(Exception):
    """The next question of a search over a set, where only known answers may be used."""

    def __init__(self, made: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(made)))
        self.made = made


def next_set(changes: Sequence[Change], answers: Mapping[frozenset[str], Verdict]) -> frozenset[str] | Culprits:
    """What isolate would ask next if these were all the answers there are, or its result."""

    def ask(made: frozenset[str]) -> Verdict:
        if made not in answers:
            raise Unanswered(made)
        return answers[made]

    try:
        return isolate(changes, ask)
    except Unanswered as question:
        return question.made


def _each_less(made: frozenset[str], changes: Sequence[Change]) -> Iterator[frozenset[str]]:
    """The set without each of its changes, the one that was made last first."""
    for change in reversed(changes):
        if change.name in made:
            yield _consistent(made - {change.name}, changes)


def _consistent(made: frozenset[str], changes: Sequence[Change]) -> frozenset[str]:
    """Without the changes that require one which is not made."""
    names = {change.name for change in changes}
    while lame := {change.name for change in changes if change.name in made and change.requires & names - made}:
        made -= lame
    return made


# --- checks that fail only now and then -------------------------------------------------------------------------------


def confidence(*, failures: int, runs: int, repeat: int, goods: int) -> float:
    """How sure an answer is that rests on so many good verdicts, each of `repeat` runs without a failure, 0 to 1.

    failures, runs: how often the check failed where it is known to be bad. The rate is taken with one more failure and
    two more runs than were seen (Laplace's rule), so that a few runs prove little.
    """
    rate = (failures + 1) / (runs + 2)
    return float((1 - (1 - rate) ** repeat) ** goods)


def repeats_for(wanted: float, *, failures: int, runs: int, goods: int) -> int:
    """The least `repeat` that gives this confidence; at most 1,000."""
    enough = (n for n in range(1, 1000) if confidence(failures=failures, runs=runs, repeat=n, goods=goods) >= wanted)
    return next(enough, 1000)

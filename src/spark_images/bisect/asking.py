"""Asking about candidates: what is known is not asked again, budgets are kept, and what may come next is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from spark_images.bisect.ahead import Ahead
from spark_images.bisect.answer import Answer, Cause
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.journal import Journal
from spark_images.bisect.stages import CHECK_BEGINS, Stage
from spark_images.bisect.subject import ChangeSet, Line
from spark_images.errors import BisectError
from spark_images.search import (
    Bracket,
    Culprits,
    Verdict,
    after,
    bracket,
    isolate,
    next_probe,
    next_set,
    spread_probes,
)
from spark_images.terminal import tell
from spark_images.units import format_duration

AGAIN = "#again"  # at the end of the key of a candidate whose check is run once more
MOST_SILENT = 3
SHOWN_LINES = 12  # of what the bad end said
_FLIPPED = {Verdict.GOOD: Verdict.BAD, Verdict.BAD: Verdict.GOOD, Verdict.SKIP: Verdict.SKIP}


class OutOfBudget(Exception):
    """Nothing more is tried in this run: a budget is spent, or verdicts of other runners are waited for."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a run may use; None: all it takes."""

    budget_s: float | None = None
    builds: int | None = None


class Asker:
    """Answers about candidates, from the journal or by trying. find_fix: the line turns from bad to good.

    elsewhere: other runners try; a question without an answer raises OutOfBudget, and `wanted` is what to try there.
    """

    def __init__(
        self,
        stage: Stage,
        journal: Journal,
        *,
        repeat: int = 1,
        limits: Limits = Limits(),
        find_fix: bool = False,
        elsewhere: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stage, self.journal, self.repeat, self.limits = stage, journal, repeat, limits
        self.find_fix, self.elsewhere = find_fix, elsewhere
        self.wanted: list[Candidate] = []
        self.tried = 0
        self._silent = 0  # candidates in a row that the network kept from being tried
        self._clock, self._began = clock, clock()
        self._ahead = Ahead(stage)

    def ask(self, candidate: Candidate, *, then: Sequence[Candidate] = (), every_run: bool = False) -> Answer:
        """The answer about a candidate, and whatever it takes to have it. then: what may be asked next."""
        if (known := self.journal.get(candidate.key)) is not None:
            return known
        if self.elsewhere:
            self.wanted.append(candidate)
            raise OutOfBudget("verdicts of other runners are waited for")
        self._keep_to_limits()
        tell(f"trying {candidate.label}")
        self._ahead.begin(tuple(one for one in then if self.journal.get(one.key) is None))
        answer = self.stage.try_out(candidate, repeat=self.repeat, every_run=every_run)
        self.journal.add(answer)
        self.tried += 1
        self._silent = self._silent + 1 if answer.cause is Cause.NETWORK else 0
        why = f": {answer.reason}" if answer.reason else ""
        tell(f"  {candidate.label} is {told(answer)}{why} ({format_duration(answer.seconds)})")
        if self._silent == MOST_SILENT:
            raise BisectError(
                f"the network kept {MOST_SILENT} candidates in a row from being tried",
                why=(answer.reason,),
                hint="the same command goes on from here when it is back, and asks about these again",
            )
        return answer

    def verdict(self, candidate: Candidate, *, then: Sequence[Candidate] = ()) -> Verdict:
        """As the search sees it: on a line that turns from bad to good, the other way round."""
        verdict = self.ask(candidate, then=then).verdict
        return _FLIPPED[verdict] if self.find_fix else verdict

    def _keep_to_limits(self) -> None:
        spent_s = self._clock() - self._began
        if self.limits.budget_s is not None and spent_s >= self.limits.budget_s:
            raise OutOfBudget(f"the budget of {format_duration(self.limits.budget_s)} is spent")
        if self.limits.builds is not None and self.tried >= self.limits.builds:
            raise OutOfBudget(f"{self.limits.builds} tries were allowed")


def told(answer: Answer) -> str:
    """The verdict in one or two words: `good`, `bad`, `skipped: build failed`."""
    return answer.verdict.value if answer.verdict is not Verdict.SKIP else f"skipped: {answer.cause.value}"


def check_ends(asker: Asker, good: Candidate, bad: Candidate) -> tuple[Answer, Answer]:
    """Both ends, tried first; BisectError where one is not what it was called, with what to do about it."""
    at_good, at_bad = _ask_all(asker, (good, bad))
    for answer, end in ((at_good, "good"), (at_bad, "bad")):
        if answer.verdict is Verdict.SKIP:
            raise BisectError(
                f"the {end} end, {answer.label}, cannot be tried: {answer.cause.value}",
                why=[line for line in (answer.reason, f"log: {answer.log}" if answer.log else "") if line],
                hint="name another end: nothing can be said between ends that nobody can try",
            )
    if at_good.verdict is Verdict.BAD and 0 < at_good.failures < at_good.runs:
        raise BisectError(
            f"the check is flaky at the good end: {at_good.failures} of {at_good.runs} runs failed",
            why=(f"log: {at_good.log}",),
            hint="`--repeat` helps where a check fails only now and then at the bad end; a good end must always pass",
        )
    if at_good.verdict is Verdict.BAD and at_bad.verdict is Verdict.GOOD:
        raise BisectError(
            f"{at_good.label} is bad and {at_bad.label} is good: the ends are the wrong way round",
            hint="exchange --good and --bad" + ("" if asker.find_fix else ", or look for the repair with `--find-fix`"),
        )
    if at_good.verdict is Verdict.BAD:
        raise BisectError(
            f"the good end, {at_good.label}, is bad as well",
            why=(f"log: {at_good.log}",),
            hint="name an older one; or the check fails for another reason than the one you mean",
        )
    if at_bad.verdict is Verdict.GOOD:
        raise BisectError(
            f"the bad end, {at_bad.label}, is good as well",
            why=(f"log: {at_bad.log}",),
            hint="if the check fails only now and then, run it several times: `--repeat 5`",
        )
    return at_good, at_bad


def last_lines(answer: Answer) -> list[str]:
    """The end of what the check said, or of the build where that is what is checked."""
    try:
        lines = Path(answer.log).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # of another machine, or somebody made room
        return []
    begins = [place + 1 for place, line in enumerate(lines) if line.startswith(CHECK_BEGINS)]
    return [line for line in lines[begins[-1] if begins else 0 :] if line.strip()][-SHOWN_LINES:]


def search_line(line: Line, asker: Asker, *, exhaustive: bool = False, jobs: int = 0) -> Bracket:
    """Search a line between its ends, which are known; what is left when nothing more is worth a try.

    jobs: how many to ask for at once where other runners try. Raises OutOfBudget.
    """
    candidates = line.candidates
    known = known_of(line, asker)
    at_hand = [
        place for place, one in enumerate(candidates) if known[place] is None and asker.stage.known_beforehand(one)
    ]
    while (probe := next_probe(known, exhaustive=exhaustive, at_hand=at_hand)) is not None:
        if asker.elsewhere:
            asker.wanted += [candidates[place] for place in spread_probes(known, jobs=jobs, exhaustive=exhaustive)]
            raise OutOfBudget("verdicts of other runners are waited for")
        then = [candidates[place] for place in after(known, probe, exhaustive=exhaustive)]
        known[probe] = asker.verdict(candidates[probe], then=then)
    return bracket(known)


def known_of(line: Line, asker: Asker) -> list[Verdict | None]:
    """What the journal knows of a line, as the search sees it; its ends are taken for what they were called."""
    known: list[Verdict | None] = []
    for candidate in line.candidates:
        answer = asker.journal.get(candidate.key)
        verdict = answer.verdict if answer else None
        known.append(_FLIPPED[verdict] if verdict and asker.find_fix else verdict)
    known[0], known[-1] = Verdict.GOOD, Verdict.BAD
    return known


def search_set(changes: ChangeSet, asker: Asker, *, jobs: int = 0) -> Culprits:
    """The smallest set of changes that turns good into bad; both ends are known. Raises OutOfBudget."""
    answers: dict[frozenset[str], Verdict] = {}
    for answer in asker.journal.answers:
        if (made := changes.made_by(answer.key)) is not None:
            answers[made] = answer.verdict
    if asker.elsewhere:
        asker.wanted += [changes.candidate(made) for made in _next_sets(changes, answers, jobs)]
        if asker.wanted:
            raise OutOfBudget("verdicts of other runners are waited for")

    def ask(made: frozenset[str]) -> Verdict:
        if made not in answers:
            supposed = ({**answers, made: verdict} for verdict in (Verdict.GOOD, Verdict.BAD))
            nexts = (next_set(changes.changes, one) for one in supposed)
            then = [changes.candidate(one) for one in nexts if isinstance(one, frozenset)]
            answers[made] = asker.ask(changes.candidate(made), then=then).verdict
        return answers[made]

    return isolate(changes.changes, ask)


def _next_sets(changes: ChangeSet, answers: Mapping[frozenset[str], Verdict], jobs: int) -> list[frozenset[str]]:
    """The next question and those that may follow it, as many as there are runners."""
    found: list[frozenset[str]] = []
    ahead = [dict(answers)]
    while ahead and len(found) < jobs:
        supposed = ahead.pop(0)
        question = next_set(changes.changes, supposed)
        if isinstance(question, frozenset):
            if question not in found:
                found.append(question)
            ahead += [{**supposed, question: verdict} for verdict in (Verdict.GOOD, Verdict.BAD)]
    return found


def once_more(candidate: Candidate) -> Candidate:
    """The candidate as another question: its check is run again, whatever is known."""
    return replace(candidate, key=f"{candidate.key}{AGAIN}", label=f"{candidate.label} once more", anew=True)


def confirm(asker: Asker, *candidates: Candidate) -> None:
    """Run the check once more at both sides of an answer; BisectError where one of them says something else now."""
    asked = [(first, once_more(one)) for one in candidates if (first := asker.ask(one)).cause is Cause.CHECK]
    for first, again in zip((first for first, _ in asked), _ask_all(asker, [one for _, one in asked]), strict=True):
        if again.verdict is not first.verdict and again.verdict is not Verdict.SKIP:
            raise BisectError(
                f"the check is flaky: {first.label} was {first.verdict.value} first and {again.verdict.value} then",
                why=(f"first: {first.log}", f"then:  {again.log}"),
                hint="run it several times per candidate: `--repeat 5`",
            )


def _ask_all(asker: Asker, candidates: Sequence[Candidate]) -> list[Answer]:
    """The answers about all of them; where other runners try, all are wanted before OutOfBudget is raised."""
    answers: list[Answer] = []
    stopped: list[OutOfBudget] = []
    for place, candidate in enumerate(candidates):
        try:
            answers.append(asker.ask(candidate, then=candidates[place + 1 :], every_run=not candidate.anew))
        except OutOfBudget as err:
            stopped.append(err)
    if stopped:
        raise stopped[0]
    return answers

"""The verb `bisect`: from its words to a report."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from spark_images.bisect.answer import Answer
from spark_images.bisect.asking import (
    AGAIN,
    Asker,
    OutOfBudget,
    check_ends,
    confirm,
    known_of,
    last_lines,
    once_more,
    search_line,
    search_set,
)
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.ends import StateEnd, state_of_commit
from spark_images.bisect.matrix import write_matrix, write_verdict
from spark_images.bisect.parts import Parts
from spark_images.bisect.report import Words, draw, line_report, publish, set_report
from spark_images.bisect.subject import ChangeSet, Line
from spark_images.errors import UnfinishedError, UsageError
from spark_images.exclusive import alone
from spark_images.search import Bracket, Verdict, bracket, confidence, repeats_for
from spark_images.terminal import tell


class Search(Parts):
    """One search."""

    @cached_property
    def asker(self) -> Asker:
        wanted = self.wanted
        return Asker(
            self.stage,
            self.journal,
            repeat=wanted.repeat,
            limits=wanted.limits,
            find_fix=wanted.find_fix,
            elsewhere=wanted.matrix is not None,
        )

    @property
    def report_words(self) -> Words:
        wanted = self.wanted
        ends = ("--good", wanted.good, "--bad", wanted.bad)
        return Words(find_fix=wanted.find_fix, command=wanted.command, ends=ends)

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Search, print the report and keep it. Raises BisectError, UnfinishedError and what building raises."""
        subject = self.subject
        stage = self.stage
        with alone(self.journal.lock, on_wait=lambda: tell("the same search runs already; waiting for it")):
            journal = self.journal
            journal.reload()
            if journal.resumed:
                tell(f"{journal.resumed} answers of an earlier run are known: {journal.folder}")
            elif stage.builds:
                tell("every try may be a build")
            try:
                if isinstance(subject, Line):
                    return self._search_line(subject)
                return self._search_set(subject)
            except OutOfBudget as why:
                raise self._unfinished(subject, str(why)) from None

    def _search_line(self, line: Line) -> dict[str, Any]:
        asker, wanted = self.asker, self.wanted
        tell(f"{len(line.candidates)} {line.what}, {len(line.candidates) - 2} between the ends")
        first, last = line.candidates[0], line.candidates[-1]
        ends = (last, first) if wanted.find_fix else (first, last)
        at_good, at_bad = check_ends(asker, *ends)
        _show_failure(at_bad)
        left = search_line(line, asker, exhaustive=wanted.exhaustive, jobs=wanted.jobs)
        sides = [line.candidates[place] for place in (left.good, left.bad)]
        if wanted.repeat == 1 and wanted.check.verb != "build":
            confirm(asker, *sides)
        goods = sum(answer.verdict is Verdict.GOOD for answer in self.journal.answers if answer.key != at_good.key)
        sure = 1.0
        if 0 < at_bad.failures < at_bad.runs:
            sure = confidence(failures=at_bad.failures, runs=at_bad.runs, repeat=wanted.repeat, goods=goods)
            if sure < 0.95:
                needed = repeats_for(0.95, failures=at_bad.failures, runs=at_bad.runs, goods=goods)
                tell(f"`--repeat {needed}` would give an answer that is right in 95 of 100 cases")
        known = known_of(line, asker)
        shown = _as_asked(known, find_fix=wanted.find_fix)
        link = self._link(line, left)
        report = line_report(line, left, shown, self.journal, self.report_words, link=link, sure=sure)
        draw(report, line, left, shown, self.journal, wanted.svg)
        if line.revisions:
            found = self._set_of_revision(line, left)
            report["set"], report["tried"] = found, found["tried"]
        publish(report, self.journal, as_json=wanted.as_json, copy=wanted.report)
        return report

    def _set_of_revision(self, line: Line, left: Bracket) -> dict[str, Any]:
        """Which of the changes since the good end make the first bad revision bad: the pair, where it takes two."""
        changes = self._changes_until(line.candidates[left.bad].key.removeprefix("revision:"))
        self._know_ends(changes, line.candidates[0], line.candidates[left.bad])
        found = search_set(changes, self.asker, jobs=self.wanted.jobs)
        return set_report(changes, found, self.journal, self.report_words)

    def _changes_until(self, commit: str) -> ChangeSet:
        """What differs between the good end and a revision."""
        good = self.ends[0]
        assert isinstance(good, StateEnd)
        bad = state_of_commit(commit, self.project, self.cache)
        return replace(self.change_set(good, bad), until=commit)

    def _know_ends(self, changes: ChangeSet, good: Candidate, bad: Candidate) -> None:
        """The ends of a set that come from a line were tried there."""
        every = frozenset(change.name for change in changes.changes)
        for made, known in ((frozenset[str](), good), (every, bad)):
            candidate = changes.candidate(made)
            answer = self.journal.get(known.key)
            if answer is not None and self.journal.get(candidate.key) is None:
                self.journal.add(replace(answer, key=candidate.key, label=candidate.label, seconds=0.0))

    def _search_set(self, changes: ChangeSet) -> dict[str, Any]:
        every = frozenset(change.name for change in changes.changes)
        tell(f"{len(every)} pins differ: {', '.join(f'{name} {told}' for name, told in changes.told.items())}")
        _, at_bad = check_ends(self.asker, changes.candidate(frozenset()), changes.candidate(every))
        _show_failure(at_bad)
        found = search_set(changes, self.asker, jobs=self.wanted.jobs)
        report = set_report(changes, found, self.journal, self.report_words)
        publish(report, self.journal, as_json=self.wanted.as_json, copy=self.wanted.report)
        return report

    def _link(self, line: Line, left: Bracket) -> str:
        from spark_images.bisect.links import compare_link

        if not line.pin:
            return ""
        sides = [line.candidates[place] for place in (left.good, left.bad)]
        return compare_link(self.project.pins[line.pin], *sides, upstream=self.upstream)

    def _unfinished(self, subject: Line | ChangeSet, why: str) -> UnfinishedError:
        wanted, asker = self.wanted, self.asker
        if wanted.matrix is not None:
            words = (*wanted.command, "--good", wanted.good, "--bad", wanted.bad)
            write_matrix(wanted.matrix, list({one.key: one for one in asker.wanted}.values()), words)
            return UnfinishedError(
                f"{wanted.matrix} says what to try on other runners",
                why=(f"{len(asker.wanted)} candidates: {', '.join(one.label for one in asker.wanted)}",),
                hint="run each command there, bring the verdict files into one folder, and name it in `--verdicts`",
            )
        left = ""
        if isinstance(subject, Line):
            known = known_of(subject, asker)
            range_left = bracket(known)
            sides = [subject.candidates[place].label for place in (range_left.good, range_left.bad)]
            left = f"so far: after {sides[0]} and up to {sides[1]}, one of {range_left.candidates}"
        return UnfinishedError(
            f"not finished: {why}",
            why=[line for line in (left, f"{asker.tried} tries in this run") if line],
            hint="the same command goes on from here; everything that was learned is kept",
        )

    # --- one candidate ------------------------------------------------------------------------------------------------

    def try_one(self, text: str, *, verdict_file: Path | None) -> Answer:
        """Try the candidate of this key, or the single one, and nothing else; the check is run in any case.

        verdict_file: where to write the answer for the machine that searches.
        """
        candidate = replace(self._candidate(text), anew=True)
        answer = self.stage.try_out(candidate, repeat=self.wanted.repeat, every_run=self.wanted.repeat > 1)
        if verdict_file is not None:
            write_verdict(verdict_file, self.journal.folder.name, answer)
        return answer

    def _candidate(self, text: str) -> Candidate:
        subject = self.subject
        if text.endswith(AGAIN):
            return once_more(self._candidate(text.removesuffix(AGAIN)))
        if text.startswith("set:") and isinstance(subject, Line) and subject.revisions:
            subject = self._changes_until(text.rpartition("@")[2])
        if isinstance(subject, Line):
            named = {candidate.key: candidate for candidate in subject.candidates}
            if self.wanted.single:
                return subject.candidates[0]
            if text in named:
                return named[text]
        elif (made := subject.made_by(text)) is not None:
            return subject.candidate(made)
        raise UsageError(
            f"`{text}` is no candidate of this search", hint="`--matrix FILE` writes its candidates with their commands"
        )


def _show_failure(answer: Answer) -> None:
    lines = last_lines(answer)
    if lines:
        tell(f"{answer.label} said in the end:", *(f"  > {line}" for line in lines), "is this the failure you mean?")


def _as_asked(known: list[Verdict | None], *, find_fix: bool) -> list[Verdict | None]:
    """Verdicts in the user's words: on a line that turns from bad to good the search sees them exchanged."""
    exchanged = {Verdict.GOOD: Verdict.BAD, Verdict.BAD: Verdict.GOOD}
    return [exchanged.get(verdict, verdict) if find_fix and verdict else verdict for verdict in known]

"""What a search found, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_images.bisect.answer import Cause
from spark_images.bisect.asking import told
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.journal import Journal
from spark_images.bisect.picture import range_line, range_svg
from spark_images.bisect.subject import ChangeSet, Line
from spark_images.files import write_text
from spark_images.search import Bracket, Culprits, Verdict
from spark_images.terminal import print_table
from spark_images.units import format_duration

_UNBUILDABLE = (Cause.BUILD_FAILED, Cause.COMPAT)  # with more memory, others might be built


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a line's two sides are called, and how a try is repeated. command: without `--try …`."""

    find_fix: bool
    command: tuple[str, ...]
    ends: tuple[str, ...]  # the options that name them

    @property
    def before(self) -> str:
        return "last bad" if self.find_fix else "last good"

    @property
    def after(self) -> str:
        return "first good" if self.find_fix else "first bad"

    def try_again(self, candidate: Candidate) -> str:
        """The command that tries this candidate and nothing else."""
        kind, _, name = candidate.key.partition(":")
        one = (name,) if kind in ("pin", "revision") else (candidate.key, *self.ends)
        return shlex.join((*self.command, "--try", *one))


def line_report(
    line: Line,
    left: Bracket,
    known: Sequence[Verdict | None],
    journal: Journal,
    words: Words,
    *,
    link: str,
    sure: float,
) -> dict[str, Any]:
    """The report of a line as JSON-able data. link: where upstream shows the range, or "". sure: confidence, 0 to 1."""
    candidates = line.candidates
    between = range(left.good + 1, left.bad)
    answers = {place: journal.get(candidates[place].key) for place in between}
    absent = [one.label for place, one in line.absent if left.good <= place < left.bad]
    return {
        "what": line.what,
        "before": {"label": candidates[left.good].label, "is": words.before, "key": candidates[left.good].key},
        "after": {"label": candidates[left.bad].label, "is": words.after, "key": candidates[left.bad].key},
        "exact": left.candidates == 1,
        "candidates": left.candidates,
        "between": [
            {"label": candidates[place].label, "verdict": told(answer) if (answer := answers[place]) else "not tried"}
            for place in between
        ],
        "proved_unbuildable": sum(bool(answer and answer.cause in _UNBUILDABLE) for answer in answers.values()),
        "absent_upstream": absent,
        "compare": link,
        "confidence": round(sure, 4),
        "reproduce": [words.try_again(candidates[place]) for place in (left.good, left.bad)],
        "picture": range_line(known, first=left.good, last=left.bad),
        "tried": [answer.document() for answer in journal.answers],
    }


def set_report(changes: ChangeSet, found: Culprits, journal: Journal, words: Words) -> dict[str, Any]:
    """The report of a set of changes as JSON-able data."""
    failing = frozenset(found.failing)
    return {
        "what": "pins that differ",
        "failing": [{"pin": name, "change": changes.told[name]} for name in found.failing],
        "needs_all": list(found.proved),
        "passing": [{"pin": name, "change": changes.told[name]} for name in found.passing],
        "reproduce": [words.try_again(changes.candidate(made)) for made in (frozenset(found.passing), failing)],
        "tried": [answer.document() for answer in journal.answers],
    }


def line_words(report: dict[str, Any]) -> list[str]:
    """What a line's report says, a sentence per line."""
    before, after = report["before"], report["after"]
    if report["exact"]:
        said = [f"{after['is']}: {after['label']} ({before['is']}: {before['label']})"]
        if report["absent_upstream"]:
            said.append(f"upstream does not have what lies between: {', '.join(report['absent_upstream'])}")
    else:
        skipped = [one for one in report["between"] if one["verdict"] != "not tried"]
        untried = len(report["between"]) - len(skipped)
        said = [
            f"{after['is']}: one of {report['candidates']}, after {before['label']} ({before['is']}) "
            f"and up to {after['label']}",
            f"{len(skipped)} between them could not be tested, {report['proved_unbuildable']} of these were proved "
            f"unbuildable, {untried} were not tried: none of them is known to be good or bad",
        ]
    if report["confidence"] < 1:
        said.append(f"confidence {report['confidence']:.2%}, as the check fails only now and then")
    said.append(report["picture"])
    if report["compare"]:
        said.append(f"upstream: {report['compare']}")
    return said


def set_words(report: dict[str, Any]) -> list[str]:
    """What the report of a set says, a sentence per line."""
    failing = report["failing"]
    told = [f"{one['pin']} ({one['change']})" for one in failing]
    if len(failing) == 1:
        said = [f"it is {told[0]}: with this change alone it is bad"]
    else:
        said = [f"it takes {len(failing)} changes together: {', '.join(told)}"]
        proved = report["needs_all"]
        if len(proved) == len(failing) == 2:
            said.append("neither alone is bad: both were tried")
        elif proved:
            said.append(f"without any one of {', '.join(proved)} it was seen good")
        if len(proved) < len(failing):
            rest = [one["pin"] for one in failing if one["pin"] not in proved]
            said.append(f"nobody can tell whether it takes {', '.join(rest)}: without, there was nothing to test")
    passing = [one["pin"] for one in report["passing"]]
    said.append(f"good with {len(passing)} of the changes: {', '.join(passing) or 'none'}")
    return said


def report_words(report: dict[str, Any]) -> list[str]:
    """What a report says of a line, of the set that a line led to, or of a set, a sentence per line."""
    if "failing" in report:
        return set_words(report)
    return line_words(report) + (set_words(report["set"]) if "set" in report else [])


def publish(report: dict[str, Any], journal: Journal, *, as_json: bool, copy: Path | None) -> None:
    """Print the report and keep it with the journal. copy: where it is written as well."""
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    for path in (journal.folder / "report.json", *([copy] if copy else [])):
        write_text(path, text)
    if as_json:
        print(text, end="")
        return
    print_table(
        ("tried", "verdict", "time", "reason"),
        [(answer.label, told(answer), format_duration(answer.seconds), answer.reason) for answer in journal.answers],
        right=("time",),
        whole=("verdict",),
    )
    print("", *report_words(report), sep="\n")
    for what, command in zip(("before", "after"), report["reproduce"], strict=True):
        print(f"reproduce {what}: {command}")
    for what, name in (("report", "report.json"), ("picture", "range.svg")):
        if (journal.folder / name).exists():
            print(f"{what}: {journal.folder / name}")


def draw(
    report: dict[str, Any],
    line: Line,
    left: Bracket,
    known: Sequence[Verdict | None],
    journal: Journal,
    svg: Path | None,
) -> None:
    """Write range.svg beside the report, and where else it is wanted."""
    labels = [candidate.label for candidate in line.candidates]
    facts = f"{line.what.replace('`', '')}, {sum(verdict is not None for verdict in known)} of {len(labels)} tried"
    drawn = range_svg(line_words(report)[0], facts, labels, known, first=left.good, last=left.bad)
    for path in (journal.folder / "range.svg", *([svg] if svg else [])):
        write_text(path, drawn)

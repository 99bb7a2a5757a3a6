"""What a job did, as people read it: Markdown for the forge's page, the same as plain lines for the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_images.units import format_duration


class End(Enum):
    """How a step of a job ended."""

    GOOD = "ok"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """One step. tries: how often it was begun. error: as the terminal showed it; "" where it is good."""

    name: str
    end: End
    seconds: float = 0.0
    tries: int = 1
    error: str = ""


@dataclass(kw_only=True)
class Summary:
    """Of one job; filled while it runs. facts: what is worth a line of its own, in order."""

    title: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    verdicts: list[tuple[str, str, str]] = field(default_factory=list)  # gate, colour, evidence
    steps: list[StepDone] = field(default_factory=list)
    pictures: list[tuple[str, ...]] = field(default_factory=list)  # of text: GitHub and Gitea strip SVG from a summary
    sentence: str = ""  # how it ended

    def table(self) -> tuple[tuple[str, ...], ...]:
        """The steps, a row each."""
        return tuple(
            (
                step.name,
                step.end.value + (f" at try {step.tries}" if step.tries > 1 else ""),
                "" if step.end is End.NOT_RUN else format_duration(step.seconds),
            )
            for step in self.steps
        )


def markdown(summary: Summary) -> str:
    """For $GITHUB_STEP_SUMMARY."""
    lines = [f"## {_cell(summary.title)}", ""]
    if summary.sentence:
        lines += [_cell(summary.sentence), ""]
    lines += _table(("", ""), [(name, f"`{_code(value)}`") for name, value in summary.facts])
    lines += _table(("gate", "verdict", "evidence"), [tuple(map(_cell, row)) for row in summary.verdicts])
    lines += _table(("step", "result", "time"), [tuple(map(_cell, row)) for row in summary.table()])
    for step in summary.steps:
        if step.error:
            lines += [f"**{_cell(step.name)}** said:", "", *_block(step.error)]
    for picture in summary.pictures:
        lines += _block("\n".join(picture))
    return "\n".join(lines)


def _block(text: str) -> list[str]:
    fence = "`" * max(3, _longest_run(text) + 1)
    return [f"{fence}text", text, fence, ""]


def plain(summary: Summary) -> tuple[str, ...]:
    """For the log, which says everything also where a forge shows no summaries; errors stand further up there."""
    lines = [summary.title, *([f"  {summary.sentence}"] if summary.sentence else [])]
    lines += aligned(summary.facts)
    lines += aligned(summary.verdicts)
    lines += aligned(summary.table())
    for picture in summary.pictures:
        lines += ["", *(f"  {line}" for line in picture)]
    return tuple(lines)


def rows_markdown(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, none: str) -> str:
    """A summary that is one table; `none` is said where it has no rows."""
    body = _table(headings, [tuple(map(_cell, row)) for row in rows]) if rows else [none, ""]
    return "\n".join([f"## {_cell(title)}", "", *body])


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines for the log, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  " + "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _cell(text: str) -> str:
    """Text that can break neither a table nor out of it."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")
    return " ".join(escaped.split())


def _code(text: str) -> str:
    return _cell(text).replace("`", "'")


def _longest_run(text: str) -> int:
    """Of backticks."""
    longest = here = 0
    for letter in text:
        here = here + 1 if letter == "`" else 0
        longest = max(longest, here)
    return longest

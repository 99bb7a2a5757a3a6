"""A picture of a searched line: every candidate in its order, what was said of it, and the range that is left. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from spark_images.drawing import EDGE, HEAD, WIDTH, card, fit, shape, text, text_width, told
from spark_images.search import Verdict

_MARKS = {Verdict.GOOD: "+", Verdict.BAD: "x", Verdict.SKIP: "?", None: "."}
_COLOURS = {Verdict.GOOD: "green", Verdict.BAD: "red", Verdict.SKIP: "orange", None: "grid"}
_WORDS = {Verdict.GOOD: "good", Verdict.BAD: "bad", Verdict.SKIP: "cannot tell", None: "not tried"}
_CELL, _LEAST = 24, 3.0  # a cell's height and least width in pixels


def range_line(known: Sequence[Verdict | None], *, first: int, last: int, width: int = 100) -> str:
    """`++...[+??x]...x`: + good, x bad, ? skipped, . not tried; the range from `first` to `last` is in brackets.

    Where the line is longer than `width`, the middle parts of its ends are left out.
    """
    cells = [_MARKS[verdict] for verdict in known]
    cells[first] = "[" + cells[first]
    cells[last] += "]"
    spare = max(4, (width - (last - first)) // 2)
    head, tail = cells[:first], cells[last + 1 :]
    if len(head) > spare:
        head = [*head[: spare // 2], " … ", *head[-(spare // 2) :]]
    if len(tail) > spare:
        tail = [*tail[: spare // 2], " … ", *tail[-(spare // 2) :]]
    return "".join((*head, *cells[first : last + 1], *tail))


def range_svg(
    title: str, facts: str, labels: Sequence[str], known: Sequence[Verdict | None], *, first: int, last: int
) -> str:
    """The same as SVG: a cell per candidate with its label as a tool tip, and a bracket around what is left."""
    step = (WIDTH - 2 * EDGE) / len(labels)
    begin, end = EDGE + first * step, EDGE + (last + 1) * step - min(1.0, step / 2)
    top = HEAD + 26

    def body() -> Iterator[str]:
        left = labels[first] if first == last else f"{labels[first]} … {labels[last]}"
        half = min((WIDTH - 2 * EDGE) / 2, text_width(left) / 2)
        middle = min(max((begin + end) / 2, EDGE + half), WIDTH - EDGE - half)
        yield text(middle, HEAD + 12, fit(left, WIDTH - 2 * EDGE), "ink", anchor="middle")
        yield shape("path", "ink", fill="none", stroke_width=2, d=f"M{begin:.1f} {top - 3} v-5 H{end:.1f} v5")
        cells = list(enumerate(zip(labels, known, strict=True)))
        if step < _LEAST:  # a band, and on it what was tried
            yield shape("rect", f"{_COLOURS[None]}-fill", x=EDGE, y=top, width=WIDTH - 2 * EDGE, height=_CELL, rx=1.5)
            cells = [cell for cell in cells if cell[1][1]]
        width = max(step - 1, _LEAST)
        for place, (label, verdict) in cells:
            x = EDGE + place * step
            cell = shape("rect", f"{_COLOURS[verdict]}-fill", x=x, y=top, width=width, height=_CELL, rx=1.5)
            sign = _sign(verdict, x + width / 2, top + _CELL / 2) if verdict and width >= 12 else ""
            yield told(f"{label}: {_WORDS[verdict]}", cell, sign)
        room = (WIDTH - 2 * EDGE) / 2 - 10
        yield text(EDGE, top + _CELL + 18, fit(labels[0], room))
        yield text(WIDTH - EDGE, top + _CELL + 18, fit(labels[-1], room), anchor="end")
        for number, verdict in enumerate(verdict for verdict in _COLOURS if verdict in known):
            x = EDGE + 110 * number
            yield shape("rect", f"{_COLOURS[verdict]}-fill", x=x, y=top + _CELL + 33, width=14, height=14, rx=1.5)
            if verdict:
                yield _sign(verdict, x + 7.0, top + _CELL + 40.0)
            yield text(x + 20, top + _CELL + 44, _WORDS[verdict])

    return card(title, facts, body(), height=top + _CELL + 60, says=f"{title}; {facts}")


def _sign(verdict: Verdict, x: float, y: float) -> str:
    """As in _MARKS, drawn, so that it is read without colour."""
    strokes = {
        Verdict.GOOD: f"M{x - 4:.1f} {y:.1f} h8 m-4 -4 v8",
        Verdict.BAD: f"M{x - 3:.1f} {y - 3:.1f} l6 6 m0 -6 l-6 6",
        Verdict.SKIP: f"M{x - 4:.1f} {y:.1f} h8",
    }
    return shape("path", "card", fill="none", stroke_width=1.6, d=strokes[verdict])

"""A picture of a searched line: every candidate in its order, what was said of it, and the range that is left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from spark_images.search import Verdict

_MARKS = {Verdict.GOOD: "+", Verdict.BAD: "x", Verdict.SKIP: "?", None: "."}
_COLOURS = {Verdict.GOOD: "#2e9e5b", Verdict.BAD: "#d64545", Verdict.SKIP: "#d9a400", None: "#9aa3ad55"}
_WIDTH, _HEIGHT, _EDGE = 960.0, 24.0, 10.0


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


def range_svg(labels: Sequence[str], known: Sequence[Verdict | None], *, first: int, last: int) -> str:
    """The same as SVG: a cell per candidate with its label as a tool tip, and a bracket around what is left."""
    step = _WIDTH / len(labels)
    cells = [
        f'<rect x="{_EDGE + place * step:.1f}" y="30" width="{max(1.0, step - 1):.1f}" height="{_HEIGHT:g}" rx="1.5" '
        f'fill="{_COLOURS[verdict]}"><title>{escape(label)}: {verdict.value if verdict else "not tried"}</title></rect>'
        for place, (label, verdict) in enumerate(zip(labels, known, strict=True))
    ]
    begin, end = _EDGE + first * step, _EDGE + (last + 1) * step - 1
    bracket = f'<path d="M{begin:.1f} 24v-4H{end:.1f}v4" fill="none" stroke="currentColor"/>'
    ends = (
        f'<text x="{_EDGE:g}" y="74">{escape(labels[0])}</text>'
        f'<text x="{_EDGE + _WIDTH:g}" y="74" text-anchor="end">{escape(labels[-1])}</text>'
        f'<text x="{(begin + end) / 2:.1f}" y="14" text-anchor="middle">'
        f"{escape(labels[first])} … {escape(labels[last])}</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _EDGE:g} 84" font-family="sans-serif" '
        f'font-size="11" fill="currentColor" role="img">\n{bracket}\n{chr(10).join(cells)}\n{ends}\n</svg>\n'
    )

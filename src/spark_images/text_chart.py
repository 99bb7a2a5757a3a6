"""The pictures' small relatives in plain text, for terminals, logs and job summaries, which show no SVG. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"


def bar(part: float, columns: int) -> str:
    """`#######`: a part from 0 to 1."""
    return "#" * round(part * columns)


def curve(values: Sequence[float], *, top: str, end: str, columns: int = 60, rows: int = 6) -> tuple[str, ...]:
    """Values evenly spread over time, up to their highest. top: what the highest is. end: the time of the last."""
    highest = max(values, default=0) or 1
    width = min(columns, len(values))
    cells = [_highest(values, column, width) / highest * rows * 8 for column in range(width)]
    margin = len(top)
    lines = []
    for row in reversed(range(rows)):
        filled = "".join(_EIGHTHS[min(8, max(0, round(cell - row * 8)))] for cell in cells)
        label = top if row == rows - 1 else "0" if row == 0 else ""
        lines.append(f"{label:>{margin}} |{filled}".rstrip())
    return (*lines, f"{'':{margin}}  0:00{end:>{max(len(end) + 1, width - 4)}}")


def _highest(values: Sequence[float], column: int, width: int) -> float:
    """Of those that share a column: a peak must not be lost."""
    start = column * len(values) // width
    return max(values[start : max(start + 1, (column + 1) * len(values) // width)])

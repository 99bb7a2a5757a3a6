"""A build's memory and running compilers over time: SVG without fonts or scripts, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from spark_images.timeline import Cut, Mark, Point
from spark_images.units import GIB, MIB, format_duration, format_size

# All in pixels.
_WIDTH, _LEFT, _RIGHT = 880, 64, 20
_PLOT = _WIDTH - _LEFT - _RIGHT
_TOP = 44  # the title
_HEAD = 34  # a step's name and facts
_MEMORY, _COMPILERS, _BETWEEN = 190, 64, 30
_FOOT = 40  # time labels, and the distance to the next step
_STEP = _HEAD + _MEMORY + _BETWEEN + _COMPILERS + _FOOT

_LIGHT = {
    "card": "#ffffff",
    "edge": "#d0d7de",
    "ink": "#1f2328",
    "faint": "#656d76",
    "grid": "#e4e8ec",
    "memory": "#2a78d6",
    "compilers": "#4a3aa7",
    "cap": "#c0392b",
    "killed": "#c0392b",
    "stopped": "#b35900",
}
_DARK = {
    "card": "#0d1117",
    "edge": "#30363d",
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "grid": "#21262d",
    "memory": "#4f9cf0",
    "compilers": "#a79bf0",
    "cap": "#ff7b72",
    "killed": "#ff7b72",
    "stopped": "#f0a458",
}
_CLASS = {Cut.KILLED: "killed", Cut.STOPPED: "stopped", Cut.FAILED: "killed"}
_SIGN = {Cut.KILLED: "▼", Cut.STOPPED: "▽", Cut.FAILED: "✕"}
_WORD = {Cut.KILLED: "killed", Cut.STOPPED: "stopped by the gate", Cut.FAILED: "killed also alone"}


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """The numbers of one step; at least one point. cap_mib: 0 for none. peak_mib: samples may have missed it."""

    name: str
    cap_mib: int
    peak_mib: int
    points: tuple[Point, ...]
    marks: tuple[Mark, ...] = ()


def memory_chart(title: str, steps: Sequence[StepChart]) -> str:
    """The SVG document: for each step anonymous memory against the cap, and below it the compilers that ran."""
    height = _TOP + _STEP * len(steps)
    peak = max(step.peak_mib for step in steps)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(f'Memory of {title}: peak {format_size(peak * MIB)}')}</title>",
        "<style>",
        *_rules(_LIGHT),
        "@media (prefers-color-scheme: dark) {",
        *_rules(_DARK),
        "}",
        "</style>",
        f'<rect class="card-fill edge" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(20, 28, title, "ink-fill", size=15, weight="bold"),
    ]
    for number, step in enumerate(steps):
        lines += _step(step, _TOP + number * _STEP)
    return "\n".join([*lines, "</svg>", ""])


def _rules(colours: dict[str, str]) -> Iterator[str]:
    for name, colour in colours.items():
        yield f".{name}-fill {{ fill: {colour} }} .{name} {{ stroke: {colour} }}"


def _step(step: StepChart, top: float) -> Iterator[str]:
    most = max(point.compilers for point in step.points)
    cap = f" of {format_size(step.cap_mib * MIB)}" if step.cap_mib else ", no cap"
    facts = f"peak {format_size(step.peak_mib * MIB)}{cap}, at most {most} compilers"
    yield _text(_LEFT, top + 16, step.name, "ink-fill", size=13, weight="bold", after=(facts, "faint-fill"))
    end_s = max(step.points[-1].elapsed_s, 1.0)
    memory = top + _HEAD
    shown_mib = _shown(step.peak_mib, step.cap_mib)
    yield from _memory(step, memory, end_s, shown_mib)
    compilers = memory + _MEMORY + _BETWEEN
    yield from _running(step.points, compilers, end_s, max(most, 1))
    yield _legend(step.marks, compilers - 8)
    yield from _time(memory, compilers + _COMPILERS, end_s)


def _shown(peak: int, cap_mib: int) -> float:
    """The end of the memory axis: the cap, unless the memory would be a flat line far below it."""
    return 1.12 * (max(peak, cap_mib) if cap_mib < 5 * peak else max(peak, 1))


def _memory(step: StepChart, top: float, end_s: float, shown_mib: float) -> Iterator[str]:
    bottom = top + _MEMORY
    unit, name = (GIB / MIB, "GiB") if shown_mib >= 2 * GIB / MIB else (1.0, "MiB")
    for value in _ticks(shown_mib / unit, 5):
        y = bottom - value * unit / shown_mib * _MEMORY
        yield _line(_LEFT, y, _LEFT + _PLOT, y, "grid")
        yield _text(_LEFT - 8, y + 4, f"{value:g}", "faint-fill", anchor="end")
    yield _text(_LEFT - 8, top + 1, name, "faint-fill", anchor="end")
    places = [(_x(point.elapsed_s, end_s), bottom - point.memory_mib / shown_mib * _MEMORY) for point in step.points]
    line = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    area = f"M{places[0][0]:.1f} {bottom:.1f} L{line} L{places[-1][0]:.1f} {bottom:.1f} Z"
    yield f'<path class="memory-fill" fill-opacity="0.18" d="{area}"/>'
    yield f'<path class="memory" fill="none" stroke-width="1.6" stroke-linejoin="round" d="M{line}"/>'
    if 0 < step.cap_mib <= shown_mib:
        y = bottom - step.cap_mib / shown_mib * _MEMORY
        yield _line(_LEFT, y, _LEFT + _PLOT, y, "cap", dash="6 4", width=1.4)
        yield _text(_LEFT + _PLOT, y - 5, f"cap {format_size(step.cap_mib * MIB)}", "cap-fill", anchor="end")
    elif step.cap_mib:
        yield _text(
            _LEFT + _PLOT, top + 10, f"cap {format_size(step.cap_mib * MIB)}, far above", "cap-fill", anchor="end"
        )
    for mark in step.marks:
        x, colour = _x(mark.elapsed_s, end_s), _CLASS[mark.cut]
        yield f"<g><title>{escape(f'{mark.unit}: {mark.cut.value}')}</title>"
        yield _line(x, top + 6, x, bottom, colour, dash="2 3")
        yield f"{_symbol(mark.cut, x, top + 3)}</g>"


def _symbol(cut: Cut, x: float, y: float) -> str:
    """As in _SIGN, drawn: a triangle for what runs again, a cross for what failed, so also without colour."""
    if cut is Cut.FAILED:
        cross = f"M{x - 4:.1f} {y - 4:.1f} l8 8 m0 -8 l-8 8"
        return f'<path class="{_CLASS[cut]}" fill="none" stroke-width="2" d="{cross}"/>'
    style = (
        f'class="{_CLASS[cut]}-fill"' if cut is Cut.KILLED else f'class="{_CLASS[cut]} card-fill" stroke-width="1.5"'
    )
    return f'<path {style} d="M{x - 4.5:.1f} {y - 4:.1f} h9 l-4.5 8 Z"/>'


def _legend(marks: Sequence[Mark], y: float) -> str:
    counts = ((cut, sum(mark.cut is cut for mark in marks)) for cut in Cut)
    words = (
        f'<tspan dx="20" class="{_CLASS[cut]}-fill">{_SIGN[cut]} {count} {_WORD[cut]}</tspan>'
        for cut, count in counts
        if count
    )
    return f'<text class="faint-fill" x="{_LEFT}" y="{y:.1f}">compilers{"".join(words)}</text>'


def _running(points: Sequence[Point], top: float, end_s: float, most: int) -> Iterator[str]:
    bottom = top + _COMPILERS
    for value in _ticks(most, 2):
        y = bottom - value / most * _COMPILERS
        yield _line(_LEFT, y, _LEFT + _PLOT, y, "grid")
        yield _text(_LEFT - 8, y + 4, f"{value:g}", "faint-fill", anchor="end")
    path = f"M{_x(points[0].elapsed_s, end_s):.1f} {bottom:.1f}"
    for point in points:
        path += f" H{_x(point.elapsed_s, end_s):.1f} V{bottom - point.compilers / most * _COMPILERS:.1f}"
    yield f'<path class="compilers-fill" fill-opacity="0.18" d="{path} V{bottom:.1f} Z"/>'
    yield f'<path class="compilers" fill="none" stroke-width="1.3" d="{path}"/>'


def _time(top: float, bottom: float, end_s: float) -> Iterator[str]:
    step = next((step for step in _TIMES if end_s / step <= 8), _TIMES[-1])
    for number in range(int(end_s / step) + 1):
        x = _x(number * step, end_s)
        yield _line(x, bottom, x, bottom + 4, "faint")
        yield _text(x, bottom + 17, format_duration(number * step), "faint-fill", anchor="middle")
    yield _line(_LEFT, bottom, _LEFT + _PLOT, bottom, "faint")
    yield _line(_LEFT, top + _MEMORY, _LEFT + _PLOT, top + _MEMORY, "faint")


_TIMES = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800)


def _ticks(end: float, about: int) -> Iterator[float]:
    """Round numbers above 0 and up to the end, about so many."""
    rough = end / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.99)
    step = max(step, 1.0)
    for number in range(1, int(end / step + 1e-9) + 1):
        yield round(number * step, 6)


def _x(elapsed_s: float, end_s: float) -> float:
    return _LEFT + min(elapsed_s / end_s, 1.0) * _PLOT


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "", width: float = 1) -> str:
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line class="{colour}" stroke-width="{width}"{dashed} '
        f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    )


def _text(
    x: float,
    y: float,
    words: str,
    colour: str,
    *,
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
    after: tuple[str, str] | None = None,
) -> str:
    more = ""
    if after:
        more = f'<tspan dx="10" class="{after[1]}" font-size="12" font-weight="normal">{escape(after[0])}</tspan>'
    return (
        f'<text class="{colour}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(words)}{more}</text>'
    )

"""A build's memory and running compilers over time, as a picture. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_images.drawing import EDGE, HEAD, WIDTH, card, heading, line, shape, text, text_width, told
from spark_images.timeline import Cut, Mark, Point
from spark_images.units import GIB, MIB, format_duration, format_size

# All in pixels.
_LEFT = 64
_PLOT = WIDTH - _LEFT - EDGE
_NAME = 34  # a step's name and facts
_MEMORY, _COMPILERS, _BETWEEN = 190, 64, 30
_FOOT = 40  # time labels, and the distance to the next step
_STEP = _NAME + _MEMORY + _BETWEEN + _COMPILERS + _FOOT

_COLOUR = {Cut.KILLED: "red", Cut.STOPPED: "orange", Cut.FAILED: "red"}
_WORD = {Cut.KILLED: "killed", Cut.STOPPED: "stopped by the gate", Cut.FAILED: "killed also alone"}


@dataclass(frozen=True, kw_only=True)
class StepChart:
    """The numbers of one step; at least one point. cap_mib: 0 for none. peak_mib: samples may have missed it."""

    name: str
    cap_mib: int
    peak_mib: int
    points: tuple[Point, ...]
    marks: tuple[Mark, ...] = ()


def memory_chart(title: str, facts: str, steps: Sequence[StepChart]) -> str:
    """The SVG document: for each step anonymous memory against the cap, and below it the compilers that ran."""
    peak = format_size(max(step.peak_mib for step in steps) * MIB)
    body = (part for number, step in enumerate(steps) for part in _step(step, HEAD + number * _STEP))
    return card(title, facts, body, height=HEAD + _STEP * len(steps), says=f"Memory of {title}: peak {peak}")


def _step(step: StepChart, top: float) -> Iterator[str]:
    most = max(point.compilers for point in step.points)
    cap = f" of {format_size(step.cap_mib * MIB)}" if step.cap_mib else ", no cap"
    yield heading(_LEFT, top + 16, step.name, f"peak {format_size(step.peak_mib * MIB)}{cap}, at most {most} compilers")
    end_s = max(step.points[-1].elapsed_s, 1.0)
    memory = top + _NAME
    yield from _memory(step, memory, end_s, _shown(step.peak_mib, step.cap_mib))
    compilers = memory + _MEMORY + _BETWEEN
    yield from _running(step.points, compilers, end_s, max(most, 1))
    yield from _legend(step.marks, compilers - 8)
    yield from _time(memory, compilers + _COMPILERS, end_s)


def _shown(peak: int, cap_mib: int) -> float:
    """The end of the memory axis: the cap, unless the memory would be a flat line far below it."""
    return 1.12 * (max(peak, cap_mib) if cap_mib < 5 * peak else max(peak, 1))


def _memory(step: StepChart, top: float, end_s: float, shown_mib: float) -> Iterator[str]:
    bottom = top + _MEMORY
    unit, name = (GIB / MIB, "GiB") if shown_mib >= 2 * GIB / MIB else (1.0, "MiB")
    for value in _ticks(shown_mib / unit, 5):
        y = bottom - value * unit / shown_mib * _MEMORY
        yield from _level(y, f"{value:g}")
    yield text(_LEFT - 8, top - _NAME + 16, name, anchor="end")
    places = [(_x(point.elapsed_s, end_s), bottom - point.memory_mib / shown_mib * _MEMORY) for point in step.points]
    curve = " L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    area = f"M{places[0][0]:.1f} {bottom:.1f} L{curve} L{places[-1][0]:.1f} {bottom:.1f} Z"
    yield shape("path", "blue-fill", fill_opacity=0.2, d=area)
    yield shape("path", "blue", fill="none", stroke_width=1.6, stroke_linejoin="round", d=f"M{curve}")
    cap = f"cap {format_size(step.cap_mib * MIB)}"
    if 0 < step.cap_mib <= shown_mib:
        y = bottom - step.cap_mib / shown_mib * _MEMORY
        yield line(_LEFT, y, _LEFT + _PLOT, y, "red", dash="6 4", width=1.4)
        yield text(_LEFT + _PLOT, y - 5, cap, "red", anchor="end")
    elif step.cap_mib:
        yield text(_LEFT + _PLOT, top + 10, f"{cap}, far above", "red", anchor="end")
    for mark in step.marks:
        x, colour = _x(mark.elapsed_s, end_s), _COLOUR[mark.cut]
        down = line(x, top + 6, x, bottom, colour, dash="2 3")
        yield told(f"{mark.unit}: {mark.cut.value}", down, _symbol(mark.cut, x, top + 3))


def _symbol(cut: Cut, x: float, y: float) -> str:
    """A triangle for what runs again, a cross for what failed: they differ without colour, too."""
    if cut is Cut.FAILED:
        return shape("path", "red", fill="none", stroke_width=2, d=f"M{x - 4:.1f} {y - 4:.1f} l8 8 m0 -8 l-8 8")
    colours = "red-fill" if cut is Cut.KILLED else "orange card-fill"
    return shape("path", colours, stroke_width=1.5, d=f"M{x - 4.5:.1f} {y - 4:.1f} h9 l-4.5 8 Z")


def _legend(marks: Sequence[Mark], y: float) -> Iterator[str]:
    yield text(_LEFT, y, "compilers")
    x = _LEFT + text_width("compilers") + 24
    for cut in Cut:
        if count := sum(mark.cut is cut for mark in marks):
            yield _symbol(cut, x, y - 4)
            yield text(x + 9, y, f"{count} {_WORD[cut]}", _COLOUR[cut])
            x += text_width(f"{count} {_WORD[cut]}") + 24


def _running(points: Sequence[Point], top: float, end_s: float, most: int) -> Iterator[str]:
    bottom = top + _COMPILERS
    for value in _ticks(most, 2):
        yield from _level(bottom - value / most * _COMPILERS, f"{value:g}")
    path = f"M{_x(points[0].elapsed_s, end_s):.1f} {bottom:.1f}"
    for point in points:
        path += f" H{_x(point.elapsed_s, end_s):.1f} V{bottom - point.compilers / most * _COMPILERS:.1f}"
    yield shape("path", "violet-fill", fill_opacity=0.2, d=f"{path} V{bottom:.1f} Z")
    yield shape("path", "violet", fill="none", stroke_width=1.3, d=path)


def _level(y: float, words: str) -> Iterator[str]:
    yield line(_LEFT, y, _LEFT + _PLOT, y, "grid")
    yield text(_LEFT - 8, y + 4, words, anchor="end")


def _time(top: float, bottom: float, end_s: float) -> Iterator[str]:
    step = next((step for step in _TIMES if end_s / step <= 8), _TIMES[-1])
    for number in range(int(end_s / step) + 1):
        x = _x(number * step, end_s)
        yield line(x, bottom, x, bottom + 4, "faint")
        words = format_duration(number * step)
        inside = x + text_width(words) / 2 <= WIDTH - EDGE
        yield text(x if inside else WIDTH - EDGE, bottom + 17, words, anchor="middle" if inside else "end")
    yield line(_LEFT, bottom, _LEFT + _PLOT, bottom, "faint")
    yield line(_LEFT, top + _MEMORY, _LEFT + _PLOT, top + _MEMORY, "faint")


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

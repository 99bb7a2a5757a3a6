"""What a step held and ran over time, in a bounded number of points."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

POINTS = 1200  # kept at most: more than a chart has columns
MARKS = 200  # kept at most: more than a chart can show


@dataclass(frozen=True, kw_only=True)
class Point:
    """One sample. memory_mib: anonymous memory of the whole step."""

    elapsed_s: float
    memory_mib: int
    compilers: int


class Cut(Enum):
    """Why a compiler did not end by itself."""

    KILLED = "killed, runs again"
    STOPPED = "stopped before memory ran out, runs again"
    FAILED = "killed also alone"


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A compiler was cut short. elapsed_s: of the sample before it, as the gate tells no time."""

    elapsed_s: float
    cut: Cut
    unit: str


class Timeline:
    """Takes every sample of a step and keeps at most POINTS of them, evenly spread, the highest of those it drops."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._marks: list[Mark] = []
        self._stride = 1  # samples for which a point stands
        self._open = 0  # samples in the last point, while it may still change

    @property
    def points(self) -> tuple[Point, ...]:
        """In the order of time."""
        return tuple(self._points)

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The first MARKS of them."""
        return tuple(self._marks)

    def sample(self, point: Point) -> None:
        """Take the next sample."""
        if self._open:
            self._points[-1] = _higher(self._points[-1], point)
        else:
            self._points.append(point)
        self._open = (self._open + 1) % self._stride
        if len(self._points) == POINTS and not self._open:
            pairs = zip(self._points[::2], self._points[1::2], strict=True)
            self._points = [_higher(first, second) for first, second in pairs]
            self._stride *= 2

    def mark(self, mark: Mark) -> None:
        """Take what happened to a compiler."""
        if len(self._marks) < MARKS:
            self._marks.append(mark)


def _higher(first: Point, second: Point) -> Point:
    return second if second.memory_mib > first.memory_mib else first

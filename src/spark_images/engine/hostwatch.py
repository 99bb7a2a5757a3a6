"""The host's memory while a build runs: under the floor the build is held, after a time given up, and why is said."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.errors import HostMemoryError
from spark_images.floor import Action, Floor, FloorRule
from spark_images.holders import ROOT, GpuQuestion, Held, growth
from spark_images.memory import host_memory
from spark_images.units import format_size

if TYPE_CHECKING:
    from spark_images.engine.freezer import Freezer

_INTERVAL_S = 0.1  # a sample costs 0.1 ms; the engine's output may have us called much more often


@dataclass(kw_only=True)
class Freeze:
    """One time that the build was held, for the record."""

    at: str  # UTC, ISO 8601
    available_bytes: int
    held: tuple[str, ...] = ()  # what was frozen, in words
    took: tuple[str, ...] = ()  # who had taken memory since the build began, and who computed on a GPU
    pressure: str = ""  # /proc/pressure/memory, where the kernel has it
    lowest_bytes: int = 0
    seconds: float = 0.0
    ended: str = "frozen"  # "thawed", "stopped"; "ended" where the build was ended meanwhile


class HostWatch:
    """Watches over one build. An engine calls look() several times a second while its command runs.

    Pressure (PSI) is noted, not acted on: it tells of stalls after they happened, averaged over 10 s, and counts a
    build's own under its cap.
    """

    def __init__(self, rule: FloorRule, say: Callable[[str], None], *, root: Path = ROOT) -> None:
        """say: gets a line when the build is frozen and when it goes on. root: where /proc is (tests)."""
        self._rule = rule
        self._say = say
        self._root = root
        self._floor = Floor(rule)
        self._before = Held.now(root)
        self._freezes: list[Freeze] = []
        self._gpu: GpuQuestion | None = None
        self._next_s = self._frozen_s = 0.0

    def document(self) -> dict[str, object]:
        """The floor and every freeze so far, as JSON takes it."""
        return {
            "floor_bytes": self._rule.floor_bytes,
            "timeout_s": self._rule.timeout_s,
            "freezes": [asdict(freeze) for freeze in self._freezes],
        }

    def look(self, freezer: Freezer) -> None:
        """Take a sample if it is time for one, and do what it asks for. Raises HostMemoryError to give the build up."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _INTERVAL_S
        available = host_memory(self._root).available_bytes
        match self._floor.feed(now_s, available):
            case Action.FREEZE:
                freezer.hold()
                self._begin(freezer, now_s, available)
            case Action.NONE if self._floor.frozen:
                freezer.hold()  # another step may have begun
                self._freezes[-1].held = tuple(map(str, freezer.held))
                self._freezes[-1].lowest_bytes = min(self._freezes[-1].lowest_bytes, available)
            case Action.THAW:
                freezer.thaw()
                self._end("thawed")
                self._say(f"the host has {format_size(available)} again: the build goes on")
            case Action.STOP:
                self._freezes[-1].took = self._took(freezer)
                freezer.kill()
                self._end("stopped")
                raise self._error(available)
            case Action.NONE:
                return

    def end(self) -> None:
        """The engine's command has ended."""
        if self._freezes and self._freezes[-1].ended == "frozen":
            self._end("ended")

    def _begin(self, freezer: Freezer, now_s: float, available: int) -> None:
        self._gpu = GpuQuestion()
        freeze = Freeze(
            at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            available_bytes=available,
            lowest_bytes=available,
            held=tuple(map(str, freezer.held)),
            took=self._took(freezer),
            pressure=_pressure(self._root),
        )
        self._freezes.append(freeze)
        self._frozen_s = now_s
        floor, timeout_s = format_size(self._rule.floor_bytes), self._rule.timeout_s
        self._say(
            f"the host has {format_size(available)} left, the floor is {floor}: "
            f"the build is frozen until memory is back, {timeout_s:g} s at most"
        )
        for line in freeze.took:
            self._say(f"  since the build began, {line}")

    def _took(self, freezer: Freezer) -> tuple[str, ...]:
        return growth(self._before, Held.now(self._root), ours=freezer.pids())

    def _end(self, how: str) -> None:
        freeze = self._freezes[-1]
        freeze.ended = how
        freeze.seconds = round(time.monotonic() - self._frozen_s, 3)
        freeze.took += tuple(map(str, self._gpu.answer() if self._gpu else ()))

    def _error(self, available: int) -> HostMemoryError:
        floor = format_size(self._rule.floor_bytes)
        freeze = self._freezes[-1]
        return HostMemoryError(
            f"the host has {format_size(available)} of memory left, and the build was stopped for it",
            why=(
                f"it was below the floor of {floor} for {freeze.seconds:.0f} s, in which the build was frozen",
                *(f"since the build began, {line}" for line in freeze.took),
            ),
            hint="free what took the memory and build again: finished steps and the compile cache are kept; "
            "if it was the build itself, give it less with `--memory`",
        )


def _pressure(root: Path) -> str:
    try:
        return " | ".join((root / "proc/pressure/memory").read_text().splitlines())
    except OSError:  # a kernel without PSI, or one that was started with psi=0
        return ""

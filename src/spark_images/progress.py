"""What a user sees while a build runs, on stderr: one live line on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO, assert_never

from spark_images.buildlog import (
    Cached,
    Event,
    GateAgain,
    GateFailed,
    Instruction,
    StepBegun,
    StepEnded,
    StepSampled,
    UnitBuilt,
    UnitMeasured,
)
from spark_images.terminal import is_live
from spark_images.timeline import Cut
from spark_images.units import GIB, MIB, format_duration, format_size

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

PLAIN_INTERVAL_S = 15.0  # a log that nobody watches stays readable: four lines a minute


@dataclass(kw_only=True)
class _Running:
    """The step that is shown: the one that began last."""

    name: str
    began_s: float
    limit_mib: int
    memory_mib: int = 0
    compilers: int = 0
    done: int = 0
    total: int = 0
    unit: str = ""


class Progress:
    """Shows the events of one build. Use it as a context manager and feed() it what LogReader returns.

    stream: stderr. env: NO_COLOR, CI, TERM and GITHUB_ACTIONS are looked at (Gitea sets the last one as well).
    clock: seconds, monotonic. expected_s: how long a step took last time, by its name; None where nobody knows.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        env: Mapping[str, str],
        clock: Callable[[], float],
        expected_s: Callable[[str], float | None] = lambda step: None,
    ) -> None:
        self._stream = stream
        self._env = env
        self._clock = clock
        self._expected_s = expected_s
        self._step: _Running | None = None
        self._engine_word = ""
        self._last_plain_s = 0.0
        self._live: Live | None = None
        self._folds = env.get("GITHUB_ACTIONS") == "true"
        self._terminal = is_live(stream, env)

    def __enter__(self) -> Self:
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, no_color=bool(self._env.get("NO_COLOR")), highlight=False)
            self._live = Live(
                get_renderable=self._live_line,
                console=console,
                transient=True,
                refresh_per_second=4,
                redirect_stdout=False,  # data that others print is not ours to wrap
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
        elif self._step and self._folds:
            self.say("::endgroup::")

    def feed(self, event: Event | None) -> None:
        """Show what the event says."""
        match event:
            case None:
                return
            case Instruction():
                place = f"{event.stage} {event.number}/{event.count} " if event.stage else ""
                self._engine_word = place + re.sub(r" --\S+", "", event.text)
            case Cached():
                if event.step:
                    self.say(f"{event.step}: unchanged, from the engine's cache")
            case StepBegun():
                self._begin(event)
            case StepSampled():
                if self._step and self._step.name == event.step:
                    self._step.memory_mib, self._step.compilers = event.memory_mib, event.compilers
                    self._plain_tick()
            case UnitBuilt():
                if self._step and self._step.name == event.step:
                    self._step.done, self._step.total, self._step.unit = event.done, event.total, event.text
                    self._plain_tick()
            case UnitMeasured():
                return  # ninja's counter says how far it is
            case GateAgain() | GateFailed():
                self._cut(event)
            case StepEnded():
                self._end(event)
            case _:
                assert_never(event)

    def _begin(self, event: StepBegun) -> None:
        self._step = _Running(name=event.step, began_s=self._clock(), limit_mib=event.limit_mib)
        self._last_plain_s = self._clock()
        if not self._live:
            cap = format_size(event.limit_mib * MIB) if event.limit_mib else "no limit"
            expected_s = self._expected_s(event.step)
            last_time = f", {format_duration(expected_s)} last time" if expected_s else ""
            if self._folds:
                self.say(f"::group::{event.step}")
            self.say(f"{event.step}: begins with {event.jobs} jobs, memory {cap}{last_time}")

    def _plain_tick(self) -> None:
        if self._step and not self._live and self._clock() - self._last_plain_s >= PLAIN_INTERVAL_S:
            self._last_plain_s = self._clock()
            self.say("  ".join(self._facts(self._step)))

    def _cut(self, event: GateAgain | GateFailed) -> None:
        cut = Cut.FAILED if isinstance(event, GateFailed) else event.cut
        cap = f" of {format_size(event.cap_mib * MIB)}" if event.cap_mib else ""
        self.say(f"{event.step}: {event.unit}: {cut.value} (held {format_size(event.peak_mib * MIB)}{cap})")

    def _end(self, event: StepEnded) -> None:
        if self._step and self._step.name == event.step:
            self._step = None
        if self._folds:
            self.say("::endgroup::")
        outcome = "done" if event.status == 0 else f"failed with status {event.status}"
        elapsed, peak = format_duration(event.elapsed_s), format_size(event.peak_mib * MIB)
        self.say(f"{event.step}: {outcome} in {elapsed}, peak {peak}")

    def _facts(self, step: _Running) -> list[str]:
        """stage, n of m, elapsed and expected time, memory of cap, compilers: each only where it is known."""
        elapsed = format_duration(self._clock() - step.began_s)
        expected_s = self._expected_s(step.name)
        facts = [step.name]
        if step.total:
            facts.append(f"{step.done}/{step.total}")
        # Beyond it nobody knows: the last time may have found more in caches.
        in_time = expected_s and self._clock() - step.began_s <= expected_s
        facts.append(f"{elapsed} of ~{format_duration(expected_s)}" if expected_s and in_time else elapsed)
        if step.limit_mib:
            facts.append(f"memory {step.memory_mib * MIB / GIB:.1f} of {step.limit_mib * MIB / GIB:.1f} GiB")
        elif step.memory_mib:
            facts.append(f"memory {step.memory_mib * MIB / GIB:.1f} GiB, no limit")
        if step.compilers:
            facts.append("1 compiler" if step.compilers == 1 else f"{step.compilers} compilers")
        return facts

    def _live_line(self) -> Text:
        from rich.text import Text

        step = self._step
        unit = step.unit.rpartition("/")[2] if step else ""  # ninja's `Building CUDA object a/b/c.cu.o`: its end is new
        words = "  ".join([*self._facts(step), unit]) if step else self._engine_word
        line = Text(words, no_wrap=True, overflow="ellipsis")
        if step:
            line.stylize("bold cyan", 0, len(step.name))
        return line

    def say(self, text: str) -> None:
        """Write a line that stays, above the live line."""
        if self._live:
            self._live.console.print(text, markup=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)

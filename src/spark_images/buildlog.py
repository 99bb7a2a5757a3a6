"""What a build says, line by line: both engines' prefixes, what scripts/step and memgate report, ninja's counter."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TypeAlias

from spark_images.timeline import Cut, Mark, Point, Timeline

# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """The engine begins an instruction of the Dockerfile, or something of its own (stage is "" then)."""

    stage: str  # "compile"; "stage-1" for the second stage if it has no name
    number: int
    count: int
    text: str
    step: str  # the name that it gives to scripts/step, "" if it does not call it


@dataclass(frozen=True, kw_only=True)
class Cached:
    """The engine had the result of this instruction already."""

    stage: str
    text: str
    step: str


@dataclass(frozen=True, kw_only=True)
class StepBegun:
    """A step begins. limit_mib: the memory limit that it found from inside, 0 if there is none."""

    step: str
    stage: str
    limit_mib: int
    jobs: int


@dataclass(frozen=True, kw_only=True)
class StepSampled:
    """What a step uses now."""

    step: str
    memory_mib: int
    compilers: int
    elapsed_s: float


@dataclass(frozen=True, kw_only=True)
class UnitBuilt:
    """ninja finished `done` of `total`."""

    step: str
    done: int
    total: int
    text: str


@dataclass(frozen=True, kw_only=True)
class StepEnded:
    """A step ended by itself."""

    step: str
    status: int
    elapsed_s: float
    peak_mib: int
    oom_kills: int


@dataclass(frozen=True, kw_only=True)
class UnitMeasured:
    """A compiler (or a linker) behind the gate ended well. peak_mib: of its whole process tree."""

    step: str
    unit: str  # the object file as the build tool names it, blanks as %20
    peak_mib: int
    seconds: float
    cpu_s: float
    expected_mib: int
    tries: int  # how often it was begun


@dataclass(frozen=True, kw_only=True)
class GateAgain:
    """A compiler was killed by the kernel, or stopped by the gate before that, and is queued again."""

    step: str
    unit: str
    cut: Cut
    peak_mib: int
    cap_mib: int


@dataclass(frozen=True, kw_only=True)
class GateFailed:
    """A compiler was killed for memory also when it ran alone; its compile fails."""

    step: str
    unit: str
    peak_mib: int
    cap_mib: int


Event: TypeAlias = (
    Instruction | Cached | StepBegun | StepSampled | UnitBuilt | UnitMeasured | GateAgain | GateFailed | StepEnded
)

# --- what is known of a step ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a build, as far as its log goes."""

    name: str
    stage: str
    cached: bool = False
    status: int | None = None  # None: it has not ended, or was killed before it could say so
    seconds: float = 0.0  # up to its last word
    limit_mib: int = 0  # 0: it found no limit
    jobs: int = 0
    memory_mib: int = 0  # last sample
    compilers: int = 0  # last sample
    peak_mib: int = 0
    peak_compilers: int = 0  # in the sample with the most memory
    oom_kills: int = 0
    done: int = 0  # ninja's counter
    total: int = 0
    units: int = 0  # measured by the gate
    killed: int = 0  # compilers that the kernel killed, by what the gate says
    stopped: int = 0  # compilers that the gate stopped before the kernel had to


@dataclass(frozen=True, kw_only=True)
class Vertex:
    """One instruction in the engine's eyes."""

    stage: str
    number: int
    count: int
    text: str
    step: str


# --- the reader -------------------------------------------------------------------------------------------------------

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BUILDKIT = re.compile(r"#(\d+) (?:(\d+\.\d+)(?: |$))?(.*)")
_BUILDKIT_HEADER = re.compile(r"\[([\w.-]+) +(\d+)/(\d+)\] (.+)")
_PODMAN_HEADER = re.compile(r"(?:\[(\d+)/\d+\] )?STEP (\d+)/(\d+): (.+)")
_STAGE_NAME = re.compile(r"FROM\s.*\sAS\s+(\S+)", re.IGNORECASE)
_CALLS_STEP = re.compile(r"/scripts/step +([\w.-]+)")
_PROTOCOL = re.compile(r"\[spark\] step ([\w.-]+) (begin|sample|end)((?: \w+=\d+(?:\.\d+)?)*)$")
_UNIT = re.compile(
    r"\[spark\] unit (\S+) peak_mib=(\d+) seconds=(\d+(?:\.\d+)?) cpu_s=(\d+(?:\.\d+)?) expected_mib=(\d+) tries=(\d+)$"
)
_GATE = re.compile(r"\[spark\] gate (\S+) (again|failed) reason=(oom|short|killed) peak_mib=(\d+) cap_mib=(\d+)$")
_NINJA = re.compile(r"\[(\d+)/(\d+)\] (.+)")


def _last_state(text: str) -> str:
    """What a carriage return left of it: the end of a progress bar."""
    return text.rpartition("\r")[2]


class LogReader:
    """Reads a build's log as it grows: feed() it every line; `steps` and `current` say what is known so far."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}
        self._timelines: dict[str, Timeline] = {}
        self._vertices: dict[str, Vertex] = {}
        self._buildkit = False
        self._stage_names: dict[str, str] = {}  # podman's stage number -> name
        self.vertex = ""  # the instruction that the last line belongs to; "" for the engine's own words
        self.text = ""  # the last line without prefix, colours and what a carriage return wiped out
        self.printed = False  # whether a program in a step printed it, not the engine

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step that was begun or found in a cache, in the order of the log."""
        return tuple(self._steps.values())

    @property
    def current(self) -> Step | None:
        """The step that began last and has not ended."""
        return next((step for step in reversed(self.steps) if step.status is None and not step.cached), None)

    def timeline(self, step: str) -> Timeline:
        """What the step of that name held and ran over time; empty for steps that said nothing about it."""
        return self._timelines.get(step) or Timeline()

    def instruction(self, vertex: str) -> Vertex | None:
        """What the engine calls by this id; None for ids that were never introduced."""
        return self._vertices.get(vertex)

    def feed(self, line: str) -> Event | None:
        """Take one line (with or without its newline); returns what it means, None if it means nothing here."""
        clean = _ANSI.sub("", line).rstrip()
        if match := _BUILDKIT.match(clean):
            self._buildkit = True
            self.vertex, self.text, self.printed = match[1], _last_state(match[3]), match[2] is not None
            return self._output() if self.printed else self._buildkit_word()
        self.text = clean = _last_state(clean)
        self.printed = False
        if self._buildkit:  # its last words repeat lines of the log: they are not read twice
            self.vertex = ""
            return None
        if match := _PODMAN_HEADER.match(clean):
            return self._podman_header(stage_number=match[1] or "1", number=match[2], count=match[3], text=match[4])
        if clean.startswith("--> Using cache") and (vertex := self.instruction(self.vertex)):
            return self._cached(vertex)
        self.printed = not clean.startswith(("--> ", "Error: building at STEP", "Error: error building at STEP"))
        return self._output()

    def _buildkit_word(self) -> Event | None:
        vertex = self.instruction(self.vertex)
        if vertex is None:
            match = _BUILDKIT_HEADER.match(self.text)
            stage, number, count, text = match.groups() if match else ("", "0", "0", self.text)
            return self._instruction(stage=stage, number=int(number), count=int(count), text=text)
        return self._cached(vertex) if self.text == "CACHED" else None

    def _podman_header(self, *, stage_number: str, number: str, count: str, text: str) -> Event:
        if match := _STAGE_NAME.match(text):
            self._stage_names[stage_number] = match[1]
        stage = self._stage_names.get(stage_number, f"stage-{int(stage_number) - 1}")
        self.vertex = f"{stage_number}/{number}"
        return self._instruction(stage=stage, number=int(number), count=int(count), text=text)

    def _instruction(self, *, stage: str, number: int, count: int, text: str) -> Instruction:
        match = _CALLS_STEP.search(text)
        vertex = Vertex(stage=stage, number=number, count=count, text=text, step=match[1] if match else "")
        self._vertices[self.vertex] = vertex
        return Instruction(stage=stage, number=number, count=count, text=text, step=vertex.step)

    def _cached(self, vertex: Vertex) -> Cached:
        if vertex.step:
            self._steps[vertex.step] = Step(name=vertex.step, stage=vertex.stage, cached=True)
        return Cached(stage=vertex.stage, text=vertex.text, step=vertex.step)

    def _output(self) -> Event | None:
        if match := _PROTOCOL.match(self.text):
            values = {key: float(value) for key, value in (pair.split("=") for pair in match[3].split())}
            return self._protocol(match[1], match[2], values)
        vertex = self.instruction(self.vertex)
        step = self._steps.get(vertex.step) if vertex else None
        if step and (match := _UNIT.match(self.text)):
            self._steps[step.name] = replace(step, units=step.units + 1)
            return UnitMeasured(
                step=step.name,
                unit=match[1],
                peak_mib=int(match[2]),
                seconds=float(match[3]),
                cpu_s=float(match[4]),
                expected_mib=int(match[5]),
                tries=int(match[6]),
            )
        if step and (match := _GATE.match(self.text)):
            return self._gate(step, unit=match[1], word=match[2], reason=match[3], peak=match[4], cap=match[5])
        if step and (match := _NINJA.match(self.text)):
            done, total = int(match[1]), int(match[2])
            self._steps[step.name] = replace(step, done=done, total=total)
            return UnitBuilt(step=step.name, done=done, total=total, text=match[3])
        return None

    def _gate(self, step: Step, *, unit: str, word: str, reason: str, peak: str, cap: str) -> Event | None:
        if (word, reason) == ("failed", "killed"):  # by somebody, not for memory: the compiler's own words have to do
            return None
        cut = Cut.FAILED if word == "failed" else Cut.STOPPED if reason == "short" else Cut.KILLED
        stopped = int(reason == "short")
        self._steps[step.name] = replace(step, killed=step.killed + 1 - stopped, stopped=step.stopped + stopped)
        self._timelines.setdefault(step.name, Timeline()).mark(Mark(elapsed_s=step.seconds, cut=cut, unit=unit))
        if cut is Cut.FAILED:
            return GateFailed(step=step.name, unit=unit, peak_mib=int(peak), cap_mib=int(cap))
        return GateAgain(step=step.name, unit=unit, cut=cut, peak_mib=int(peak), cap_mib=int(cap))

    def _protocol(self, name: str, word: str, values: dict[str, float]) -> Event:
        vertex = self.instruction(self.vertex)
        whole = {key: int(value) for key, value in values.items()}
        if word == "begin":
            step = Step(
                name=name,
                stage=vertex.stage if vertex else "",
                limit_mib=whole.get("limit_mib", 0),
                jobs=whole.get("jobs", 0),
            )
            self._steps[name] = step
            self._timelines[name] = Timeline()
            if vertex:
                self._vertices[self.vertex] = replace(vertex, step=name)
            return StepBegun(step=name, stage=step.stage, limit_mib=step.limit_mib, jobs=step.jobs)
        step = self._steps.get(name, Step(name=name, stage=vertex.stage if vertex else ""))
        elapsed_s = values.get("elapsed_s", 0.0)
        if word == "sample":
            memory_mib, compilers = whole.get("memory_mib", 0), whole.get("compilers", 0)
            step = replace(step, memory_mib=memory_mib, compilers=compilers, seconds=elapsed_s)
            if memory_mib >= step.peak_mib:
                step = replace(step, peak_mib=memory_mib, peak_compilers=compilers)
            self._steps[name] = step
            self._timelines.setdefault(name, Timeline()).sample(
                Point(elapsed_s=elapsed_s, memory_mib=memory_mib, compilers=compilers)
            )
            return StepSampled(step=name, memory_mib=memory_mib, compilers=compilers, elapsed_s=elapsed_s)
        step = replace(
            step,
            status=whole.get("status", 0),
            seconds=elapsed_s,
            peak_mib=max(step.peak_mib, whole.get("peak_mib", 0)),
            oom_kills=whole.get("oom_kills", 0),
        )
        self._steps[name] = step
        return StepEnded(
            step=name,
            status=whole.get("status", 0),
            elapsed_s=elapsed_s,
            peak_mib=step.peak_mib,
            oom_kills=step.oom_kills,
        )

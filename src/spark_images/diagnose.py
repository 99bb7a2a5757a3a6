"""Why a build failed: the first real error of its log, what kind it is and where it happened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from spark_images.buildlog import GateFailed, LogReader, Step
from spark_images.errors import (
    BuildError,
    DiskFullError,
    EngineError,
    IsolationError,
    KilledError,
    OutOfMemoryError,
    SparkImagesError,
)
from spark_images.signs import NO_ERROR, SIGNS, WEAK_SIGNS, Kind, Sign, sign_of
from spark_images.units import GIB, MIB, format_size


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The first real error of a build log."""

    kind: Kind
    stage: str  # "" where the failure is the engine's own
    step: str  # name of our step; "" if none was running
    number: int  # which instruction of the stage, 0 if the log does not say
    count: int
    line_number: int  # in the log, from 1; 0 if the log is empty
    excerpt: tuple[str, ...]  # the error and what belongs to it, without the engine's prefixes
    file: str  # what was being compiled or linked, "" if the log does not say
    host: str  # NETWORK: whom it asked for, "" if the log does not say
    peak_mib: int | None = None  # what the file held when it ran alone and was killed all the same; else None
    cap_mib: int = 0  # above that, 0 for none

    def document(self) -> dict[str, object]:
        """The same as JSON-able data, for the record."""
        return {**asdict(self), "kind": self.kind.name.lower(), "excerpt": list(self.excerpt)}


class _Line(NamedTuple):
    number: int
    text: str


_FAILED = re.compile(r"^FAILED: (?:\[code=\d+\] )?(\S*)")
_NINJA = re.compile(r"^\[\d+/\d+\] ")
_LOCATED = re.compile(r"^(?:In file included from )?([^\s:(<][^\s:(]*)(?::\d+|\(\d+\))")
_SOURCE = r"[^\s']+\.(?:cu|cpp|cc|cxx|c|S|rs|ptx)"
_COMPILED = re.compile(rf"\s-c\s+(\S+\.\w+)|\s({_SOURCE})(?=\s|$)")
_NAMED_LATER = re.compile(rf"^g?make(?:\[\d+\])?: \*\*\* \[(?:\S+:\d+: )?(\S+)\]|'({_SOURCE})'")  # make, subprocess
_FRAME = re.compile(r'^  File "([^"]+)", line \d+')
_HOST = re.compile(
    r"(?:resolve (?:host|proxy): |host address '|resolving '|EAI_AGAIN |host='|https?://|lookup |connect to )"
    r"([\w-]+(?:\.[\w-]+)+)"
)
_END_OF_OUTPUT = re.compile(r"^\[\d+/\d+\] |^\[spark\] |^ninja: build stopped|^FAILED: |^During handling |^Traceback ")
_CARETS = re.compile(r" +[~^]+$")
_TICK = re.compile(r"\[spark\] step \S+ (?:begin|sample) ")
_EXIT_STATUS = re.compile(r"exit (?:code|status):? (\d+)$")
_HOST_KINDS = (Kind.OUT_OF_MEMORY, Kind.KILLED, Kind.DISK_FULL, Kind.NETWORK)  # what can befall the engine as well
_EXCERPT_LINES = 8
_EXCERPT_COLUMNS = 160


def first_error(lines: Iterable[str]) -> Diagnosis:
    """What the log of a failed build says about the failure. lines: the whole log.

    Only the instruction that failed is looked at, so errors that a step got over do not count. Within it the first line
    that names a cause wins over the consequences that follow (`ninja: build stopped`, a driver's traceback).
    """
    reader = LogReader()
    printed: dict[str, list[_Line]] = {}  # instruction -> what its programs said
    engine: list[_Line] = []  # errors in the engine's own words
    gates: dict[str, tuple[int, GateFailed]] = {}  # instruction -> its first compile that was too large even alone
    failed = ""  # the instruction that the engine calls failed
    last = 0
    for last, line in enumerate(lines, 1):
        event = reader.feed(line)
        if isinstance(event, GateFailed):
            gates.setdefault(reader.vertex, (last, event))
        if reader.printed:
            printed.setdefault(reader.vertex, []).append(_Line(last, reader.text))
        elif reader.text.startswith(("ERROR: ", "Error: ")):
            engine.append(_Line(last, reader.text))
            failed = failed or reader.vertex
    if not engine and reader.text.startswith("Error: "):  # podman's last word; earlier ones are some program's
        engine.append(printed[reader.vertex].pop())
        failed = reader.vertex
    failed = failed or _unfinished(printed, reader)
    vertex = reader.instruction(failed)
    step = next((step for step in reader.steps if vertex and step.name == vertex.step), None)
    output = [line for line in printed.get(failed, []) if not _TICK.match(line.text)]
    gate: GateFailed | None = None
    if output and vertex and vertex.text.startswith("RUN") and not (step and step.status == 0):
        kind, found = _steps_own(output, engine, step)
        if failed in gates:
            at, event = gates[failed]
            if kind in (Kind.OUT_OF_MEMORY, Kind.KILLED) or at <= output[found].number:
                gate, kind = event, Kind.OUT_OF_MEMORY
                found = next(i for i, line in enumerate(output) if line.number == at)
    else:
        output = engine or [_Line(last, "")]
        kind, found = _engines_own(output)
    return Diagnosis(
        kind=kind,
        stage=vertex.stage if vertex else "",
        step=vertex.step if vertex else "",
        number=vertex.number if vertex else 0,
        count=vertex.count if vertex else 0,
        line_number=output[found].number,
        excerpt=_excerpt(output, found, kind),
        file=gate.unit.replace("%20", " ") if gate else _file(output, found, kind),
        peak_mib=gate.peak_mib if gate else None,
        cap_mib=gate.cap_mib if gate else 0,
        host=_host(output, found) if kind is Kind.NETWORK else "",
    )


def _unfinished(printed: Iterable[str], reader: LogReader) -> str:
    """The instruction whose step failed or never ended: all there is when the engine itself was killed."""
    unfinished = {step.name for step in reader.steps if step.status != 0 and not step.cached}
    ours = (name for name in printed if (vertex := reader.instruction(name)) and vertex.step in unfinished)
    return next(ours, "")


def _engines_own(engine: Sequence[_Line]) -> tuple[Kind, int]:
    found = _first(engine, [sign for sign in SIGNS if sign[0] in _HOST_KINDS], 0)
    if found and found[0] is Kind.KILLED:  # no step has counted for what
        return Kind.OUT_OF_MEMORY, found[1]
    return found or (Kind.ENGINE if engine[0].text else Kind.UNKNOWN, 0)


def _steps_own(output: Sequence[_Line], engine: Sequence[_Line], step: Step | None) -> tuple[Kind, int]:
    """Kind and index in output of the step's first real error."""
    ninja = next((i for i, line in enumerate(output) if line.text.startswith("FAILED: ")), 0)
    strong = _first(output, SIGNS, ninja) or _first(output, SIGNS, 0)
    ended = next((_EXIT_STATUS.search(line.text) for line in engine), None)
    status = int(ended[1]) if ended else step.status if step else None
    denied = any("cannot allocate memory" in line.text for line in engine)  # BuildKit's word for it
    killed = bool(step and step.oom_kills > step.killed) or status == 137 or denied  # the gate got over those it saw
    # Where a step has counted no kill for memory, it was somebody else's. One without an end has counted nothing.
    by_somebody = bool(step and step.status and not step.oom_kills) and not denied
    fate = Kind.KILLED if by_somebody else Kind.OUT_OF_MEMORY
    # A killed process makes others fail, but it cannot make a compiler find an error at a place in a source.
    if strong:
        vague = strong[0] in (Kind.COMPILE_ERROR, Kind.LINK_ERROR) and not _LOCATED.match(output[strong[1]].text)
        if not (killed and vague):
            return (fate if strong[0] is Kind.KILLED else strong[0]), strong[1]
    weak = _first(output, WEAK_SIGNS, 0)
    if killed:
        return fate, ninja or (weak[1] if weak else max(0, len(output) - 1))
    if weak and weak[0] is Kind.PYTHON_EXCEPTION:
        return weak[0], _exception_line(output, weak[1])
    if weak:
        return (fate if weak[0] is Kind.KILLED else weak[0]), weak[1]
    spoken = [i for i, line in enumerate(output) if not line.text.startswith("[spark] ")]
    return Kind.UNKNOWN, spoken[-1] if spoken else 0


def _first(output: Sequence[_Line], signs: Sequence[Sign], start: int) -> tuple[Kind, int] | None:
    found = ((sign_of(output[i].text, signs), i) for i in range(start, len(output)))
    return next(((kind, i) for kind, i in found if kind), None)


def _exception_line(output: Sequence[_Line], traceback: int) -> int:
    """The line after the frames: the exception itself."""
    for i in range(traceback + 1, len(output)):
        if not output[i].text.startswith(" "):
            return i
    return traceback


def _excerpt(output: Sequence[_Line], found: int, kind: Kind) -> tuple[str, ...]:
    start, stop = found, found + 1
    last_words = kind is Kind.UNKNOWN and all(line.text.startswith("[spark] ") for line in output[stop:])
    if kind is Kind.PYTHON_EXCEPTION or last_words:
        start = max(0, found - _EXCERPT_LINES + 1)
    while kind is not Kind.PYTHON_EXCEPTION and stop < min(len(output), found + _EXCERPT_LINES):
        if _END_OF_OUTPUT.match(output[stop].text):
            break
        stop += 1
    texts = [line.text for line in output[start:stop] if line.text and not _CARETS.match(line.text)]
    return tuple(_cut(text) for text in texts)


def _cut(text: str) -> str:
    """Beginning and end: a driver names the reason after the command that it ran."""
    tail = _EXCERPT_COLUMNS // 3
    return text if len(text) <= _EXCERPT_COLUMNS else f"{text[: _EXCERPT_COLUMNS - tail - 1]}…{text[-tail:]}"


def _file(output: Sequence[_Line], found: int, kind: Kind) -> str:
    """The source at fault: where the error says it is, else what ninja was compiling."""
    if kind is Kind.PYTHON_EXCEPTION:
        frames = [match[1] for line in output[:found] if (match := _FRAME.match(line.text))]
        own = [frame for frame in frames if not frame.startswith("<") and "/lib/python" not in frame]
        return (own or frames or [""])[-1]
    located = _LOCATED.match(output[found].text)
    if located and kind in (Kind.MISSING_HEADER, Kind.COMPILE_ERROR) and not located[1].startswith("/tmp/"):
        return located[1]
    start = _block(output, found)
    failed = _FAILED.match(output[start].text)
    for line in output[start + 1 : start + 2] if failed else reversed(output[start : found + 1]):
        if compiled := _COMPILED.search(line.text):  # the command, as ninja and make print it
            return str(compiled[1] or compiled[2])
    if failed:
        return failed[1]
    later = (_NAMED_LATER.search(line.text) for line in output[found : found + 2 * _EXCERPT_LINES])
    return next((match[1] or match[2] for match in later if match), "")


def _block(output: Sequence[_Line], found: int) -> int:
    """Where what belongs to a line begins: at ninja's FAILED, else a few lines before."""
    for i in range(found, -1, -1):
        if _FAILED.match(output[i].text):
            return i
        if _NINJA.match(output[i].text):
            return min(i + 1, found)
    return max(0, found - _EXCERPT_LINES + 1)


def _host(output: Sequence[_Line], found: int) -> str:
    """Whom it asked for: from the error on, else in what led to it."""
    after, before = output[found : found + _EXCERPT_LINES], output[max(0, found - _EXCERPT_LINES) : found]
    said = (line.text for line in (*after, *reversed(before)) if not NO_ERROR.search(line.text))
    return next((match[1] for text in said if (match := _HOST.search(text))), "")


def build_error(diagnosis: Diagnosis, *, image: str, log: str, step: Step | None) -> SparkImagesError:
    """The error for the terminal. log: where the whole log is. step: what the reader knows of diagnosis.step."""
    what = f"build of `{image}` {diagnosis.kind.value}"
    if diagnosis.stage:
        what += f" in stage `{diagnosis.stage}`"
        name = f"`{diagnosis.step}`, " if diagnosis.step else ""
        what += f" (step {name}{diagnosis.number} of {diagnosis.count})"
    why = [f"log: {log} line {diagnosis.line_number}"]
    if diagnosis.file:
        why.insert(0, f"file: {diagnosis.file}")
    error, hint = _consequence(diagnosis, log)
    excerpt = diagnosis.excerpt
    if diagnosis.peak_mib is not None:  # the gate's line says the same in fewer words
        excerpt, why[:-1], hint = (), *_alone(diagnosis.file, diagnosis.peak_mib, diagnosis.cap_mib, hint)
    elif diagnosis.kind in (Kind.OUT_OF_MEMORY, Kind.KILLED) and step:
        why[:-1], hint = _used(diagnosis, step, hint)
    return error(what, why=[*excerpt, *why], hint=hint)


def _alone(file: str, peak_mib: int, cap_mib: int, hint: str) -> tuple[list[str], str]:
    """Facts and hint for a file that is too large for the cap."""
    held = format_size(peak_mib * MIB) + (f" of {format_size(cap_mib * MIB)}" if cap_mib else "")
    if cap_mib:
        hint = f"this file alone needs more than {format_size(cap_mib * MIB)}: give the build at least {_more(cap_mib)}"
    return [f"`{file}` held {held} and was killed, though nothing ran beside it"], hint


def _used(diagnosis: Diagnosis, step: Step, hint: str) -> tuple[list[str], str]:
    """What the step held and what to do, as far as both are known."""
    by_somebody = diagnosis.kind is Kind.KILLED
    killed = by_somebody or step.status is None or step.oom_kills > 0 or "kill" in " ".join(diagnosis.excerpt).lower()
    facts = []
    if step.peak_mib:
        cap = f" of {format_size(step.limit_mib * MIB)}" if step.limit_mib else ""
        compilers = f", compilers running: {step.peak_compilers}" if step.peak_compilers else ""
        facts.append(f"peak {format_size(step.peak_mib * MIB)}{cap}{compilers}")
    if diagnosis.file:
        facts.append(f"first {'killed' if killed else 'to fail'}: `{diagnosis.file}`")
    if by_somebody:
        facts.append("the kernel counted no kill for want of memory there")
    elif not killed and step.peak_mib < step.limit_mib / 2:
        hint = "the cap was not reached: it wanted more than that at once, or has a limit of its own (`ulimit`)"
    elif step.limit_mib:
        hint = hint.replace("`--memory`", _more(step.limit_mib))
    return ["; ".join(facts)] if facts else [], hint


def _more(cap_mib: int) -> str:
    """Half as much again: what was killed did not show its whole peak."""
    return f"`--memory {math.ceil(cap_mib * 1.5 * MIB / GIB)}GiB`"


def _consequence(diagnosis: Diagnosis, log: str) -> tuple[type[SparkImagesError], str]:
    match diagnosis.kind:
        case Kind.OUT_OF_MEMORY:
            return OutOfMemoryError, "give it more with `--memory`, or free what holds memory now"
        case Kind.KILLED:
            return KilledError, "no limit of ours did it, but a person, a supervisor, or a daemon like earlyoom"
        case Kind.NETWORK:
            host = f" from `{diagnosis.host}`" if diagnosis.host else ""
            return BuildError, f"builds have no network: pin what it wanted{host} in pins.yaml, then it is mounted"
        case Kind.DISK_FULL:
            return (
                DiskFullError,
                "free some with `./noxw -s prune` and `./noxw -s clean`, or give the engine a larger disk",
            )
        case Kind.NOT_ISOLATED:
            return (
                IsolationError,
                "nothing was built; the engine does not honour `--network none`: see `./noxw -s doctor`",
            )
        case Kind.CAP_NOT_PROVED:
            return IsolationError, "nothing was built; go on without a limit by typing `--no-memory-limit`"
        case Kind.ENGINE:
            return EngineError, "run the same command again with `replay.sh` beside the log, or try `--engine`"
        case _:
            return BuildError, f"the whole log: `less +{diagnosis.line_number} {log}`"

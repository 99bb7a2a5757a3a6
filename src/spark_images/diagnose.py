"""Why a build failed: the first real error of its log, what kind it is and where it happened."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import NamedTuple

from spark_images.buildlog import LogReader, Step
from spark_images.errors import (
    BuildError,
    DiskFullError,
    EngineError,
    IsolationError,
    OutOfMemoryError,
    SparkImagesError,
)
from spark_images.units import GIB, MIB, format_size


class Kind(Enum):
    """What went wrong; the value completes "the build …"."""

    OUT_OF_MEMORY = "ran out of memory"
    NETWORK = "asked for the network"
    DISK_FULL = "filled the disk"
    MISSING_HEADER = "misses a header"
    COMPILE_ERROR = "does not compile"
    LINK_ERROR = "does not link"
    WRONG_ARCH = "met code of another architecture"
    PYTHON_EXCEPTION = "ended in a Python exception"
    NOT_ISOLATED = "could reach a network"
    CAP_NOT_PROVED = "is not under its memory limit"
    ENGINE = "was refused by the engine"
    UNKNOWN = "failed"


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

    def document(self) -> dict[str, object]:
        """The same as JSON-able data, for the record."""
        return {**asdict(self), "kind": self.kind.name.lower(), "excerpt": list(self.excerpt)}


class _Line(NamedTuple):
    number: int
    text: str


# What gives an error away: a phrase in lower case (quick to look for) and, where that says too little, a pattern.
# Ordered: where a line fits several the first one is meant.
_SIGNS: tuple[tuple[Kind, str, str], ...] = (
    (Kind.NOT_ISOLATED, "[spark] not isolated: ", r"^\[spark\] not"),
    (Kind.CAP_NOT_PROVED, "[spark] cap not proved: ", r"^\[spark\] cap"),
    (
        Kind.OUT_OF_MEMORY,
        "killed",
        r"^(?:.*: line \d+: +\d+ |make(?:\[\d+\])?: \*\*\* .*)?Killed(?: |$)",
    ),  # shells, make
    (Kind.OUT_OF_MEMORY, "killed signal terminated program", ""),
    (Kind.OUT_OF_MEMORY, "internal compiler error: killed", ""),
    (Kind.OUT_OF_MEMORY, "unable to execute command: killed", ""),
    (Kind.OUT_OF_MEMORY, "signal 9", r"(?:died due to|terminated with) signal 9\b"),
    (Kind.OUT_OF_MEMORY, "sigkill", r"signal: 9, SIGKILL|died with <Signals\.SIGKILL"),
    (Kind.OUT_OF_MEMORY, "exit ", r"\bexit (?:status|code):? (?:-9|9|137)\b"),
    (Kind.OUT_OF_MEMORY, "cannot allocate memory", ""),
    (Kind.OUT_OF_MEMORY, "memory exhausted", ""),
    (Kind.OUT_OF_MEMORY, "out of memory", r"\b(?i:out of memory)\b"),
    (Kind.OUT_OF_MEMORY, "memoryerror", r"^MemoryError\b"),
    (Kind.OUT_OF_MEMORY, "std::bad_alloc", ""),
    (Kind.OUT_OF_MEMORY, "memory allocation failure", ""),
    (Kind.DISK_FULL, "no space left on device", ""),
    (Kind.DISK_FULL, "disk quota exceeded", ""),
    (Kind.NETWORK, "could not resolve ", ""),
    (Kind.NETWORK, "temporary failure ", r"in name resolution|resolving"),
    (Kind.NETWORK, "name or service not known", ""),
    (Kind.NETWORK, "network is unreachable", ""),
    (Kind.NETWORK, "dial tcp", ""),
    (Kind.NETWORK, "no such host", ""),
    (Kind.NETWORK, "curl: (", r"curl: \((?:5|6|7|28)\)"),
    (Kind.NETWORK, "newconnectionerror", ""),
    (Kind.NETWORK, "connect to ", r"Failed to connect to |Could not connect to "),
    (Kind.NETWORK, "unable to access 'http", ""),
    (Kind.WRONG_ARCH, "exec format error", ""),
    (Kind.WRONG_ARCH, "cannot execute binary file", ""),
    (Kind.WRONG_ARCH, "file in wrong format", ""),
    (Kind.WRONG_ARCH, "wrong elf class", ""),
    (Kind.WRONG_ARCH, "relocations in generic elf", ""),
    (Kind.WRONG_ARCH, "incompatible", r"is incompatible with .*output|incompatible target"),
    (Kind.WRONG_ARCH, "could not open", r"^qemu-\w+: "),
    (Kind.MISSING_HEADER, "fatal error: ", r"fatal error: '?[^' ]+'? ?(?:: No such file or directory|file not found)"),
    (Kind.MISSING_HEADER, "error: cannot open source file ", ""),
    (Kind.LINK_ERROR, "undefined reference to ", ""),
    (Kind.LINK_ERROR, "multiple definition of ", ""),
    (Kind.LINK_ERROR, "ld: cannot find ", ""),
    (Kind.LINK_ERROR, "collect2: error: ", ""),
    (Kind.LINK_ERROR, "nvlink ", r"^nvlink +(?:error|fatal)"),
    (Kind.LINK_ERROR, "ld.lld: error: ", ""),
    (Kind.LINK_ERROR, "relocation truncated to fit", ""),
    (Kind.LINK_ERROR, "recompile with -fpic", ""),
    (Kind.COMPILE_ERROR, "error", r"^\S[^:(]*(?::\d+(?::\d+)?|\(\d+\)): (?:fatal |internal compiler )?[Ee]rror\b"),
    (Kind.COMPILE_ERROR, "error: ", r"^(?:cc1(?:plus)?|(?:\S+-)?g(?:cc|\+\+)|c\+\+|clang(?:\+\+)?): .*\berror: "),
    (Kind.COMPILE_ERROR, " error", r"^(?:nvcc|ptxas|cudafe\+\+|cicc|fatbinary) +error\b"),
    (Kind.COMPILE_ERROR, " fatal", r"^(?:nvcc|ptxas|cudafe\+\+|cicc|fatbinary) +fatal\b"),
    (Kind.COMPILE_ERROR, "error[e", r"^error\[E\d+\]: "),  # Rust
)
# Often only the consequence of a line above, or something that the step got over.
_WEAK_SIGNS: tuple[tuple[Kind, str, str], ...] = (
    (Kind.PYTHON_EXCEPTION, "traceback (most recent call last):", "^Traceback"),
    (Kind.UNKNOWN, "cmake error", "^CMake Error"),
    (Kind.UNKNOWN, "error", r"^(?:\S+: )*(?i:error) ?:"),
    (Kind.UNKNOWN, "fatal", r"^(?:\S+: )*(?i:fatal) ?:"),
    (Kind.UNKNOWN, "not found", r": (?:command )?not found$"),
    (Kind.UNKNOWN, "failed: ", "^FAILED: "),
)
_FAILED = re.compile(r"^FAILED: (?:\[code=\d+\] )?(\S*)")
_LOCATED = re.compile(r"^(?:In file included from )?([^\s:(<][^\s:(]*)(?::\d+|\(\d+\))")
_COMPILED = re.compile(r"\s-c\s+(\S+\.\w+)|\s(\S+\.(?:cu|cpp|cc|cxx|c|S|rs))(?=\s|$)")
_FRAME = re.compile(r'^  File "([^"]+)", line \d+')
_HOST = re.compile(r"(?:resolve (?:host|proxy): |resolving '|host='|https?://|lookup |connect to )([\w.-]+)")
_END_OF_OUTPUT = re.compile(r"^\[\d+/\d+\] |^\[spark\] |^ninja: build stopped|^FAILED: |^During handling |^Traceback ")
_CARETS = re.compile(r" +[~^]+$")
_TICK = re.compile(r"\[spark\] step \S+ (?:begin|sample) ")
_EXIT_STATUS = re.compile(r"exit (?:code|status):? (\d+)$")
_HOST_KINDS = (Kind.OUT_OF_MEMORY, Kind.DISK_FULL, Kind.NETWORK)  # what can befall the engine as well
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
    failed = ""  # the instruction that the engine calls failed
    last = 0
    for last, line in enumerate(lines, 1):
        reader.feed(line)
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
    if output and vertex and vertex.text.startswith("RUN") and not (step and step.status == 0):
        kind, found = _steps_own(output, engine, step)
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
        file=_file(output, found, kind),
        host=_host(output[found:]) if kind is Kind.NETWORK else "",
    )


def _unfinished(printed: Iterable[str], reader: LogReader) -> str:
    """The instruction whose step failed or never ended: all there is when the engine itself was killed."""
    unfinished = {step.name for step in reader.steps if step.status != 0 and not step.cached}
    ours = (name for name in printed if (vertex := reader.instruction(name)) and vertex.step in unfinished)
    return next(ours, "")


def _engines_own(engine: Sequence[_Line]) -> tuple[Kind, int]:
    found = _first(engine, [sign for sign in _SIGNS if sign[0] in _HOST_KINDS], 0)
    return found or (Kind.ENGINE if engine[0].text else Kind.UNKNOWN, 0)


def _steps_own(output: Sequence[_Line], engine: Sequence[_Line], step: Step | None) -> tuple[Kind, int]:
    """Kind and index in output of the step's first real error."""
    ninja = next((i for i, line in enumerate(output) if line.text.startswith("FAILED: ")), 0)
    strong = _first(output, _SIGNS, ninja) or _first(output, _SIGNS, 0)
    ended = next((_EXIT_STATUS.search(line.text) for line in engine), None)
    status = int(ended[1]) if ended else step.status if step else None
    starved = bool(step and step.oom_kills) or status == 137
    starved = starved or any("cannot allocate memory" in line.text for line in engine)  # BuildKit's word for it
    # A killed process makes others fail, but it cannot make a compiler find an error at a place in a source.
    if strong:
        vague = strong[0] in (Kind.COMPILE_ERROR, Kind.LINK_ERROR) and not _LOCATED.match(output[strong[1]].text)
        if not (starved and vague):
            return strong
    weak = _first(output, _WEAK_SIGNS, 0)
    if starved:
        return Kind.OUT_OF_MEMORY, ninja or (weak[1] if weak else max(0, len(output) - 1))
    if weak and weak[0] is Kind.PYTHON_EXCEPTION:
        return weak[0], _exception_line(output, weak[1])
    if weak:
        return weak
    spoken = [i for i, line in enumerate(output) if not line.text.startswith("[spark] ")]
    return Kind.UNKNOWN, spoken[-1] if spoken else 0


def _first(output: Sequence[_Line], signs: Sequence[tuple[Kind, str, str]], start: int) -> tuple[Kind, int] | None:
    for i in range(start, len(output)):
        text = output[i].text
        low = text.lower()
        for kind, phrase, pattern in signs:
            if phrase in low and (not pattern or re.search(pattern, text)):
                return kind, i
    return None


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
    return tuple(text if len(text) <= _EXCERPT_COLUMNS else text[: _EXCERPT_COLUMNS - 1] + "…" for text in texts)


def _file(output: Sequence[_Line], found: int, kind: Kind) -> str:
    """The source at fault: where the error says it is, else what ninja was compiling."""
    if kind is Kind.PYTHON_EXCEPTION:
        frames = [match[1] for line in output[:found] if (match := _FRAME.match(line.text))]
        own = [frame for frame in frames if not frame.startswith("<") and "/lib/python" not in frame]
        return (own or frames or [""])[-1]
    located = _LOCATED.match(output[found].text)
    if located and kind in (Kind.MISSING_HEADER, Kind.COMPILE_ERROR) and not located[1].startswith("/tmp/"):
        return located[1]
    for i in range(found - 1, max(-1, found - _EXCERPT_LINES), -1):
        if compiled := _COMPILED.search(output[i].text):  # the command, as ninja and make print it
            return str(compiled[1] or compiled[2])
        if failed := _FAILED.match(output[i].text):
            return failed[1]
    return ""


def _host(output: Sequence[_Line]) -> str:
    for line in output[:_EXCERPT_LINES]:
        if match := _HOST.search(line.text):
            return match[1]
    return ""


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
    if diagnosis.kind is Kind.OUT_OF_MEMORY and step:
        cap = f" of {format_size(step.limit_mib * MIB)}" if step.limit_mib else ""
        compilers = f", compilers running: {step.peak_compilers}" if step.peak_compilers else ""
        killed = f"; first killed: `{diagnosis.file}`" if diagnosis.file else ""
        why[:-1] = [f"peak {format_size(step.peak_mib * MIB)}{cap}{compilers}{killed}"]
        if step.limit_mib:  # half as much again: a compiler that was killed did not show its whole peak
            more = math.ceil(step.limit_mib * 1.5 * MIB / GIB)
            hint = f"give it more with `--memory {more}GiB`, or free what holds memory now"
    return error(what, why=[*diagnosis.excerpt, *why], hint=hint)


def _consequence(diagnosis: Diagnosis, log: str) -> tuple[type[SparkImagesError], str]:
    match diagnosis.kind:
        case Kind.OUT_OF_MEMORY:
            return OutOfMemoryError, "give it more with `--memory`, or free what holds memory now"
        case Kind.NETWORK:
            host = f" from `{diagnosis.host}`" if diagnosis.host else ""
            return BuildError, f"builds have no network: pin what it wanted{host} in pins.yaml, then it is mounted"
        case Kind.DISK_FULL:
            return DiskFullError, "free some with `nox -s prune` and `nox -s clean`, or give the engine a larger disk"
        case Kind.NOT_ISOLATED:
            return IsolationError, "nothing was built; the engine does not honour `--network none`: see `nox -s doctor`"
        case Kind.CAP_NOT_PROVED:
            return IsolationError, "nothing was built; go on without a limit by typing `--no-memory-limit`"
        case Kind.ENGINE:
            return EngineError, "run the same command again with `replay.sh` beside the log, or try `--engine`"
        case _:
            return BuildError, f"the whole log: `less +{diagnosis.line_number} {log}`"

"""What every attempt did, as its record tells: a folder each, which only grows (record_writer.py).

<UTC time>-<image>-<target>-<base>-<plan_id[:12]>-<4 hex>/
    started.json plan.json   there as soon as the folder is
    log.txt build/           while it runs
    units.jsonl              while it runs: a line for every compiler that the gate measured
    replay.sh                when the engine has ended
    memory.svg               at the end, drawn from log.txt
    result.json              once, at the end; an attempt without it whose process is gone was interrupted
    tests.json push.json …   later, numbered when they repeat
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spark_images.buildlog import LogReader, Step, UnitMeasured
from spark_images.files import read_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T", bound="DataclassInstance")
_ID = re.compile(r"\d{8}T\d{6}Z-.+-[0-9a-f]{12}-[0-9a-f]{4}")
_PROC = Path("/proc")


class Outcome(Enum):
    """How an attempt ended. RUNNING is never written: a record without a result is that while its process lives."""

    BUILT = "built"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    RUNNING = "running"


@dataclass(frozen=True, kw_only=True)
class LayerRecord:
    """One layer of the image."""

    what: str  # for people: the COPY or the base that it comes from
    digest: str
    size_bytes: int  # as it is stored and pushed, compressed


@dataclass(frozen=True, kw_only=True)
class Result:
    """The end of an attempt. digest and layers: of the canonical image, where there is one."""

    outcome: Outcome
    seconds: float
    steps: tuple[Step, ...] = ()
    digest: str = ""
    layers: tuple[LayerRecord, ...] = ()
    error: str = ""  # as the terminal showed it
    diagnosis: Mapping[str, object] | None = None

    @property
    def peak_mib(self) -> int:
        """Of the hungriest step."""
        return max((step.peak_mib for step in self.steps), default=0)

    @property
    def size_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.size_bytes for layer in self.layers)


@dataclass(frozen=True)
class RecordView:
    """A record as it was read. result is None while it runs and after it was interrupted by kill -9."""

    folder: Path
    plan_id: str
    image: str
    target: str
    base: str
    started: datetime
    command: tuple[str, ...]
    engine: str  # "podman", "docker"; "" where none was needed
    outcome: Outcome
    result: Result | None

    @property
    def id(self) -> str:
        """The folder's name."""
        return self.folder.name

    @cached_property
    def plan(self) -> dict[str, Any]:
        """The plan's document; empty if it cannot be read."""
        return read_json(self.folder / "plan.json") or {}

    @cached_property
    def units(self) -> tuple[UnitMeasured, ...]:
        """What the gate measured, in the order in which compilers ended; empty where there was no gate."""
        return read_units(self.folder)

    def read_log(self) -> LogReader:
        """A reader that has read the whole log."""
        reader = LogReader()
        try:
            with (self.folder / "log.txt").open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    reader.feed(line)
        except FileNotFoundError:  # somebody made room
            pass
        return reader

    def appended(self, kind: str) -> tuple[dict[str, Any], ...]:
        """What append_to_record added of this kind, oldest first."""
        names = [path for path in self.folder.glob(f"{kind}*.json") if re.fullmatch(rf"{kind}(-\d+)?\.json", path.name)]
        names.sort(key=lambda path: (len(path.name), path.name))
        return tuple(data for path in names if (data := read_json(path)) is not None)


def read_records(records: Path, *, proc: Path = _PROC) -> tuple[RecordView, ...]:
    """All records, oldest first. What is not a record, or cannot be read as one, is left out."""
    if not records.is_dir():
        return ()
    folders = sorted(folder for folder in records.iterdir() if _ID.fullmatch(folder.name))
    return tuple(view for folder in folders if (view := _view(folder, proc)) is not None)


def _view(folder: Path, proc: Path) -> RecordView | None:
    started = read_json(folder / "started.json")
    if started is None:
        return None
    result = _result(folder / "result.json")
    if result:
        outcome = result.outcome
    else:
        same = started.get("process") and started["process"] == process_identity(started.get("pid", 0), proc)
        outcome = Outcome.RUNNING if same else Outcome.INTERRUPTED
    try:
        return RecordView(
            folder=folder,
            plan_id=started["plan_id"],
            image=started["image"],
            target=started["target"],
            base=started["base"],
            started=datetime.fromisoformat(started["started"]),
            command=tuple(started["command"]),
            engine=(started["engine"] or {}).get("name", ""),
            outcome=outcome,
            result=result,
        )
    except (KeyError, TypeError, ValueError):  # another program's file, or a later version's
        return None


def _result(path: Path) -> Result | None:
    data = read_json(path)
    if data is None:
        return None
    try:
        steps = tuple(_known(Step, step) for step in data["steps"])
        layers = tuple(_known(LayerRecord, layer) for layer in data["layers"])
        return _known(Result, {**data, "outcome": Outcome(data["outcome"]), "steps": steps, "layers": layers})
    except (KeyError, TypeError, ValueError):  # a later version's
        return None


def read_units(folder: Path) -> tuple[UnitMeasured, ...]:
    """What the gate measured, by the record in a folder, in the order in which compilers ended."""
    path, found = folder / "units.jsonl", []
    if path.exists():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(_known(UnitMeasured, json.loads(line)))
            except (TypeError, ValueError):  # half a line, of a process that was killed; or a later version's
                continue
    return tuple(found)


def _known(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """The dataclass from what it knows of the data: clones of different ages share one cache."""
    return kind(**{field.name: data[field.name] for field in fields(kind) if field.name in data})


def process_identity(pid: int, proc: Path = _PROC) -> str:
    """What tells a process from a later one with the same number: the boot and its start time. "" if there is none."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{boot}/{fields[19]}"  # starttime, field 22 of proc(5): the name before the 3rd may hold spaces


def last_built(records: Sequence[RecordView], image: str, target: str, base: str) -> RecordView | None:
    """The newest attempt that built this variant."""
    return newest_built(records).get((image, target, base))


def newest_built(records: Sequence[RecordView]) -> dict[tuple[str, str, str], RecordView]:
    """Image, target and base -> the newest attempt that built it."""
    return {(view.image, view.target, view.base): view for view in records if view.outcome is Outcome.BUILT}


def last_built_from(records: Sequence[RecordView], plan_id: str) -> RecordView | None:
    """The newest attempt that built this plan; None for an image that was pulled."""
    built = (view for view in reversed(records) if view.outcome is Outcome.BUILT)
    return next((view for view in built if view.plan_id == plan_id), None)


def expected_seconds(records: Sequence[RecordView], image: str, step: str) -> float | None:
    """How long the step took the last time that it ran to its end for this image; None if it never did."""
    for view in reversed(records):
        if view.image == image and view.result:
            for done in view.result.steps:
                if done.name == step and done.status == 0 and not done.cached:
                    return done.seconds
    return None


def measured_units(
    records: Sequence[RecordView], image: str, target: str
) -> tuple[Iterator[Sequence[UnitMeasured]], Iterator[Sequence[UnitMeasured]]]:
    """Units of this image's attempts, newest attempt first: those for this target, and those for others."""
    views = [view for view in reversed(records) if view.image == image]
    same = (view.units for view in views if view.target == target)
    return same, (view.units for view in views if view.target != target)

"""Keeping the record of an attempt (record.py) while it is under way; it tells the truth also after kill -9."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_images.buildlog import Event, LogReader, UnitMeasured
from spark_images.cache import Cache
from spark_images.engine.base import EngineFacts
from spark_images.errors import InterruptedByUser, SparkImagesError
from spark_images.files import create_text, room_on, sync, write_text
from spark_images.record import Outcome, Result, last_built_from, process_identity, read_records

_TIME = "%Y%m%dT%H%M%SZ"


class RecordWriter:
    """The record of an attempt that is under way, made by start(); as a context manager it always writes a result."""

    def __init__(self, folder: Path, *, started: datetime) -> None:
        self.folder = folder
        self.reader = LogReader()  # of what line() was given
        self.diagnosis: Mapping[str, object] | None = None  # of an attempt that breaks off; set it when it is known
        self._started = started
        self._log = (folder / "log.txt").open("a", encoding="utf-8", errors="replace", buffering=1)

    @classmethod
    def start(
        cls,
        records: Path,
        *,
        plan_id: str,
        image: str,
        target: str,
        base: str,
        plan: Mapping[str, object],
        command: Sequence[str],
        engine: EngineFacts | None,
        host: Mapping[str, object],
        now: datetime,
    ) -> Self:
        """Begin a record below `records`. command: our own command line. host: facts about it. now: UTC."""
        pid = os.getpid()
        started = {
            "plan_id": plan_id,
            "image": image,
            "target": target,
            "base": base,
            "started": now.astimezone(UTC).isoformat(timespec="seconds"),
            "command": list(command),
            "engine": asdict(engine) if engine else None,
            "host": dict(host),
            "pid": pid,
            "process": process_identity(pid),
        }
        records.mkdir(parents=True, exist_ok=True)
        name = f"{now.astimezone(UTC):{_TIME}}-{image}-{target}-{base}-{plan_id[:12]}"
        with room_on(records):
            while True:
                folder = records / f"{name}-{secrets.token_hex(2)}"
                hidden = records / f".{folder.name}.{pid}"  # so that a record is never seen without its beginning
                hidden.mkdir()
                write_text(hidden / "started.json", _json(started))
                write_text(hidden / "plan.json", _json(plan))
                try:
                    hidden.rename(folder)
                except OSError:
                    shutil.rmtree(hidden)
                    if not folder.exists():  # else another attempt has that name
                        raise
                else:
                    sync(records)
                    return cls(folder, started=now)

    @property
    def id(self) -> str:
        """The folder's name; BuildRequest.attempt."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """The full log."""
        return self.folder / "log.txt"

    def line(self, text: str) -> Event | None:
        """Append one line of the build's output to the log; returns what it means, as LogReader.feed does.

        What it says of a unit is kept at once: also a build that is killed half-way has taught something.
        """
        event = self.reader.feed(text)
        with room_on(self.log):
            self._log.write(text.rstrip("\n") + "\n")
            if isinstance(event, UnitMeasured):
                with (self.folder / "units.jsonl").open("a", encoding="utf-8") as units:
                    units.write(json.dumps(asdict(event), ensure_ascii=False) + "\n")
        return event

    def finish(self, result: Result) -> None:
        """Write result.json; once per attempt."""
        create_text(self.folder / "result.json", _json({**asdict(result), "outcome": result.outcome.value}))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.close()
        if not (self.folder / "result.json").exists():
            self._break_off(error)
        from spark_images.record_chart import draw_memory

        draw_memory(self.folder, self.reader)

    def _break_off(self, error: BaseException | None) -> None:
        interrupted = isinstance(error, (KeyboardInterrupt, InterruptedByUser))
        text = error.render() if isinstance(error, SparkImagesError) else repr(error)
        self.finish(
            Result(
                outcome=Outcome.INTERRUPTED if interrupted else Outcome.FAILED,
                seconds=(datetime.now(UTC) - self._started).total_seconds(),
                steps=self.reader.steps,
                error=text,
                diagnosis=self.diagnosis,
            )
        )


def append_to_record(folder: Path, kind: str, data: Mapping[str, object]) -> Path:
    """Add `<kind>.json` ("tests", "push") to a record; `<kind>-2.json` and so on where it is there already."""
    number = 1
    while True:
        path = folder / (f"{kind}.json" if number == 1 else f"{kind}-{number}.json")
        try:
            create_text(path, _json(data))
        except FileExistsError:
            number += 1
        else:
            return path


def append_to_last(cache: Cache, plan_id: str, kind: str, data: Mapping[str, object]) -> Path | None:
    """Add it, with the time, to the newest attempt that built a plan; None for an image that was pulled."""
    record = last_built_from(read_records(cache.records), plan_id)
    if record is None:
        return None
    when = datetime.now(UTC).isoformat(timespec="seconds")
    return append_to_record(record.folder, kind, {**data, "when": when})


def _json(data: Mapping[str, object]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"

"""memory.svg of a record: what the build held and ran over time."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from spark_images.buildlog import LogReader
from spark_images.files import write_text
from spark_images.memory_chart import StepChart, memory_chart


def draw_memory(folder: Path, reader: LogReader) -> Path | None:
    """Draw what the reader knows into memory.svg of the record; None where no step said what it holds."""
    steps = [
        StepChart(
            name=step.name,
            cap_mib=step.limit_mib,
            peak_mib=step.peak_mib,
            points=timeline.points,
            marks=timeline.marks,
        )
        for step in reader.steps
        if (timeline := reader.timeline(step.name)).points
    ]
    if not steps:
        return None
    path = folder / "memory.svg"
    write_text(path, memory_chart(*_title(folder.name), steps))
    return path


def _title(record: str) -> tuple[str, str]:
    """`llamacpp-gb10-debian`, and `built on 2026-11-21 at 13:56 UTC`."""
    when, _, rest = record.partition("-")
    began = datetime.strptime(when, "%Y%m%dT%H%M%SZ")
    return rest.rsplit("-", 2)[0], f"memory and compilers, from {began:%Y-%m-%d %H:%M} UTC on"

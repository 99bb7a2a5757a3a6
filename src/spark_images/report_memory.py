"""What one build held and ran, which files were the hungriest, and what its image should expect of a compiler."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_images.buildlog import LogReader, Step
from spark_images.errors import UsageError
from spark_images.files import write_text
from spark_images.profile import expected_units, proposed_gib_per_job
from spark_images.record import RecordView, measured_units
from spark_images.record_chart import draw_memory
from spark_images.report import meant
from spark_images.text_chart import curve
from spark_images.units import MIB, format_duration, format_size

_HUNGRIEST, _LONGEST = 10, 5
_COLUMNS = 34  # what stands before a unit's name


def print_memory_report(
    records: Sequence[RecordView], named: str | None, *, as_json: bool, svg: Path | None = None
) -> None:
    """Write the report of an attempt to stdout, and its chart to memory.svg in the record and where svg says.

    named: a record's id, its beginning or its end; or an image, for the newest attempt of it that ran a step; None for
    the newest of all. Raises UsageError for a name that is neither, and where there is nothing to draw.
    """
    data = memory_data(records, named)
    if svg:
        if data["record"] is None:
            raise UsageError(f"there is nothing to draw: {_nothing(data)}")
        write_text(svg, Path(data["chart"]).read_text(encoding="utf-8"))
    print(json.dumps(data, indent=1, ensure_ascii=False) if as_json else "\n".join(memory_lines(data)))


def memory_data(records: Sequence[RecordView], named: str | None) -> dict[str, Any]:
    """The report as JSON-able data; `record` is None where nothing was measured. Draws the chart."""
    for view in meant(records, named):
        reader = view.read_log()
        if any(reader.timeline(step.name).points for step in reader.steps):
            return _data(view, reader, draw_memory(view.folder, reader), records)
    return {"record": None, "asked": named, "attempts": len(records)}


def _data(view: RecordView, reader: LogReader, chart: Path | None, records: Sequence[RecordView]) -> dict[str, Any]:
    same, others = measured_units(records, view.image, view.target)
    proposal = proposed_gib_per_job(expected_units(same, others))
    return {
        "record": view.id,
        "started": view.started.isoformat(),
        "image": view.image,
        "target": view.target,
        "base": view.base,
        "engine": view.engine,
        "outcome": view.outcome.value,
        "chart": str(chart),
        "steps": [_step(step, reader) for step in reader.steps if reader.timeline(step.name).points],
        "units": [asdict(unit) for unit in sorted(view.units, key=lambda unit: -unit.peak_mib)],
        "gib_per_job": asdict(proposal) if proposal else None,
    }


def _step(step: Step, reader: LogReader) -> dict[str, Any]:
    points = reader.timeline(step.name).points
    return {
        **asdict(step),
        "most_compilers": max(point.compilers for point in points),
        "samples": [asdict(point) for point in points],
    }


def memory_lines(data: dict[str, Any]) -> Iterator[str]:
    """memory_data() for people, as wide as the terminal."""
    if data["record"] is None:
        yield _nothing(data)
        return
    when = data["started"][5:16].replace("T", " ")
    yield f"{data['image']} {data['target']}-{data['base']}, {when} UTC, {data['engine']}, {data['outcome']}"
    for step in data["steps"]:
        yield from step_lines(step)
    yield f"chart: {data['chart']}"
    if units := data["units"]:
        yield from _units("hungriest", units[:_HUNGRIEST])
        yield from _units("longest", sorted(units, key=lambda unit: -unit["seconds"])[:_LONGEST])
    else:
        yield "units: none was measured (every compile came from the cache, or the build has no gate)"
    if proposal := data["gib_per_job"]:
        yield f"\n`gib-per-job: {proposal['gib']:.2f}` suits images/{data['image']}/image.yaml:"
        yield proposal["because"]


def _nothing(data: dict[str, Any]) -> str:
    if not data["attempts"]:
        return "Nothing was built yet. Begin with `./noxw -s build-llamacpp`."
    of = f" of `{data['asked']}`" if data["asked"] else ""
    return f"No attempt{of} ran a step, so none was measured: everything came from caches, or nothing began."


def step_lines(step: dict[str, Any]) -> tuple[str, ...]:
    """What one of memory_data()'s steps took, and its memory over time as a curve of 75 columns."""
    samples = step["samples"]
    top = format_size(max(sample["memory_mib"] for sample in samples) * MIB)
    end = format_duration(samples[-1]["elapsed_s"])
    return (*_sentences(step), *curve([sample["memory_mib"] for sample in samples], top=top, end=end))


def _sentences(step: dict[str, Any]) -> list[str]:
    cap = f"of {format_size(step['limit_mib'] * MIB)}" if step["limit_mib"] else "without a cap"
    peak = f"peak {format_size(step['peak_mib'] * MIB)} {cap}"
    said = [
        f"{step['name']}: {peak} in {format_duration(step['seconds'])}, compilers at once: {step['most_compilers']}"
    ]
    if step["units"] or step["killed"] or step["stopped"]:
        cut = f"killed for memory: {step['killed']}, stopped before that: {step['stopped']}"
        said.append(f"  units measured: {step['units']}; {cut}")
    return said


def _units(heading: str, units: Sequence[dict[str, Any]]) -> Iterator[str]:
    room = max(20, min(shutil.get_terminal_size().columns, 200) - _COLUMNS)
    yield f"\n{'peak':>8} {'expected':>9} {'time':>7} {'tries':>5}  {heading}"
    for unit in units:
        peak, expected = (f"{unit[key]} MiB" for key in ("peak_mib", "expected_mib"))
        name = unit["unit"].replace("%20", " ")
        name = name if len(name) <= room else "…" + name[1 - room :]  # the end tells files apart
        yield f"{peak:>8} {expected:>9} {format_duration(unit['seconds']):>7} {unit['tries']:>5}  {name}"

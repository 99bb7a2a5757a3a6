"""What one build held and ran, which files were the hungriest, and what its image should expect of a compiler."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_images.buildlog import LogReader, Step
from spark_images.errors import UsageError, did_you_mean
from spark_images.profile import expected_units, proposed_gib_per_job
from spark_images.record import RecordView, measured_units
from spark_images.record_chart import draw_memory
from spark_images.units import MIB, format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Console

_HUNGRIEST, _LONGEST = 10, 5
_COLUMNS = 34  # what stands before a unit's name


def print_memory_report(records: Sequence[RecordView], named: str | None, *, as_json: bool) -> None:
    """Write the report of an attempt to stdout and its chart to memory.svg in the record.

    named: a record's id, its beginning or its end; or an image, for the newest attempt of it that ran a step; None for
    the newest of all. Raises UsageError for a name that is neither.
    """
    data = memory_data(records, named)
    if as_json:
        print(json.dumps(data, indent=1, ensure_ascii=False))
        return
    from rich.console import Console

    show_memory(data, Console(file=sys.stdout, highlight=False, soft_wrap=True))


def memory_data(records: Sequence[RecordView], named: str | None) -> dict[str, Any]:
    """The report as JSON-able data; `record` is None where nothing was measured. Draws the chart."""
    for view in _candidates(records, named):
        reader = view.read_log()
        if any(reader.timeline(step.name).points for step in reader.steps):
            return _data(view, reader, draw_memory(view.folder, reader), records)
    return {"record": None, "asked": named, "attempts": len(records)}


def _candidates(records: Sequence[RecordView], named: str | None) -> Sequence[RecordView]:
    """The attempts that are meant, newest first."""
    newest = tuple(reversed(records))
    if named is None:
        return newest
    if of_image := [view for view in newest if view.image == named]:
        return of_image
    meant = [view for view in newest if view.id.startswith(named) or view.id.endswith(named)]
    if len(meant) > 1:
        raise UsageError(f"`{named}` fits {len(meant)} records", why=[view.id for view in meant[:5]])
    if not meant:
        known = {name for view in records for name in (view.id, view.image)}
        hint = did_you_mean(named, known) or "`nox -s report` lists what was built"
        raise UsageError(f"no record or image is called `{named}`", hint=hint)
    return meant


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


def show_memory(data: dict[str, Any], console: Console) -> None:
    """Draw memory_data() for people, in 80 columns."""
    if data["record"] is None:
        if not data["attempts"]:
            say = "Nothing was built yet. Begin with `nox -s build-llamacpp`."
        else:
            of = f" of `{data['asked']}`" if data["asked"] else ""
            say = f"No attempt{of} ran a step, so none was measured: everything came from caches, or nothing began."
        console.print(say, markup=False)
        return
    when = data["started"][5:16].replace("T", " ")
    title = f"{data['image']} {data['target']}-{data['base']}, {when} UTC, {data['engine']}, {data['outcome']}"
    console.print(title, style="bold", markup=False)
    for step in data["steps"]:
        for line in _sentences(step):
            console.print(line, markup=False)
    console.print(f"chart: {data['chart']}", markup=False)
    units = data["units"]
    if not units:
        console.print(
            "units: none was measured (every compile came from the cache, or the build has no gate)", markup=False
        )
    else:
        _show_units("hungriest", units[:_HUNGRIEST], console)
        _show_units("longest", sorted(units, key=lambda unit: -unit["seconds"])[:_LONGEST], console)
    if proposal := data["gib_per_job"]:
        console.print(f"\n`gib-per-job: {proposal['gib']:.2f}` suits images/{data['image']}/image.yaml:", markup=False)
        console.print(proposal["because"], markup=False)


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


def _show_units(heading: str, units: Sequence[dict[str, Any]], console: Console) -> None:
    room = max(20, min(console.width, 200) - _COLUMNS)
    console.print(f"\n{'peak':>8} {'expected':>9} {'time':>7} {'tries':>5}  {heading}", style="bold", markup=False)
    for unit in units:
        peak, expected = (f"{unit[key]} MiB" for key in ("peak_mib", "expected_mib"))
        name = unit["unit"].replace("%20", " ")
        name = name if len(name) <= room else "…" + name[1 - room :]  # the end tells files apart
        console.print(
            f"{peak:>8} {expected:>9} {format_duration(unit['seconds']):>7} {unit['tries']:>5}  {name}", markup=False
        )

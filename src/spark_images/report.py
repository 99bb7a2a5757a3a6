"""What was built when, how long it took, how large it is and how its size divides over its layers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spark_images.record import Outcome, RecordView
from spark_images.units import GIB, MIB, format_duration

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"built": "green", "failed": "bold red", "interrupted": "yellow", "running": "cyan"}
_BAR = 24  # columns


def report_data(records: Sequence[RecordView]) -> dict[str, Any]:
    """The report as JSON-able data: `attempts`, oldest first, and `images`, the newest built of each variant."""
    newest = {(view.image, view.target, view.base): view for view in records if view.outcome is Outcome.BUILT}
    return {"attempts": [_attempt(view) for view in records], "images": [_image(view) for view in newest.values()]}


def _attempt(view: RecordView) -> dict[str, Any]:
    result, tests = view.result, view.appended("tests")
    return {
        "record": view.id,
        "started": view.started.isoformat(),
        "image": view.image,
        "target": view.target,
        "base": view.base,
        "plan_id": view.plan_id,
        "engine": view.engine,
        "outcome": view.outcome.value,
        "seconds": result.seconds if result else None,
        "peak_mib": result.peak_mib if result else None,
        "size_bytes": result.size_bytes if result and result.layers else None,
        "digest": result.digest if result else "",
        "tests": tests[-1] if tests else None,
        "pushes": list(view.appended("push")),
    }


def _image(view: RecordView) -> dict[str, Any]:
    layers = view.result.layers if view.result else ()
    return {
        "image": view.image,
        "target": view.target,
        "base": view.base,
        "digest": view.result.digest if view.result else "",
        "layers": [{"what": layer.what, "digest": layer.digest, "size_bytes": layer.size_bytes} for layer in layers],
    }


def print_report(records: Sequence[RecordView], *, as_json: bool) -> None:
    """Write the report to stdout: tables for people, one JSON document for programs."""
    if as_json:
        print(json.dumps(report_data(records), indent=1, ensure_ascii=False))
        return
    from rich.console import Console

    show_report(report_data(records), Console(file=sys.stdout, highlight=False))


def show_report(data: dict[str, Any], console: Console) -> None:
    """Draw report_data() as tables that fit into 80 columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if not data["attempts"]:
        console.print("Nothing was built yet. Begin with `nox -s build-llamacpp`.", markup=False)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # the box parts columns by one space
    for heading in ("when, UTC", "image", "engine", "outcome"):
        table.add_column(heading, no_wrap=heading != "image", overflow="fold")
    for heading in ("time", "peak\nGiB", "size\nMiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    table.add_column("tests", no_wrap=True)
    for attempt in data["attempts"]:
        table.add_row(
            attempt["started"][5:16].replace("T", " "),
            Text(f"{attempt['image']} {attempt['target']}-{attempt['base']}"),
            attempt["engine"],
            Text(attempt["outcome"], style=_STYLES[attempt["outcome"]]),
            "" if attempt["seconds"] is None else format_duration(attempt["seconds"]),
            f"{attempt['peak_mib'] * MIB / GIB:.1f}" if attempt["peak_mib"] else "",
            f"{attempt['size_bytes'] / MIB:.0f}" if attempt["size_bytes"] else "",
            attempt["digest"].removeprefix("sha256:")[:8],
            _tests(attempt["tests"]),
        )
    console.print(table)
    for image in data["images"]:
        _show_layers(image, console)


def _tests(tests: dict[str, Any] | None) -> str:
    """`12/12`: passed of run; nothing where none ran, or another version wrote tests.json."""
    match tests:
        case {"passed": int(passed), "failures": list(failures)}:
            return f"{passed}/{passed + len(failures)}"
        case _:
            return ""


def _show_layers(image: dict[str, Any], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    total = sum(layer["size_bytes"] for layer in image["layers"])
    if not total:
        return
    console.print(f"\n{image['image']} {image['target']}-{image['base']}: {total / MIB:.1f} MiB by layer", markup=False)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for layer in image["layers"]:
        part = layer["size_bytes"] / total
        table.add_row(f"{layer['size_bytes'] / MIB:.1f}", f"{part:.0%}", "#" * round(part * _BAR), Text(layer["what"]))
    console.print(table)

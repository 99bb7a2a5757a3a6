"""What was built when, how long it took, how large it is and how its size divides over its layers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from spark_images.errors import UsageError, did_you_mean
from spark_images.layer_chart import Layer, layer_name
from spark_images.record import RecordView, newest_built
from spark_images.terminal import print_table
from spark_images.text_chart import bar
from spark_images.units import GIB, MIB, format_duration, format_size

MOST = 25  # attempts that the table shows
_COLUMNS = 24  # of a bar


def report_data(records: Sequence[RecordView]) -> dict[str, Any]:
    """The report as JSON-able data: `attempts`, oldest first, and `images`, the newest built of each variant."""
    return {
        "attempts": [_attempt(view) for view in records],
        "images": [_image(view) for view in newest_built(records).values()],
    }


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


def meant(records: Sequence[RecordView], named: str | None) -> Sequence[RecordView]:
    """The attempts that are meant, newest first: those of an image, a record by its id or either end of it, or all.

    Raises UsageError for a name that is neither.
    """
    newest = tuple(reversed(records))
    if named is None:
        return newest
    if of_image := [view for view in newest if view.image == named]:
        return of_image
    fitting = [view for view in newest if view.id.startswith(named) or view.id.endswith(named)]
    if len(fitting) > 1:
        raise UsageError(f"`{named}` fits {len(fitting)} records", why=[view.id for view in fitting[:5]])
    if not fitting:
        known = {name for view in records for name in (view.id, view.image)}
        hint = did_you_mean(named, known) or "`./noxw -s report` lists what was built"
        raise UsageError(f"no record or image is called `{named}`", hint=hint)
    return fitting


def print_report(records: Sequence[RecordView], *, as_json: bool) -> None:
    """Write the report to stdout: tables for people, which fit into 80 columns, one JSON document for programs."""
    if as_json:
        print(json.dumps(report_data(records), indent=1, ensure_ascii=False))
        return
    if not records:
        print("Nothing was built yet. Begin with `./noxw -s build-llamacpp`.")
        return
    if len(records) > MOST:
        print(f"{len(records) - MOST} older attempts are left out; `--json` has all\n")
    print_table(
        ("when, UTC", "image", "engine", "outcome", "time", "peak\nGiB", "size\nMiB", "digest", "tests"),
        [_row(_attempt(view)) for view in records[-MOST:]],
        right=("time", "peak\nGiB", "size\nMiB"),
        whole=("when, UTC", "engine", "outcome", "digest", "tests"),
    )
    for view in newest_built(records).values():
        if layers := layers_of(view):
            print()
            print(*layer_lines(f"{view.image} {view.target}-{view.base}", layers), sep="\n")


def _row(attempt: dict[str, Any]) -> tuple[str, ...]:
    return (
        attempt["started"][5:16].replace("T", " "),
        f"{attempt['image']} {attempt['target']}-{attempt['base']}",
        attempt["engine"],
        attempt["outcome"],
        "" if attempt["seconds"] is None else format_duration(attempt["seconds"]),
        f"{attempt['peak_mib'] * MIB / GIB:.1f}" if attempt["peak_mib"] else "",
        f"{attempt['size_bytes'] / MIB:.0f}" if attempt["size_bytes"] else "",
        attempt["digest"].removeprefix("sha256:")[:8],
        _tests(attempt["tests"]),
    )


def layers_of(view: RecordView) -> tuple[Layer, ...]:
    """The layers of what an attempt built; none where it built none."""
    layers = view.result.layers if view.result else ()
    return tuple(
        Layer(name=layer_name(layer.what), digest=layer.digest, size_bytes=layer.size_bytes) for layer in layers
    )


def layer_lines(title: str, layers: Sequence[Layer]) -> tuple[str, ...]:
    """`  504 MiB   94%  #######################  cuda`, a line for each, below a title."""
    total = sum(layer.size_bytes for layer in layers)
    lines = (
        f"{format_size(layer.size_bytes):>10}  {layer.size_bytes / max(total, 1):>4.0%}  "
        f"{bar(layer.size_bytes / max(total, 1), _COLUMNS):{_COLUMNS}}  {layer.name}"
        for layer in layers
    )
    return (f"{title}: {format_size(total)} by layer", *lines)


def _tests(tests: dict[str, Any] | None) -> str:
    """`12/12`: passed of run; nothing where none ran, or another version wrote tests.json."""
    match tests:
        case {"passed": int(passed), "failures": list(failures)}:
            return f"{passed}/{passed + len(failures)}"
        case _:
            return ""

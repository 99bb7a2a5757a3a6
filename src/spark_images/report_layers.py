"""How large an image is by layer, and what changed from one image to another: text, JSON and pictures of records."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from spark_images.errors import UsageError
from spark_images.files import write_text
from spark_images.layer_chart import Change, changes_chart, layer_changes, layers_chart, pulled_words
from spark_images.plan_changes import differences
from spark_images.record import Outcome, RecordView
from spark_images.report import layer_lines, layers_of, meant
from spark_images.terminal import print_table
from spark_images.units import format_size


def draw_layers(view: RecordView) -> str:
    """The picture of an image's layers."""
    return layers_chart(f"{view.image} {view.target}-{view.base}", layers_of(view))


def report_layers(records: Sequence[RecordView], named: Sequence[str], *, as_json: bool, svg: Path | None) -> None:
    """Print the layers of what one attempt built, and draw them. UsageError where the name fits none."""
    view = _built(records, named[0] if named else None)
    layers = layers_of(view)
    if svg:
        write_text(svg, draw_layers(view))
    if as_json:
        print(json.dumps({"record": view.id, "layers": [asdict(layer) for layer in layers]}, indent=1))
        return
    print(*layer_lines(f"{view.image} {view.target}-{view.base}", layers), sep="\n")


def report_changes(records: Sequence[RecordView], named: Sequence[str], *, as_json: bool, svg: Path | None) -> None:
    """Print and draw what lies between two built images.

    named: the old one and the new one; or the new one, for the last that was built before with another digest; or
    nothing, for the newest. UsageError where there are no two.
    """
    new = _built(records, named[-1] if named else None)
    old = _built(records, named[0]) if len(named) == 2 else _before(records, new)
    changes = layer_changes(layers_of(old), layers_of(new))
    reasons = differences(old.plan, new.plan)
    variants = [f"{view.image} {view.target}-{view.base}" for view in (old, new)]
    named_old = old.plan_id[:12] if len(set(variants)) == 1 else f"{variants[0]} {old.plan_id[:12]}"
    title = f"{variants[1]} {new.plan_id[:12]}, after {named_old}"
    if svg:
        write_text(svg, changes_chart(title, changes, reasons))
    if as_json:
        document = {
            "old": old.id,
            "new": new.id,
            "layers": [{**asdict(change), "pulled_bytes": change.pulled_bytes} for change in changes],
            "differences": list(reasons),
        }
        print(json.dumps(document, indent=1, ensure_ascii=False))
        return
    print(f"{title}: {pulled_words(changes)}")
    print_table(("layer", "size", "to pull"), [_row(change) for change in changes], right=("to pull",))
    print("\n".join(reasons or ("their plans say the same",)))


def _row(change: Change) -> tuple[str, str, str]:
    return change.name, change.words, format_size(change.pulled_bytes) if change.pulled_bytes else ""


def _built(records: Sequence[RecordView], named: str | None) -> RecordView:
    """The newest attempt of those that are meant that built an image."""
    for view in meant(records, named):
        if view.outcome is Outcome.BUILT and layers_of(view):
            return view
    of = f"`{named}`" if named else "any image"
    raise UsageError(f"no attempt built {of}, so it has no layers", hint="`./noxw -s report` lists what was built")


def _before(records: Sequence[RecordView], new: RecordView) -> RecordView:
    """The last of the same variant that was built before, with another digest."""
    assert new.result is not None  # it has layers
    for view in reversed(records[: records.index(new)]):
        same = (view.image, view.target, view.base) == (new.image, new.target, new.base)
        if same and view.result and view.result.layers and view.result.digest != new.result.digest:
            return view
    raise UsageError(
        f"{new.image} {new.target}-{new.base} was built with one digest only, so there is nothing to compare with",
        hint="`./noxw -s report` lists what was built; name two records of it",
    )

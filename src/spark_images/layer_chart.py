"""How an image's size divides over its layers, and what another image of it has to pull, as pictures. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spark_images.drawing import EDGE, HEAD, WIDTH, card, fit, shape, text, told
from spark_images.units import format_size

# All in pixels.
_ROW, _BAR, _FOOT = 26, 14, 14
_NAMES, _NUMBERS = 190, 210
_LEFT = EDGE + _NAMES
_PLOT = WIDTH - EDGE - _NUMBERS - _LEFT
REASONS = 8  # named at most


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer as it is stored and pushed, compressed."""

    name: str
    digest: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """A layer in two images. kept: who has the old image has it. None where an image has no such layer."""

    name: str
    before_bytes: int | None
    after_bytes: int | None
    kept: bool

    @property
    def pulled_bytes(self) -> int:
        """What the new image brings of it."""
        return 0 if self.kept else self.after_bytes or 0

    @property
    def words(self) -> str:
        """`25.9 MiB, as before`, `25.9 MiB -> 27 MiB`, `25.9 MiB, other content`, `5.8 MiB, new`, `5.8 MiB, gone`."""
        before, after = (None if size is None else format_size(size) for size in (self.before_bytes, self.after_bytes))
        if after is None:
            return f"{before}, gone"
        if self.kept:
            return f"{after}, as before"
        if before is None:
            return f"{after}, new"
        return f"{after}, other content" if before == after else f"{before} -> {after}"


def layer_name(made_by: str) -> str:
    """`COPY --from=compile /out/cuda/ /` is `cuda`; other words stay."""
    copied = re.fullmatch(r"COPY --from=\S+ /out/([^/\s]+)/ /", made_by)
    return copied[1] if copied else made_by


def layer_changes(old: Sequence[Layer], new: Sequence[Layer]) -> tuple[Change, ...]:
    """The new image's layers in their order, then those that only the old one has."""
    there = {layer.digest for layer in old}
    before, after = _numbered(old), _numbered(new)
    changes = [
        Change(
            name=layer.name,
            before_bytes=before[key].size_bytes if key in before else None,
            after_bytes=layer.size_bytes,
            kept=layer.digest in there,
        )
        for key, layer in after.items()
    ]
    gone = (layer for key, layer in before.items() if key not in after)
    changes += [Change(name=one.name, before_bytes=one.size_bytes, after_bytes=None, kept=False) for one in gone]
    return tuple(changes)


def _numbered(layers: Sequence[Layer]) -> dict[tuple[str, int], Layer]:
    """By name, and by number where several have one name."""
    seen: Counter[str] = Counter()
    numbered = {}
    for layer in layers:
        numbered[layer.name, seen[layer.name]] = layer
        seen[layer.name] += 1
    return numbered


def layers_chart(title: str, layers: Sequence[Layer]) -> str:
    """The SVG document: a bar for each layer."""
    total = sum(layer.size_bytes for layer in layers)
    largest = max(1, *(layer.size_bytes for layer in layers))
    facts = f"{format_size(total)} to pull, in {len(layers)} layers"

    def body() -> Iterator[str]:
        for number, layer in enumerate(layers):
            words = f"{format_size(layer.size_bytes)}, {layer.size_bytes / max(total, 1):.0%}"
            bar = _bar(number, layer.size_bytes / largest, "blue-fill")
            yield from _row(number, layer.name, words, bar)

    return card(title, facts, body(), height=HEAD + _ROW * len(layers) + _FOOT, says=f"Layers of {title}: {facts}")


def changes_chart(title: str, changes: Sequence[Change], reasons: Sequence[str]) -> str:
    """The SVG document: a bar for each layer, orange what has to be pulled, and below what of the plan changed."""
    facts = pulled_words(changes)
    largest = max(1, *(size or 0 for change in changes for size in (change.before_bytes, change.after_bytes)))
    rows = HEAD + _ROW * len(changes)
    said = [*reasons[:REASONS], *([f"and {len(reasons) - REASONS} more"] if len(reasons) > REASONS else [])]

    def body() -> Iterator[str]:
        for number, change in enumerate(changes):
            parts = []
            if change.after_bytes is not None:
                style = {"fill_opacity": 0.4} if change.kept else {}
                colours = "blue-fill" if change.kept else "orange-fill"
                parts.append(_bar(number, change.after_bytes / largest, colours, **style))
            if change.before_bytes is not None and not change.kept:
                before = change.before_bytes / largest
                parts.append(_bar(number, before, "ink", fill="none", stroke_dasharray="3 2"))
            yield from _row(number, change.name, change.words, *parts)
        yield from _key(rows + 16)
        for number, reason in enumerate(said):
            yield text(EDGE, rows + 48 + 18 * number, fit(reason, WIDTH - 2 * EDGE), "ink")

    height = rows + 30 + (18 + 18 * len(said) if said else 0)
    return card(title, facts, body(), height=height, says=f"{title}: {facts}")


def pulled_words(changes: Sequence[Change]) -> str:
    """`27 MiB of 535.7 MiB to pull`."""
    total = format_size(sum(change.after_bytes or 0 for change in changes))
    pulled = sum(change.pulled_bytes for change in changes)
    return f"{format_size(pulled)} of {total} to pull" if pulled else f"none of {total} to pull"


def _row(number: int, name: str, words: str, *bars: str) -> Iterator[str]:
    y = HEAD + _ROW * number + 18
    yield text(EDGE, y, fit(name, _NAMES - 10), "ink")
    yield told(f"{name}: {words}", *bars)
    yield text(_LEFT + _PLOT + 12, y, words)


def _bar(number: int, part: float, colours: str, **style: Any) -> str:
    """At least a line, so that no layer is unseen."""
    width = max(1.5, part * _PLOT)
    return shape("rect", colours, x=_LEFT, y=HEAD + _ROW * number + 7, width=width, height=_BAR, rx=1.5, **style)


def _key(y: float) -> Iterator[str]:
    styles: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("to pull", "orange-fill", {}),
        ("there already", "blue-fill", {"fill_opacity": 0.4}),
        ("size before", "ink", {"fill": "none", "stroke_dasharray": "3 2"}),
    )
    for number, (words, colours, style) in enumerate(styles):
        x = _LEFT + 130 * number
        yield shape("rect", colours, x=x, y=y - 9, width=16, height=10, rx=1.5, **style)
        yield text(x + 22, y, words)

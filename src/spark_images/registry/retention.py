"""Which images of a repository may go: those that no rule keeps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from spark_images.registry.history import Move, last_good


@dataclass(frozen=True, kw_only=True)
class Stored:
    """An image in a repository. built: by its provenance; None where nobody knows."""

    tag: str
    digest: str
    target: str  # with its base: `gb10 on debian`
    built: datetime | None
    tags: tuple[str, ...]  # readable ones that name it

    @property
    def plan(self) -> str:
        """What all forms of one image have in common (forms.py)."""
        return self.tag[:12]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An image that stays, and the first reason for it; "" where none does."""

    image: Stored
    because: str


def decide(images: Iterable[Stored], moves: Sequence[Move], *, newest_per_target: int) -> tuple[Kept, ...]:
    """Every image with why it is kept. An image whose age nobody knows is kept: what is deleted is gone."""
    known = list(images)
    named = {digest for move in moves for digest in (move.digest, move.left, *dict(move.tags).values()) if digest}
    newest: set[str] = set()
    for target in {image.target for image in known}:
        dated = [image for image in known if image.target == target and image.built is not None]
        dated.sort(key=lambda image: (image.built, image.tag), reverse=True)
        plans = list(dict.fromkeys(image.plan for image in dated))[:newest_per_target]
        newest.update(image.digest for image in dated if image.plan in plans)
    current = {tag: image.digest for image in known for tag in image.tags}
    lines = {move.target for move in moves}
    good = {found.digest: line for line in lines if (found := last_good(moves, line, current.get(line, "")))}

    def reason(image: Stored) -> str:
        if image.tags:
            return f"{', '.join(image.tags)} names it"
        if image.digest in good:
            return f"the last known good one of {good[image.digest]}"
        if image.digest in named:
            return "the history names it"
        if image.digest in newest:
            return f"one of the {newest_per_target} newest of {image.target}"
        if image.built is None:
            return "nobody knows when it was built"
        return ""

    return tuple(Kept(image=image, because=reason(image)) for image in known)

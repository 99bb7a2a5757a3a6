"""Where readable tags pointed: every move is an entry of its own in the registry, and none is ever changed. Pure.

Entries carry a number one higher than the highest that their writer saw, so their order needs no clocks. Two writers at
once give one number to two entries; both stay, and everybody orders them alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

ARTIFACT_TYPE = "application/vnd.spark-images.move.v1+json"
TAG = re.compile(r"history-(\d{6})-[0-9a-f]{12}")


class Kind(Enum):
    """Why tags moved."""

    PROMOTE = "promote"
    ROLLBACK = "rollback"


@dataclass(frozen=True, kw_only=True)
class Move:
    """Tags that moved together, to one image."""

    number: int
    kind: Kind
    when: datetime  # UTC, by the clock of whoever moved them; for people
    target: str  # the tag that follows the target, of other bases than its first with the base: `gb10`, `gb10-ngc`
    version: str
    plan_id: str
    digest: str  # of the image; a tag may name an index that holds it
    left: str  # the image that the target's tag named before, "" for none
    tags: tuple[tuple[str, str], ...]  # tag -> digest that it named afterwards
    because: str = ""
    key: str = field(default="", compare=False)  # its tag in the registry, which orders entries of one number

    def document(self) -> dict[str, Any]:
        """As it is stored."""
        return {
            "schema": 1,
            "number": self.number,
            "kind": self.kind.value,
            "when": self.when.isoformat(timespec="seconds"),
            "target": self.target,
            "version": self.version,
            "plan_id": self.plan_id,
            "digest": self.digest,
            "left": self.left,
            "tags": dict(self.tags),
            "because": self.because,
        }


def read_move(data: Any, key: str) -> Move | None:
    """The move in a stored document; None for a later version's."""
    try:
        return Move(
            number=int(data["number"]),
            kind=Kind(data["kind"]),
            when=datetime.fromisoformat(data["when"]),
            target=str(data["target"]),
            version=str(data["version"]),
            plan_id=str(data["plan_id"]),
            digest=str(data["digest"]),
            left=str(data["left"]),
            tags=tuple(sorted((str(tag), str(digest)) for tag, digest in data["tags"].items())),
            because=str(data.get("because", "")),
            key=key,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def in_order(moves: Iterable[Move]) -> tuple[Move, ...]:
    """Oldest first, the same on every machine."""
    return tuple(sorted(moves, key=lambda move: (move.number, move.key)))


def pointed_to(moves: Sequence[Move], tag: str) -> tuple[str, ...]:
    """The digests that a tag named, oldest first, each move once."""
    return tuple(dict(move.tags)[tag] for move in in_order(moves) if tag in dict(move.tags))


def last_good(moves: Sequence[Move], target: str, current: str) -> Move | None:
    """The promotion to go back to from `current`: the newest of the target to an image that nobody went back from.

    None where there is none. Going back twice goes further back; an image that was promoted again after it had been
    left counts as good again. Another form of the same plan is no other image.
    """
    plans = {move.digest: move.plan_id for move in moves}
    candidates: list[Move] = []  # newest last, each image once
    for move in in_order(moves):
        if move.target != target:
            continue
        if move.kind is Kind.ROLLBACK:
            candidates = [good for good in candidates if good.plan_id != plans.get(move.left)]
        else:
            candidates = [good for good in candidates if good.plan_id != move.plan_id] + [move]
    before: list[Move] = []
    for candidate in candidates:
        if candidate.plan_id == plans.get(current):
            break
        before.append(candidate)
    else:
        before = candidates
    return before[-1] if before else None

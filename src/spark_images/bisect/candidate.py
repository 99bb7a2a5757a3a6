"""A candidate: one state of the pins to try, and what else decides what is tried."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from spark_images.project import PARTS
from spark_images.repin import Move


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One state to try. key: tells it from all others of its search, also tomorrow. made: changes, of a set's state."""

    key: str
    label: str
    moves: tuple[Move, ...] = ()
    made: frozenset[str] = frozenset()
    missing: str = ""  # why it cannot be had, where that is known beforehand
    anew: bool = False  # whatever earlier runs have told: the check is run once more
    reference: str = ""  # of an image in a registry, where that is what is tried


def digest_of_project(root: Path) -> str:
    """`sha256` over all that decides what a candidate is, but for the pins that it moves."""
    files = [root / "pins.yaml", *(path for part in PARTS for path in (root / part).rglob("*") if path.is_file())]
    seen = hashlib.sha256()
    for path in sorted(path for path in files if "__pycache__" not in path.parts):
        seen.update(f"{path.relative_to(root)}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return seen.hexdigest()

"""The story of a run goes to stderr; stdout is for data."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TextIO


def tell(*lines: str) -> None:
    """Say it at once, whatever stderr is."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def is_live(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether somebody watches who can be shown a line that changes. env: CI and TERM are looked at."""
    return stream.isatty() and not env.get("CI") and env.get("TERM", "dumb") != "dumb"

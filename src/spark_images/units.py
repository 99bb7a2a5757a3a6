"""Sizes and durations as people read them."""

from __future__ import annotations

import re

from spark_images.errors import UsageError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40


def format_size(size_bytes: int) -> str:
    """`47.9 GiB`, `48 GiB`, `512 MiB`, `3 KiB`, `17 bytes`: at most one decimal, none where it says nothing."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f}".removesuffix(".0") + f" {unit}"
    return f"{size_bytes} bytes"


def format_duration(seconds: float) -> str:
    """`0:07`, `30:08`, `1:02:03`: whole seconds, rounded down."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def parse_duration(text: str) -> float:
    """Seconds in `8h`, `90m` or `30s`; UsageError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([hms])", text)
    if found is None:
        raise UsageError(f"`{text}` is no time", hint="write it as `8h`, `90m` or `30s`")
    return float(found[1]) * {"h": 3600, "m": 60, "s": 1}[found[2]]

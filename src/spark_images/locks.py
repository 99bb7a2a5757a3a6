"""Lock files: the exact wheels and .debs behind a pin, and what they were resolved from."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import assert_never

from .pins import DebsPin, WheelsPin


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """One wheel file on a package index."""

    project: str
    version: str
    filename: str
    platform: str  # "linux/amd64", "linux/arm64" or "any"
    sha256: str  # 64 hex digits
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class WheelsLock:
    """The wheels behind one WheelsPin. made_from: digest of the pin's platforms and packages."""

    path: str
    made_from: str
    wheels: tuple[LockedWheel, ...]


@dataclass(frozen=True, kw_only=True)
class LockedDeb:
    """One Debian package file. archive: `debian` or `debian-security`; path: below the archive's root (`pool/…`)."""

    package: str
    version: str
    arch: str  # "amd64", "arm64" or "all"
    archive: str
    path: str
    sha256: str
    size_bytes: int
    sets: tuple[str, ...]  # "<set>/<arch>" it was resolved for, e.g. "runtime/arm64"


@dataclass(frozen=True, kw_only=True)
class DebsLock:
    """The packages behind one DebsPin. made_from: digest of the pin's suite, snapshot and sets."""

    path: str
    made_from: str
    debs: tuple[LockedDeb, ...]


def made_from(pin: WheelsPin | DebsPin) -> str:
    """`sha256:…` over all that a lock is resolved from; the order in which the pin lists things does not count."""
    match pin:
        case WheelsPin():
            source: dict[str, object] = {"platforms": sorted(pin.platforms), "packages": sorted(pin.packages)}
        case DebsPin():
            sets = {s.name: {"packages": sorted(s.packages), "arches": sorted(s.arches)} for s in pin.sets}
            source = {"suite": pin.suite, "snapshot": pin.snapshot.isoformat(), "sets": sets}
        case _:
            assert_never(pin)
    canonical = json.dumps(source, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

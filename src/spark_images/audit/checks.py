"""What a check is: an id, how grave a finding is, why it is looked for and who says so. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from spark_images.audit.facts import Subject


class Severity(Enum):
    """What a finding means for the verdict."""

    FAIL = "fail"  # the image breaks, answers wrongly or gives something away
    WARN = "warn"  # somebody has to know


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must hold. find: what is found against it, a line each, with the path first where there is one."""

    id: str
    severity: Severity
    reason: str  # one line: what goes wrong otherwise
    source: str  # who says so
    find: Callable[[Subject], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found."""

    check: Check
    text: str


def check(
    id: str, severity: Severity, *, reason: str, source: str
) -> Callable[[Callable[[Subject], Iterable[str]]], Check]:
    """Make the decorated function a check; judge.py finds it in its module."""
    return lambda find: Check(id=id, severity=severity, reason=reason, source=source, find=find)

"""All checks, and what they find in a subject. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from spark_images.audit import contents, cuda, excuses, gpu, linking, python, settings
from spark_images.audit.checks import Check, Finding
from spark_images.audit.facts import Subject

MODULES = (gpu, linking, cuda, python, settings, contents, excuses)
CHECKS = tuple(one for module in MODULES for one in vars(module).values() if isinstance(one, Check))


def judge(subject: Subject, checks: Iterable[Check] = CHECKS) -> tuple[Finding, ...]:
    """Every finding, in the order of the checks."""
    return tuple(Finding(check=check, text=text) for check in checks for text in check.find(subject))

"""Checks of what image.yaml lets the audit pass. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from spark_images.audit.checks import Severity, check
from spark_images.audit.cuda import other_majors
from spark_images.audit.facts import Subject
from spark_images.audit.gpu import rows
from spark_images.audit.linking import unresolved
from spark_images.cuda_arch import Run


@check(
    "excuse.needless",
    Severity.WARN,
    reason="an excuse that covers nothing hides the day on which it should no longer be there",
    source="`audit.never-called` and `audit.brought` of image.yaml",
)
def needless(subject: Subject) -> Iterator[str]:
    needed = {name for file in subject.tree.values() if file.elf for name in file.elf.needed}
    yield from (f"{one.pattern}: nothing needs it" for one in subject.brought if one.pattern not in needed)
    if not subject.never_called:
        return
    wanting = {row.path for row in rows(subject) if row.run is Run.NOT}
    wanting |= {path for path, _, elsewhere in unresolved(subject) if not elsewhere}
    wanting |= {path for path, _, _ in other_majors(subject)}
    for one in subject.never_called:
        if not any(fnmatchcase(path, one.pattern) for path in wanting):
            there = any(fnmatchcase(path, one.pattern) for path in subject.tree)
            yield f"{one.pattern}: {'nothing is wrong there' if there else 'there is no such file'}"

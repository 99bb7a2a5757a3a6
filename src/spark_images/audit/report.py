"""What an audit prints: the table of GPU code, the findings, the verdict; and the same as JSON. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from spark_images.audit.checks import Check, Finding, Severity
from spark_images.audit.facts import Subject, excused
from spark_images.audit.gpu import Row, rows
from spark_images.cuda_arch import Run
from spark_images.units import format_size

SHOWN = 10  # findings of one check that are printed; all are in the JSON

_HEAD = ("library", "modules", "native", "by driver", "not", "code")


def table(subject: Subject) -> Iterator[str]:
    """The GPU code, a line for each library."""
    found = rows(subject)
    if not found:
        return
    cells = [_HEAD, *(_cells(subject, row) for row in found)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD) - 1)]
    yield f"GPU code for {subject.target.name} (compute capability {subject.gpu}):"
    for line in cells:
        numbers = (text.rjust(width) for text, width in zip(line[1:-1], widths[1:], strict=True))
        yield f"  {line[0].ljust(widths[0])}  {'  '.join(numbers)}  {line[-1]}"


def _cells(subject: Subject, row: Row) -> tuple[str, ...]:
    code = row.problem or " ".join(sorted({str(code) for code in row.codes}))
    if row.run is Run.NOT and excused(subject, row.path):
        code += " (never called)"
    return (row.path, str(row.modules.total()), *(str(row.modules[run]) for run in Run), code)


def findings_text(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings by check, failures first; of many the first ones."""
    by_check: dict[str, list[Finding]] = defaultdict(list)
    for finding in sorted(findings, key=lambda one: one.check.severity is not Severity.FAIL):
        by_check[finding.check.id].append(finding)
    for several in by_check.values():
        check = several[0].check
        yield f"{check.severity.value}: {check.id}: {check.reason}"
        yield from (f"    {finding.text}" for finding in several[:SHOWN])
        if len(several) > SHOWN:
            yield f"    and {len(several) - SHOWN} more (`--json` has them all)"


def summary(*, files: int, size_bytes: int, seconds: float) -> str:
    """What was read and how fast."""
    rate = size_bytes / 1e9 / max(seconds, 1e-9)
    return f"read {files} files, {format_size(size_bytes)} in {seconds:.1f} s: {rate:.2f} GB/s"


def listed(checks: Sequence[Check]) -> Iterator[str]:
    """Every check, as `--list` prints them."""
    width = max(len(check.id) for check in checks)
    for check in checks:
        yield f"{check.id.ljust(width)}  {check.severity.value}  {check.reason} ({check.source})"


def document(
    subject: Subject, findings: Sequence[Finding], *, files: int, size_bytes: int, seconds: float
) -> dict[str, Any]:
    """All of it as JSON-able data. verdict: `failed` where something must not be, else `passed`."""
    failed = any(finding.check.severity is Severity.FAIL for finding in findings)
    return {
        "schema": 1,
        "subject": subject.name,
        "target": subject.target.name,
        "verdict": "failed" if failed else "passed",
        "files": files,
        "bytes": size_bytes,
        "seconds": round(seconds, 3),
        "python-files-compiled": subject.sources.read,
        "gpu": [
            {
                "path": row.path,
                "run": row.run.value,
                "modules": {run.value: row.modules[run] for run in Run},
                "code": {str(code): count for code, count in sorted(row.codes.items(), key=lambda one: str(one[0]))},
                "ptx-bytes": row.ptx_bytes,
                **({"problem": row.problem} if row.problem else {}),
            }
            for row in rows(subject)
        ],
        "findings": [
            {"check": finding.check.id, "severity": finding.check.severity.value, "text": finding.text}
            for finding in findings
        ],
    }

"""From the log of a failed build to the error that a person reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.diagnose import Kind, first_error
from spark_images.errors import (
    BuildError,
    DiskFullError,
    EngineError,
    IsolationError,
    OutOfMemoryError,
    SparkImagesError,
)
from spark_images.units import MIB, format_size

if TYPE_CHECKING:
    from spark_images.buildlog import Step


def failure(
    image: str, *, log: Path, steps: tuple[Step, ...], jobs: int, memory_bytes: int | None
) -> SparkImagesError:
    """What went wrong, as the error to raise: the first real error of the log, where it stands, and what to do."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = first_error(lines)
    place = f" in stage `{found.stage}`" if found.stage else ""
    place += f" (step {found.number} of {found.count})" if found.count else ""
    step = next((step for step in steps if step.name == found.step), None)
    facts = list(found.excerpt)
    if found.file:
        facts.append(f"while working on `{found.file}`")
    facts.append(f"log: {log} line {found.line_number}")
    what = f"build of `{image}` {found.kind.value}{place}"
    match found.kind:
        case Kind.OUT_OF_MEMORY:
            cap = format_size(memory_bytes) if memory_bytes else "the host's memory"
            peak = format_size(step.peak_mib * MIB) if step else "an unknown part"
            facts.insert(0, f"peak {peak} of {cap} with {jobs} jobs")
            return OutOfMemoryError(
                what, why=facts, hint="give it more with `--memory SIZE`, or raise gib-per-job in image.yaml"
            )
        case Kind.NOT_ISOLATED | Kind.CAP_NOT_PROVED:
            return IsolationError(
                what, why=facts, hint="see `nox -s doctor`; `--no-memory-limit` builds without a cap and risks the host"
            )
        case Kind.DISK_FULL:
            return DiskFullError(what, why=facts, hint="make room with `nox -s prune` and `nox -s clean`")
        case Kind.ENGINE:
            return EngineError(what, why=facts, hint="`nox -s doctor` checks the engine")
        case Kind.NETWORK:
            return BuildError(
                what, why=facts, hint="builds have no network: pin what it wants and mount it as an input"
            )
        case _:
            return BuildError(
                what, why=facts, hint="the whole log is in the file above; replay.sh beside it runs the engine again"
            )

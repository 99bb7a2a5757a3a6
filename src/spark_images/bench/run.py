"""The pipeline's own speed against what docs/measured.md promises."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.bench import compiling, data, memory, pulling, remote_cache, replay, tree
from spark_images.bench.base import HEADING, IMAGE, Bench, Measured, NotMeasured, Promise, Row, Subject, Verdict
from spark_images.errors import CheckError, InterruptedByUser, SparkImagesError, UsageError
from spark_images.process import Captured, capture

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.project import Project

RUNS = 5  # of a whole process; the median counts


def bench(project: Project, *, cache: Cache, names: Sequence[str], engine: str | None = None) -> None:
    """Measure and print a row for each bench of these names, or for all that can run here.

    Raises UsageError for an unknown name; CheckError where a promise is not met, and where a bench that was asked for
    by name could not be measured.
    """
    chosen = choose(names)
    print(f"machine: {machine()}")
    print(HEADING)
    subject = Subject(project=project, cache=cache, engine=engine)
    rows = []
    for one in chosen:
        rows.append(measure(one, subject))
        print("\n".join(rows[-1].lines()), flush=True)
    broken = [row for row in rows if fails(row, named=bool(names))]
    if broken:
        raise CheckError(
            f"{len(broken)} of {len(rows)} promises of speed are not kept",
            why=[f"{row.bench.name}: {row.verdict.value}" for row in broken],
        )


def choose(names: Sequence[str]) -> tuple[Bench, ...]:
    """The benches of these names, in the order of BENCHES; all of them for no names."""
    from spark_images.errors import nearest

    known = [one.name for one in BENCHES]
    for name in names:
        if name not in known:
            raise UsageError(f"no bench `{name}`{nearest(name, known)}", hint=f"known: {', '.join(known)}")
    return tuple(one for one in BENCHES if not names or one.name in names)


def measure(one: Bench, subject: Subject) -> Row:
    """Run one bench; what goes wrong in it becomes its row, so that the others still run."""
    before = os.getloadavg()[0]
    try:
        measured = one.measure(subject)
    except NotMeasured as reason:
        return Row(bench=one, verdict=Verdict.UNKNOWN, facts=(str(reason),))
    except InterruptedByUser:
        raise
    except SparkImagesError as err:
        return Row(bench=one, verdict=Verdict.FAILED, facts=tuple(err.render().splitlines()))
    load = f"load of the machine {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    verdict = one.promise.judge(measured.value)
    return Row(bench=one, verdict=verdict, value=measured.value, facts=(*measured.facts, load))


def fails(row: Row, *, named: bool) -> bool:
    """Whether the row is a reason to exit with an error. What cannot be measured is one only where it was asked for."""
    return row.verdict in (Verdict.MISSED, Verdict.FAILED) or (named and row.verdict is Verdict.UNKNOWN)


def machine() -> str:
    """`16 x AMD EPYC, x86_64, Linux 6.18`: what the numbers were measured on."""
    described = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    # arm64 kernels name no model, only numbers.
    model = next((value.strip() for key, _, value in described if key.strip() == "model name"), "processor")
    return f"{len(os.sched_getaffinity(0))} x {model}, {platform.machine()}, Linux {platform.release()}"


def unchanged(subject: Subject) -> Measured:
    """Whole-process wall time of building what is built."""
    subject.require_built()
    command = [str(subject.project.root / "noxw"), "-s", f"build-{IMAGE}"]
    if subject.engine:
        command += ["--", "--engine", subject.engine]
    first, _ = timed(command, cwd=subject.project.root)  # makes .venv and loads the image where that is still to do
    if "is built already" not in first.stderr + first.stdout.decode():
        raise CheckError(
            f"`noxw -s build-{IMAGE}` does not say that it is built already", why=first.stderr.splitlines()
        )
    return median_of(command, cwd=subject.project.root)


def render(subject: Subject) -> Measured:
    """Whole-process wall time of rendering every image."""
    command = [sys.executable, "-m", "spark_images", "render", "--check"]
    return median_of(command, cwd=subject.project.root)


def median_of(command: Sequence[str], *, cwd: Path) -> Measured:
    """Median of RUNS wall times of the whole process, in seconds."""
    times = sorted(timed(command, cwd=cwd)[1] for _ in range(RUNS))
    return Measured(
        value=statistics.median(times), facts=(f"median of {' '.join(f'{seconds:.2f}' for seconds in times)} s",)
    )


def timed(command: Sequence[str], *, cwd: Path) -> tuple[Captured, float]:
    """Run it; seconds of wall time. CheckError where it fails."""
    began = time.monotonic()
    done = capture(command, cwd=cwd)
    seconds = time.monotonic() - began
    if done.status != 0:
        raise CheckError(f"`{' '.join(command)}` ended with {done.status}", why=done.stderr.splitlines()[-5:])
    return done, seconds


BENCHES = (
    Bench(name="unchanged", promise=Promise(bound=1.5, unit="s", at_most=True), measure=unchanged),
    Bench(name="render", promise=Promise(bound=1, unit="s", at_most=True), measure=render),
    Bench(name="canonical", promise=Promise(bound=150, unit="MB/s per core", at_most=False), measure=data.canonical),
    Bench(name="fetch", promise=Promise(bound=0.8, unit="of curl's", at_most=False), measure=data.fetching),
    Bench(name="pull", promise=Promise(bound=1, unit="times", at_most=False), measure=pulling.pull),
    Bench(name="cross", promise=Promise(bound=5, unit="times", at_most=False), measure=compiling.cross),
    Bench(name="warm", promise=Promise(bound=8, unit="times", at_most=False), measure=compiling.warm),
    Bench(
        name="remote-cache",
        promise=Promise(bound=3, unit="times", at_most=False),
        measure=remote_cache.remote_cache,
    ),
    Bench(name="memory", promise=Promise(bound=1.3, unit="times", at_most=False), measure=memory.memory),
    Bench(name="tree", promise=Promise(bound=1, unit="lost", at_most=True), measure=tree.tree),
    Bench(name="replay", promise=Promise(bound=1.15, unit="of the bound", at_most=True), measure=replay.replay),
)  # quick ones first

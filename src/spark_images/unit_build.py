"""Compile a few objects of a project's real build through the pipeline, and look at what came out."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.buildlog import UnitMeasured
from spark_images.cuda_arch import Capability, parse_arch
from spark_images.errors import CheckError
from spark_images.platforms import MACHINES
from spark_images.terminal import tell

if TYPE_CHECKING:
    from spark_images.allowance import Allowance
    from spark_images.cache import Cache
    from spark_images.compat.facts import Facts
    from spark_images.engine.base import Engine
    from spark_images.images import Image
    from spark_images.plan import Plan
    from spark_images.project import Project
    from spark_images.record import RecordView, RecordWriter
    from spark_images.sources import SourcesLock
    from spark_images.store import Store
    from spark_images.targets import Target
    from spark_images.unit_objects import CompiledUnit


@dataclass(frozen=True, kw_only=True)
class UnitOptions:
    """What the user may choose; the objects are the same whatever it is, but for all_kernels."""

    engine: str | None = None
    memory_bytes: int | None = None
    cold: bool = False  # without the compile cache
    twice: bool = False  # cold as well, and compare
    all_kernels: bool = False


def compile_units(
    project: Project,
    image: Image,
    target: Target,
    globs: Sequence[str],
    *,
    cache: Cache,
    options: UnitOptions,
) -> tuple[CompiledUnit, ...]:
    """Fetch, compile, check. Raises what build_units raises, and CheckError where a second time gives other bytes."""
    from spark_images.allowance import GATE, allow_compile
    from spark_images.compat.file import read_facts
    from spark_images.engine import able_engine, choose_engine
    from spark_images.fetch import fetch
    from spark_images.patches import require_patches_apply
    from spark_images.record import read_records
    from spark_images.store import Store
    from spark_images.unit_objects import differing
    from spark_images.unit_plan import lacking
    from spark_images.verify import inspect_program

    facts = read_facts(project.root / "images" / "compat.yaml")
    sources = sources_of(project, image)
    plan = plan_of(project, image, target, globs, facts=facts, sources=sources, all_kernels=options.all_kernels)
    engine = choose_engine(
        options.engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ
    )
    engine = able_engine(engine, named=options.engine is not None, cache=cache, env=os.environ)
    records, store = read_records(cache.records), Store(cache.store)
    allowance = allow_compile(
        project.root / "images" / image.name, target, plan, records,
        gib_per_job=image.compile.gib_per_job, gated=GATE in image.scripts,
        asked_bytes=options.memory_bytes, limit=True, env=os.environ,
    )  # fmt: skip
    tell(f"units of {image.name} for {target.name}: {' '.join(globs)}", *(f"  {line}" for line in allowance.lines()))
    if out := lacking(sources) if sources else ():
        tell(f"  not there, and their units with them: {', '.join(out)}; an image is not built without them")
    fetch(plan.contents, store=store)
    require_patches_apply(plan, project.root, store=store, cache=cache)
    cuobjdump = inspect_program(project, cache)
    if cuobjdump is None:
        raise CheckError("without a pin `cuda-inspect` nobody can say what the objects hold")
    runs = [
        build_units(
            plan, allowance=allowance, records=records, engine=engine, store=store, cache=cache,
            root=project.root, cuobjdump=cuobjdump,
            gpu=parse_arch(target.compute_capability).capability, cold=options.cold or options.twice,
        )
        for _ in range(2 if options.twice else 1)
    ]  # fmt: skip
    if options.twice and (others := differing(runs[0], runs[1])):
        raise CheckError(f"{len(others)} of {len(runs[0])} objects came out differently the second time", why=others)
    return runs[0]


def plan_of(
    project: Project,
    image: Image,
    target: Target,
    globs: Sequence[str],
    *,
    facts: Facts,
    sources: SourcesLock | None,
    all_kernels: bool,
) -> Plan:
    """The plan of today's pins and scripts, for this machine's compilers."""
    from spark_images.patches import require_frozen
    from spark_images.project import host_platform
    from spark_images.unit_plan import plan_units

    scripts = project.root / "scripts"
    plan = plan_units(
        image,
        target,
        globs,
        builder=host_platform(),
        pins=project.pins,
        facts=facts,
        wheels={use.pin: project.wheels_lock(use.pin) for use in image.compile.wheels},
        debs=project.debs_lock,
        sources=sources,
        scripts={name: hashlib.sha256((scripts / name).read_bytes()).hexdigest() for name in image.scripts},
        all_kernels=all_kernels,
    )
    require_frozen(plan, project.root)
    return plan


def sources_of(project: Project, image: Image) -> SourcesLock | None:
    """What the sdist's build would fetch; None for one that fetches nothing."""
    from spark_images.unit_plan import sdist_of

    pin = sdist_of(image, project.pins)
    return project.sources_lock(pin.name) if pin.lock else None


def build_units(
    plan: Plan,
    *,
    allowance: Allowance,
    records: Sequence[RecordView],
    engine: Engine,
    store: Store,
    cache: Cache,
    root: Path,
    cuobjdump: Path,
    gpu: Capability,
    cold: bool,
) -> tuple[CompiledUnit, ...]:
    """Run the plan under the cap with the network off, and check each object.

    Leaves a record, whose measured units the next build of the image plans with. Raises what a build raises, and
    CheckError for an object of another machine or one whose GPU code does not run on `gpu`.
    """
    from spark_images.oci import read_layout
    from spark_images.record import Outcome, RecordWriter, Result
    from spark_images.unit_objects import look_at_objects
    from spark_images.workfolder import work_folder

    began = time.monotonic()
    record = RecordWriter.start(
        cache.records,
        plan_id=plan.plan_id,
        image=plan.image,
        target=plan.target,
        base=plan.base,
        plan=plan.document(),
        command=sys.argv,
        engine=engine.facts(),
        host=allowance.document(),
        now=datetime.now(UTC),
    )
    measured: dict[str, UnitMeasured] = {}
    with record, work_folder(cache, plan.image) as work:
        raw = work / "raw"
        _run(plan, record, records, engine, work, raw, measured, allowance, store, cache, root, cold=cold)
        units = look_at_objects(
            read_layout(raw), work, measured,
            of=f"{plan.image} for {plan.target}", machine=MACHINES[plan.platform.removeprefix("linux/")],
            cuobjdump=cuobjdump, gpu=gpu,
        )  # fmt: skip
        record.finish(Result(outcome=Outcome.BUILT, seconds=time.monotonic() - began, steps=record.reader.steps))
    return units


def _run(
    plan: Plan,
    record: RecordWriter,
    records: Sequence[RecordView],
    engine: Engine,
    work: Path,
    raw: Path,
    measured: dict[str, UnitMeasured],
    allowance: Allowance,
    store: Store,
    cache: Cache,
    root: Path,
    *,
    cold: bool,
) -> None:
    """Have the engine fill `raw`, and `measured` with what the gate says. Raises BuildError and its kind."""
    from spark_images.build import root_image
    from spark_images.diagnose import build_error, first_error
    from spark_images.engine.base import BuildRequest
    from spark_images.engine.hostwatch import HostWatch
    from spark_images.progress import Progress
    from spark_images.record import append_to_record, expected_seconds
    from spark_images.staging import stage, stage_inputs

    progress = Progress(
        sys.stderr,
        env=os.environ,
        clock=time.monotonic,
        expected_s=lambda step: expected_seconds(records, plan.image, step),
    )
    staged = stage(
        plan,
        record.folder / "build",
        root=root,
        jobs=allowance.jobs,
        memory_bytes=allowance.memory_bytes,
        gib_per_job=allowance.gib_per_job,
        profile=allowance.profile.text,
        cold=cold,
    )
    request = BuildRequest(
        dockerfile=staged.dockerfile,
        context=staged.scripts,
        contexts=(("inputs", stage_inputs(plan, work / "inputs", store)),),
        roots=tuple(root_image(one, plan, store, cache) for one in plan.roots),
        secrets=staged.secrets,
        memory_bytes=allowance.memory_bytes,
        use_cache=False,
        output=raw,
        attempt=record.id,
    )

    def on_line(line: str) -> None:
        event = record.line(line)
        if isinstance(event, UnitMeasured):
            measured[event.unit] = event
        progress.feed(event)

    def say(line: str) -> None:
        record.line(line)
        progress.say(line)

    watch = HostWatch(allowance.floor, say)
    try:
        with progress:
            outcome = engine.build(request, on_line, watch)
    finally:
        append_to_record(record.folder, "host-memory", watch.document())
    if outcome.status != 0:
        with record.log.open(encoding="utf-8", errors="replace") as lines:
            found = first_error(lines)
        record.diagnosis = found.document()
        step = next((step for step in record.reader.steps if step.name == found.step), None)
        raise build_error(found, image=plan.image, log=str(record.log), step=step)

"""Compile a few objects of a project's real build through the pipeline, and look at what came out."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.cuda_arch import Capability, parse_arch
from spark_images.errors import CheckError
from spark_images.platforms import MACHINES
from spark_images.terminal import tell

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.engine_run import EngineRun
    from spark_images.images import Image
    from spark_images.plan import Plan
    from spark_images.project import Project
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
    """Fetch, compile, check.

    Raises what a build raises, and CheckError for an object of another machine, one whose GPU code does not run on the
    target's GPU, and where a second time gives other bytes.
    """
    from spark_images.cuobjdump import cuobjdump_of
    from spark_images.engine import choose_engine
    from spark_images.engine_run import EngineRun
    from spark_images.unit_objects import differing
    from spark_images.unit_plan import lacking

    plan = _plan_of(project, image, target, globs, all_kernels=options.all_kernels)
    engine = choose_engine(
        options.engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ
    )
    run = EngineRun.prepare(
        project,
        image,
        target,
        plan,
        engine=engine,
        named=options.engine is not None,
        memory_bytes=options.memory_bytes,
        limit_memory=True,
        cache=cache,
    )
    limits = (f"  {line}" for line in run.allowance.lines())
    tell(f"units of {image.name} for {target.name}: {' '.join(globs)}", *limits)
    if (sources := project.sources_of(image)) and (out := lacking(sources)):
        tell(f"  not there, and their units with them: {', '.join(out)}; an image is not built without them")
    run.fetch_inputs()
    cuobjdump = cuobjdump_of(project, cache)
    if cuobjdump is None:
        raise CheckError("without a pin `cuda-inspect` nobody can say what the objects hold")
    gpu, cold = parse_arch(target.compute_capability).capability, options.cold or options.twice
    runs = [_build_units(run, cuobjdump=cuobjdump, gpu=gpu, cold=cold) for _ in range(2 if options.twice else 1)]
    if options.twice and (others := differing(runs[0], runs[1])):
        raise CheckError(f"{len(others)} of {len(runs[0])} objects came out differently the second time", why=others)
    return runs[0]


def _plan_of(project: Project, image: Image, target: Target, globs: Sequence[str], *, all_kernels: bool) -> Plan:
    """The plan of today's pins and scripts, for this machine's compilers."""
    from spark_images.host import host_platform
    from spark_images.patches import require_frozen
    from spark_images.unit_plan import plan_units

    plan = plan_units(
        image,
        target,
        globs,
        builder=host_platform(),
        pins=project.pins,
        facts=project.required_facts,
        wheels={use.pin: project.wheels_lock(use.pin) for use in image.compile.wheels},
        debs=project.debs_lock,
        sources=project.sources_of(image),
        scripts=project.script_digests(image),
        all_kernels=all_kernels,
    )
    require_frozen(plan, project.root)
    return plan


def _build_units(run: EngineRun, *, cuobjdump: Path, gpu: Capability, cold: bool) -> tuple[CompiledUnit, ...]:
    """Run the plan under the cap with the network off, and check each object.

    Leaves a record, whose measured units the next build of the image plans with.
    """
    from spark_images.oci import read_layout
    from spark_images.record import Outcome, Result, read_units
    from spark_images.unit_objects import look_at_objects
    from spark_images.workfolder import work_folder

    plan = run.plan
    with run.begin() as record, work_folder(run.cache, plan.image) as work:
        began = time.monotonic()
        raw = run.carry_out(record, run.roots(), work, use_cache=not cold, cold=cold, rebuild=True)
        units = look_at_objects(
            read_layout(raw),
            work,
            {one.unit: one for one in read_units(record.folder)},
            of=f"{plan.image} for {plan.target}",
            machine=MACHINES[plan.platform.removeprefix("linux/")],
            cuobjdump=cuobjdump,
            gpu=gpu,
        )
        record.finish(Result(outcome=Outcome.BUILT, seconds=time.monotonic() - began, steps=record.reader.steps))
    return units

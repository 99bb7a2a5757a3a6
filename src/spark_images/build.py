"""From a plan to a canonical image: fetch, build under a cap with the network off, re-write, load, record."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.errors import CanonicalError
from spark_images.imageconfig import PLAN_LABEL, standing_on
from spark_images.images import Image
from spark_images.plan import Plan
from spark_images.plan_changes import differences
from spark_images.project import Project
from spark_images.targets import Target
from spark_images.terminal import tell, working

if TYPE_CHECKING:
    from spark_images.engine.base import Engine
    from spark_images.oci import Layout
    from spark_images.record import RecordView


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What the user may choose; none of it changes the image."""

    engine: str | None = None
    memory_bytes: int | None = None  # the cap; None: what the host can spare
    limit_memory: bool = True
    rebuild: bool = False  # run the steps although the image is there, and compare digests
    cold: bool = False  # as rebuild, and without the compile cache
    machine: str = ""  # a name that the host's takes in the steps, and in the paths of what they are given


def build(project: Project, image: Image, target: Target, base: str, *, cache: Cache, options: BuildOptions) -> Layout:
    """Build one variant, or find that it is built already; either way the engine holds it afterwards.

    Returns the canonical layout in cache.images/<plan_id>. Raises BuildError, OutOfMemoryError, IsolationError,
    CanonicalError (also when a rebuild gives another digest than the one that is there), and what fetching raises.
    """
    from spark_images.engine import choose_engine

    require_buildable(project, image, target, base, cache=cache)
    engine = choose_engine(
        options.engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ
    )
    return _build(project, image.on(base), target, base, engine, cache=cache, options=options)


def require_buildable(project: Project, image: Image, target: Target, base: str, *, cache: Cache) -> None:
    """Raise what is known to speak against the image or a component, before anything is fetched or compiled for either.

    The image's own patches are tried where their source was fetched before.
    """
    from spark_images.patches import require_patches_apply
    from spark_images.store import Store

    plan = project.plan(image, target, base)  # with those of its components
    _require_trees(project, image.on(base), base)
    if not (cache.images / plan.plan_id).exists():
        require_patches_apply(plan, project.root, store=Store(cache.store), cache=cache)


def _require_trees(project: Project, image: Image, base: str) -> None:
    if sources := project.sources_of(image):
        sources.require_trees()
    for component in project.components(image):
        _require_trees(project, component.on(base), base)


def _build(
    project: Project, image: Image, target: Target, base: str, engine: Engine, *, cache: Cache, options: BuildOptions
) -> Layout:
    from spark_images.built import load_into, only_build_of
    from spark_images.oci import read_layout
    from spark_images.registry.reuse import reuse

    for component in project.components(image):
        _build(
            project, component.on(base), target, base, engine,
            cache=cache, options=replace(options, rebuild=False, cold=False),
        )  # fmt: skip
    plan = project.plan(image, target, base)
    with only_build_of(plan, cache):
        place, again = cache.images / plan.plan_id, options.rebuild or options.cold
        if place.exists() and not again:
            layout = read_layout(place)
            tell(f"{plan.title} is built already: nothing that its plan names has changed")
        elif not again and reuse(plan, cache=cache, env=os.environ):
            layout = read_layout(place)
        else:
            layout = _attempt(project, image, target, plan, engine, cache=cache, options=options)
        reference = load_into(engine, layout, image=plan.image, plan_id=plan.plan_id)
    tell(
        f"  plan    {plan.plan_id}",
        f"  digest  {layout.manifest_digest}",
        f"  layout  {layout.path}",
        f"  {engine.name:7} {reference}",
    )
    return layout


def explain(project: Project, image: Image, target: Target, base: str, *, cache: Cache) -> None:
    """Say on stdout whether a build would do anything, and what differs from the last one that succeeded."""
    from spark_images.record import read_records

    plan = project.plan(image, target, base)
    if (cache.images / plan.plan_id).exists():
        print(
            f"{plan.title}: built already as plan {plan.plan_id[:12]}; a build would only make sure that it is loaded"
        )
        return
    print(f"{plan.title}: a build would make plan {plan.plan_id[:12]}, because")
    for reason in _reasons(plan, read_records(cache.records), there=False):
        print(f"  {reason}")


def _attempt(
    project: Project, image: Image, target: Target, plan: Plan, engine: Engine, *, cache: Cache, options: BuildOptions
) -> Layout:
    from spark_images.compile_cache.share import SharedCompileCache
    from spark_images.engine_run import EngineRun
    from spark_images.oci import read_layout
    from spark_images.record import LayerRecord, Outcome, Result
    from spark_images.workfolder import work_folder

    shared = SharedCompileCache.from_env(plan, cold=options.cold)
    run = EngineRun.prepare(
        project,
        image,
        target,
        plan,
        engine=engine,
        named=options.engine is not None,
        memory_bytes=options.memory_bytes,
        limit_memory=options.limit_memory,
        cache=cache,
    )
    facts = run.facts
    tell(
        f"{plan.title}: plan {plan.plan_id[:12]}, because",
        *(f"  {reason}" for reason in _reasons(plan, run.records, there=(cache.images / plan.plan_id).exists())),
        *(f"  {remark}" for remark in plan.remarks),
        f"  engine  {facts.name} {facts.version}, {facts.builder}, {facts.runtime}, cgroup {facts.cgroup}",
        *(f"  {line}" for line in run.allowance.lines()),
    )
    run.fetch_inputs()
    with run.begin() as record:
        began = time.monotonic()
        roots = {root.name: root for root in run.roots()}
        with work_folder(cache, plan.image) as work:
            raw = run.carry_out(
                record,
                tuple(roots.values()),
                work,
                use_cache=not options.cold,
                cold=options.cold,
                rebuild=options.rebuild,
                machine=options.machine,
                shared=shared,
            )
            layout = _place(plan, raw, read_layout(roots["runtime-root"].layout), cache)
        record.finish(
            Result(
                outcome=Outcome.BUILT,
                seconds=time.monotonic() - began,
                steps=record.reader.steps,
                digest=layout.manifest_digest,
                layers=tuple(
                    LayerRecord(what=layer.created_by, digest=layer.digest, size_bytes=layer.size_bytes)
                    for layer in layout.layers
                ),
            )
        )
    return layout


def _place(plan: Plan, raw: Path, base: Layout, cache: Cache) -> Layout:
    """Write the canonical layout. One that is there must have the same digest, or both are kept and compared."""
    from spark_images.canonical import write_canonical
    from spark_images.imagediff import layout_differences
    from spark_images.oci import read_layout
    from spark_images.workfolder import settle, work_folder

    place = cache.images / plan.plan_id
    with work_folder(cache, "canonical") as folder:
        config = replace(plan.config, labels=((PLAN_LABEL, plan.plan_id), *plan.config.labels))
        if plan.root("runtime-root").image:
            config = standing_on(config, base.config)
        with working(f"writing the canonical image of {plan.title}"):
            made = write_canonical(
                raw=raw,
                base=base,
                config=replace(config, labels=tuple(sorted(config.labels))),
                created_by=tuple(
                    line.strip()
                    for line in plan.dockerfile.splitlines()
                    if line.startswith("COPY --from=") or "/spark/scripts/step clear " in line
                ),
                output=folder / "layout",
            )
        if not place.exists():
            settle(made.path, place)
            return read_layout(place)
        there = read_layout(place)
        if there.manifest_digest == made.manifest_digest:
            tell(f"same digest as before: {made.manifest_digest}")
            return there
        kept = cache.images / f"{plan.plan_id}.differs-{made.manifest_digest[7:19]}"
        shutil.rmtree(kept, ignore_errors=True)
        made.path.rename(kept)
        raise CanonicalError(
            f"{plan.title} came out differently from the same plan {plan.plan_id[:12]}",
            why=(
                f"before: {there.manifest_digest} in {there.path}",
                f"now:    {made.manifest_digest} in {kept}",
                *layout_differences(there, read_layout(kept)),
            ),
            hint="something in the build is not determined by the plan; the files and sections above say where to look",
        )


def _reasons(plan: Plan, records: Sequence[RecordView], *, there: bool) -> tuple[str, ...]:
    """Why this plan is not the one that was built last, or is built again. there: its layout is."""
    from spark_images.record import last_built

    last = last_built(records, plan.image, plan.target, plan.base)
    if last is None:
        return ("it was never built here",)
    asked = "a rebuild was asked for" if there else "its layout is no more in the cache"
    return differences(last.plan, plan.document()) or (asked,)

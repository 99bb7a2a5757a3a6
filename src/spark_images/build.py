"""From a plan to a canonical image: fetch, build under a cap with the network off, re-write, load, record."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.errors import CanonicalError, UsageError
from spark_images.exclusive import alone, try_alone
from spark_images.imageconfig import PLAN_LABEL, standing_on
from spark_images.images import Image
from spark_images.plan import Plan, Root
from spark_images.plan_changes import differences
from spark_images.project import Project
from spark_images.tarform import FILE_TIME
from spark_images.targets import Target
from spark_images.terminal import tell

if TYPE_CHECKING:
    from spark_images.allowance import Allowance
    from spark_images.compile_cache.share import SharedCompileCache
    from spark_images.engine.base import Engine, RootImage
    from spark_images.oci import Layout
    from spark_images.record import RecordView, RecordWriter
    from spark_images.store import Store


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
    from spark_images.oci import read_layout
    from spark_images.registry.reuse import reuse

    for component in project.components(image.on(base)):
        build(project, component, target, base, cache=cache, options=replace(options, rebuild=False, cold=False))
    plan = project.plan(image, target, base)
    if sources := project.sources_of(image.on(base)):
        sources.require_trees()
    engine = choose_engine(
        options.engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ
    )
    with _only_one(plan, cache):
        place = cache.images / plan.plan_id
        if place.exists() and not (options.rebuild or options.cold):
            layout = read_layout(place)
            tell(f"{_title(plan)} is built already: nothing that its plan names has changed")
        elif not (options.rebuild or options.cold) and reuse(plan, cache=cache, env=os.environ):
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


def built_layout(plan: Plan, cache: Cache) -> Layout:
    """The image that was built from a plan; UsageError where it was not."""
    from spark_images.oci import read_layout

    place = cache.images / plan.plan_id
    if not place.exists():
        raise UsageError(f"`{plan.image}` is not built at these pins", hint=f"build it: `nox -s build-{plan.image}`")
    return read_layout(place)


def load_into(engine: Engine, layout: Layout, *, image: str, plan_id: str) -> str:
    """Make sure that the engine holds the image of a plan; the name under which it does."""
    reference = f"localhost/spark-images/{image}:{plan_id[:12]}"
    if engine.image_id(reference) != layout.config_digest:
        engine.load(layout.path, reference)
    return reference


def explain(project: Project, image: Image, target: Target, base: str, *, cache: Cache) -> None:
    """Say on stdout whether a build would do anything, and what differs from the last one that succeeded."""
    from spark_images.record import read_records

    plan = project.plan(image, target, base)
    if (cache.images / plan.plan_id).exists():
        print(
            f"{_title(plan)}: built already as plan {plan.plan_id[:12]}; a build would only make sure that it is loaded"
        )
        return
    print(f"{_title(plan)}: a build would make plan {plan.plan_id[:12]}, because")
    for reason in _reasons(plan, read_records(cache.records)):
        print(f"  {reason}")


def build_runs(cache: Cache) -> bool:
    """Whether any process is between the plan and the image of a build in this cache."""
    for path in cache.work.glob("*.lock"):
        with try_alone(path) as held:
            if not held:
                return True
    return False


def _attempt(
    project: Project, image: Image, target: Target, plan: Plan, engine: Engine, *, cache: Cache, options: BuildOptions
) -> Layout:
    from spark_images.allowance import allow
    from spark_images.compile_cache.share import SharedCompileCache
    from spark_images.engine import able_engine
    from spark_images.fetch import fetch
    from spark_images.patches import require_patches_apply
    from spark_images.pinned_image import fetch_image
    from spark_images.record import RecordWriter, read_records
    from spark_images.store import Store
    from spark_images.workfolder import remove_abandoned

    store = Store(cache.store)
    records = read_records(cache.records)
    shared = SharedCompileCache.from_env(plan, cold=options.cold)
    engine = able_engine(engine, named=options.engine is not None, cache=cache, env=os.environ)
    facts = engine.facts()
    for line in remove_abandoned(cache):
        tell(f"removed the {line}")
    allowance = allow(
        image,
        target,
        plan,
        records,
        asked_bytes=options.memory_bytes,
        limit=options.limit_memory,
        env=os.environ,
    )
    tell(
        f"{_title(plan)}: plan {plan.plan_id[:12]}, because",
        *(f"  {reason}" for reason in _reasons(plan, records)),
        *(f"  unverified pin {sentence}" for sentence in plan.unverified),
        f"  engine  {facts.name} {facts.version}, {facts.builder}, {facts.runtime}, cgroup {facts.cgroup}",
        *(f"  {line}" for line in allowance.lines()),
    )
    fetch(plan.contents, store=store)
    require_patches_apply(plan, project.root, store=store, cache=cache)
    for image_pin, platform in plan.images:
        fetch_image(image_pin, store=store, platform=platform)
    record = RecordWriter.start(
        cache.records,
        plan_id=plan.plan_id,
        image=plan.image,
        target=plan.target,
        base=plan.base,
        plan=plan.document(),
        command=sys.argv,
        engine=facts,
        host=allowance.document(),
        now=datetime.now(UTC),
    )
    with record:
        return _recorded(
            project,
            plan,
            engine,
            record,
            records,
            store=store,
            cache=cache,
            options=options,
            allowance=allowance,
            shared=shared,
        )


def _recorded(
    project: Project,
    plan: Plan,
    engine: Engine,
    record: RecordWriter,
    records: tuple[RecordView, ...],
    *,
    store: Store,
    cache: Cache,
    options: BuildOptions,
    allowance: Allowance,
    shared: SharedCompileCache | None,
) -> Layout:
    from spark_images.compile_cache.mount import Mount
    from spark_images.diagnose import build_error, first_error
    from spark_images.engine.base import BuildRequest
    from spark_images.engine.hostwatch import HostWatch
    from spark_images.oci import read_layout
    from spark_images.progress import Progress
    from spark_images.record import LayerRecord, Outcome, Result, append_to_record, expected_seconds
    from spark_images.staging import stage, stage_inputs, write_replay
    from spark_images.workfolder import work_folder

    began = time.monotonic()
    roots = {root.name: root_image(root, plan, store, cache) for root in plan.roots}
    log = record.reader
    progress = Progress(
        sys.stderr,
        env=os.environ,
        clock=time.monotonic,
        expected_s=lambda step: expected_seconds(records, plan.image, step),
    )
    build = stage(
        plan,
        record.folder / "build",
        root=project.root,
        jobs=allowance.jobs,
        memory_bytes=allowance.memory_bytes,
        gib_per_job=allowance.gib_per_job,
        profile=allowance.profile.text,
        cold=options.cold,
        compile_cache=shared.settings if shared else None,
    )

    def on_line(line: str) -> None:
        progress.feed(record.line(line))

    def say(line: str) -> None:
        record.line(line)
        progress.say(line)

    if options.rebuild:  # a step that sees another file runs again; BuildKit's --no-cache would empty the compile cache
        (build.scripts / "rebuild").write_text(record.id)

    def note(line: str) -> None:
        record.line(line)
        tell(line)

    with work_folder(cache, plan.image) as work:
        raw, inputs = work / "raw", stage_inputs(plan, work / options.machine / "inputs", store)
        request = BuildRequest(
            dockerfile=build.dockerfile,
            context=build.scripts,
            contexts=(("inputs", inputs),),
            roots=tuple(roots.values()),
            secrets=build.secrets,
            memory_bytes=allowance.memory_bytes,
            use_cache=not options.cold,
            output=raw,
            attempt=record.id,
            hostname=options.machine,
        )
        mount = Mount(engine=engine, request=request, work=work)
        if shared:
            shared.fill(mount, note)
        watch = HostWatch(allowance.floor, say)
        try:
            with progress:
                outcome = engine.build(request, on_line, watch)
        finally:
            append_to_record(record.folder, "host-memory", watch.document())
        if shared:  # whether it built or not: another runner may go on with what was compiled
            shared.give(mount, record.log, note)
            append_to_record(record.folder, "compile-cache", shared.document())
        replay = record.folder / "replay.sh"
        write_replay(replay, plan, outcome.command, inputs=inputs, raw=raw, store=store, env=outcome.env)
        if outcome.status != 0:
            with record.log.open(encoding="utf-8", errors="replace") as lines:
                found = first_error(lines)
            record.diagnosis = found.document()
            step = next((step for step in log.steps if step.name == found.step), None)
            raise build_error(found, image=plan.image, log=str(record.log), step=step)
        layout = _place(plan, raw, read_layout(roots["runtime-root"].layout), cache)
    record.finish(
        Result(
            outcome=Outcome.BUILT,
            seconds=time.monotonic() - began,
            steps=log.steps,
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
    from spark_images.workfolder import work_folder

    place = cache.images / plan.plan_id
    with work_folder(cache, "canonical") as folder:
        config = replace(plan.config, labels=((PLAN_LABEL, plan.plan_id), *plan.config.labels))
        if plan.root("runtime-root").image:
            config = standing_on(config, base.config)
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
            cache.images.mkdir(parents=True, exist_ok=True)
            made.path.rename(place)
            return read_layout(place)
        there = read_layout(place)
        if there.manifest_digest == made.manifest_digest:
            tell(f"same digest as before: {made.manifest_digest}")
            return there
        kept = cache.images / f"{plan.plan_id}.differs-{made.manifest_digest[7:19]}"
        shutil.rmtree(kept, ignore_errors=True)
        made.path.rename(kept)
        raise CanonicalError(
            f"{_title(plan)} came out differently from the same plan {plan.plan_id[:12]}",
            why=(
                f"before: {there.manifest_digest} in {there.path}",
                f"now:    {made.manifest_digest} in {kept}",
                *layout_differences(there, read_layout(kept)),
            ),
            hint="something in the build is not determined by the plan; the files and sections above say where to look",
        )


def root_image(root: Root, plan: Plan, store: Store, cache: Cache) -> RootImage:
    """The root as a stage stands on it, assembled if the cache has none; all that it is made of is in the store."""
    from spark_images.debian import cached_root
    from spark_images.engine.base import RootImage
    from spark_images.oci import read_layout
    from spark_images.pinned_image import cached_image

    if root.component:
        layout = cache.images / root.component
    elif root.image:
        layout = cached_image(root.image, store, platform=f"linux/{root.arch}", cache=cache)
    else:
        layout = cached_root(
            root.name,
            [(deb, store.path(f"sha256:{deb.sha256}")) for deb in root.debs],
            arch=root.arch,
            epoch=FILE_TIME,
            slim=root.slim,
            users=root.users,
            folders=root.folders,
            cache=cache,
        )
    return RootImage(name=root.name, layout=layout, digest=read_layout(layout).manifest_digest)


@contextmanager
def _only_one(plan: Plan, cache: Cache) -> Iterator[None]:
    """Two builds of one plan: the second waits, then finds it built. The lock ends with the process that holds it."""
    lock = cache.work / f"{plan.plan_id}.lock"
    with alone(lock, on_wait=lambda: tell(f"another process builds {_title(plan)}; waiting for it")):
        yield


def _reasons(plan: Plan, records: tuple[RecordView, ...]) -> tuple[str, ...]:
    """Why this plan is not the one that was built last."""
    from spark_images.record import last_built

    last = last_built(records, plan.image, plan.target, plan.base)
    if last is None:
        return ("it was never built here",)
    return differences(last.plan, plan.document()) or ("its layout is not in the cache, or a rebuild was asked for",)


def _title(plan: Plan) -> str:
    return f"{plan.image} for {plan.target} on {plan.base}"

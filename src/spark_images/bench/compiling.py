"""Benches of compiling: with a warm compile cache against without, and across architectures against emulated."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.bench.base import IMAGE, Measured, NotMeasured, Subject
from spark_images.errors import BuildError, CheckError, HostProgramError

if TYPE_CHECKING:
    from spark_images.buildlog import Step
    from spark_images.engine.base import Engine
    from spark_images.record import RecordView

STEP = "compile"
_CCACHE = re.compile(r"\bccache (direct_cache_hit|preprocessed_cache_hit|cache_miss) (\d+)$")
# What belongs to the other side does no harm up to here: hits make a cold build quicker and misses a warm one slower,
# so the ratio can only come out too small.
STRAY_PART = 0.25


class CacheUse(Enum):
    """What the compile cache was to a build."""

    COLD = "cold"  # empty or ignored: compilers ran
    WARM = "warm"  # compilers did not
    MIXED = "mixed"
    UNKNOWN = "unknown"  # the log does not say


@dataclass(frozen=True, kw_only=True)
class CacheCounts:
    """ccache's own counters at the end of a step. Compiles that were told to ignore the cache are in neither."""

    hits: int
    misses: int

    @property
    def use(self) -> CacheUse:
        """COLD or WARM where at most STRAY_PART of the counted compiles were the other."""
        stray = STRAY_PART * (self.hits + self.misses)
        if self.hits <= stray:
            return CacheUse.COLD
        return CacheUse.WARM if self.misses <= stray else CacheUse.MIXED


def cache_counts(log: Iterable[str]) -> CacheCounts | None:
    """What the compile step's script prints of ccache's counters when all is compiled; None if the log has not all."""
    found = {match[1]: int(match[2]) for line in log if (match := _CCACHE.search(line.rstrip()))}
    if len(found) < 3:
        return None
    return CacheCounts(hits=found["direct_cache_hit"] + found["preprocessed_cache_hit"], misses=found["cache_miss"])


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One compile step that ran to its end."""

    record: str
    engine: str
    use: CacheUse
    counts: CacheCounts | None
    step: Step
    inputs: Mapping[str, object]  # of its plan: what was compiled, with what

    @property
    def seconds(self) -> float:
        """Of the step, one at least: it counts whole ones, so one that was quicker took none by its log."""
        return max(1.0, self.step.seconds)


def warm(subject: Subject) -> Measured:
    """How much quicker the compile step is with what the compile cache holds than the newest cold one in the records.

    Cold and warm are what ccache counted, as the logs tell. Runs the whole build again, which leaves a record.
    """
    from spark_images.build import BuildOptions, build
    from spark_images.record import read_records

    subject.require_built()
    engine = subject.choose_engine().name
    inputs = subject.plan.document()["inputs"]
    before = [one for view in read_records(subject.cache.records) if (one := compiled(view)) and one.inputs == inputs]
    cold = [one for one in before if one.use is CacheUse.COLD and one.engine == engine]
    if not cold:
        raise NotMeasured(
            f"the records hold no cold build of these inputs by {engine}; `./noxw -s build-{IMAGE} -- --cold` makes one"
        )
    options = BuildOptions(engine=engine, rebuild=True)
    build(subject.project, subject.image, *subject.variant, cache=subject.cache, options=options)
    newest = (view for view in reversed(read_records(subject.cache.records)) if view.plan_id == subject.plan.plan_id)
    now = compiled(next(newest))
    if now is None or now.record in {one.record for one in before}:
        raise CheckError(f"the build left no record with a step `{STEP}`")
    if now.use is not CacheUse.WARM:
        raise NotMeasured(f"the compile cache was not warm: {told(now)}; now it is, so run this again")
    same = [one for one in cold if one.step.jobs == now.step.jobs]
    if not same:
        raise NotMeasured(f"no cold build in the records had {now.step.jobs} jobs, as this one has now")
    return Measured(
        value=same[-1].seconds / now.seconds,
        facts=(f"cold: {told(same[-1])}", f"warm: {told(now)}", f"seconds of the step `{STEP}`, {now.engine}"),
    )


def compiled(view: RecordView) -> Compiled | None:
    """The compile step of a record; None where none ran to its end."""
    step = next((step for step in view.result.steps if step.name == STEP), None) if view.result else None
    if step is None or step.cached or step.status != 0:
        return None
    with (view.folder / "log.txt").open(encoding="utf-8", errors="replace") as log:
        counts = cache_counts(log)
    return Compiled(
        record=view.id,
        engine=view.engine,
        use=counts.use if counts else CacheUse.UNKNOWN,
        counts=counts,
        step=step,
        inputs=view.plan.get("inputs", {}),
    )


def told(one: Compiled) -> str:
    """The step in one line."""
    counts = f"{one.counts.hits} cache hits, {one.counts.misses} misses" if one.counts else "no cache counters"
    return f"{one.step.seconds:.0f} s, {one.step.jobs} jobs, {counts}, record {one.record}"


# --- across architectures ---------------------------------------------------------------------------------------------

GGML = "ggml/src/CMakeFiles/ggml-base.dir"
OBJECTS = (  # a file of each language that is neither the smallest nor, under emulation, many minutes of work
    "ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir/scale.cu.o",
    f"{GGML}/ggml-backend.cpp.o",
    f"{GGML}/ggml-quants.c.o",
)
_SAMPLE = re.compile(r"\bsample (\S+) wall_s=([\d.]+) user_s=([\d.]+) system_s=([\d.]+)$")
# The sample needs neither the watch nor the cap's proof of scripts/step: it is three compilers, one after the other.
_DOCKERFILE = """\
FROM build-root AS sample
ARG SOURCE_DATE_EPOCH={epoch}
RUN --mount=type=bind,source=.,target=/spark/scripts \\
    --mount=type=bind,from=inputs,source=.,target=/spark/inputs \\
    COMPILE_CACHE=ignore CCACHE_DISABLE=1 /spark/scripts/compile_sample {objects} -- {arguments}

FROM scratch
COPY --from=sample /out/ /
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What one object took to compile."""

    wall_s: float
    cpu_s: float  # user and system, of the compiler and all its children


def cross(subject: Subject) -> Measured:
    """How much quicker this machine cross-compiles a sample than the target's own compilers under emulation do.

    CPU seconds, which other work on the machine changes less than wall time. The same files, flags and engine, no
    compile cache, the network off, one after the other; unpacking and configuring are not in it.
    """
    from spark_images.doctor import Need, require
    from spark_images.host import host_platform

    plan = subject.plan
    if plan.platform == host_platform():
        raise NotMeasured(f"does not apply: {platform.machine()} compiles for {plan.target} itself")
    try:
        require(Need.ENGINE, Need.EMULATION, env=os.environ)
    except HostProgramError as err:
        raise NotMeasured(err.render()) from err
    engine = subject.choose_engine()
    crossed = compile_sample(subject, engine, builder=plan.builder)
    emulated = compile_sample(subject, engine, builder=plan.platform)
    crossed_s, emulated_s = (
        [sum(one.wall_s for one in side.values()), sum(one.cpu_s for one in side.values())]
        for side in (crossed, emulated)
    )
    files = (
        f"{Path(name).stem}: {one.cpu_s:.1f} CPU s crossed, {emulated[name].cpu_s:.1f} emulated, "
        f"{emulated[name].cpu_s / one.cpu_s:.1f} times"
        for name, one in crossed.items()
    )
    wall = f"wall time: {crossed_s[0]:.1f} s crossed, {emulated_s[0]:.1f} s emulated; {engine.name}"
    return Measured(value=emulated_s[1] / crossed_s[1], facts=(*files, wall))


def compile_sample(subject: Subject, engine: Engine, *, builder: str) -> dict[str, Sample]:
    """Object -> what it took on this builder platform. Raises BuildError where it does not compile."""
    from spark_images.bench.stages import build_stages
    from spark_images.memory import budget

    plan = subject.project.plan(subject.image, *subject.variant, builder=builder)
    lines = build_stages(
        subject,
        engine,
        dockerfile=sample_dockerfile(plan.dockerfile, epoch=plan.config.epoch),
        script="compile_sample",
        memory_bytes=budget(None, gib_per_job=subject.image.compile.gib_per_job).bytes,
        builder=builder,
    )
    samples = read_samples(lines)
    if set(samples) != set(OBJECTS):
        raise BuildError(f"the sample did not compile with compilers for {builder}", why=lines[-20:])
    return samples


def sample_dockerfile(dockerfile: str, *, epoch: int) -> str:
    """The Dockerfile of the sample, configured as the image's own Dockerfile does it."""
    arguments = re.search(rf"/step {STEP} /spark/scripts/compile_{IMAGE} (.+)$", dockerfile, re.MULTILINE)
    if arguments is None:
        raise BuildError(f"the Dockerfile of `{IMAGE}` does not call `compile_{IMAGE}`")
    return _DOCKERFILE.format(epoch=epoch, objects=" ".join(OBJECTS), arguments=arguments[1])


def read_samples(log: Sequence[str]) -> dict[str, Sample]:
    """What compile_sample printed, whatever the engine put before it."""
    matches = [match for line in log if (match := _SAMPLE.search(line.rstrip()))]
    return {match[1]: Sample(wall_s=float(match[2]), cpu_s=float(match[3]) + float(match[4])) for match in matches}

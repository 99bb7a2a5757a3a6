"""Bench of scripts/memgate on a whole vLLM compile for GB10, replayed by stand-ins that take its time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from spark_images.bench.base import Measured, Subject
from spark_images.bench.ninja import Attempt, Compile, Gate, build, program, write_profile
from spark_images.errors import CheckError
from spark_images.process import capture
from spark_images.schedule import HELD, NVCC, Schedule, Unit, fixed, gate, longest, lower_bound, safe_jobs
from spark_images.shipped import read_shipped
from spark_images.terminal import tell
from spark_images.units import GIB, MIB

REPLAY = Path(__file__).parent / "replayed"
RELEASE, TARGET = "0.20.2", "gb10"  # whose shipped profile it is, in the order in which its units ended
SLOTS = 20  # a Spark's cores
CAPS_GIB = (48, 64, 96)
# 360 gates start in a minute or so, and 13 GB of pages are touched: two cores are enough for that.
SECONDS_SCALE = 30
MEMORY_SCALE = 32
TIMEOUT_S = 600.0


def replay(subject: Subject) -> Measured:
    """How much longer than the bound the gate takes, at the cap where that is most.

    Bound: what no schedule of these stand-ins can be shorter than. Gates and ninja stay out of the capped cgroup,
    because they do not scale down. A job count that is safe runs for real at the largest cap only; the others, which
    would take many minutes, are simulated.
    """
    from spark_images.workfolder import work_folder

    compiler = program("cc", "gcc")
    units = scaled(measured_vllm(subject.project.root))
    with work_folder(subject.cache, "bench") as folder:
        stand_in = folder / "standin"
        compiled = capture([compiler, "-O2", "-o", str(stand_in), str(REPLAY / "standin.c")])
        if compiled.status != 0:
            raise CheckError("the stand-in does not compile", why=compiled.stderr.splitlines()[-5:])
        compiles = [stand_in_for(unit, stand_in) for unit in units]
        told = Gate(
            program=subject.project.root / "scripts/memgate",
            slots=SLOTS,
            unit_mib=8192 // MEMORY_SCALE,
            profile=write_profile(units, folder / "profile"),
        )
        gated = {}
        for cap_gib in CAPS_GIB:
            tell(f"bench: {len(units)} stand-ins behind the gate, {cap_gib} GiB as {cap_gib / MEMORY_SCALE:g} GiB")
            gated[cap_gib] = build(
                compiles, folder / f"gate-{cap_gib}", jobs=len(units), cap_bytes=cap_gib * GIB // MEMORY_SCALE,
                gate=told, outside=True, timeout_s=TIMEOUT_S,
            )  # fmt: skip
        largest_gib = max(CAPS_GIB)
        jobs = safe_jobs(units, slots=SLOTS, cap_mib=cap_mib(largest_gib))
        tell(f"bench: {len(units)} stand-ins, -j{jobs}")
        counted = build(
            compiles, folder / "fixed", jobs=jobs, cap_bytes=largest_gib * GIB // MEMORY_SCALE,
            outside=True, timeout_s=TIMEOUT_S,
        )  # fmt: skip
    facts = [
        f"{len(units)} units, seconds divided by {SECONDS_SCALE} and memory by {MEMORY_SCALE}, {SLOTS} slots; "
        "minutes and GiB below are those of the compile",
        *(line for cap_gib in CAPS_GIB for line in compare(units, cap_gib, gated[cap_gib])),
        f"-j{jobs} at {largest_gib} GiB really run: {minutes(counted.seconds)}, {counted.told}",
    ]
    if any(one.failed or one.oom_kills for one in gated.values()):
        raise CheckError("the gate let the kernel kill", why=facts)
    return Measured(
        value=max(one.seconds / bound_s(units, cap_gib) for cap_gib, one in gated.items()), facts=tuple(facts)
    )


def measured_vllm(root: Path) -> tuple[Unit, ...]:
    """The units of the release as they were measured. root: of the project."""
    profile = next(one for one in read_shipped(root / "images" / "vllm", TARGET) if str(one.release) == RELEASE)
    return tuple(Unit(name=one.unit, seconds=one.seconds, peak_mib=one.peak_mib) for one in profile.units)


def scaled(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """The units as the stand-ins replay them."""
    return tuple(
        replace(unit, seconds=unit.seconds / SECONDS_SCALE, peak_mib=unit.peak_mib / MEMORY_SCALE) for unit in units
    )


def stand_in_for(unit: Unit, stand_in: Path) -> Compile:
    """What takes the unit's place."""
    shape = [f"{time:.4f}:{held:.4f}" for time, held in NVCC.points]
    size_kib = round(unit.peak_mib * 1024)
    source = unit.name.removesuffix(".o")
    return Compile(
        unit=unit.name,
        command=(str(stand_in), f"{unit.seconds:.4f}", str(size_kib), *shape, "-c", source, "-o", unit.name),
    )


def cap_mib(cap_gib: int) -> float:
    """The scaled cap."""
    return cap_gib * GIB / MEMORY_SCALE / MIB


def bound_s(units: Sequence[Unit], cap_gib: int) -> float:
    """No schedule of these stand-ins is shorter."""
    return lower_bound(units, slots=SLOTS, cap_mib=cap_mib(cap_gib), shape=NVCC).seconds


def minutes(seconds: float) -> str:
    """Of the compile that is replayed."""
    return f"{seconds * SECONDS_SCALE / 60:.1f} min"


def compare(units: Sequence[Unit], cap_gib: int, gated: Attempt) -> tuple[str, ...]:
    """The gate at one cap beside what is simulated."""
    cap = cap_mib(cap_gib)
    jobs = safe_jobs(units, slots=SLOTS, cap_mib=cap)
    bound = bound_s(units, cap_gib)
    held = lower_bound(units, slots=SLOTS, cap_mib=cap, shape=HELD).seconds
    best = gate(units, slots=SLOTS, cap_mib=cap, rank=longest, shape=NVCC)
    safe = fixed(units, jobs=jobs)
    return (
        f"{cap_gib} GiB: gate {minutes(gated.seconds)}, {gated.told}; {gated.seconds / bound:.2f} times the bound of "
        f"{minutes(bound)} ({minutes(held)} if all held their peak for life)",
        f"   simulated: -j{jobs}, safe by the largest peak, {minutes(safe.seconds)}; {all_at_once(units)}; "
        f"longest first {minutes(best.seconds)}",
    )


def all_at_once(units: Sequence[Unit]) -> str:
    """What every core at work would take."""
    schedule: Schedule = fixed(units, jobs=SLOTS)
    most = schedule.highest_mib(NVCC) * MEMORY_SCALE / 1024
    return f"-j{SLOTS} {minutes(schedule.seconds)}, holding up to {most:.0f} GiB"

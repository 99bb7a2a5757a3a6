"""What single units took and hold, and what a whole compile would cost, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_images.compat.build import left_out
from spark_images.compat.command import Kernels
from spark_images.compat.release import vllm_release
from spark_images.cuda_arch import parse_arch
from spark_images.errors import UsageError
from spark_images.estimate import Estimate, estimate
from spark_images.record import measured_units
from spark_images.shipped import ShippedProfile, read_shipped
from spark_images.terminal import tell
from spark_images.unit_plan import sdist_of
from spark_images.units import GIB, MIB, format_duration, format_size

if TYPE_CHECKING:
    from spark_images.images import Image
    from spark_images.project import Project
    from spark_images.record import RecordView
    from spark_images.targets import Target
    from spark_images.unit_objects import CompiledUnit


def show_units(units: Sequence[CompiledUnit], *, twice: bool) -> None:
    """A line per object on stdout, and one that sums them up on stderr."""
    print(f"{'CPU s':>7} {'seconds':>7} {'peak':>9}  {'GPU code, and how it runs':54} object")
    for unit in units:
        took = unit.measured
        times = (
            f"{took.cpu_s:7.1f} {took.seconds:7.1f} {format_size(took.peak_mib * MIB):>9}"
            if took
            else f"{'cached':>25}"
        )
        code = f"{' '.join(unit.code)}, {unit.run.value}" if unit.run else "none"
        print(f"{times}  {code:54} {unit.unit}")
    measured = [unit.measured for unit in units if unit.measured]
    tell(
        f"{len(units)} objects; {len(measured)} of them compiled, in {sum(one.cpu_s for one in measured):.0f} CPU s"
        + ("; the second time gave the same bytes" if twice else "")
    )


def show_estimate(
    project: Project,
    image: Image,
    target: Target,
    records: Sequence[RecordView],
    *,
    cores: int,
    memory_bytes: int,
    all_kernels: bool,
) -> None:
    """What the whole compile of the pinned release would take, on stdout. UsageError where no profile is shipped."""
    pin = sdist_of(image, project.pins)
    shipped = read_shipped(project.root / "images" / image.name, target.name)
    if not shipped:
        raise UsageError(f"no profile of `{image.name}` for `{target.name}` is shipped, so there is nothing to go by")
    profile = next((one for one in shipped if str(one.release) == pin.version), shipped[0])
    needless: list[tuple[str, str]] = []
    if pin.project == "vllm" and not all_kernels and image.compile.kernels is not Kernels.ALL:
        facts = project.required_facts.vllm
        gpu = parse_arch(target.compute_capability).capability
        needless = [(part.component, part.units) for part in left_out(facts, vllm_release(facts, pin.version), gpu)]
    same, _ = measured_units(records, image.name, target.name)
    found = estimate(
        profile.units,
        # Oldest first, so that the newest measurement of a unit stays.
        {unit.unit: unit for units in reversed(list(same)) for unit in units}.values(),
        needless=needless,
        cores=cores,
        cap_mib=memory_bytes / MIB,
    )
    of = f"{image.name} {pin.version} for {target.name}"
    print("\n".join(lines(found, profile, of=of, cores=cores, memory_bytes=memory_bytes)))


def lines(found: Estimate, profile: ShippedProfile, *, of: str, cores: int, memory_bytes: int) -> tuple[str, ...]:
    """The estimate with its basis."""
    saved = tuple(f"  left out {part.name}: {part.units} units, {part.cpu_s:.0f} CPU s" for part in found.left_out)
    whole_s = found.cpu_s + sum(part.cpu_s for part in found.left_out)
    if saved:
        saved += (f"  so {found.saved:.0%} of {whole_s:.0f} CPU s are saved",)
    if found.overlap:
        basis = (
            f"by {found.overlap} units that were compiled here, {found.overlap_cpu_s:.0f} CPU s in the profile: "
            f"{found.factor:.2f} times as long here"
        )
    else:
        basis = "none of its units was compiled here: the times are those of the machine that it was measured on"
    return (
        f"{of}: {found.units} units, {found.cpu_s:.0f} CPU s ({found.cpu_s / 3600:.1f} hours of one core)",
        *saved,
        f"  {cores} cores and {memory_bytes / GIB:g} GiB: {format_duration(found.seconds)} behind the gate; "
        f"no schedule is shorter than {format_duration(found.bound_s)}",
        f"  longest unit {format_duration(found.longest_s)}, largest {format_size(found.largest_mib * MIB)}",
        f"  basis: the shipped profile of {profile.release}: {profile.basis}",
        f"         {basis}",
    )

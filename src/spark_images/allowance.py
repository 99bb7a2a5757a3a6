"""What a build may use of this host now, and why: memory, its floor, compilers. None of it changes the image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.floor import FloorRule
from spark_images.images import Image
from spark_images.jobs import Jobs, plan_jobs
from spark_images.memory import budget, floor_rule, host_memory
from spark_images.plan import Plan
from spark_images.profile import Profile, expected_units, profile_text
from spark_images.record import RecordView, measured_units
from spark_images.shipped import read_shipped
from spark_images.targets import Target
from spark_images.units import GIB, format_size

if TYPE_CHECKING:
    from spark_images.jobs import Budget

GATE = "memgate"  # an image with this among its scripts has it before every compiler


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Given to one attempt. budget: None where the user typed that nothing is to be limited."""

    budget: Budget | None
    floor: FloorRule
    jobs: Jobs
    cores: int
    gib_per_job: float
    gated: bool
    profile: Profile  # of the image's earlier builds

    @property
    def memory_bytes(self) -> int | None:
        """The cap."""
        return self.budget.bytes if self.budget else None

    def lines(self) -> tuple[str, ...]:
        """Memory, floor and jobs, each with where its numbers come from, for the plan's display."""
        cap = f"{format_size(self.budget.bytes)}: {self.budget.because}" if self.budget else "NOT LIMITED, as you typed"
        floor = f"{format_size(self.floor.floor_bytes)} of the host: with less the build is frozen until it is back"
        return (f"memory  {cap}", f"floor   {floor}", f"jobs    {self._jobs()}")

    def document(self) -> dict[str, object]:
        """For the record."""
        return {"cores": self.cores, "jobs": self.jobs.compilers, "memory_bytes": self.memory_bytes}

    def _jobs(self) -> str:
        each = f"{self.gib_per_job} GiB"
        if not self.gated:
            return f"{self.jobs.compilers}: {each} each, {self.cores} cores"
        known = f"{self.profile}; {each} for others" if self.profile.units else f"{each} each, as none is known yet"
        return f"{self.jobs.compilers} compilers at once, one per core, as memory allows: {known}"


def allow(
    image: Image,
    target: Target,
    plan: Plan,
    records: Sequence[RecordView],
    *,
    asked_bytes: int | None,
    limit: bool,
    env: Mapping[str, str],
) -> Allowance:
    """Ask the host. asked_bytes: what the user typed. Raises BudgetError and UsageError; see memory.py.

    The image's shipped profiles count where no build of here has measured a unit.
    """
    gib_per_job, gated = image.compile.gib_per_job, GATE in image.scripts
    unified = target.unified_memory and plan.builder == plan.platform
    given = budget(asked_bytes, gib_per_job=gib_per_job, unified=unified) if limit else None
    cores = len(os.sched_getaffinity(0))
    same, others = measured_units(records, plan.image, plan.target)
    shipped = (profile.units for profile in read_shipped(Path(image.path).parent, target.name))
    return Allowance(
        budget=given,
        floor=floor_rule(env, unified=unified),
        jobs=plan_jobs(
            budget_gib=given.gib if given else host_memory().available_bytes / GIB,
            gib_per_job=gib_per_job,
            cores=cores,
            gated=gated,
        ),
        cores=cores,
        gib_per_job=gib_per_job,
        gated=gated,
        profile=profile_text(expected_units(same, chain(others, shipped))),
    )

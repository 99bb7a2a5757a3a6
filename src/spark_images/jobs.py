"""How much memory a build may use, and how many compile jobs fit into it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from spark_images.errors import BudgetError, UsageError
from spark_images.units import GIB, KIB, MIB, TIB, format_size

# A bare letter is binary, as in podman, docker and systemd. "48GB" stays what SI says.
_UNITS = {
    **{"k": KIB, "m": MIB, "g": GIB, "t": TIB},
    **{"kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
}
_WAITING_BYTES = 10 * MIB  # measured: a gate and the ccache before it, while they wait
_MOST_WAITING = 512
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """What a build's cgroup may use, in bytes (whole MiB), and in a sentence which fact decided it."""

    bytes: int
    because: str

    @property
    def gib(self) -> float:
        """The budget as plan_jobs takes it."""
        return self.bytes / GIB


@dataclass(frozen=True)
class Jobs:
    """How many compilers may run at once, and how many the build tool may start: the others wait at the gate."""

    compilers: int
    queue: int


def plan_jobs(*, budget_gib: float, gib_per_job: float, cores: int, gated: bool) -> Jobs:
    """Compile jobs for a budget; at least 1.

    budget_gib: what the build's cgroup may use. gib_per_job: measured peak of one job (images/<name>/image.yaml).
    gated: whether scripts/memgate stands before the compilers. Then every core may have one, memory decides as the
    build goes, and the gate chooses among as many as can wait in a twentieth of the budget. Else as many run as fit.
    """
    if not gated:
        fitting = max(1, min(cores, int(budget_gib // gib_per_job)))
        return Jobs(fitting, fitting)
    waiting = int(budget_gib * GIB / 20 / _WAITING_BYTES)
    return Jobs(cores, max(2 * cores, min(waiting, _MOST_WAITING)))


def plan_budget(
    *,
    asked: int | None,
    available: int,
    reserve: int,
    reserve_because: str = "",
    cgroup_limit: int | None,
    cgroup_where: str = "",
    gib_per_job: float = 0.0,
) -> Budget:
    """The smallest of what was asked for, what the host can spare and what our own cgroup leaves.

    All in bytes. available: MemAvailable. reserve: what stays with the host. cgroup_limit: None where there is none.
    reserve_because, cgroup_where: what is to be said of the two where somebody asks from where they are.
    gib_per_job: peak of one compile job. Raises BudgetError where more was asked for than there is, or where the
    budget holds not even one job.
    """
    spare = available - reserve
    host = f"{format_size(available)} are available on this host and {format_size(reserve)} of them stay reserved"
    host += f" ({reserve_because})" if reserve_because else ""
    own = f"the cgroup that this runs in has {format_size(max(0, cgroup_limit or 0))} left"
    own += f" ({cgroup_where})" if cgroup_where else ""
    limited = cgroup_limit is not None and cgroup_limit < spare
    room = max(0, cgroup_limit if cgroup_limit is not None and limited else spare) // MIB * MIB
    facts = (host, own) if cgroup_limit is not None else (host,)
    if asked is not None and asked > room:
        raise BudgetError(
            f"`--memory` asks for {format_size(asked)}, but a build here can have at most {format_size(room)}",
            why=facts,
            hint=f"ask for at most `--memory {room // MIB}MiB`, or free what holds memory now",
        )
    if asked is not None:
        budget = Budget(asked // MIB * MIB, "; ".join(("`--memory` asks for it", *facts)))
    else:
        budget = Budget(room, "; ".join((own, host) if limited else facts))
    need = max(1, gib_per_job * GIB)
    if budget.bytes < need:
        enough_elsewhere = "free what holds memory now, or build on a larger machine"
        raise BudgetError(
            f"a budget of {format_size(budget.bytes)} is too small for one compile job ({format_size(int(need))})",
            why=facts,
            hint=f"ask for more with `--memory {math.ceil(need / GIB)}GiB`" if need <= room else enough_elsewhere,
        )
    return budget


def parse_size(text: str, *, option: str = "--memory") -> int:
    """Bytes of `8GiB`, `8192MiB`, `48G`, `1.5g`; raises UsageError, which names the option, for anything else.

    A number without a unit is refused: engines take it for bytes, people mean GiB.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None or float(match[1]) == 0:
        problem = "has no unit" if match and not match[2] else "is not a size"
        hint = f"write it like `{option} 8GiB` or `{option} 8192MiB`"
        raise UsageError(f"`{option} {text}`: `{text}` {problem}", hint=hint)
    return int(float(match[1]) * factor)

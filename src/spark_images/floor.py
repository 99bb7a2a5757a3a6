"""When a build has to be frozen for the host's sake, thawed, or given up: decided from one sample after the other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from spark_images.units import MIB

MARGIN_BYTES = 256 * MIB  # what the first second of a thawed build may take before the floor is met again
CALM_S = 1.0  # memory that is free between two allocations of somebody else is not back
TIMEOUT_S = 120.0  # longer than a model server takes to load or to be restarted


class Action(Enum):
    """What to do with the build now."""

    NONE = "none"
    FREEZE = "freeze"
    THAW = "thaw"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class FloorRule:
    """The build runs while at least floor_bytes are available on the host; see memory.floor_rule for how many."""

    floor_bytes: int
    timeout_s: float = TIMEOUT_S  # frozen for so long, it is stopped
    margin_bytes: int = MARGIN_BYTES  # above the floor, for calm_s: memory is back
    calm_s: float = CALM_S


class Floor:
    """The state of one build under a rule. Every sample under the floor leaves it frozen or stopped."""

    def __init__(self, rule: FloorRule) -> None:
        self._rule = rule
        self._frozen_s: float | None = None  # since when
        self._calm_s: float | None = None  # since when memory is back
        self._stopped = False

    @property
    def frozen(self) -> bool:
        """Whether the build is held now, or was when it was stopped."""
        return self._frozen_s is not None

    def feed(self, now_s: float, available_bytes: int) -> Action:
        """Take a sample: MemAvailable at a monotonic time. After STOP there is nothing more to do."""
        rule = self._rule
        if self._stopped:
            return Action.NONE
        if self._frozen_s is None:
            if available_bytes >= rule.floor_bytes:
                return Action.NONE
            self._frozen_s, self._calm_s = now_s, None
            return Action.FREEZE
        if available_bytes < rule.floor_bytes + rule.margin_bytes:
            self._calm_s = None
            self._stopped = now_s - self._frozen_s >= rule.timeout_s
            return Action.STOP if self._stopped else Action.NONE
        if self._calm_s is None:
            self._calm_s = now_s
        if now_s - self._calm_s < rule.calm_s:
            return Action.NONE
        self._frozen_s = None
        return Action.THAW

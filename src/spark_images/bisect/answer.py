"""What one try says, and why: exit statuses of verbs and of a user's check as verdicts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from spark_images import errors
from spark_images.search import Verdict

CANNOT_TELL = 125  # as `git bisect run` has it
LAST_BAD = 124


class Cause(Enum):
    """Where a verdict comes from. All but CHECK and BUILT keep a candidate from being tried."""

    CHECK = "check"
    BUILT = "built"  # where building is the check: it was built, or its build failed
    RECORD = "record"  # an earlier build or test had told
    BUILD_FAILED = "build failed"
    OUT_OF_MEMORY = "out of memory"
    NETWORK = "network"
    MISSING = "missing"
    COMPAT = "compat"
    CANNOT_TELL = "cannot tell"


PASSING = (Cause.NETWORK,)  # is asked again by the next run: it is about the moment, not about the version


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The verdict on one candidate. reason: one line for people. runs, failures: of the check."""

    key: str  # of the candidate, see candidate.py
    label: str
    verdict: Verdict
    cause: Cause
    reason: str = ""
    seconds: float = 0.0
    runs: int = 0
    failures: int = 0
    plan_id: str = ""  # of the image that was checked
    log: str = ""  # path of what it said
    when: str = ""  # UTC, ISO 8601

    def document(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {**asdict(self), "verdict": self.verdict.value, "cause": self.cause.value}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Answer:
        """From document(). Raises KeyError, TypeError or ValueError for anything else."""
        return cls(**{**data, "verdict": Verdict(data["verdict"]), "cause": Cause(data["cause"])})


class CannotGoOn(Exception):
    """A try that says nothing about the candidate but about this machine or the check: everything ends."""

    def __init__(self, what: str, status: int) -> None:
        super().__init__(what)
        self.what, self.status = what, status


def judge_check(status: int) -> tuple[Verdict, Cause]:
    """A user's command: 0 good, 125 cannot tell, 1 to 124 bad. Raises CannotGoOn from 126 on."""
    if status == 0:
        return Verdict.GOOD, Cause.CHECK
    if status == CANNOT_TELL:
        return Verdict.SKIP, Cause.CANNOT_TELL
    if status <= LAST_BAD:
        return Verdict.BAD, Cause.CHECK
    words = {126: "it cannot be executed", 127: "there is no such command"}
    died = f"signal {status - 128} ended it" if status > 128 else "126 and above mean that nothing can be said"
    raise CannotGoOn(f"the check ended with status {status}: {words.get(status, died)}", status)


def judge_verb(status: int, *, checks_build: bool) -> tuple[Verdict, Cause] | None:
    """A verb of ours on the way to a candidate's image, or as its check; None where it ended well and more follows.

    checks_build: whether a build that fails is what is looked for. Raises CannotGoOn where the candidate is not to
    blame: disk, engine, host programs, a wrong content, an interrupt.
    """
    kinds: Mapping[int, Cause] = {
        errors.OutOfMemoryError.exit_status: Cause.OUT_OF_MEMORY,
        errors.BudgetError.exit_status: Cause.OUT_OF_MEMORY,
        errors.HostMemoryError.exit_status: Cause.OUT_OF_MEMORY,
        errors.RouteError.exit_status: Cause.NETWORK,
        errors.MissingError.exit_status: Cause.MISSING,
        errors.RegistryError.exit_status: Cause.NETWORK,
        errors.CompatError.exit_status: Cause.COMPAT,
        errors.PatchError.exit_status: Cause.COMPAT,
        errors.UsageError.exit_status: Cause.COMPAT,
        errors.ConfigError.exit_status: Cause.COMPAT,
        errors.StaleLockError.exit_status: Cause.COMPAT,
        errors.TemplateError.exit_status: Cause.COMPAT,
        errors.UpstreamError.exit_status: Cause.COMPAT,
    }
    if status == 0:
        return None
    if status in (errors.CheckError.exit_status, errors.AuditError.exit_status):
        return Verdict.BAD, Cause.CHECK
    failed = (errors.BuildError, errors.IsolationError, errors.CanonicalError)
    if status in {kind.exit_status for kind in failed}:
        return (Verdict.BAD, Cause.BUILT) if checks_build else (Verdict.SKIP, Cause.BUILD_FAILED)
    if status in kinds:
        return Verdict.SKIP, kinds[status]
    raise CannotGoOn(f"status {status}", status)

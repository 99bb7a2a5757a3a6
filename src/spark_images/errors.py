"""Every way in which spark-images refuses or fails, one class per failure, each with an exit status of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean `x`?` for the nearest known word, "" where none is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


class SparkImagesError(Exception):
    """A failure that a user can understand and act on; the top level prints it without a traceback.

    what: one line, lower case, with literals in backticks. why: further lines, each a fact.
    hint: what to do next, with the command to run. Raised `from` another error, its text follows after "because".
    """

    exit_status: ClassVar[int] = 1

    def __init__(self, what: str, *, why: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = tuple(why)
        self.hint = hint

    def render(self) -> str:
        """The error as the terminal shows it: `error: …`, indented facts, a blank line, `hint: …`."""
        lines = [f"error: {self.what}"]
        lines += [f"  {line}" for line in self.why]
        if self.__cause__ is not None and str(self.__cause__):
            lines.append(f"  because: {self.__cause__}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


class UsageError(SparkImagesError):
    """A command line that cannot be carried out: unknown image, target, option or value."""

    exit_status = 2


class ConfigError(SparkImagesError):
    """A file of the project says something wrong: pins.yaml, targets.yaml, image.yaml or a lock."""

    exit_status = 10


class StaleLockError(ConfigError):
    """A lock file was made from another input than the one that now stands beside it."""

    exit_status = 11


class CompatError(SparkImagesError):
    """Releases that do not go together, or not with the base or the target; nothing was built."""

    exit_status = 16


class PatchError(CompatError):
    """A patch that does not apply to the pinned release, or that the release has already; nothing was built."""

    exit_status = 17


class TemplateError(SparkImagesError):
    """A template cannot be rendered: an undefined name, a syntax error, a missing file."""

    exit_status = 12


class DriftError(SparkImagesError):
    """A committed generated file differs from what the sources render to."""

    exit_status = 13


class HostProgramError(SparkImagesError):
    """A program of the host is missing or cannot do what is needed of it."""

    exit_status = 14


class UpstreamError(SparkImagesError):
    """A release says something that spark-images does not understand, or other things than are written down of it."""

    exit_status = 15


class RouteError(SparkImagesError):
    """No route to a pinned content answered."""

    exit_status = 20


class ContentError(SparkImagesError):
    """A route served something else than what the pin names; never a reason to try another content."""

    exit_status = 21


class DiskFullError(SparkImagesError):
    """A file system has no room left: the store's, the engine's or the layout's."""

    exit_status = 22


class MissingError(RouteError):
    """Whoever was asked answers and does not have it: no such project, version, file or commit."""

    exit_status = 23


class EngineError(SparkImagesError):
    """No build engine answers, or it answers with an error."""

    exit_status = 30


class EngineTooOldError(EngineError):
    """The engine answers but lacks something that a build needs."""

    exit_status = 31


class BuildError(SparkImagesError):
    """A build step failed; the first real error of the log is named."""

    exit_status = 40


class OutOfMemoryError(BuildError):
    """A build step was killed for memory."""

    exit_status = 41


class IsolationError(BuildError):
    """A build step could reach a network or was not under the memory cap, so nothing was built."""

    exit_status = 42


class BudgetError(SparkImagesError):
    """More memory was asked for than the host can give."""

    exit_status = 43


class KilledError(BuildError):
    """A program of a build was killed, and the kernel did not do it for want of memory."""

    exit_status = 45


class HostMemoryError(SparkImagesError):
    """The host ran short of memory while a build ran and stayed so, and the build was stopped."""

    exit_status = 44


class CanonicalError(SparkImagesError):
    """What an engine exported cannot be brought into the canonical form, or says something else than the plan."""

    exit_status = 50


class CheckError(SparkImagesError):
    """An image was built but does not hold what it must."""

    exit_status = 60


class AuditError(CheckError):
    """An audit found something in an image or a wheel that must not be."""

    exit_status = 61


class RegistryError(SparkImagesError):
    """A registry refused, or holds something else than what was pushed."""

    exit_status = 70


class PromotionError(SparkImagesError):
    """A readable tag is not to move: a gate of the image is not passed, or there is nothing to move it to."""

    exit_status = 71


class SignatureError(SparkImagesError):
    """An image is not signed by the key that was named, or what is signed of it is not what it is."""

    exit_status = 72


class BisectError(SparkImagesError):
    """A search that cannot be carried out: its ends are not what was said, or its check says nothing reliable."""

    exit_status = 80


class UnfinishedError(SparkImagesError):
    """A search that stopped at its budget or waits for verdicts; what it has learned is kept."""

    exit_status = 81


class JobTimeoutError(SparkImagesError):
    """A CI job took longer than it may; what it ran was ended in order."""

    exit_status = 90


class RunnerError(SparkImagesError):
    """A CI runner that is not the machine that its job was made for."""

    exit_status = 91


class InterruptedByUser(SparkImagesError):
    """Ctrl-C or SIGTERM; nothing that was finished is lost."""

    exit_status = 130

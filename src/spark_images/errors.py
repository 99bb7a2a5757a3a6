"""Every way in which spark-images refuses or fails, one class per failure, each with an exit status of its own."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean `x`?` for the nearest known word, "" where none is near."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean `x`?)` for the nearest known word, or nothing."""
    meant = did_you_mean(word, known)
    return f" ({meant})" if meant else ""


class SparkImagesError(Exception):
    """A failure that a user can understand and act on; the top level prints it without a traceback.

    what: one line, lower case, with literals in backticks. why: further lines, each a fact.
    hint: what to do next, with the command to run. Raised `from` another error, its text follows after "because".
    """

    exit_status: ClassVar[int]
    usual: ClassVar[str]  # what it mostly comes from; with `remedy` for docs/errors.md
    remedy: ClassVar[str]

    def __init__(self, what: str, *, why: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = tuple(why)
        self.hint = hint

    def render(self) -> str:
        """The error as the terminal shows it: `error: …`, indented facts, a blank line, `hint: …`."""
        lines = [f"error: {self.what}"]
        lines += [f"  {line}" for line in self.why]
        if (cause := str(self.__cause__ or "")) and cause not in self.what:
            lines.append(f"  because: {cause}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


class UsageError(SparkImagesError):
    """A command line that cannot be carried out: unknown image, target, option or value."""

    exit_status = 2
    usual = "a name that is mistyped, or options that exclude each other"
    remedy = "the hint names what is nearest; `--help` after `--` lists all, as in `./noxw -s build-llamacpp -- --help`"


class ConfigError(SparkImagesError):
    """A file of the project says something wrong: pins.yaml, targets.yaml, image.yaml or a lock."""

    exit_status = 10
    usual = "an edit of one of these files"
    remedy = "correct the line that is named"


class StaleLockError(ConfigError):
    """A lock file is not what was made from the input that now stands beside it."""

    exit_status = 11
    usual = "a pin was edited, and what was resolved from it was not; or a lock was edited, which only `lock` may"
    remedy = "`./noxw -s lock -- PIN`, then `./noxw -s render`"


class CompatError(SparkImagesError):
    """Releases that do not go together, or not with the base or the target; nothing was built."""

    exit_status = 16
    usual = "a pin was moved alone that moves with others"
    remedy = "choose what the message names, or correct `images/compat.yaml` where upstream has changed its mind"


class PatchError(CompatError):
    """A patch that does not apply to the pinned release, or that the release has already; nothing was built."""

    exit_status = 17
    usual = "the pin of the source was moved"
    remedy = "`until` and `releases` in `images/compat.yaml` say which releases a patch is for"


class FileError(SparkImagesError):
    """A file or a folder of this machine cannot be read or written."""

    exit_status = 18
    usual = "it belongs to another user, as after a build with `sudo`"
    remedy = "give it back with `chown`, or name another folder for the cache in `SPARK_IMAGES_CACHE`"


class TemplateError(SparkImagesError):
    """A template cannot be rendered: an undefined name, a syntax error, a missing file."""

    exit_status = 12
    usual = "an edit of a template"
    remedy = "correct the line that is named"


class DriftError(SparkImagesError):
    """A committed generated file differs from what the sources render to."""

    exit_status = 13
    usual = "pins, templates or image.yaml were edited, or the generated file itself"
    remedy = "`./noxw -s render` (workflows: `./noxw -s ci`), look at the diff, commit it"


class HostProgramError(SparkImagesError):
    """A program of the host is missing or cannot do what is needed of it."""

    exit_status = 14
    timed_out = False  # whether it was ended because its time was over
    usual = "a fresh machine"
    remedy = "`./noxw -s doctor` lists what is missing and how to get it; as root `-- --install` gets it"


class UpstreamError(SparkImagesError):
    """A release says something that spark-images does not understand, or other things than are written down of it."""

    exit_status = 15
    usual = "a new release that does things in a new way"
    remedy = "the message names file and line of the release, and which module of ours has to learn it"


class RouteError(SparkImagesError):
    """No route to a pinned content answered."""

    exit_status = 20
    usual = "no network, a proxy, or a host that is down"
    remedy = "again later; a pin may have several `routes`, and `./noxw -s check-pins` says which of them serve"


class ContentError(SparkImagesError):
    """A route served something else than what the pin names; never a reason to try another content."""

    exit_status = 21
    usual = "a tag or a file upstream was replaced, or something in between serves another"
    remedy = "find out why before you touch the pin; nothing was built of it"


class DiskFullError(SparkImagesError):
    """A file system has no room left: the store's, the engine's or the layout's."""

    exit_status = 22
    usual = "builds and images of many plans"
    remedy = "`./noxw -s prune`, `./noxw -s clean`, or another disk in `SPARK_IMAGES_CACHE`"


class MissingError(RouteError):
    """Whoever was asked answers and does not have it: no such project, version, file or commit."""

    exit_status = 23
    usual = "a mistyped version, or a release that was withdrawn"
    remedy = "correct the pin, or give it another route"


class EngineError(SparkImagesError):
    """No build engine answers, or it answers with an error."""

    exit_status = 30
    usual = "its daemon does not run, or you may not use its socket"
    remedy = "`./noxw -s doctor`; the other engine with `--engine podman` or `--engine docker`"


class EngineTooOldError(EngineError):
    """The engine answers but lacks something that a build needs."""

    exit_status = 31
    usual = "the engine of an old distribution"
    remedy = "update it, or use the other engine"


class BuildError(SparkImagesError):
    """A build step failed; the first real error of the log is named."""

    exit_status = 40
    usual = "upstream's source does not compile with these pins, or the step's script is wrong"
    remedy = "the message names the log and the line; `./noxw -s bisect-IMAGE` finds the pin that broke it"


class OutOfMemoryError(BuildError):
    """A build step was killed for memory."""

    exit_status = 41
    usual = "the cap is below what the largest compiler needs alone"
    remedy = "more with `--memory`, or free what holds memory; `./noxw -s report -- memory` shows what needed it"


class IsolationError(BuildError):
    """A build step could reach a network or was not under the memory cap, so nothing was built."""

    exit_status = 42
    usual = (
        "an engine that cannot take away a step's network or cap its memory, as when it is rootless without "
        "delegated cgroups"
    )
    remedy = "`./noxw -s doctor`; as root, or with the other engine"


class BudgetError(SparkImagesError):
    """More memory was asked for than the host can give."""

    exit_status = 43
    usual = "`--memory` beyond what is free, or something large that runs beside"
    remedy = "ask for less, or stop what the message names"


class KilledError(BuildError):
    """A program of a build was killed, and the kernel did not do it for want of memory."""

    exit_status = 45
    usual = "somebody, or a watchdog, killed it"
    remedy = "build again: finished steps and the compile cache are kept"


class HostMemoryError(SparkImagesError):
    """The host ran short of memory while a build ran and stayed so, and the build was stopped."""

    exit_status = 44
    usual = "something else took the memory while the build was frozen"
    remedy = "free what the message names, and build again; or give the build less with `--memory`"


class CanonicalError(SparkImagesError):
    """What an engine exported cannot be brought into the canonical form, or says something else than the plan."""

    exit_status = 50
    usual = "a step that is not deterministic, a hand-edited Dockerfile, or a damaged layout"
    remedy = "what differs is named; `./noxw -s reproduce-IMAGE` compares two builds"


class CheckError(SparkImagesError):
    """An image was built but does not hold what it must."""

    exit_status = 60
    usual = "a new version behaves in another way"
    remedy = "the message names the test; its output lies in the record (`./noxw -s report`)"


class AuditError(CheckError):
    """An audit found something in an image or a wheel that must not be."""

    exit_status = 61
    usual = "code for another GPU, a library that is missing, a secret in a layer"
    remedy = (
        "`.venv/bin/python -m spark_images audit --list` says of each check why it is there; image.yaml can "
        "excuse a finding under `audit`"
    )


class RegistryError(SparkImagesError):
    """A registry refused, or holds something else than what was pushed."""

    exit_status = 70
    usual = "no login, a wrong name, or a registry with a fault"
    remedy = "`docker login HOST` or `podman login HOST`; the same command again goes on from what is there"


class PromotionError(SparkImagesError):
    """A readable tag is not to move: a gate of the image is not passed, or there is nothing to move it to."""

    exit_status = 71
    usual = "a gate is red or did not run"
    remedy = "`./noxw -s verify-IMAGE` runs them all"


class SignatureError(SparkImagesError):
    """An image is not signed by the key that was named, or what is signed of it is not what it is."""

    exit_status = 72
    usual = "it was pushed without the key, or by somebody else"
    remedy = "do not run it; ask who pushed it"


class BisectError(SparkImagesError):
    """A search that cannot be carried out: its ends are not what was said, or its check says nothing reliable."""

    exit_status = 80
    usual = "ends that are the wrong way round, or a check that is flaky"
    remedy = "exchange `--good` and `--bad`; `--repeat 5` for a check that fails now and then"


class UnfinishedError(SparkImagesError):
    """A search that stopped at its budget or waits for verdicts; what it has learned is kept."""

    exit_status = 81
    usual = "`--budget`, `--max-builds` or `--matrix`"
    remedy = "the same command goes on from there"


class JobTimeoutError(SparkImagesError):
    """A CI job took longer than it may; what it ran was ended in order."""

    exit_status = 90
    usual = "a first build without a compile cache"
    remedy = "run the job again: what was compiled is kept; or a longer `--timeout`"


class RunnerError(SparkImagesError):
    """A CI runner that is not the machine that its job was made for."""

    exit_status = 91
    usual = "one label for runners of two architectures"
    remedy = "give each its own label: [docs/ci.md](ci.md)"


class InterruptedByUser(SparkImagesError):
    """Ctrl-C or SIGTERM; nothing that was finished is lost."""

    exit_status = 130
    usual = "you, or a runner that was told to stop"
    remedy = "the same command again"

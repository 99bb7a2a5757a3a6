"""How a candidate is tried, cheapest first: in a fetched source tree, in a wheel, or as an image."""

from __future__ import annotations

import os
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Protocol

from spark_images.bisect.answer import Answer, CannotGoOn, Cause
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.check import Check, run_check
from spark_images.bisect.journal import Journal
from spark_images.download import Patience
from spark_images.errors import BisectError, MissingError, RouteError
from spark_images.pins import GitPin, Pin
from spark_images.repin import ToRelease
from spark_images.search import Verdict
from spark_images.terminal import tell
from spark_images.tree import SourceTree, tree_from_archive
from spark_images.upstream import Release, Upstream, carrier
from spark_images.workfolder import work_folder

Say = Callable[[str], None]
CHECK_BEGINS = "the check:"  # a line of a try's log


class Stage(Protocol):
    """What a search asks of it."""

    @property
    def builds(self) -> bool:
        """Whether a try may cost a build."""
        ...

    def try_out(self, candidate: Candidate, *, repeat: int, every_run: bool) -> Answer:
        """The verdict on a candidate: bad at the first of `repeat` runs of the check that fails.

        every_run: go on after a failure, to learn how often the check fails. Raises BisectError where the check or
        this machine is to blame, and what interrupts.
        """

    def fetch_ahead(self, candidate: Candidate) -> None:
        """Bring what a try of this candidate will need. Raises what fetching raises."""

    def known_beforehand(self, candidate: Candidate) -> bool:
        """Whether a verdict is likely to cost no build."""


@dataclass
class Try:
    """One try while it runs: its log, the runs of its check, and what becomes of it."""

    candidate: Candidate
    log: Path
    say: Say
    runs: int = 0
    failures: int = 0
    plan_id: str = ""
    last_error: str = ""

    def feed(self, line: str) -> None:
        """A line of a program's output."""
        if line.startswith("error: "):
            self.last_error = line.removeprefix("error: ")
        self.say(line)


def carried_out(
    candidate: Candidate, journal: Journal, run: Callable[[Try], tuple[Verdict, Cause, str]], *, note: str = ""
) -> Answer:
    """Run a try with its log; what fetching cannot bring becomes a skip. run: verdict, cause and reason."""
    log = journal.log(candidate.label)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:

        def say(line: str) -> None:
            out.write(line + "\n")
            out.flush()
            tell(f"  | {line}")

        trying = Try(candidate, log, say)
        try:
            if candidate.missing:
                verdict, cause, reason = Verdict.SKIP, Cause.MISSING, candidate.missing
            else:
                verdict, cause, reason = run(trying)
        except MissingError as err:
            verdict, cause, reason = Verdict.SKIP, Cause.MISSING, err.what
        except RouteError as err:
            verdict, cause, reason = Verdict.SKIP, Cause.NETWORK, err.what
        except CannotGoOn as err:
            raise BisectError(
                f"trying {candidate.label} ended in a way that says nothing about it",
                why=(trying.last_error or err.what, *((err.what,) if trying.last_error else ()), f"log: {log}"),
                hint="set that right and run the same command again: what was learned so far is kept",
            ) from None
    return Answer(
        key=candidate.key,
        label=candidate.label,
        verdict=verdict,
        cause=cause,
        reason=reason or trying.last_error,
        seconds=round(time.monotonic() - began, 1),
        runs=trying.runs,
        failures=trying.failures,
        plan_id=trying.plan_id,
        log=str(log),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def run_repeatedly(
    trying: Try, once: Callable[[], tuple[Verdict, Cause]], *, repeat: int, every_run: bool
) -> tuple[Verdict, Cause, str]:
    """The verdict of several runs of a check: bad when one of them is, a skip when one cannot tell."""
    found = (Verdict.GOOD, Cause.CHECK)
    for number in range(repeat):
        trying.say(f"{CHECK_BEGINS}{f' (run {number + 1} of {repeat})' if repeat > 1 else ''}")
        verdict, cause = once()
        trying.runs += 1
        if verdict is Verdict.SKIP:
            return verdict, cause, ""
        if verdict is Verdict.BAD:
            trying.failures += 1
            found = (verdict, cause)
            if not every_run:
                break
    return (*found, f"failed in {trying.failures} of {trying.runs} runs" if trying.failures and repeat > 1 else "")


@dataclass(frozen=True, kw_only=True)
class TreeStage:
    """The check runs in the release's own source tree, or in its unpacked wheel; nothing is built."""

    pin: Pin
    check: Check
    upstream: Upstream
    journal: Journal
    env: Mapping[str, str]
    platform: str = ""  # take the wheel for it instead of the sources
    builds: bool = False

    def try_out(self, candidate: Candidate, *, repeat: int, every_run: bool) -> Answer:
        def run(trying: Try) -> tuple[Verdict, Cause, str]:
            with work_folder(self.upstream.cache, "bisect") as work:
                tree = self._unpack(candidate, work)
                env = {
                    **self.env,
                    "SPARK_CANDIDATE": candidate.label,
                    "SPARK_SOURCE": str(tree),
                }
                once = partial(
                    run_check, self.check.command, env=env, cwd=tree, note=work / "note", on_line=trying.feed
                )
                return run_repeatedly(trying, once, repeat=repeat, every_run=every_run)

        return carried_out(candidate, self.journal, run)

    def fetch_ahead(self, candidate: Candidate) -> None:
        release = _release(candidate)
        if release.project and not candidate.missing:
            self._file(candidate)

    def known_beforehand(self, candidate: Candidate) -> bool:
        return False

    def _file(self, candidate: Candidate) -> Path:
        if self.platform:
            return self.upstream.fetch_wheel(self.pin.name, _release(candidate), platform=self.platform)
        return self.upstream.fetch_sdist(self.pin.name, _release(candidate))

    def _unpack(self, candidate: Candidate, work: Path) -> Path:
        folder = work / "tree"
        folder.mkdir()
        release = _release(candidate)
        if self.platform:
            with zipfile.ZipFile(self._file(candidate)) as wheel:
                wheel.extractall(folder)
            return folder
        if release.project:
            route = carrier(self.pin) if isinstance(self.pin, GitPin) else None
            path = route.path if route is not None else getattr(self.pin, "path", "")
            _extract(tree_from_archive(self._file(candidate), path, work=work, source=release.name), folder, work)
            return folder
        assert isinstance(self.pin, GitPin)
        from spark_images.git_tree import tree_from_git

        stall_s = Patience.from_env(os.environ).timeout_s
        tree = tree_from_git(self.pin.url, release.commit, work=work, stall_s=stall_s, stop=threading.Event())
        _extract(tree, folder, work)
        return folder


@dataclass(frozen=True, kw_only=True)
class RegistryStage:
    """The check gets the reference of an image that a registry holds; nothing is built and nothing is pulled."""

    check: Check
    journal: Journal
    upstream: Upstream
    env: Mapping[str, str]
    builds: bool = False

    def try_out(self, candidate: Candidate, *, repeat: int, every_run: bool) -> Answer:
        from spark_images.registry.client import Client
        from spark_images.registry.reference import parse_reference

        def run(trying: Try) -> tuple[Verdict, Cause, str]:
            wanted = parse_reference(candidate.reference)
            client = Client(wanted.repository)
            manifest = client.manifest(wanted.wanted)
            if manifest is None:
                raise MissingError(f"the registry does not have {candidate.reference} any more")
            image = wanted.repository.at(manifest.digest)
            env = {**self.env, "SPARK_CANDIDATE": candidate.label, "SPARK_IMAGE": image}
            with work_folder(self.upstream.cache, "bisect") as work:
                once = partial(
                    run_check, self.check.command, env=env, cwd=Path.cwd(), note=work / "note", on_line=trying.feed
                )
                return run_repeatedly(trying, once, repeat=repeat, every_run=every_run)

        return carried_out(candidate, self.journal, run)

    def fetch_ahead(self, candidate: Candidate) -> None:
        return

    def known_beforehand(self, candidate: Candidate) -> bool:
        return False


def _release(candidate: Candidate) -> Release:
    move = candidate.moves[0]
    assert isinstance(move, ToRelease)
    return move.release


def _extract(tree: SourceTree, folder: Path, work: Path) -> None:
    """Unpack a tree; its writer has refused links and names that lead out of it."""
    tar = work / "tree.tar"
    with tree, tar.open("wb") as out:
        tree.write(out)
    with tarfile.open(tar) as archive:
        archive.extractall(folder)
    tar.unlink()

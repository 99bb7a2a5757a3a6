"""A candidate as an image: its pins in a folder of their own, locked, rendered, built or pulled, and checked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.bisect.answer import Answer, Cause, judge_verb
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.check import Check, run_check
from spark_images.bisect.journal import Journal
from spark_images.bisect.stages import Try, carried_out, run_repeatedly
from spark_images.built import name_in_engine
from spark_images.errors import CompatError, ConfigError, RegistryError, UsageError
from spark_images.own_verbs import ImageWords, run_verb
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.repin import ToRelease, materialise
from spark_images.search import Verdict
from spark_images.upstream import Upstream
from spark_images.workfolder import work_folder

if TYPE_CHECKING:
    from spark_images.engine.base import Engine


@dataclass(frozen=True, kw_only=True)
class ImageStage:
    """registry: where built images may lie (`HOST/NAME`), "" for none. refusals: what compat rules say of pins."""

    root: Path
    words: ImageWords
    check: Check
    upstream: Upstream
    journal: Journal
    env: Mapping[str, str]
    registry: str = ""
    refusals: Callable[[Project], tuple[str, ...]] = lambda project: ()
    builds: bool = True

    def try_out(self, candidate: Candidate, *, repeat: int, every_run: bool) -> Answer:
        """As stages.Stage."""

        def run(trying: Try) -> tuple[Verdict, Cause, str]:
            with work_folder(self.upstream.cache, "bisect") as work:
                return self._run(trying, work, repeat=repeat, every_run=every_run)

        return carried_out(candidate, self.journal, run)

    def fetch_ahead(self, candidate: Candidate) -> None:
        """As stages.Stage. It says nothing: lines of two candidates at once help nobody."""
        with work_folder(self.upstream.cache, "ahead") as work, tempfile.TemporaryDirectory(dir=work) as note:
            folder = work / "project"
            folder.mkdir()
            quiet: Callable[[str], None] = lambda line: None  # noqa: E731
            moved = materialise(candidate.moves, self.root, folder, upstream=self.upstream, on_line=quiet, for_one=True)
            if moved == 0:
                run_verb(folder, "fetch", self.words.image, note=Path(note) / "note", on_line=quiet)

    def known_beforehand(self, candidate: Candidate) -> bool:
        """As stages.Stage: whether a record tells of an image that was built at this version."""
        return bool(self._built_names & {move.release.name for move in candidate.moves if isinstance(move, ToRelease)})

    @cached_property
    def _built_names(self) -> set[str]:
        """The versions of all pins in the records of images like this one that were built."""
        from spark_images.record import Outcome, read_records

        views = (view for view in read_records(self.upstream.cache.records) if view.outcome is Outcome.BUILT)
        pins = (view.plan.get("pins", {}) for view in views if view.image == self.words.image)
        return {str(text).partition(" ")[0] for of in pins for text in of.values()}

    def _run(self, trying: Try, work: Path, *, repeat: int, every_run: bool) -> tuple[Verdict, Cause, str]:
        folder, note = work / "project", work / "note"
        folder.mkdir()
        try:
            status = materialise(
                trying.candidate.moves,
                self.root,
                folder,
                upstream=self.upstream,
                on_line=trying.feed,
                refuse=self._refuse,
                for_one=True,
            )
            if found := judge_verb(status, checks_build=False):
                return (*found, "")
            plan = self._plan(Project(folder))
        except (CompatError, ConfigError, UsageError) as err:  # pins that do not go with one another
            return Verdict.SKIP, Cause.COMPAT, next(iter(err.why), err.what)
        trying.plan_id = plan.plan_id
        if (same := self._same_image(trying)) is not None:
            return same.verdict, Cause.RECORD, f"the same image as {same.label}"
        if repeat == 1 and not trying.candidate.anew and (known := self._from_records(plan)) is not None:
            return known, Cause.RECORD, "an earlier run had told"
        with self._engine_left_as_it_was(plan):
            return self._build_and_check(trying, plan, folder, note, repeat=repeat, every_run=every_run)

    def _build_and_check(
        self, trying: Try, plan: Plan, folder: Path, note: Path, *, repeat: int, every_run: bool
    ) -> tuple[Verdict, Cause, str]:
        self._pull(plan, folder, note, trying)
        checks_build = self.check.verb == "build"
        status = run_verb(folder, *self.words.build(), note=note, on_line=trying.feed)
        if found := judge_verb(status, checks_build=checks_build):
            return (*found, "")
        if checks_build:
            return Verdict.GOOD, Cause.BUILT, ""
        make = self._command if self.check.command else self._verb
        once = make(trying, plan, folder, note)
        return run_repeatedly(trying, once, repeat=repeat, every_run=every_run)

    def _refuse(self, project: Project) -> None:
        if refused := self.refusals(project):
            raise UsageError(refused[0])

    def _plan(self, project: Project) -> Plan:
        words = self.words
        image = project.image(words.image)
        return project.plan(image, *project.variant(image, words.target, words.base, words.origin))

    def _same_image(self, trying: Try) -> Answer | None:
        """What this search has learned of another candidate with the same plan: it is the same image."""
        known = (one for one in self.journal.answers if one.plan_id == trying.plan_id)
        same = next((one for one in known if one.verdict is not Verdict.SKIP), None)
        if same is None or trying.candidate.anew:
            return None
        trying.runs, trying.failures = same.runs, same.failures
        return same

    def _from_records(self, plan: Plan) -> Verdict | None:
        """What the records of this plan have told: that it was built; how its tests ended."""
        from spark_images.record import last_built_from, read_records

        if self.check.command or self.check.name or self.check.verb not in ("build", "test"):
            return None
        record = last_built_from(read_records(self.upstream.cache.records), plan.plan_id)
        if record is None:
            return None
        if self.check.verb == "build":
            return Verdict.GOOD
        tests = record.appended("tests")
        if not tests or tests[-1].get("arguments") != []:  # of a choice of tests, or of a version that did not say
            return None
        return Verdict.BAD if tests[-1]["failures"] else Verdict.GOOD

    def _pull(self, plan: Plan, folder: Path, note: Path, trying: Try) -> None:
        """Where the registry has the image of this plan, bring it; a build then finds it built."""
        if not self.registry or (self.upstream.cache.images / plan.plan_id).exists():
            return
        from spark_images.registry.client import Client
        from spark_images.registry.reference import parse_registry

        repository = parse_registry(self.registry, plan.image)
        try:
            client = Client(repository)
            manifest = client.manifest(plan.plan_id[:12])
        except RegistryError as err:
            trying.say(f"{self.registry} cannot be asked ({err.what}): building")
            return
        if manifest is not None:
            reference = repository.at(manifest.digest)
            run_verb(folder, "pull", reference, *self.words.engine_words(), note=note, on_line=trying.feed)

    def _verb(self, trying: Try, plan: Plan, folder: Path, note: Path) -> Callable[[], tuple[Verdict, Cause]]:
        check, report = self.check, note.with_name("report")
        engine = self.words.engine_words() if check.verb != "audit" else ()
        words = (check.verb, plan.image, "--target", plan.target, "--base", plan.base, *engine)

        def once() -> tuple[Verdict, Cause]:
            report.unlink(missing_ok=True)
            status = run_verb(folder, *words, *check.arguments(report), note=note, on_line=trying.feed)
            found = judge_verb(status, checks_build=False)
            if found is not None and found[1] is not Cause.CHECK:
                return found
            return check.judge_report(report) or found or (Verdict.GOOD, Cause.CHECK)

        return once

    def _command(self, trying: Try, plan: Plan, folder: Path, note: Path) -> Callable[[], tuple[Verdict, Cause]]:
        env = {
            **self.env,
            "SPARK_CANDIDATE": trying.candidate.label,
            "SPARK_IMAGE": name_in_engine(plan.image, plan.plan_id),
            "SPARK_LAYOUT": str(self.upstream.cache.images / plan.plan_id),
            "SPARK_PROJECT": str(folder),
            "SPARK_PLAN_ID": plan.plan_id,
            "SPARK_ENGINE": self.engine.name,
        }
        return partial(run_check, self.check.command, env=env, cwd=Path.cwd(), note=note, on_line=trying.feed)

    @contextmanager
    def _engine_left_as_it_was(self, plan: Plan) -> Iterator[None]:
        """An image that the try brings into the engine goes at its end; its layout stays for the next time."""
        reference = name_in_engine(plan.image, plan.plan_id)
        had = self.engine.image_id(reference) is not None
        try:
            yield
        finally:
            if not had and self.engine.image_id(reference) is not None:
                self.engine.client().images.remove(reference, force=True)

    @cached_property
    def engine(self) -> Engine:
        """Where images are built and run; EngineError where none answers."""
        from spark_images.engine import choose_engine

        return choose_engine(self.words.engine, cache=self.upstream.cache, env=os.environ)

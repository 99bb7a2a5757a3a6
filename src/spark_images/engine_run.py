"""One run of an engine over a plan: staged, capped, watched, shown and recorded; a failure is named by its log."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.allowance import Allowance, allow
from spark_images.cache import Cache
from spark_images.compile_cache.mount import Mount
from spark_images.diagnose import build_error, first_error
from spark_images.engine import able_engine
from spark_images.engine.base import BuildRequest, Engine, EngineFacts, RootImage
from spark_images.engine.hostwatch import HostWatch
from spark_images.fetch import fetch
from spark_images.images import Image
from spark_images.patches import require_patches_apply
from spark_images.pinned_image import fetch_image
from spark_images.plan import Plan
from spark_images.progress import Progress
from spark_images.project import Project
from spark_images.record import RecordView, expected_seconds, read_records
from spark_images.record_writer import RecordWriter, append_to_record
from spark_images.staging import root_image, stage, stage_inputs, write_replay
from spark_images.store import Store
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.workfolder import remove_abandoned

if TYPE_CHECKING:
    from spark_images.compile_cache.share import SharedCompileCache


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """A plan, the engine that carries it out, and what that may use of this host; made by prepare."""

    project: Project
    plan: Plan
    engine: Engine
    facts: EngineFacts
    allowance: Allowance
    records: Sequence[RecordView]  # of what was before
    cache: Cache

    @classmethod
    def prepare(
        cls,
        project: Project,
        image: Image,
        target: Target,
        plan: Plan,
        *,
        engine: Engine,
        named: bool,
        memory_bytes: int | None,
        limit_memory: bool,
        cache: Cache,
    ) -> EngineRun:
        """Have an engine that can build, with what killed runs left out of the way, and see what it may use.

        engine, named: as able_engine. memory_bytes: the cap, None for what the host can spare. Raises what able_engine
        and allow raise.
        """
        engine = able_engine(engine, named=named, cache=cache, env=os.environ)
        for line in remove_abandoned(cache):
            tell(f"removed the {line}")
        records = read_records(cache.records)
        allowance = allow(image, target, plan, records, asked_bytes=memory_bytes, limit=limit_memory, env=os.environ)
        facts = engine.facts()
        return cls(
            project=project, plan=plan, engine=engine, facts=facts, allowance=allowance, records=records, cache=cache
        )

    @property
    def store(self) -> Store:
        """Where the inputs lie."""
        return Store(self.cache.store)

    def fetch_inputs(self) -> None:
        """Bring all that the plan names into the store. Raises what that and patches raise."""
        fetch(self.plan.contents, store=self.store)
        require_patches_apply(self.plan, self.project.root, store=self.store, cache=self.cache)
        for pin, platform in self.plan.images:
            fetch_image(pin, store=self.store, platform=platform)

    def begin(self) -> RecordWriter:
        """The record of an attempt, for carry_out and for what is made of what that leaves."""
        return RecordWriter.start(
            self.cache.records,
            plan_id=self.plan.plan_id,
            image=self.plan.image,
            target=self.plan.target,
            base=self.plan.base,
            plan=self.plan.document(),
            command=sys.argv,
            engine=self.facts,
            host=self.allowance.document(),
            now=datetime.now(UTC),
        )

    def roots(self) -> tuple[RootImage, ...]:
        """What stages stand on, assembled where the cache has none."""
        return tuple(root_image(root, self.store, self.cache) for root in self.plan.roots)

    def carry_out(
        self,
        record: RecordWriter,
        roots: Sequence[RootImage],
        work: Path,
        *,
        use_cache: bool,
        cold: bool,
        rebuild: bool = False,
        machine: str = "",
        shared: SharedCompileCache | None = None,
    ) -> Path:
        """The OCI layout that the engine leaves, raw, in the work folder.

        use_cache: of finished steps. cold: without the compile cache. rebuild: every step runs, with the compile cache.
        machine: see BuildRequest.hostname. shared: the compile cache of other machines. Raises BuildError and its kind.
        """
        plan, allowance = self.plan, self.allowance
        progress = Progress(
            sys.stderr,
            env=os.environ,
            clock=time.monotonic,
            expected_s=lambda step: expected_seconds(self.records, plan.image, step),
        )
        staged = stage(
            plan,
            record.folder / "build",
            root=self.project.root,
            jobs=allowance.jobs,
            memory_bytes=allowance.memory_bytes,
            gib_per_job=allowance.gib_per_job,
            profile=allowance.profile.text,
            cold=cold,
            rebuild=record.id if rebuild else "",
            compile_cache=shared.settings if shared else None,
        )
        inputs, raw = stage_inputs(plan, work / machine / "inputs", self.store), work / "raw"
        request = BuildRequest(
            dockerfile=staged.dockerfile,
            context=staged.scripts,
            contexts=(("inputs", inputs),),
            roots=tuple(roots),
            secrets=staged.secrets,
            memory_bytes=allowance.memory_bytes,
            use_cache=use_cache,
            output=raw,
            attempt=record.id,
            hostname=machine,
        )

        def on_line(line: str) -> None:
            progress.feed(record.line(line))

        def say(line: str) -> None:
            record.line(line)
            progress.say(line)

        def note(line: str) -> None:
            record.line(line)
            tell(line)

        mount = Mount(engine=self.engine, request=request, work=work)
        if shared:
            shared.fill(mount, note)
        watch = HostWatch(allowance.floor, say)
        try:
            with progress:
                outcome = self.engine.build(request, on_line, watch)
        finally:
            append_to_record(record.folder, "host-memory", watch.document())
        if shared:  # whether it built or not: another runner may go on with what was compiled
            shared.give(mount, record.log, note)
            append_to_record(record.folder, "compile-cache", shared.document())
        replay = record.folder / "replay.sh"
        write_replay(replay, plan, outcome.command, inputs=inputs, raw=raw, store=self.store, env=outcome.env)
        if outcome.status != 0:
            with record.log.open(encoding="utf-8", errors="replace") as lines:
                found = first_error(lines)
            record.diagnosis = found.document()
            step = next((step for step in record.reader.steps if step.name == found.step), None)
            raise build_error(found, image=plan.image, log=str(record.log), step=step)
        return raw

"""Test a built image: bring it into an engine, run its tests there, keep what came out with its record."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from spark_images.build import built_layout, load_into
from spark_images.cache import Cache
from spark_images.errors import CheckError
from spark_images.files import write_text
from spark_images.images import Image
from spark_images.pins import FileContent
from spark_images.project import Project
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.workfolder import work_folder

INSPECT_PIN = "cuda-inspect"  # holds NVIDIA's cuobjdump; a project without GPU images needs none


def test(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    cache: Cache,
    engine: str | None,
    pytest: Sequence[str],
) -> None:
    """Run images/<name>/tests against the image of today's plan and keep the verdict. pytest: further arguments for it.

    Raises UsageError when the image is not built, CheckError when a test failed.
    """
    from spark_images.engine import choose_engine
    from spark_images.imagetest import LOGS, run_image_tests
    from spark_images.record import append_to_record, last_built_from, read_records
    from spark_images.verdicts import keep_verdict

    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)
    chosen = choose_engine(engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ)
    reference = load_into(chosen, layout, image=plan.image, plan_id=plan.plan_id)
    tell(f"testing {image.name} for {target.name} on {base} in {chosen.name}: {reference}")
    with work_folder(cache, "tests") as folder:
        results = run_image_tests(
            project,
            image,
            target,
            base,
            layout=layout.path,
            reference=reference,
            engine=chosen,
            cuobjdump=inspect_program(project, cache),
            results=folder,
            pytest_args=pytest,
        )
        if record := last_built_from(read_records(cache.records), plan.plan_id):
            tested = {**asdict(results), "arguments": list(pytest), "engine": chosen.name}
            when = datetime.now(UTC).isoformat(timespec="seconds")
            kept = append_to_record(record.folder, "tests", {**tested, "digest": layout.manifest_digest, "when": when})
            write_text(kept.with_suffix(".xml"), (folder / "junit.xml").read_text())
            if (folder / LOGS).is_dir():
                shutil.copytree(folder / LOGS, kept.with_suffix(".logs"))
    if not (pytest and results.good):  # that a part of the tests passed is no verdict
        evidence = f"{results.passed} tests passed, {len(results.failures)} failed in {chosen.name}"
        keep_verdict(
            cache,
            plan.plan_id,
            Verdict(
                gate=Gate.TEST,
                colour=Colour.GREEN if results.good else Colour.RED,
                digest=layout.manifest_digest,
                when=datetime.now(UTC),
                evidence=evidence,
            ),
        )
    if not results.good:
        raise CheckError(
            f"{len(results.failures)} of {results.passed + len(results.failures)} tests of `{image.name}` failed",
            why=[f"{failure.test}: {failure.reason}" for failure in results.failures],
        )


def inspect_content(project: Project) -> FileContent | None:
    """The wheel with NVIDIA's cuobjdump for this machine; None where the project pins none."""
    from spark_images.contents import wheel_content
    from spark_images.project import host_platform

    if all(pin.name != INSPECT_PIN for pin in project.pins.pins):
        return None
    wheels = project.wheels_lock(INSPECT_PIN).wheels
    return wheel_content(INSPECT_PIN, next(wheel for wheel in wheels if wheel.platform == host_platform()))


def inspect_program(project: Project, cache: Cache) -> Path | None:
    """NVIDIA's cuobjdump for this machine, fetched and unpacked where it is not yet; None as inspect_content."""
    from spark_images.cuobjdump import unpack_cuobjdump
    from spark_images.fetch import fetch
    from spark_images.store import Store

    content = inspect_content(project)
    if content is None:
        return None
    store = Store(cache.store)
    fetch((content,), store=store, quiet=True)
    return unpack_cuobjdump(store.path(content.digest), cache.tools)

"""The verb `test`: bring a built image into an engine, run its tests there, keep what came out with its record.

pytest runs in a process of its own, so that its plugins and settings are the tests' alone. It has the terminal, so that
further arguments such as `--pdb` work.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_images.built import built_layout, load_into
from spark_images.cache import Cache
from spark_images.cuobjdump import cuobjdump_of
from spark_images.engine import choose_engine
from spark_images.engine.base import Engine
from spark_images.errors import CheckError
from spark_images.files import write_text
from spark_images.images import Image
from spark_images.imagetest import LOGS, Subject
from spark_images.process import attach, quoted
from spark_images.project import Project
from spark_images.record_writer import append_to_last
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict
from spark_images.workfolder import work_folder

TEST_TIMEOUT_S = 300  # of one test with its fixtures; reading a 1 GB image takes some 10 s, all the others less


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One test that did not pass: its name, and the first line of why."""

    test: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TestResults:
    """What came out. passed counts tests; whatever else happened to a test is a failure here, skips included."""

    __test__ = False  # pytest takes every class of this name for tests

    passed: int
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def good(self) -> bool:
        """Some tests ran and all of them passed."""
        return self.passed > 0 and not self.failures


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
    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)
    chosen = choose_engine(engine, cache=cache, env=os.environ)
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
            cuobjdump=cuobjdump_of(project, cache),
            results=folder,
            pytest_args=pytest,
        )
        tested = {**asdict(results), "arguments": list(pytest), "engine": chosen.name}
        if kept := append_to_last(cache, plan.plan_id, "tests", {**tested, "digest": layout.manifest_digest}):
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
            hint=f"one alone: `./noxw -s test-{image.name} -- -- -k {results.failures[0].test.partition('[')[0]}`"
            if results.failures
            else "",
        )


def run_image_tests(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    layout: Path,
    reference: str,
    engine: Engine,
    cuobjdump: Path | None,
    results: Path,
    pytest_args: Sequence[str] = (),
) -> TestResults:
    """Run images/tests, images/<name>/tests and those of its components against an image in the engine.

    cuobjdump: as unpack_cuobjdump() returns it, None for a project without GPU images. results: a folder for what goes
    to pytest and comes from it: junit.xml, and in LOGS what containers printed. Raises CheckError where pytest itself
    failed: bad arguments, no tests.
    """
    results.mkdir(parents=True, exist_ok=True)
    subject = Subject(
        project=str(project.root),
        image=image.name,
        target=target.name,
        base=base,
        layout=str(layout),
        reference=reference,
        engine=engine.name,
        cuobjdump=str(cuobjdump or ""),
    )
    described = results / "subject.json"
    described.write_text(json.dumps(asdict(subject), indent=2))
    junit = results / "junit.xml"
    junit.unlink(missing_ok=True)
    images = project.root / "images"
    owners = ("", *image.on(base).compile.components, image.name)  # a component's tests hold in the whole as well
    tests = [str(folder) for owner in owners if (folder := images / owner / "tests").is_dir()]
    command = [sys.executable, "-m", "pytest", "-p", "spark_images.imagetest", f"--subject={described}"]
    command += [f"--junit-xml={junit}", f"--timeout={TEST_TIMEOUT_S}", "--import-mode=importlib"]
    command += ["--no-header", "-p", "no:cacheprovider", *tests, *pytest_args]
    tell(quoted(command))
    source = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, **engine.env, "PYTHONPATH": path}
    status = attach(command, cwd=project.root, env=env)
    if status not in (0, 1) or not junit.exists():
        meanings = {2: "interrupted, or a test file cannot be imported", 4: "bad arguments", 5: "no test was selected"}
        meaning = meanings.get(status, "internal error")
        raise CheckError(
            f"the tests of `{image.name}` did not run",
            why=[f"pytest ended with status {status}: {meaning}", quoted(command)],
        )
    return read_junit(junit)


def read_junit(junit: Path) -> TestResults:
    """The results that pytest wrote as JUnit XML."""
    passed, failures, seconds = 0, [], 0.0
    for case in ElementTree.parse(junit).iter("testcase"):
        seconds += float(case.get("time", "0"))
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if bad is None:
            passed += 1
        else:
            reason = (bad.get("message") or bad.text or bad.tag).strip().splitlines()
            failures.append(Failure(test=str(case.get("name")), reason=reason[0] if reason else bad.tag))
    return TestResults(passed=passed, failures=tuple(failures), seconds=round(seconds, 1))

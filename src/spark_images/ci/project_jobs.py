"""Jobs about the project as a whole: its checks, its pins, a search for what broke an image, a step back."""

from __future__ import annotations

import re
import shlex

from spark_images.bisect.report import report_words
from spark_images.ci.job import Job
from spark_images.ci.updates import AUTHOR, push_updates, update_branch
from spark_images.errors import UsageError
from spark_images.files import read_json

# No command: what is typed into a form runs nothing.
CHECK = re.compile(r"(build|audit|test|smoke)(:[A-Za-z0-9_.\[\]-]+)?")
UPDATE_OPTIONS = "SPARK_IMAGES_UPDATE_OPTIONS"


def checks_job(job: Job) -> str:
    """Lint, rendered files, tests; all of them, whichever fail."""
    junit = f"--junit-xml={job.results.absolute() / 'junit-tests.xml'}"
    statuses = []
    for name, words in {
        "lint": ("lint",),
        "rendered Dockerfiles": ("render", "--", "--check"),
        "rendered workflows": ("ci", "--", "--check"),
        "tests": ("tests", "--", junit),
    }.items():
        job.steps.session(name, *words)
        statuses.append(job.steps.status)
        job.steps.status = 0
    job.steps.status = next(filter(None, statuses), 0)
    return ""


def check_pins_job(job: Job) -> str:
    """Ask every route of every pin."""
    job.steps.verb("check-pins", "check-pins", "--json", str(job.results / "pins.json"))
    return ""


def update_pins_job(job: Job) -> str:
    """Newer versions as commits on a branch of their own, pushed; nothing where there are none, or none that is new."""
    options = shlex.split(job.env.get(UPDATE_OPTIONS, ""))
    with update_branch(job) as branch:
        words = ("update-pins", *options, "--branch", branch, *job.build_words())
        identity = {**AUTHOR, **job.env}  # a runner has no git identity, and the verb commits
        job.steps.verb("update-pins", *words, "--json", str(job.results / "updates.json"), env=identity)
        failed, job.steps.status = job.steps.status, 0  # what was accepted before it is pushed nevertheless
        push_updates(job, branch, whole=not failed)
        job.steps.status = job.steps.status or failed
    return ""


def bisect_job(job: Job) -> str:
    """A search with the inputs of the forge's form, $INPUT_…, each checked here: they are words and no shell."""
    image = job.project.image(_input(job, "IMAGE")).name
    check = _input(job, "CHECK")
    if not CHECK.fullmatch(check):
        raise UsageError(f"`{check}` is no check", hint="build, audit, test, smoke, or one test of these, `test:NAME`")
    words = [f"--{name.lower()}={_input(job, name)}" for name in ("GOOD", "BAD")]
    words += [f"--{name.lower()}={value}" for name in ("TARGET", "BASE", "BUDGET") if (value := _input(job, name, ""))]
    pulled = (f"--registry={job.registry}",) if job.registry else ()
    job.summary.facts += [("good", _input(job, "GOOD")), ("bad", _input(job, "BAD")), ("check", check)]
    found = job.results / "bisect.json"
    found.unlink(missing_ok=True)  # of an earlier search in the same folder
    words += [f"--svg={job.results / 'range.svg'}", f"--report={found}"]
    job.steps.verb("bisect", "bisect", image, f"--check={check}", *words, *pulled, *job.build_words())
    if report := read_json(found):
        job.summary.pictures.append(tuple(report_words(report)))
    return ""


def rollback_job(job: Job) -> str:
    """Tags back to the last good image, or to the one that $INPUT_TO names."""
    if not job.registry:
        raise UsageError("no registry is named", hint="set the variable SPARK_IMAGES_REGISTRY of the repository")
    image = job.project.image(_input(job, "IMAGE")).name
    words = [
        f"--{name.lower()}={value}" for name in ("TARGET", "BASE", "TO", "BECAUSE") if (value := _input(job, name, ""))
    ]
    job.steps.verb("rollback", "rollback", image, f"--registry={job.registry}", *words)
    return ""


def _input(job: Job, name: str, otherwise: str | None = None) -> str:
    value = job.env.get(f"INPUT_{name}", "").strip() or otherwise
    if value is None:
        raise UsageError(f"the input `{name.lower()}` is empty", hint=f"it comes in as $INPUT_{name}")
    return value

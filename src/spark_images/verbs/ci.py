"""What CI runs: ci, matrix, ci-job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.verbs.base import Verbs, cache_of_user, engine, memory, project_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_images.ci.image_jobs import Subject
    from spark_images.ci.job import Job

ABOUT_IMAGES = ("build", "audit", "gpu")
ABOUT_PROJECT = ("checks", "check-pins", "update-pins", "bisect", "rollback")


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    ci = verbs.add(
        "ci",
        _ci,
        "Write the workflow files below ci/, and install those of a forge.",
        "./noxw -s ci -- --forge gitea",
    )
    ci.add_argument(
        "--forge",
        choices=("gitea", "github"),
        help="install them for it as well, in .gitea/workflows or .github/workflows",
    )
    ci.add_argument("--check", action="store_true", help="write nothing; fail where a file is not what it should be")
    ci.add_argument("--force", action="store_true", help="overwrite installed files that were edited by hand")

    matrix = verbs.add(
        "matrix",
        _matrix,
        "Print what is to be built on which runner, as JSON for a forge's matrix.",
        "./noxw -s matrix -- --registry ghcr.io/you --since origin/main",
    )
    matrix.add_argument("images", nargs="*", help="folders below images/ (default: all)")
    matrix.add_argument(
        "--registry", metavar="HOST/NAME", help="leave out what it has (default: $SPARK_IMAGES_REGISTRY)"
    )
    matrix.add_argument(
        "--since", metavar="COMMIT", help="leave out what did not change since (default: $SPARK_IMAGES_SINCE)"
    )
    matrix.add_argument("--every-base", action="store_true", help="all bases, not the first of each target alone")

    job = verbs.add(
        "ci-job",
        _job,
        "Do one job of a workflow: time-out, repeats, locks and results are in here.",
        "./noxw -s ci-job -- build llamacpp --target gb10",
    )
    job.add_argument(
        "job",
        metavar="JOB",
        choices=(*ABOUT_IMAGES, *ABOUT_PROJECT),
        help=f"{', '.join((*ABOUT_IMAGES, *ABOUT_PROJECT))}",
    )
    job.add_argument("image", nargs="?", help=f"a folder below images/, for {', '.join(ABOUT_IMAGES)}")
    job.add_argument("--target", help="a machine of images/targets.yaml (default: the image's first)")
    job.add_argument("--base", help="what the image stands on (default: the image's first for the target)")
    job.add_argument(
        "--builder", default="", metavar="PLATFORM", help="what this runner has to be, as linux/arm64 (default: any)"
    )
    job.add_argument(
        "--timeout",
        default="20h",
        metavar="TIME",
        help="end the job after this time, as 8h or 90m (default: %(default)s)",
    )
    memory(job)
    engine(job)
    job.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="where reports and logs are kept (default: ci-results in the project)",
    )


def _ci(options: argparse.Namespace) -> int:
    from spark_images.ci.install import check_workflows, write_workflows

    if options.check:
        check_workflows(project_of(options))
    else:
        write_workflows(project_of(options), options.forge, force=options.force)
    return 0


def _matrix(options: argparse.Namespace) -> int:
    from spark_images.ci.to_build import find_to_build, print_to_build

    to_build = find_to_build(
        project_of(options),
        env=os.environ,
        cache=cache_of_user(),
        images=options.images,
        every=options.every_base,
        registry=options.registry,
        since=options.since,
    )
    print_to_build(to_build, os.environ)
    return 0


def _job(options: argparse.Namespace) -> int:
    from spark_images.ci.job import run_job
    from spark_images.ci.results import FOLDER
    from spark_images.units import parse_duration

    project = project_of(options)
    title, work = _work(options)
    return run_job(
        title,
        work,
        project=project,
        cache=cache_of_user(),
        env=os.environ,
        engine=options.engine,
        memory=options.memory,
        timeout_s=parse_duration(options.timeout),
        results=options.results or project.root / FOLDER,
    )


def _work(options: argparse.Namespace) -> tuple[str, Callable[[Job], str]]:
    from spark_images.ci import image_jobs, project_jobs
    from spark_images.errors import UsageError

    if options.job in ABOUT_PROJECT:
        if options.image:
            raise UsageError(f"the job `{options.job}` is about no single image")
        jobs = {
            "checks": project_jobs.checks_job,
            "check-pins": project_jobs.check_pins_job,
            "update-pins": project_jobs.update_pins_job,
            "bisect": project_jobs.bisect_job,
            "rollback": project_jobs.rollback_job,
        }
        return options.job, jobs[options.job]
    subject = _subject(options)
    work = {"build": image_jobs.build_job, "audit": image_jobs.audit_job, "gpu": image_jobs.gpu_job}[options.job]
    title = f"{options.job} {subject.image.name} for {subject.target.name} on {subject.base}"
    return title, lambda job: work(job, subject)


def _subject(options: argparse.Namespace) -> Subject:
    from spark_images.ci.image_jobs import Subject
    from spark_images.errors import UsageError

    if not options.image:
        raise UsageError(f"the job `{options.job}` is about an image", hint="name a folder below images/")
    project = project_of(options)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base)
    return Subject(image=image, target=target, base=base, builder=options.builder)

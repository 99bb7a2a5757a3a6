"""What CI runs: ci, matrix, ci-job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_images.ci.image_jobs import Subject
    from spark_images.ci.job import Job

ABOUT_IMAGES = ("build", "audit", "gpu")
ABOUT_PROJECT = ("checks", "check-pins", "update-pins", "bisect", "rollback")


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    ci = verbs.add("ci", _ci, "Write the workflow files below ci/, and install those of a forge.")
    ci.add_argument("--forge", choices=("gitea", "github"), help="install for it: .gitea/workflows, .github/workflows")
    ci.add_argument("--check", action="store_true", help="write nothing; fail where a file is not what it should be")
    ci.add_argument("--force", action="store_true", help="overwrite installed files that were edited by hand")

    matrix = verbs.add("matrix", _matrix, "Print what is to be built on which runner, as JSON for a forge's matrix.")
    matrix.add_argument("images", nargs="*", help="default: all")
    matrix.add_argument("--registry", metavar="HOST/NAME", help="leave out what it has ($SPARK_IMAGES_REGISTRY)")
    matrix.add_argument("--since", metavar="COMMIT", help="leave out what did not change since ($SPARK_IMAGES_SINCE)")
    matrix.add_argument("--every-base", action="store_true", help="not only the first base of every target")

    job = verbs.add("ci-job", _job, "Do one job of a workflow: time-out, repeats, locks and results are in here.")
    job.add_argument("job", choices=(*ABOUT_IMAGES, *ABOUT_PROJECT))
    job.add_argument("image", nargs="?", help=f"for {', '.join(ABOUT_IMAGES)}")
    job.add_argument("--target", help="default: the image's first")
    job.add_argument("--base", help="default: the image's first for the target")
    job.add_argument("--builder", default="", metavar="PLATFORM", help="that this runner has to be (default: any)")
    job.add_argument("--timeout", default="20h", metavar="TIME", help="of the whole job (default: %(default)s)")
    job.add_argument("--memory", metavar="SIZE", help="cap of builds, e.g. 48GiB")
    engine(job)
    job.add_argument("--results", type=Path, metavar="FOLDER", help="default: ci-results in the project")


def _ci(options: argparse.Namespace) -> int:
    from spark_images.ci.install import check_workflows, write_workflows

    if options.check:
        check_workflows(project_of(options))
    else:
        write_workflows(project_of(options), options.forge, force=options.force)
    return 0


def _matrix(options: argparse.Namespace) -> int:
    from spark_images.ci.offer import make_offer, print_offer

    offer = make_offer(
        project_of(options),
        env=os.environ,
        cache=cache_of_user(),
        images=options.images,
        every=options.every_base,
        registry=options.registry,
        since=options.since,
    )
    print_offer(offer, os.environ)
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

"""Trying an image, or this machine, on the GPU: smoke."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.errors import UsageError, did_you_mean
from spark_images.verbs.base import Verbs, cache_of_user, engine, new_file, project_of

if TYPE_CHECKING:
    from spark_images.smoke_results import SmokeResults


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    smoke = verbs.add(
        "smoke",
        _smoke,
        "Run GPU smoke checks in a built image, or on this machine itself.",
        "./noxw -s smoke-vllm -- --require-gpu",
    )
    smoke.add_argument("image", nargs="?", help="a folder below images/; not needed with --host")
    smoke.add_argument("--target", help="a machine of images/targets.yaml (default: the image's first)")
    smoke.add_argument("--base", help="what the image stands on (default: the image's first for the target)")
    smoke.add_argument(
        "--from",
        dest="origin",
        choices=("source", "wheel"),
        help="what the image is made of (default: the image's first)",
    )
    engine(smoke)
    smoke.add_argument(
        "--builder", choices=("linux/amd64", "linux/arm64"), help="platform that compiled it (default: this machine's)"
    )
    smoke.add_argument(
        "--host",
        action="store_true",
        help="try this machine: run the checks outside of any image, with its own packages",
    )
    smoke.add_argument("--checks", metavar="NAME,…", help="with --host: only these (default: the image's, or all)")
    smoke.add_argument(
        "--python", default="python3", help="with --host: the interpreter that has torch (default: %(default)s)"
    )
    smoke.add_argument(
        "--llamacpp", type=Path, metavar="FOLDER", help="with --host: where llama-server is (default: on $PATH)"
    )
    smoke.add_argument("--work", type=Path, metavar="FOLDER", help="with --host: keep logs and compiled kernels there")
    smoke.add_argument(
        "--require-gpu", action="store_true", help="fail where the checks are skipped, as this machine has not the GPU"
    )
    smoke.add_argument("--junit", type=new_file, metavar="FILE", help="write JUnit XML there as well")
    smoke.add_argument("--json", action="store_true", help="print the results as JSON")


def _smoke(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from spark_images.smoke import smoke_image
    from spark_images.smoke_report import say

    project = project_of(options)
    if options.host:
        results, what = _host(options), "this machine"
    elif options.image is None:
        raise UsageError("no image was named", hint="name one, or try this machine itself with `--host`")
    else:
        project = replace(project, builder=options.builder or "")
        image = project.image(options.image)
        target, base = project.variant(image, options.target, options.base, options.origin)
        results = smoke_image(project, image, target, base, cache=cache_of_user(), engine=options.engine)
        what = image.name
    say(results, what=what, require_gpu=options.require_gpu, as_json=options.json, junit_file=options.junit)
    return 0


def _host(options: argparse.Namespace) -> SmokeResults:
    import tempfile

    from spark_images.images_file import smoke_checks
    from spark_images.smoke import smoke_host

    project = project_of(options)
    known = smoke_checks(project.root)
    image = project.image(options.image) if options.image else None
    name = options.target or (image.supports[0][0] if image else None)
    names = tuple(options.checks.split(",")) if options.checks else image.smoke if image else known
    for check in names:
        if check not in known:
            hint = did_you_mean(check, known) or f"checks are {', '.join(known)}"
            raise UsageError(f"there is no check `{check}`", hint=hint)
    with tempfile.TemporaryDirectory(prefix="smoke-") as temporary:
        work = (options.work or Path(temporary)).absolute()
        work.mkdir(parents=True, exist_ok=True)
        target = project.target(name) if name else None
        return smoke_host(project, target, names, work=work, python=options.python, llamacpp=options.llamacpp)

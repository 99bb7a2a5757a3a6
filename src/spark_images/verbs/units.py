"""Parts of a compile, and what the whole of it costs: units, estimate."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from spark_images.errors import UsageError
from spark_images.verbs.base import Verbs, cache_of_user, engine, memory, project_of

if TYPE_CHECKING:
    from spark_images.images import Image
    from spark_images.project import Project
    from spark_images.targets import Target

FROM_SOURCE = "debian"  # the base on which images are compiled from their sdists


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    units = verbs.add(
        "units",
        _units,
        "Compile single objects of a project's real build, check them, make no image.",
        "./noxw -s units-vllm -- '*cache_kernels*' --twice",
    )
    units.add_argument("image", help="a folder below images/ that is compiled from an sdist")
    units.add_argument(
        "globs", nargs="+", metavar="GLOB", help="objects, as '*cache_kernels*'; all are listed where none fits"
    )
    units.add_argument("--target", default="gb10", help="a machine of images/targets.yaml (default: %(default)s)")
    engine(units)
    memory(units)
    units.add_argument("--cold", action="store_true", help="use no compile cache, so that everything is measured")
    units.add_argument(
        "--twice", action="store_true", help="compile them twice without the cache and compare every byte"
    )
    units.add_argument("--all-kernels", action="store_true", help="also kernels that the target never calls")

    estimate = verbs.add(
        "estimate",
        _estimate,
        "What the whole compile of a project costs: time by cores and memory.",
        "./noxw -s estimate-vllm -- --cores 8 --memory 32GiB",
    )
    estimate.add_argument("image", help="a folder below images/ that is compiled from an sdist")
    estimate.add_argument("--target", default="gb10", help="a machine of images/targets.yaml (default: %(default)s)")
    estimate.add_argument(
        "--cores",
        type=int,
        default=20,
        metavar="N",
        help="of the machine that compiles (default: %(default)s, as a GB10)",
    )
    estimate.add_argument(
        "--memory", default="64GiB", metavar="SIZE", help="what the compile may take, as 48GiB (default: %(default)s)"
    )
    estimate.add_argument("--all-kernels", action="store_true", help="also kernels that the target never calls")


def _units(options: argparse.Namespace) -> int:
    from spark_images.doctor import Need, require
    from spark_images.jobs import parse_size
    from spark_images.report_units import show_units
    from spark_images.unit_build import UnitOptions, compile_units

    project, image, target = _asked(options)
    require(Need.ENGINE, env=os.environ)
    units = compile_units(
        project,
        image,
        target,
        options.globs,
        cache=cache_of_user(),
        options=UnitOptions(
            engine=options.engine,
            memory_bytes=None if options.memory is None else parse_size(options.memory),
            cold=options.cold,
            twice=options.twice,
            all_kernels=options.all_kernels,
        ),
    )
    show_units(units, twice=options.twice)
    return 0


def _estimate(options: argparse.Namespace) -> int:
    from spark_images.jobs import parse_size
    from spark_images.record import read_records
    from spark_images.report_units import show_estimate

    project, image, target = _asked(options)
    if options.cores < 1:
        raise UsageError(f"`--cores {options.cores}`: a compile needs one")
    show_estimate(
        project,
        image,
        target,
        read_records(cache_of_user().records),
        cores=options.cores,
        memory_bytes=parse_size(options.memory),
        all_kernels=options.all_kernels,
    )
    return 0


def _asked(options: argparse.Namespace) -> tuple[Project, Image, Target]:
    from spark_images.unit_plan import sdist_of

    project = project_of(options)
    image, target = project.image(options.image).on(FROM_SOURCE), project.target(options.target)
    sdist_of(image, project.pins)
    project.require_fitting(image, target, FROM_SOURCE)
    return project, image, target

"""What the verbs share: how one is added, and how the words that name an image are read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_images.cache import Cache
from spark_images.errors import ConfigError

if TYPE_CHECKING:
    from spark_images.images import Image
    from spark_images.project import Project
    from spark_images.targets import Target

# Each verb imports what it needs when it runs, so that `--help` and an unchanged build stay quick.
Run = Callable[[argparse.Namespace], int]


class Verbs:
    """The command line's verbs while they are being added."""

    def __init__(self, parsers: Any) -> None:  # argparse has no public name for what add_subparsers returns
        self._parsers = parsers

    def add(self, name: str, run: Run, help_text: str, example: str) -> argparse.ArgumentParser:
        """The parser of a new verb; `run` gets what it read and returns the exit status. example: as users type it."""
        added: argparse.ArgumentParser = self._parsers.add_parser(
            name, help=help_text, description=help_text, epilog=f"example: {example}", allow_abbrev=False
        )
        added.set_defaults(run=run)
        return added


def variant(added: argparse.ArgumentParser) -> None:
    """Add what names one image: read it with variant_of."""
    added.add_argument("image", help="a folder below images/; `./noxw -s VERB-IMAGE` fills it in")
    added.add_argument("--target", help="a machine of images/targets.yaml (default: the image's first)")
    added.add_argument("--base", help="what the image stands on (default: the image's first for the target)")
    added.add_argument(
        "--from",
        dest="origin",
        choices=("source", "wheel"),
        help="wheel: what the project itself released, in place of a compile (default: the image's first)",
    )


def engine(added: argparse.ArgumentParser) -> None:
    """Add the choice of the engine."""
    added.add_argument(
        "--engine",
        choices=("podman", "docker"),
        help="what builds and runs containers (default: docker where it answers, else podman)",
    )


def memory(added: argparse.ArgumentParser) -> None:
    """Add the cap of what is built or compiled; jobs.parse_size reads it."""
    added.add_argument(
        "--memory",
        metavar="SIZE",
        help="most memory that a build step may take, as 48GiB or 900MiB (default: what the host can spare)",
    )


def new_file(text: str) -> Path:
    """The type of options that name a file to be written: found wanting before hours of work, not after."""
    path = Path(text).absolute()
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
    return path


def project_of(options: argparse.Namespace) -> Project:
    """The clone that the command is about; ConfigError where there is none."""
    from spark_images.project import Project

    root = options.project.absolute()
    if not (root / "pins.yaml").is_file():
        raise ConfigError(
            f"no pins.yaml in {root}", hint="run this in a clone of spark-images, or name one with `--project`"
        )
    return Project(root)


def variant_of(options: argparse.Namespace) -> tuple[Project, Image, Target, str]:
    """Project, image, target and base as asked for; UsageError offers the nearest names."""
    project = project_of(options)
    image = project.image(options.image)
    target, base = project.variant(image, options.target, options.base, options.origin)
    return project, image.on(base), target, base


def cache_of_user() -> Cache:
    """The cache folder of whoever runs the command."""
    return Cache.from_env(os.environ)

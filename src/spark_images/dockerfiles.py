"""The committed Dockerfiles: write them as their sources render to now, or show where they differ."""

from __future__ import annotations

import difflib
import sys

from spark_images.errors import DriftError
from spark_images.files import write_text
from spark_images.project import Project
from spark_images.terminal import tell


def write_dockerfiles(project: Project) -> None:
    """Bring every committed Dockerfile up to date, and say which were not.

    Raises CompatError, ConfigError or UsageError (as Project.require_fitting) for the first variant whose pins do not
    fit; those of the others are there then.
    """
    for path, text in project.dockerfiles():
        if not path.exists() or path.read_text() != text:
            write_text(path, text)
            tell(f"wrote {path.relative_to(project.root)}")
    _require_fitting(project)


def check_dockerfiles(project: Project) -> None:
    """Print what `write_dockerfiles` would change, as a diff; DriftError where that is anything, else as that."""
    drifted = []
    for path, text in project.dockerfiles():
        name = str(path.relative_to(project.root))
        found = path.read_text() if path.exists() else ""
        if found != text:
            drifted.append(name)
            sys.stdout.writelines(
                difflib.unified_diff(
                    found.splitlines(True), text.splitlines(True), f"{name} (committed)", f"{name} (rendered)"
                )
            )
    if drifted:
        raise DriftError(f"out of date: {', '.join(drifted)}", hint="write them with `./noxw -s render`")
    _require_fitting(project)


def _require_fitting(project: Project) -> None:
    for image in project.images:
        for target, base in project.variants(image):
            project.require_fitting(image, target, base)

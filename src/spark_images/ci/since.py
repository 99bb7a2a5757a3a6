"""Which variants a change makes anew: those whose plan is another one than where the change starts from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from spark_images.cache import Cache
from spark_images.checkout import files_at, git
from spark_images.ci.matrix import Variant
from spark_images.errors import SparkImagesError, UsageError
from spark_images.project import Project


def changed_since(
    commit: str, project: Project, variants: Sequence[Variant], builder_of: dict[str, str], cache: Cache
) -> tuple[Variant, ...]:
    """Those of the variants whose plan differs from what it was where HEAD left the commit's line.

    builder_of: key -> platform that compiles. What could not be planned there is new. UsageError for an unknown commit.
    """
    with _project_at(commit, project.root, cache) as before:
        return tuple(
            variant
            for variant in variants
            if _plan_id(before, variant, builder_of[variant.key]) != plan_of(project, variant, builder_of[variant.key])
        )


def plan_of(project: Project, variant: Variant, builder: str) -> str:
    """The plan_id of a variant as compiled on `builder`."""
    return project.plan(
        project.image(variant.image), project.target(variant.target), variant.base, builder=builder or None
    ).plan_id


def _plan_id(project: Project, variant: Variant, builder: str) -> str:
    if not (project.root / "pins.yaml").is_file():
        return ""
    try:
        return plan_of(project, variant, builder)
    except SparkImagesError:  # it did not exist, or did not fit together
        return ""


@contextmanager
def _project_at(commit: str, root: Path, cache: Cache) -> Iterator[Project]:
    base = git(root, "merge-base", "HEAD", commit) if commit[:1] != "-" else None
    if base is None or base.status:
        raise UsageError(
            f"`{commit}` and HEAD have no commit in common here",
            hint="fetch that commit with its history: `git fetch origin COMMIT`",
        )
    with files_at(base.stdout.decode().strip(), root, cache) as files:
        yield Project(files)

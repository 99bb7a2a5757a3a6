"""From a plan to a canonical image: fetch, build under a cap with the network off, re-write, load, record."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.images import Image
from spark_images.plan import Plan, differences
from spark_images.project import Project
from spark_images.targets import Target

if TYPE_CHECKING:
    from spark_images.engine.base import Engine
    from spark_images.oci import Layout


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What the user may choose; none of it changes the image."""

    engine: str | None = None
    memory_bytes: int | None = None  # the cap; None: what the host can spare
    limit_memory: bool = True
    cold: bool = False  # no engine cache, no compile cache; the image is built even if it is there


def build(
    project: Project, image: Image, target: Target, base: str, *, cache: Cache, options: BuildOptions
) -> Layout:
    """Build one variant, or find that it is built already; either way the engine holds it afterwards.

    Returns the canonical layout in cache.images/<plan_id>. Raises BuildError, OutOfMemoryError, IsolationError,
    CanonicalError (also when a cold build gives another digest than the one that is there), and what fetching raises.
    """
    from spark_images.engine import choose_engine
    from spark_images.oci import read_layout

    plan = project.plan(image, target, base)
    engine = choose_engine(options.engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ)
    with _only_one(plan, cache):
        layout_path = cache.images / plan.plan_id
        if layout_path.exists() and not options.cold:
            layout = read_layout(layout_path)
            tell(
                f"{plan.image} for {plan.target} on {plan.base} is built already: nothing that its plan names has changed",
                f"  plan    {plan.plan_id}",
                f"  digest  {layout.manifest_digest}",
                f"  layout  {layout_path}",
            )
        else:
            layout = _build(project, plan, engine, cache=cache, options=options, gib_per_job=image.compile.gib_per_job)
        reference = local_reference(plan)
        if engine.image_id(reference) != layout.config_digest:
            tell(f"loading it into {engine.name}")
            engine.load(layout.path, reference)
        tell(f"  {engine.name:7} {reference}")
    return layout


def local_reference(plan: Plan) -> str:
    """The name under which engines hold the image of a plan."""
    return f"localhost/spark-images/{plan.image}:{plan.plan_id[:12]}"


def explain(project: Project, image: Image, target: Target, base: str, *, cache: Cache) -> None:
    """Say on stdout whether a build would do anything, and what differs from the last one that succeeded."""
    plan = project.plan(image, target, base)
    if (cache.images / plan.plan_id).exists():
        print(f"{image.name}: built already as plan {plan.plan_id[:12]}; a build would only make sure that it is loaded")
        return
    reasons = _reasons(plan, cache)
    print(f"{image.name}: a build would make plan {plan.plan_id[:12]}, because")
    for reason in reasons:
        print(f"  {reason}")


def tell(*lines: str) -> None:
    """The story goes to stderr; stdout is for data."""
    for line in lines:
        print(line, file=sys.stderr)

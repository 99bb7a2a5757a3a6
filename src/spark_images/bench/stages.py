"""A Dockerfile of a bench's own, built on the roots and inputs of the image that the promises are about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_images.bench.base import Subject
from spark_images.errors import BuildError

if TYPE_CHECKING:
    from spark_images.engine.base import Engine


def build_stages(
    subject: Subject, engine: Engine, *, dockerfile: str, script: str, memory_bytes: int, builder: str | None = None
) -> list[str]:
    """The log of a Dockerfile that builds on the image's roots and inputs. script: one of scripts/ that it needs too.

    builder: platform of the compilers, this machine's if None. Raises BuildError where it does not end well.
    """
    from spark_images.engine.base import BuildRequest
    from spark_images.fetch import fetch
    from spark_images.jobs import Jobs
    from spark_images.staging import root_image, stage, stage_inputs
    from spark_images.store import Store
    from spark_images.terminal import tell
    from spark_images.workfolder import work_folder

    store = Store(subject.cache.store)
    plan = subject.project.plan(subject.image, *subject.variant, builder=builder) if builder else subject.plan
    plan = replace(plan, dockerfile=dockerfile, scripts=(*plan.scripts, (script, "")))
    fetch(plan.contents, store=store)
    root = next(root for root in plan.roots if root.name == "build-root")
    lines: list[str] = []
    tell(f"bench: `{script}` for {plan.platform} by {engine.name}")
    with work_folder(subject.cache, "bench") as folder:
        staged = stage(
            plan,
            folder / "build",
            root=subject.project.root,
            jobs=Jobs(1, 1),
            memory_bytes=memory_bytes,
            gib_per_job=subject.image.compile.gib_per_job,
            profile="",
            cold=True,
        )
        request = BuildRequest(
            dockerfile=staged.dockerfile,
            context=staged.scripts,
            contexts=(("inputs", stage_inputs(plan, folder / "inputs", store)),),
            roots=(root_image(root, store, subject.cache),),
            secrets=(),
            memory_bytes=memory_bytes,
            use_cache=False,
            output=folder / "raw",
            attempt="bench",
        )
        outcome = engine.build(request, lines.append)
    if outcome.status != 0:
        raise BuildError(f"`{script}` ended with {outcome.status}", why=lines[-20:])
    return lines

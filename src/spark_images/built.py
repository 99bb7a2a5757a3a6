"""Images that are built: where their layouts lie, what engines call them, and which are being built now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.errors import UsageError
from spark_images.exclusive import alone, try_alone
from spark_images.oci import Layout, read_layout
from spark_images.plan import Plan
from spark_images.terminal import tell, working


def built_layout(plan: Plan, cache: Cache) -> Layout:
    """The image that was built from a plan; UsageError where it was not."""
    place = cache.images / plan.plan_id
    if not place.exists():
        raise UsageError(f"`{plan.image}` is not built at these pins", hint=f"build it: `./noxw -s build-{plan.image}`")
    return read_layout(place)


def name_in_engine(image: str, plan_id: str) -> str:
    """What engines call the image of a plan."""
    return f"localhost/spark-images/{image}:{plan_id[:12]}"


def load_into(engine: Engine, layout: Layout, *, image: str, plan_id: str) -> str:
    """Make sure that the engine holds the image of a plan; the name under which it does."""
    reference = name_in_engine(image, plan_id)
    if engine.image_id(reference) != layout.config_digest:
        with working(f"loading {reference} into {engine.name}"):
            engine.load(layout.path, reference)
    return reference


@contextmanager
def only_build_of(plan: Plan, cache: Cache) -> Iterator[None]:
    """Two builds of one plan: the second waits, then finds it built. The lock ends with the process that holds it."""
    lock = cache.work / f"{plan.plan_id}.lock"
    with alone(lock, on_wait=lambda: tell(f"another process builds {plan.title}; waiting for it")):
        yield


def build_runs(cache: Cache) -> bool:
    """Whether any process is between the plan and the image of a build in this cache."""
    for path in cache.work.glob("*.lock"):
        with try_alone(path) as held:
            if not held:
                return True
    return False

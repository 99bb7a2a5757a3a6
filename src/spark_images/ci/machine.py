"""Whether this machine can do a job, asked before hours are spent: architecture, engine, emulation, disk."""

from __future__ import annotations

from collections.abc import Mapping

from spark_images.cache import Cache
from spark_images.doctor import Need, require
from spark_images.errors import DiskFullError, RunnerError
from spark_images.host import host_platform, read_host
from spark_images.pins import FileContent
from spark_images.plan import Plan
from spark_images.store import Store
from spark_images.units import GIB, format_size

COPIES = 3  # of what a plan fetches: in the store, in the engine's layers, in the canonical image
REST_BYTES = 1 * GIB  # logs, the records, the registry's and the engine's own


def require_builder(builder: str) -> None:
    """RunnerError where a job was made for a runner of another platform; "" is for any."""
    here = host_platform()
    if builder not in ("", here):
        raise RunnerError(
            f"this runner is {here}, and its job was made for one that is {builder}",
            why=["who compiles is a part of the plan, so the image would be another one than was asked for"],
            hint="give this label to runners of one architecture only, or name others in "
            "$SPARK_IMAGES_RUNNER_ARM64 and $SPARK_IMAGES_RUNNER_AMD64 (docs/ci.md)",
        )


def require_machine(plan: Plan, cache: Cache, env: Mapping[str, str]) -> None:
    """HostProgramError without an engine, or emulation for its tests; DiskFullError without room for the build."""
    require(Need.ENGINE, Need.EMULATION, env=env, platform=plan.platform)
    store = Store(cache.store)
    files = (content for content in plan.contents if isinstance(content, FileContent))  # nobody knows a tree's size
    lacking = sum(file.size_bytes or 0 for file in files if not store.path(file.digest).exists())
    needed, free = COPIES * lacking + REST_BYTES, int(read_host(env, versions=False).free_gib * GIB)
    if free < needed:
        raise DiskFullError(
            f"this runner has too little disk for `{plan.image}`: {format_size(free)} of {format_size(needed)}",
            why=[f"where its cache lies, {cache.root}; {format_size(lacking)} are still to be fetched"],
            hint="`./noxw -s prune` empties the store of what no pin names; $SPARK_IMAGES_CACHE names another disk",
        )

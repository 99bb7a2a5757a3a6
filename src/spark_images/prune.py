"""Give room back: the store of what no pin names, roots of old pins, and what killed runs left behind."""

from __future__ import annotations

import os
import shutil
from typing import assert_never

from spark_images.build import build_runs
from spark_images.cache import Cache
from spark_images.errors import EngineError
from spark_images.pinned_image import image_blobs
from spark_images.pins import ArchivePin, DebsPin, GitPin, ImagePin, RequirementsPin, SdistPin, WheelsPin
from spark_images.project import Project
from spark_images.store import Store
from spark_images.terminal import tell
from spark_images.units import format_size
from spark_images.workfolder import remove_abandoned


def prune(project: Project, *, cache: Cache, dry_run: bool) -> None:
    """Remove from the store what no pin of this clone names, and every assembled root (made again in seconds)."""
    store = Store(cache.store)
    keep = named_digests(project, store)
    pruned = store.prune(keep, dry_run=dry_run)
    would = "would remove" if dry_run else "removed"
    tell(f"{would} {pruned.count} objects, {format_size(pruned.size_bytes)}; {len(keep)} are named by pins")
    if dry_run or not cache.roots.is_dir():
        return
    if build_runs(cache):
        tell("left the assembled root file systems: a build runs")
        return
    shutil.rmtree(cache.roots)
    tell("removed the assembled root file systems")


def named_digests(project: Project, store: Store) -> set[str]:
    """The digest of every content that a pin or a lock names, for all platforms."""
    named: set[str] = set()
    for pin in project.pins.pins:
        match pin:
            case GitPin():
                named.add(pin.tree)
            case ArchivePin():
                named.add(f"sha256:{pin.sha256}")
            case SdistPin():
                named.add(f"sha256:{pin.sha256}")
                if pin.lock:
                    named.update(source.tree for source in project.sources_lock(pin.name).sources if source.tree)
            case WheelsPin() | RequirementsPin():
                named.update(f"sha256:{wheel.sha256}" for wheel in project.wheels_lock(pin.name).wheels)
            case DebsPin():
                named.update(f"sha256:{deb.sha256}" for deb in project.debs_lock.debs)
            case ImagePin():
                named.update(image_blobs(pin, store))
            case _:
                assert_never(pin)
    return named


def clean(project: Project, *, cache: Cache, engine: str | None) -> None:
    """Remove what killed runs left: work folders, and on every engine that answers containers, builders and images."""
    from spark_images.engine import choose_engine

    removed = list(remove_abandoned(cache))
    for name in (engine,) if engine else ("podman", "docker"):
        try:
            chosen = choose_engine(name, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ)
        except EngineError:
            if engine:
                raise
            continue  # an engine that does not answer holds nothing that runs
        removed += chosen.clean()
    tell(*(removed or ["nothing was left behind"]))

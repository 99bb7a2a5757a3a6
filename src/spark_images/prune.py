"""Give room back: what no pin names in the store and among the images, and what killed runs left behind."""

from __future__ import annotations

import os
import re
import time
from itertools import groupby
from pathlib import Path
from typing import assert_never

from spark_images.bisect.journal import search_runs, tried_and_unfinished
from spark_images.built import build_runs
from spark_images.cache import Cache
from spark_images.errors import EngineError
from spark_images.pinned_image import image_blobs
from spark_images.pins import ArchivePin, DebsPin, GitPin, ImagePin, RequirementsPin, SdistPin, WheelsPin
from spark_images.platforms import MACHINES
from spark_images.project import Project
from spark_images.record import Outcome, newest_built, read_records
from spark_images.store import Store
from spark_images.terminal import tell
from spark_images.units import format_size
from spark_images.workfolder import remove_abandoned, work_folder

MOST_LINES = 5  # of one kind that are told
UPLOAD_DAYS = 7  # after that registries have forgotten one that was broken off (distribution: uploadpurging.age, 168h)
_OF_PLAN = re.compile(r"[0-9a-f]{64}(?:[.-].+)?$")  # a folder in cache.images


def prune(project: Project, *, cache: Cache, dry_run: bool) -> None:
    """Remove what no pin of this clone names: of the store and of the images; and assembled roots, made in seconds.

    Of other plans' images stays what was built last of each image for each target on each base, and what bisects have
    tried that are not at their end.
    """
    store = Store(cache.store)
    keep, plans = named_digests(project, store), plans_of(project)
    pruned = store.prune(keep, dry_run=dry_run)
    would = "would remove" if dry_run else "removed"
    tell(f"{would} {pruned.count} objects, {format_size(pruned.size_bytes)}; {len(keep)} are named by pins")
    runs = build_runs(cache) or search_runs(cache.records)
    records = read_records(cache.records)  # after that look, so that they tell of every build that has ended until then
    if runs or any(view.outcome is Outcome.RUNNING for view in records):  # units hold no plan's lock
        tell("left the images and the assembled root file systems: a build or a bisect runs")
        return
    plans |= {*(view.plan_id for view in newest_built(records).values()), *tried_and_unfinished(cache.records)}
    images = [path for path in cache.images.glob("*") if _OF_PLAN.match(path.name) and path.name[:64] not in plans]
    if images:
        tell(f"{would} {len(images)} images, {format_size(sum(map(_freed_bytes, images)))}, of plans of other pins")
    if roots := [*cache.roots.glob("*")]:
        tell(f"{would} {len(roots)} assembled root file systems")
    if not dry_run:
        with work_folder(cache, "prune") as folder:  # a layout is there complete or not at all, also after kill -9
            for path in (*images, *roots):
                path.rename(folder / path.name)


def plans_of(project: Project) -> set[str]:
    """The plans of this clone, whichever machine builds them."""
    return {
        project.plan(image, target, base, builder=builder).plan_id
        for image in project.images
        for target, base in project.variants(image)
        for builder in (f"linux/{arch}" for arch in MACHINES)
        if project.compiles_on(builder, image, target, base)
    }


def _freed_bytes(folder: Path) -> int:
    """What the file system gets back; blobs that are links into the store stay there."""
    found = (path.lstat() for path in folder.rglob("*") if path.is_file())
    return sum(status.st_size for status in found if status.st_nlink == 1)


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


def clean(*, cache: Cache, engine: str | None) -> None:
    """Remove what killed runs left: work folders, and on every engine that answers containers, builders and images."""
    from spark_images.engine import choose_engine

    removed = list(remove_abandoned(cache))
    for state in cache.uploads.glob("*.json"):
        if time.time() - state.stat().st_mtime > UPLOAD_DAYS * 86400:
            state.unlink(missing_ok=True)
            removed.append(f"upload `{state.stem}` that was broken off")
    for name in (engine,) if engine else ("podman", "docker"):
        try:
            chosen = choose_engine(name, cache=cache, env=os.environ)
        except EngineError:
            if engine:
                raise
            continue  # an engine that does not answer holds nothing that runs
        removed += chosen.clean()
    if not removed:
        tell("nothing was left behind")
    for kind, group in groupby(sorted(removed), key=lambda line: line.partition(" ")[0]):
        lines = list(group)
        tell(*lines[:MOST_LINES], *([f"{kind}: {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []))

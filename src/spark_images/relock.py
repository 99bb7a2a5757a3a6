"""Make lock files anew: the exact wheels, .debs and source trees that the pins resolve to today."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from spark_images.cache import Cache
from spark_images.contents import sdist_content
from spark_images.debian_lock import resolve_debs, write_debs_lock
from spark_images.download import Patience
from spark_images.errors import CompatError, ConfigError, SparkImagesError, UsageError, nearest
from spark_images.fetch import fetch
from spark_images.pins import DebsPin, Pin, RequirementsPin, SdistPin, WheelsPin
from spark_images.project import Project
from spark_images.requirement_lock import resolve_requirements
from spark_images.sources import LockedSource, read_known_trees, sources_input
from spark_images.sources_lock import resolve_sources, write_sources_lock
from spark_images.store import Store
from spark_images.terminal import tell
from spark_images.together import require_together
from spark_images.units import format_size
from spark_images.wheel_lock import resolve_wheels, write_wheels_lock
from spark_images.workfolder import work_folder


def relock(project: Project, *, names: Sequence[str], cache: Cache) -> None:
    """Resolve the named pins (default: every pin whose files stand in a lock) and write their locks.

    Raises UsageError for a name that is no such pin, CompatError for one whose release fits no image that it is for,
    and what resolving raises; a lock is replaced only when complete.
    """
    kinds = WheelsPin | RequirementsPin | DebsPin | SdistPin
    lockable = {pin.name: pin for pin in project.pins.pins if isinstance(pin, kinds) and pin.lock}
    for name in names:
        if name not in lockable:
            raise UsageError(f"no pin with a lock is called `{name}`{nearest(name, lockable)}")
    for name in names or lockable:
        _require_of_use(project, lockable[name])
    for name in names or lockable:
        pin = lockable[name]
        path = project.root / pin.lock
        path.parent.mkdir(parents=True, exist_ok=True)
        tell(f"resolving {name}")
        match pin:
            case WheelsPin():
                wheels = resolve_wheels(pin)
                write_wheels_lock(pin, wheels, path)
                tell(f"  {pin.lock}: {len(wheels)} wheels")
            case RequirementsPin():
                cache.locks.mkdir(parents=True, exist_ok=True)
                with work_folder(cache, "uv") as work:
                    wheels = resolve_requirements(pin, work=work, log=cache.locks / f"{name}.log")
                write_wheels_lock(pin, wheels, path)
                tell(f"  {pin.lock}: {len(wheels)} files, {format_size(sum(wheel.size_bytes for wheel in wheels))}")
            case DebsPin():
                with work_folder(cache, "apt") as work:
                    debs = resolve_debs(pin, work=work)
                write_debs_lock(pin, debs, path)
                tell(f"  {pin.lock}: {len(debs)} packages")
            case SdistPin():
                sources = _lock_sources(project, pin, path, cache=cache)
                tell(f"  {pin.lock}: {len(sources)} trees, {sum(bool(one.tree) for one in sources)} of them seen")


def _require_of_use(project: Project, pin: Pin) -> None:
    """Raise CompatError where no image can be made of the pin: of its lock nothing would become."""
    refused: SparkImagesError | None = None
    for image in project.images:
        for target, base in project.variants(image):
            compiled = image.on(base).compile
            if pin.name not in (compiled.pin, compiled.installs):
                continue
            try:
                found = project.refusals(image, target, base)
                require_together(found, title=f"{image.name} for {target.name} on {base}")
            except (CompatError, UsageError) as err:
                refused = refused or err
            else:
                return
    if refused:
        raise refused


def _lock_sources(project: Project, pin: SdistPin, path: Path, *, cache: Cache) -> tuple[LockedSource, ...]:
    """Write the lock of what the build of an sdist fetches. UsageError for a release that nothing is known of."""
    made = sources_input(pin, pins=project.pins, facts=project.required_facts)
    contents = [sdist_content(one) for one in (made.pin, made.carrier) if one is not None]
    store = Store(cache.store)
    fetch(contents, store=store)
    files = [store.path(content.digest) for content in contents]
    with work_folder(cache, "sources") as work:
        sources = resolve_sources(
            made,
            sdist=files[0],
            carrier=files[1] if made.carrier else None,
            known=_known_sources(path),
            work=work,
            stall_s=Patience.from_env(os.environ).timeout_s,
            say=tell,
        )
    write_sources_lock(made, sources, path)
    return sources


def _known_sources(path: Path) -> tuple[LockedSource, ...]:
    try:
        return read_known_trees(path) if path.exists() else ()
    except ConfigError as err:
        tell(f"  nothing of the lock so far is kept: {err.what}")
        return ()

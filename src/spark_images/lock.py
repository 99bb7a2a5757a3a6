"""Make lock files anew: the exact wheels and .debs that the pins resolve to today."""

from __future__ import annotations

from collections.abc import Sequence

from spark_images.cache import Cache
from spark_images.debian_lock import resolve_debs, write_debs_lock
from spark_images.errors import UsageError
from spark_images.pins import DebsPin, WheelsPin
from spark_images.project import Project, nearest
from spark_images.terminal import tell
from spark_images.wheel_lock import resolve_wheels, write_wheels_lock
from spark_images.workfolder import work_folder


def lock(project: Project, *, names: Sequence[str], cache: Cache) -> None:
    """Resolve the named pins (default: every pin whose files stand in a lock) and write their locks.

    Raises UsageError for a name that is no such pin, and what resolving raises; a lock is replaced only when complete.
    """
    lockable = {pin.name: pin for pin in project.pins.pins if isinstance(pin, WheelsPin | DebsPin)}
    for name in names:
        if name not in lockable:
            raise UsageError(f"no pin with a lock is called `{name}`{nearest(name, lockable)}")
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
            case DebsPin():
                with work_folder(cache, "apt") as work:
                    debs = resolve_debs(pin, work=work)
                write_debs_lock(pin, debs, path)
                tell(f"  {pin.lock}: {len(debs)} packages")

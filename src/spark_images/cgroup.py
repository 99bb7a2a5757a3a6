"""Where a process stands in the cgroup hierarchies that are mounted: version 2, version 1 and both at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """A process's cgroup in one hierarchy. below: under the mount point; None where the mount does not show it."""

    version: int
    name: str  # as the kernel tells it: "/user.slice/me"
    top: Path
    below: Path | None


def places(pid: int | str, controller: str, root: Path) -> tuple[Place, ...]:
    """Version 2 and the version 1 hierarchy of a controller, as far as mounted. root: where /proc and /sys are (tests).

    Raises OSError where the process is gone.
    """
    names = {}  # hierarchy version -> the process's cgroup in it
    for line in (root / f"proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, name = line.split(":", 2)
        if number == "0":
            names[2] = name
        elif controller in controllers.split(","):
            names[1] = name
    found = []
    for line in (root / "proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        kind, _, options = source.split(" ", 2)
        version = 2 if kind == "cgroup2" else 1 if kind == "cgroup" and controller in options.split(",") else 0
        if version not in names:
            continue
        mounted, mount_point = (field.replace("\\040", " ") for field in mount.split(" ")[3:5])
        top, inside = root / mount_point.lstrip("/"), Path(names[version])
        # In a container the mount may show a lower part of the tree than the path is told from, or another one.
        below = inside.relative_to(mounted) if inside.is_relative_to(mounted) else None
        if below is not None and (".." in below.parts or not (top / below).is_dir()):
            below = None
        found.append(Place(version=version, name=names[version], top=top, below=below))
    return tuple(dict.fromkeys(found))

"""What a killed `podman build` leaves, and its removal: podman itself removes none of it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images import process
from spark_images.engine.base import OWNER


@dataclass(frozen=True, kw_only=True)
class Left:
    """Looks only at what builds with this TMPDIR and images with this owner's label left; no such build may run."""

    tmp: Path
    owner: str
    env: Mapping[str, str]
    runtime: str  # "crun" or "runc"
    podman: Callable[..., process.Captured]

    def remove(self) -> tuple[str, ...]:
        """End the processes and containers, remove working containers and temporary files; a line for each."""
        removed = []
        for pid in processes_with(f"TMPDIR={self.tmp}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                removed.append(f"process {pid} of a stopped build")
        # A step goes on without the podman that started it: it is a container of the OCI runtime by the bundle's name.
        for bundle in sorted(self.tmp.glob("buildah[0-9]*")):
            name = f"buildah-{bundle.name}"
            process.capture([*_inside(), self.runtime, "delete", "--force", name], env=self.env)
            _remove_groups(name)
            removed.append(f"build step {name}")
        removed += self._working_containers()
        for entry in self.tmp.glob("*"):
            if not entry.name.startswith("buildah-cache"):
                remove_tree(entry, self.env)
        return tuple(removed)

    def _working_containers(self) -> Iterator[str]:
        """buildah's containers carry no labels, but the images that they stand on do."""
        label = f"label={OWNER}={self.owner}"
        listed = self.podman("images", "--all", "--quiet", "--no-trunc", "--filter", label)
        ours = {image.removeprefix("sha256:") for image in listed.stdout.decode().split()}
        for container in json.loads(self.podman("ps", "--all", "--external", "--format", "json").stdout):
            if container["ImageID"] in ours:
                self.podman("rm", "--force", container["Id"])
                yield f"working container {container['Names'][0]}"


def _remove_groups(name: str) -> None:
    """Remove a step's empty cgroups: the runtime knows nothing of one that it was just making when it was killed."""
    for folder, _, _ in os.walk("/sys/fs/cgroup", topdown=False):
        if Path(folder).name == name:
            with contextlib.suppress(OSError):  # not empty yet: its last process is still ending
                Path(folder).rmdir()


def remove_tree(path: Path, env: Mapping[str, str]) -> None:
    """Remove a file or folder of builds. Without root it may belong to ids that only podman's user namespace has."""
    if os.geteuid() != 0:
        process.capture([*_inside(), "rm", "-rf", "--", str(path)], env=env)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _inside() -> list[str]:
    return [] if os.geteuid() == 0 else ["podman", "unshare"]


def processes_with(variable: str) -> Iterator[int]:
    """Processes that have `NAME=value` in their environment, other than we ourselves."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found = f"\0{variable}\0".encode() in b"\0" + (folder / "environ").read_bytes() + b"\0"
        except OSError:  # ended meanwhile, or another user's
            continue
        if found and int(folder.name) != os.getpid():
            yield int(folder.name)

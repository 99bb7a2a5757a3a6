"""The folders that one engine run sees: scripts, inputs by hard link, the Dockerfile, and run-time limits."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_images.cache import Cache
from spark_images.plan import Plan
from spark_images.store import Store


@dataclass(frozen=True)
class Staged:
    """One attempt's work folder."""

    folder: Path

    @property
    def dockerfile(self) -> Path:
        return self.folder / "Dockerfile"

    @property
    def scripts(self) -> Path:
        """The default build context."""
        return self.folder / "scripts"

    @property
    def inputs(self) -> Path:
        """The named context `inputs`, with SHA256SUMS of everything in it."""
        return self.folder / "inputs"

    @property
    def limits(self) -> Path:
        """The secret `limits`."""
        return self.folder / "limits"

    @property
    def raw(self) -> Path:
        """Where the engine exports to."""
        return self.folder / "raw"


@contextmanager
def staged(
    plan: Plan, *, scripts: Path, store: Store, cache: Cache, jobs: int, memory_bytes: int | None, cold: bool
) -> Iterator[Staged]:
    """A work folder for one attempt, gone afterwards; a killed attempt's folder is removed by `remove_abandoned`.

    scripts: the project's scripts/. jobs: compile jobs at once. memory_bytes: the cap, None for no cap.
    """
    cache.work.mkdir(parents=True, exist_ok=True)
    work = Staged(Path(tempfile.mkdtemp(prefix=f"{plan.image}-", dir=cache.work)))
    holder = os.open(work.folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(holder, fcntl.LOCK_EX)  # ends with this process, however it ends
    try:
        work.dockerfile.write_text(plan.dockerfile)
        work.scripts.mkdir()
        for name, _ in plan.scripts:
            shutil.copy(scripts / name, work.scripts / name)
            (work.scripts / name).chmod(0o755)
        for entry in plan.inputs:
            destination = work.inputs / entry.path
            destination.parent.mkdir(parents=True, exist_ok=True)
            store.link(entry.content.digest, destination)
        sums = [f"{entry.content.digest.removeprefix('sha256:')}  {entry.path}\n" for entry in plan.inputs]
        work.inputs.mkdir(exist_ok=True)
        (work.inputs / "SHA256SUMS").write_text("".join(sums))
        memory_mib = 0 if memory_bytes is None else memory_bytes // 2**20
        compile_cache = "ignore" if cold else "on"
        work.limits.write_text(f"JOBS={jobs}\nMEMORY_MIB={memory_mib}\nCOMPILE_CACHE={compile_cache}\n")
        yield work
    finally:
        shutil.rmtree(work.folder, ignore_errors=True)
        os.close(holder)


def remove_abandoned(cache: Cache) -> tuple[str, ...]:
    """Remove the work folders of killed attempts; says which."""
    removed = []
    for folder in sorted(cache.work.glob("*")) if cache.work.is_dir() else ():
        if not folder.is_dir():
            continue
        holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # its attempt is running
        else:
            shutil.rmtree(folder)
            removed.append(f"work folder `{folder.name}` of a killed attempt")
        finally:
            os.close(holder)
    return tuple(removed)

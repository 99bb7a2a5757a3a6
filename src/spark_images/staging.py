"""What one engine run sees: Dockerfile, scripts, roots, inputs by hard link, limits; and how to stage it again."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.cache import Cache
from spark_images.engine.base import RootImage
from spark_images.files import room_on, write_text
from spark_images.jobs import Jobs
from spark_images.plan import Plan, Root
from spark_images.store import Store
from spark_images.tarform import FILE_TIME
from spark_images.units import GIB, MIB


@dataclass(frozen=True)
class Staged:
    """The parts of a build below one folder. Small: it stays with the attempt's record."""

    folder: Path

    @property
    def dockerfile(self) -> Path:
        return self.folder / "Dockerfile"

    @property
    def scripts(self) -> Path:
        """The default build context."""
        return self.folder / "scripts"

    @property
    def secrets(self) -> tuple[tuple[str, Path], ...]:
        """What may differ from run to run, so it is in no cache key: `limits`, and the peaks that are expected."""
        return tuple((name, self.folder / name) for name in ("limits", "profile"))


def stage(
    plan: Plan,
    folder: Path,
    *,
    root: Path,
    jobs: Jobs,
    memory_bytes: int | None,
    gib_per_job: float,
    profile: str,
    cold: bool,
    rebuild: str = "",
    compile_cache: Mapping[str, str] | None = None,
) -> Staged:
    """Write Dockerfile, scripts, patches, limits and profile below a new folder.

    root: the project's. memory_bytes: the cap, None for no cap. gib_per_job: for units that the profile
    does not name. profile: for scripts/memgate. rebuild: a word as no run had it before, so that every step runs again.
    compile_cache: further variables for ccache, in no cache key either.
    """
    staged = Staged(folder)
    memory_mib = 0 if memory_bytes is None else memory_bytes // MIB
    with room_on(folder):
        staged.scripts.mkdir(parents=True)
        staged.dockerfile.write_text(plan.dockerfile)
        for name, _ in plan.scripts:
            shutil.copy(root / "scripts" / name, staged.scripts / name)
            (staged.scripts / name).chmod(0o755)
        for path, _ in plan.patches:
            (staged.scripts / "patches").mkdir(exist_ok=True)
            shutil.copy(root / path, staged.scripts / "patches")
        if rebuild:  # a step that sees another file runs again; BuildKit's --no-cache would empty the compile cache
            (staged.scripts / "rebuild").write_text(rebuild)
        limits = {
            "JOBS": jobs.compilers,
            "QUEUE": jobs.queue,
            "MEMORY_MIB": memory_mib,
            "UNIT_MIB": math.ceil(gib_per_job * GIB / MIB),
            "COMPILE_CACHE": "ignore" if cold else "on",
            **(compile_cache or {}),
        }
        lines = (f"{name}={shlex.quote(str(value))}\n" for name, value in limits.items())  # `step` sources it
        (folder / "limits").write_text("".join(lines))
        (folder / "profile").write_text(profile)
    return staged


def root_image(root: Root, store: Store, cache: Cache) -> RootImage:
    """The root as a stage stands on it, assembled if the cache has none; all that it is made of is in the store."""
    from spark_images.debian import cached_root
    from spark_images.oci import read_layout
    from spark_images.pinned_image import cached_image

    if root.component:
        layout = cache.images / root.component
    elif root.image:
        layout = cached_image(root.image, store, platform=f"linux/{root.arch}", cache=cache)
    else:
        layout = cached_root(
            root.name,
            [(deb, store.path(f"sha256:{deb.sha256}")) for deb in root.debs],
            arch=root.arch,
            epoch=FILE_TIME,
            slim=root.slim,
            users=root.users,
            folders=root.folders,
            cache=cache,
        )
    return RootImage(name=root.name, layout=layout, digest=read_layout(layout).manifest_digest)


def stage_inputs(plan: Plan, folder: Path, store: Store) -> Path:
    """The named context `inputs`: a folder of hard links into the store, with SHA256SUMS of what is in it."""
    folder.mkdir(parents=True)
    for entry in plan.inputs:
        destination = folder / entry.path
        destination.parent.mkdir(parents=True, exist_ok=True)
        store.link(entry.content.digest, destination)
    sums = (f"{entry.content.digest.removeprefix('sha256:')}  {entry.path}\n" for entry in plan.inputs)
    (folder / "SHA256SUMS").write_text("".join(sums))
    return folder


def write_replay(
    path: Path, plan: Plan, command: tuple[str, ...], *, inputs: Path, raw: Path, store: Store, env: Mapping[str, str]
) -> None:
    """A shell script that stages the inputs again and runs the engine's command, with `env` in its environment."""
    lines = [
        "#!/bin/sh",
        "# Runs the engine again as it was run. Docker exports to the folder `raw`; podman keeps what `--tag` names.",
        "set -eu",
    ]
    lines.append(f"rm -rf {shlex.quote(str(raw))} {shlex.quote(str(inputs))}")
    for entry in plan.inputs:
        place = inputs / entry.path
        lines.append(
            f"install -D -m 444 {shlex.quote(str(store.path(entry.content.digest)))} {shlex.quote(str(place))}"
        )
        digest = entry.content.digest.removeprefix("sha256:")
        lines.append(f"echo {shlex.quote(f'{digest}  {entry.path}')} >>{shlex.quote(str(inputs / 'SHA256SUMS'))}")
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]
    lines += [f"exec {shlex.join(command)}", ""]
    write_text(path, "\n".join(lines), mode=0o777)

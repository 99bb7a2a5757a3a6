"""What one execution of a build is on every engine: one at a time, watched, and followed by one that tidies up."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images import process
from spark_images.cache import Cache
from spark_images.engine.base import BuildRequest
from spark_images.engine.freezer import NOTE, Freezer, end_left
from spark_images.engine.guard import guarded
from spark_images.errors import DiskFullError, EngineError
from spark_images.exclusive import alone, try_alone
from spark_images.terminal import tell

if TYPE_CHECKING:
    from spark_images.engine.hostwatch import HostWatch

_LOCK = "build.lock"
_MARK = "building"  # there while a build runs; and after one that was killed
# Variables that would change what is built: a date, a platform, another builder, an isolation without a memory cap.
_NOT_FOR_BUILDS = (
    "SOURCE_DATE_EPOCH",
    "DOCKER_DEFAULT_PLATFORM",
    "BUILDX_",
    "BUILDKIT_",
    "BUILDAH_",
)


def owner_of(cache: Cache) -> str:
    """12 hex digits that stand for a cache folder in labels and names."""
    return hashlib.sha256(os.fsencode(cache.root.resolve())).hexdigest()[:12]


def build_env(env: Mapping[str, str], **added: str) -> dict[str, str]:
    """The environment for the engine's build command."""
    return {key: value for key, value in env.items() if not key.startswith(_NOT_FOR_BUILDS)} | added


def check_request(request: BuildRequest) -> None:
    """Raises EngineError where something that the request names is not there; engines' own words for it are obscure."""
    folders = [("context", request.context), *request.contexts, *((root.name, root.layout) for root in request.roots)]
    missing = [f"`{name}`: no folder `{path}`" for name, path in folders if not path.is_dir()]
    files = [("Dockerfile", request.dockerfile), *request.secrets]
    missing += [f"`{name}`: no file `{path}`" for name, path in files if not path.is_file()]
    if missing:
        raise EngineError("the build cannot start: a part of it is missing", why=missing)


@contextmanager
def only_build(
    folder: Path, on_line: Callable[[str], None], remove_left: Callable[[], tuple[str, ...]]
) -> Iterator[None]:
    """Waits, and says so, until no other build uses this folder: each may take all the memory of the host.

    remove_left: ends and removes all that a build may leave. It is called where this one is stopped, and first of all
    where the one before us was killed; then what it says is told.
    """
    with alone(folder / _LOCK, on_wait=lambda: on_line("waiting for another build on this engine to end")):
        mark = folder / _MARK
        if mark.exists():
            for line in tidy(folder, remove_left):
                said = f"removed what a killed build left: {line}"
                on_line(said)
                tell(said)
        mark.touch()
        try:
            yield
        except BaseException:
            tidy(folder, remove_left)
            raise
        mark.unlink()


def tidy(folder: Path, remove_left: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    """End and remove what a build left, frozen things first; a line for each. Only while none runs."""
    removed = (*end_left(folder / NOTE), *remove_left())
    (folder / _MARK).unlink(missing_ok=True)
    return removed


def if_no_build(folder: Path) -> AbstractContextManager[bool]:
    """True, and no build begins while inside; False where one runs."""
    return try_alone(folder / _LOCK)


def run_engine(
    command: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str],
    note: Path,
    freezer: Callable[[int], Freezer],
    watch: HostWatch | None,
) -> int:
    """Run the engine's command; its status. It ends with us, however we end, and nothing stays frozen.

    note: where it is written down what is frozen. freezer: makes one from the command's pid. watch: holds the build
    while the host is short of memory. Raises DiskFullError where the command failed and said that there was no room,
    and HostMemoryError.
    """
    full = []
    found: list[Freezer] = []

    def read(line: str) -> None:
        if "no space left on device" in line.lower():
            full.append(line.strip())
        on_line(line)

    def look(pid: int) -> None:
        if watch is None:
            return
        if not found:
            found.append(freezer(pid))
        watch.look(found[0])

    def kill() -> None:
        for one in found:
            one.kill()

    on_line(process.quoted(command))
    try:
        status = process.stream(guarded(list(command), note), read, env=env, watch=look, before_end=kill)
    finally:
        for one in found:
            one.thaw()
        if watch is not None:
            watch.end()
    if status != 0 and full:
        raise engine_disk_full(full[-1])
    return status


def engine_disk_full(*said: str) -> DiskFullError:
    """The error for an engine whose own storage is full. said: its words."""
    hint = "`./noxw -s clean` removes what earlier builds left"
    return DiskFullError("the engine ran out of disk", why=said, hint=hint)

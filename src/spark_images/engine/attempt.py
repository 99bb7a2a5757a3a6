"""What one execution of a build is on every engine: one at a time, in a known environment, watched for a full disk."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from spark_images import process
from spark_images.cache import Cache
from spark_images.engine.base import BuildRequest
from spark_images.errors import DiskFullError, EngineError
from spark_images.exclusive import alone, try_alone

_LOCK = "build.lock"
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


def only_build(folder: Path, on_line: Callable[[str], None]) -> AbstractContextManager[None]:
    """Waits, and says so, until no other build uses this folder: each may take all the memory of the host."""
    return alone(folder / _LOCK, on_wait=lambda: on_line("waiting for another build on this engine to end"))


def if_no_build(folder: Path) -> AbstractContextManager[bool]:
    """True, and no build begins while inside; False where one runs."""
    return try_alone(folder / _LOCK)


def run_engine(command: Sequence[str], on_line: Callable[[str], None], *, env: Mapping[str, str]) -> int:
    """Run the engine's command; its status. Raises DiskFullError where it failed and said that there was no room."""
    full = []

    def watch(line: str) -> None:
        if "no space left on device" in line.lower():
            full.append(line.strip())
        on_line(line)

    status = process.stream(command, watch, env=env, echo=on_line)
    if status != 0 and full:
        raise engine_disk_full(full[-1])
    return status


def engine_disk_full(*said: str) -> DiskFullError:
    """The error for an engine whose own storage is full. said: its words."""
    return DiskFullError("the engine ran out of disk", why=said, hint="`nox -s clean` removes what earlier builds left")

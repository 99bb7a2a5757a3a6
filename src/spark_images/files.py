"""Our own small files: written whole or not at all, whenever the process or the power goes away."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from spark_images.errors import DiskFullError
from spark_images.units import format_size


@contextmanager
def room_on(path: Path, needed_bytes: int | None = None) -> Iterator[None]:
    """Turns "no space left" and "quota exceeded" inside the block into a DiskFullError that names the place."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise disk_full_error(path, needed_bytes) from error


def disk_full_error(path: Path, needed_bytes: int | None = None) -> DiskFullError:
    """The error for what was to be written at or below `path`. needed_bytes: None where nobody knows."""
    there = next(folder for folder in (path, *path.parents) if folder.exists())
    usage = shutil.disk_usage(there)
    needed = "" if needed_bytes is None else f"{format_size(needed_bytes)} are needed; "
    return DiskFullError(
        f"no room left to write `{path}`",
        why=(f"{needed}its file system has {format_size(usage.free)} free of {format_size(usage.total)}",),
        hint="remove what no pin names any more with `./noxw -s prune`, or name a larger disk in `SPARK_IMAGES_CACHE`",
    )


def sync(path: Path) -> None:
    """Make a file's content, or a folder's entries, last: what was written or renamed is on disk afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None where no file that holds one can be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


@contextmanager
def _temporary_beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        # os.open rather than tempfile: the user's umask decides who may read what is in the cache
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Put the text at `path`, replacing what is there; readers see the old file or the new one, never half of it.

    The folder must exist. mode: before the umask. Raises DiskFullError.
    """
    write_bytes(path, text.encode(), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """As write_text."""
    with room_on(path), _temporary_beside(path, data, mode) as temporary:
        temporary.replace(path)
        sync(path.parent)


def create_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """As write_text, but raises FileExistsError where something is there already, and leaves that as it is."""
    with room_on(path), _temporary_beside(path, text.encode(), mode) as temporary:
        path.hardlink_to(temporary)
        sync(path.parent)

"""Temporary folders in the cache that also go away after kill -9: each is locked by the process that uses it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_images.cache import Cache
from spark_images.files import room_on, sync


@contextmanager
def work_folder(cache: Cache, name: str) -> Iterator[Path]:
    """A new folder below cache.work, removed at the end. name: what it is for; it is in the folder's path.

    Where the block meets a full disk, DiskFullError.
    """
    cache.work.mkdir(parents=True, exist_ok=True)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=cache.work))
        try:
            holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # remove_abandoned was between the two lines
        fcntl.flock(holder, fcntl.LOCK_EX)  # ends with this process, however it ends
        if folder.is_dir():  # else it was between these
            break
        os.close(holder)
    try:
        inside = folder / name  # whoever locks the folder that he is given would wait for us
        inside.mkdir()
        with room_on(inside):  # in here, so that it tells what is free before the folder goes
            yield inside
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(holder)


def settle(folder: Path, place: Path) -> None:
    """Move a finished folder to where it stays, complete or not at all. One that another process put there stays."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.rename(place)
    except OSError:
        if not place.is_dir():
            raise
    sync(place.parent)


def remove_abandoned(cache: Cache) -> tuple[str, ...]:
    """Remove the folders whose processes were killed; says which, one line each."""
    removed = []
    for folder in sorted(path for path in cache.work.glob("*") if path.is_dir()):
        try:
            holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue  # its own process has just removed it
        try:
            fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.is_dir():  # else as above
                shutil.rmtree(folder)
                removed.append(f"work folder `{folder.name}` of a killed run")
        except BlockingIOError:
            continue  # in use
        finally:
            os.close(holder)
    return tuple(removed)

"""What a build's steps see through bind mounts, as one key: podman 4.3 takes no account of it when it caches a step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from spark_images.engine.base import BuildRequest

# Larger files are hard links to the store, where a file never changes: which file it is says enough, and quickly.
_READ_BYTES = 1 << 20


def mounted_key(request: BuildRequest) -> str:
    """64 hex digits over the default context and the named ones: names, modes and contents."""
    seen = hashlib.sha256()
    for name, folder in (("", request.context), *request.contexts):
        for line in _entries(folder):
            seen.update(f"{name}\0{line}\n".encode(errors="surrogateescape"))
    return seen.hexdigest()


def _entries(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        stat, name = path.lstat(), path.relative_to(folder)
        if path.is_symlink():
            said = f"-> {path.readlink()}"
        elif not path.is_file():
            said = "folder"
        elif stat.st_size <= _READ_BYTES:
            said = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            said = f"{stat.st_dev} {stat.st_ino} {stat.st_size} {stat.st_mtime_ns}"
        yield f"{os.fspath(name)}\0{stat.st_mode:o}\0{said}"

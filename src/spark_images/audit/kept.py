"""The Python sources of a subject, kept in one temporary file until it is known which of them are imported."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path


class KeptSources:
    """Contents by path; any thread may keep one."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - __exit__ closes it
        self._places: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._end = 0

    def keep(self, path: str, content: bytes) -> None:
        """Keep the file at `path`; of two of one path the last one counts."""
        with self._lock:
            self._file.seek(self._end)
            self._file.write(content)
            self._places[path] = (self._end, len(content))
            self._end += len(content)

    def __contains__(self, path: str) -> bool:
        return path in self._places

    def read(self, path: str) -> bytes:
        """The content that was kept."""
        offset, size = self._places[path]
        with self._lock:
            self._file.seek(offset)
            return self._file.read(size)

    def __enter__(self) -> KeptSources:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

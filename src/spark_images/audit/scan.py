"""The files of an image or a wheel, each read once from the stream that it comes in, and examined in parallel."""

from __future__ import annotations

import os
import stat
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from spark_images.audit.examine import SMALL_BYTES, Content, Examined, examine, take
from spark_images.audit.kept import KeptSources
from spark_images.errors import ContentError
from spark_images.imagechecks import ImageFile, of_entry
from spark_images.imagefiles import FileEntry, walk_layers
from spark_images.oci import Layout

LARGE_BYTES_AT_ONCE = 1 << 30  # of files that lie in temporary files


@dataclass(kw_only=True)
class Scan:
    """What was read. bytes: of files, uncompressed; small ones that a layer above hides are among them."""

    files: dict[str, ImageFile] = field(default_factory=dict)
    examined: dict[str, Examined] = field(default_factory=dict)
    buried: list[tuple[str, str]] = field(default_factory=list)  # path -> secret, of files that no container sees
    count: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Scanner:
    """Examines files as they are brought, on all cores; what is in memory and in temporary files at once is bounded."""

    def __init__(self, *, cuobjdump: Path | None, spool: Path, sources: KeptSources) -> None:
        self._cuobjdump, self._spool, self._sources = cuobjdump, spool, sources
        cores = len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(cores)
        self._room = threading.BoundedSemaphore(2 * cores)  # small files that were read and wait to be examined
        self._large = Budget(LARGE_BYTES_AT_ONCE)

    def layers(self, layout: Layout) -> Scan:
        """All layers of an image, the top one first; each is decompressed once."""
        scan, started = Scan(), time.monotonic()
        waiting: list[tuple[FileEntry, bool, Future[Examined]]] = []
        try:
            for entry, visible in walk_layers(layout):
                if entry.type != "file" or entry.link:
                    if visible:
                        scan.files[f"/{entry.path}"] = of_entry(entry)
                elif visible or entry.size <= SMALL_BYTES:
                    scan.count += 1
                    scan.bytes += entry.size
                    # The content is taken here: later the layer would have to be read from its start again.
                    self._large.take(_large(entry.size))
                    with entry.stream() as stream:
                        content = take(stream, entry.size, self._spool)
                    future = self._submit(entry.path, _given(content), entry.size, visible)
                    waiting.append((entry, visible, future))
                waiting = self._collect(scan, waiting, at_most=10_000)
            self._collect(scan, waiting, at_most=0)
            _link(scan)
        finally:
            self._pool.shutdown(cancel_futures=True)
        scan.seconds = time.monotonic() - started
        return scan

    def wheel(self, wheel: Path) -> Scan:
        """All members of a wheel, as if it were unpacked in /. ContentError where it is no zip archive."""
        scan, started = Scan(), time.monotonic()
        try:
            with zipfile.ZipFile(wheel) as archive:
                members = [member for member in archive.infolist() if not member.is_dir()]
                waiting = [self._submit(one.filename, self._member(archive, one), one.file_size) for one in members]
                for member, future in zip(members, waiting, strict=True):
                    scan.count += 1
                    scan.bytes += member.file_size
                    found = future.result()
                    path = f"/{member.filename}"
                    mode = member.external_attr >> 16
                    kind = ImageFile(path=path, kind="file", mode=stat.S_IMODE(mode) or 0o644, size=member.file_size)
                    scan.files[path] = _with(kind, found)
                    scan.examined[path] = found
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as err:
            # the last two are zipfile's for members that are encrypted or packed in an unusual way
            raise ContentError(f"`{wheel.name}` is no complete wheel") from err
        finally:
            self._pool.shutdown(cancel_futures=True)
        scan.seconds = time.monotonic() - started
        return scan

    def _member(self, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Callable[[], Content]:
        def bring() -> Content:
            self._large.take(_large(member.file_size))
            with archive.open(member) as stream:
                return take(stream, member.file_size, self._spool)  # type: ignore[arg-type]

        return bring

    def _submit(self, path: str, bring: Callable[[], Content], size: int, visible: bool = True) -> Future[Examined]:
        def work() -> Examined:
            try:
                content = bring()
                if visible and path.endswith(".py") and isinstance(content, bytes):
                    self._sources.keep(f"/{path}", content)
                return examine(f"/{path}", content, cuobjdump=self._cuobjdump, spool=self._spool, visible=visible)
            finally:
                self._large.give_back(_large(size))

        self._room.acquire()
        future = self._pool.submit(work)
        future.add_done_callback(lambda _: self._room.release())
        return future

    def _collect(
        self, scan: Scan, waiting: list[tuple[FileEntry, bool, Future[Examined]]], *, at_most: int
    ) -> list[tuple[FileEntry, bool, Future[Examined]]]:
        if len(waiting) <= at_most:
            return waiting
        for entry, visible, future in waiting:
            found, path = future.result(), f"/{entry.path}"
            if visible:
                scan.files[path] = _with(of_entry(entry), found)
                scan.examined[path] = found
            elif found.secret:
                scan.buried.append((path, found.secret))
        return []


class Budget:
    """So many bytes that threads may hold together; who wants more than all of it gets it alone."""

    def __init__(self, size_bytes: int) -> None:
        self._size, self._held, self._changed = size_bytes, 0, threading.Condition()

    def take(self, size_bytes: int) -> None:
        """Wait until there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: not size_bytes or not self._held or self._held + size_bytes <= self._size)
            self._held += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Make room for others."""
        with self._changed:
            self._held -= size_bytes
            self._changed.notify_all()


def _large(size_bytes: int) -> int:
    return size_bytes if size_bytes > SMALL_BYTES else 0


def _with(file: ImageFile, found: Examined) -> ImageFile:
    return replace(file, elf=found.elf, broken=found.broken)


def _link(scan: Scan) -> None:
    """Give hard links what was found in the file that holds their content."""
    for path, file in scan.files.items():
        if file.kind == "file" and (found := scan.examined.get(f"/{file.link}")) and file.link:
            scan.files[path] = _with(file, found)
            scan.examined[path] = found


def _given(content: Content) -> Callable[[], Content]:
    return lambda: content

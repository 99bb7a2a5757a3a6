"""The files of an image as a container sees them, read straight from the layers; nothing is unpacked."""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from spark_images.errors import CheckError
from spark_images.layers import CHUNK, Layer, damaged, open_layer, parents, read_entries, whiteout

if TYPE_CHECKING:
    import tarfile

    from _typeshed import WriteableBuffer

    from spark_images.oci import Layout

FileType = Literal["file", "directory", "symlink", "other"]

_CAPABILITIES = "SCHILY.xattr.security.capability"
_SPOOL_BYTES = 8 << 20  # contents above this go to a temporary file


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One path of a layer or of a whole image."""

    path: str  # without a leading slash: "usr/bin/dash"
    type: FileType
    mode: int  # permission bits with setuid, setgid and sticky
    uid: int
    gid: int
    size: int  # bytes of a file, 0 of everything else
    link: str  # a symbolic link's target; of a hard-linked file the path that holds the content, else ""
    capabilities: bool  # a file that has some: setcap(8)
    _open: Callable[[], BinaryIO]
    _stream: Callable[[], BinaryIO]

    def stream(self) -> BinaryIO:
        """As open, but forward only, and of its content nothing is kept: for files of any size."""
        return self._stream()

    def open(self) -> BinaryIO:
        """The content of a file, from its beginning; seekable.

        Fast while its layer has not been read beyond it, that is before the next entry is asked for. Later, and for
        hard links, a compressed layer is read from its start again.
        """
        return self._open()


def layer_files(layout: Layout, layer: Layer) -> Iterator[FileEntry]:
    """Every entry of one layer in the order of its tar, whiteouts included as empty files."""
    tar = _Tar(layout, layer)
    regular: dict[str, tarfile.TarInfo] = {}
    for info in read_entries(tar.stream, name=layer.digest):
        held = info
        if info.islnk() and info.linkname in regular:
            held = regular[info.linkname]
        if held.isreg():
            regular[info.name] = held
        yield FileEntry(
            path=info.name,
            type=_type(held),
            mode=info.mode,
            uid=info.uid,
            gid=info.gid,
            size=held.size,
            link=info.linkname,
            capabilities=_CAPABILITIES in held.pax_headers,
            _open=_opener(_Content, tar, held),
            _stream=_opener(_Passing, tar, held),
        )


def walk_files(layout: Layout) -> Iterator[FileEntry]:
    """Every path that a container of the image has, each once: the top layer's first, those of the layers below after.

    Whiteouts are applied. The parents of a path may come after it.
    """
    return (entry for entry, visible in walk_layers(layout) if visible)


def walk_layers(layout: Layout) -> Iterator[tuple[FileEntry, bool]]:
    """Every entry of every layer but whiteouts, the top layer's first, and whether a container sees it.

    What it does not see was deleted or replaced further up, and whoever has the image has it all the same.
    """
    seen: set[str] = set()  # paths that a layer above has
    hidden: set[str] = set()  # paths that a layer above has deleted
    closed: set[str] = set()  # paths of which nothing below is seen: deleted, opaque, or no folder above
    for layer in reversed(layout.layers):
        here: list[tuple[str, FileType]] = []
        cuts: list[tuple[str, bool]] = []
        for entry in layer_files(layout, layer):
            if cut := whiteout(entry.path):
                cuts.append(cut)
                continue
            here.append((entry.path, entry.type))
            visible = entry.path not in seen and entry.path not in hidden
            yield entry, visible and closed.isdisjoint(parents(entry.path))
        seen.update(path for path, _ in here)
        closed.update(path for path, kind in here if kind != "directory")
        closed.update(path for path, _ in cuts)
        hidden.update(path for path, opaque in cuts if not opaque)


def extract_file(layout: Layout, path: str, dest: Path) -> None:
    """Copy one file of the image out to `dest`; CheckError if there is none. Symbolic links are not followed."""
    with _find(layout, path).open() as content, dest.open("wb") as out:
        shutil.copyfileobj(content, out, CHUNK)


def _find(layout: Layout, path: str) -> FileEntry:
    for entry in walk_files(layout):
        if entry.path == path.strip("/"):
            if entry.type != "file":
                raise CheckError(f"`{path}` in the image is no file: {entry.type} {entry.link}".rstrip())
            return entry
    raise CheckError(f"the image has no file `{path}`")


def _type(info: tarfile.TarInfo) -> FileType:
    if info.isreg():
        return "file"
    if info.isdir():
        return "directory"
    return "symlink" if info.issym() else "other"


def _opener(form: type[_Content] | type[_Passing], tar: _Tar, info: tarfile.TarInfo) -> Callable[[], BinaryIO]:
    size = info.size if info.isreg() else 0
    return lambda: cast(BinaryIO, io.BufferedReader(form(tar, info.offset_data, size)))


class _Tar:
    """A layer's tar; closed when no entry is left that could be asked for its content."""

    def __init__(self, layout: Layout, layer: Layer) -> None:
        self.digest = layer.digest
        self.stream = open_layer(layout.blob(layer.digest), layer.media_type)
        weakref.finalize(self, self.stream.close)


class _Passing(io.RawIOBase):
    """A file in a layer, read forward once."""

    def __init__(self, tar: _Tar, offset: int, size: int) -> None:
        self._tar, self._at, self._end = tar, offset, offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if self._at == self._end:
            return 0
        if self._tar.stream.tell() != self._at:
            self._tar.stream.seek(self._at)
        data = self._tar.stream.read(min(memoryview(buffer).nbytes, self._end - self._at))
        if not data:
            raise damaged(self._tar.digest)
        memoryview(buffer)[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Content(io.RawIOBase):
    """A file in a layer: read forward once, and kept, so that seeking back costs nothing."""

    def __init__(self, tar: _Tar, offset: int, size: int) -> None:
        self._tar, self._offset, self._size = tar, offset, size
        self._kept = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - close() closes it
        self._kept_bytes = 0
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        end = min(self._position + view.nbytes, self._size)
        if end > self._kept_bytes:
            self._tar.stream.seek(self._offset + self._kept_bytes)
            self._kept.seek(self._kept_bytes)
        while self._kept_bytes < end:
            if not (data := self._tar.stream.read(min(CHUNK, self._size - self._kept_bytes))):
                raise damaged(self._tar.digest)
            self._kept.write(data)
            self._kept_bytes += len(data)
        self._kept.seek(self._position)
        data = self._kept.read(max(0, end - self._position))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._kept.close()
        super().close()

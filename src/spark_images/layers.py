"""Layer blobs: tar archives in one of three compressions, read as a seekable stream of checked entries."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from spark_images.errors import CanonicalError
from spark_images.tarform import canonical_info

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

TAR = "application/vnd.oci.image.layer.v1.tar"
TAR_GZIP = f"{TAR}+gzip"
TAR_ZSTD = f"{TAR}+zstd"
CHUNK = 1 << 20  # bytes that are read, hashed or compressed at once

_DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE)
_KNOWN = (*tarfile.REGULAR_TYPES, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, *_DEVICES)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer as a manifest and an image config name it."""

    digest: str  # "sha256:…" of the blob
    diff_id: str  # "sha256:…" of the tar in it
    size_bytes: int  # of the blob
    uncompressed_bytes: int | None  # of the tar; None where only reading all of it would tell
    media_type: str
    created_by: str  # from the config's history; "" where it has none


def open_layer(blob: Path, media_type: str) -> BinaryIO:
    """The layer's tar, uncompressed. Seeking back in a compressed one reads it from the start again.

    Raises CanonicalError for a media type that is not known, and while reading for a blob that is damaged.
    """
    if media_type == TAR:
        return blob.open("rb", buffering=64 << 10)
    if media_type not in (TAR_GZIP, TAR_ZSTD):
        raise CanonicalError(
            f"layer `{blob.name}` has the unknown media type `{media_type}`",
            why=(f"known: `{TAR}`, alone or with `+gzip` or `+zstd`",),
        )
    return cast(BinaryIO, io.BufferedReader(_Uncompressed(blob, media_type), buffer_size=CHUNK))


def read_entries(tar_stream: BinaryIO, *, name: str, epoch: int = 0) -> Iterator[tarfile.TarInfo]:
    """Every entry of a layer but the root, in canonical form (tarform.py), in the order of the tar.

    The content of a regular file lies at `offset_data` of the stream, which may be moved between two entries.
    name: the layer's, for messages. Raises CanonicalError for what is no complete tar, leads out of the root or is
    of a kind that layers do not have.
    """
    try:
        with tarfile.open(fileobj=tar_stream, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined] # or it keeps every entry of the archive
                entry = canonical_info(info, epoch=epoch)
                entry.offset_data = info.offset_data
                if entry.name in ("", "."):
                    continue
                if any(part in ("", ".", "..") for part in entry.name.split("/")):
                    raise CanonicalError(f"layer `{name}` has an entry with the path `{info.name}`")
                if info.type not in _KNOWN or info.issparse():
                    raise CanonicalError(f"layer `{name}`: `{info.name}` is of the unknown type {info.type!r}")
                yield entry
        tar_stream.seek(tar.offset)
        # tarfile takes a damaged header in the middle for the end
        complete = tar_stream.read(tarfile.BLOCKSIZE) == bytes(tarfile.BLOCKSIZE)
    except tarfile.TarError as err:
        raise damaged(name) from err
    if not complete:
        raise damaged(name)


def damaged(name: str) -> CanonicalError:
    """The error for a layer whose tar is not what it should be."""
    return CanonicalError(
        f"layer `{name}` is damaged: it is no complete tar archive",
        hint="remove the folder that it lies in and run the same command again",
    )


def whiteout(path: str) -> tuple[str, bool] | None:
    """What an entry of a layer hides below it (OCI image spec, layer.md, Whiteouts); None if it is no whiteout.

    The path, and True where only what is in that folder is hidden (opaque), not the folder.
    """
    folder, slash, name = path.rpartition("/")
    if not name.startswith(".wh."):
        return None
    return (folder, True) if name == ".wh..wh..opq" else (f"{folder}{slash}{name[4:]}", False)


def parents(path: str) -> Iterator[str]:
    """`a/b`, `a` and the root, which is the empty string, of `a/b/c`."""
    while path:
        path = path.rpartition("/")[0]
        yield path


class _Uncompressed(io.RawIOBase):
    """A compressed blob as a seekable stream of what is in it."""

    def __init__(self, blob: Path, media_type: str) -> None:
        self._blob, self._media_type = blob, media_type
        self._open()

    def _open(self) -> None:
        self._position = 0
        if self._media_type == TAR_GZIP:
            self._stream = cast(BinaryIO, gzip.open(self._blob, "rb"))  # noqa: SIM115 - close() closes it
        else:
            from zstandard import ZstdDecompressor

            reader = ZstdDecompressor().stream_reader(self._blob.open("rb"), read_across_frames=True)
            self._stream = cast(BinaryIO, reader)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        from zstandard import ZstdError

        try:
            data = self._stream.read(memoryview(buffer).nbytes)
        except (EOFError, zlib.error, gzip.BadGzipFile, ZstdError) as err:
            raise damaged(self._blob.name) from err
        memoryview(buffer)[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence != io.SEEK_SET:
            raise io.UnsupportedOperation("the end of a compressed stream is not known")
        if offset < self._position:
            self._stream.close()
            self._open()
        skipped = bytearray(CHUNK)
        while self._position < offset and self.readinto(memoryview(skipped)[: offset - self._position]):
            pass
        return self._position

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

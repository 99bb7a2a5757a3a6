"""Writing an OCI layout: its layers, by our compressors, its documents and its index."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from spark_images.errors import CanonicalError
from spark_images.exact_json import exact_json
from spark_images.files import room_on, sync, write_bytes
from spark_images.layers import CHUNK, TAR, TAR_GZIP, TAR_ZSTD, Layer

ZSTD_LEVEL = 2  # of libcublasLt 3 makes 0.4 % less at two thirds of the speed, of Debian's /usr 4.5 % less at 0.7 of it
ZSTD_VERSION = (1, 5, 7)  # another libzstd writes other bytes
UNCOMPRESSED = "io.spark-images.layer.uncompressed-size"  # annotation of a layer's descriptor, bytes

_MOST_THREADS = 8  # per layer; more outrun the checksum, which one thread takes


class _Compressor(Protocol):
    """What takes a stream in pieces; what it returns, in order, is the compressed stream."""

    def compress(self, data: bytes | bytearray, /) -> bytes: ...

    def flush(self) -> bytes: ...


class LayerSink:
    """Takes a tar, in pieces of any size, and leaves it compressed in the layout; see LayoutWriter.layer."""

    def __init__(self, blobs: Path, on_bytes: Callable[[int], None], media_type: str) -> None:
        self._blobs, self._on_bytes, self._media_type = blobs, on_bytes, media_type
        self._compressor = _compressor(media_type)
        self._tar_sha256, self._blob_sha256 = hashlib.sha256(), hashlib.sha256()
        self._tar_bytes = 0
        self._waiting = bytearray()  # headers and small files are gathered: every call below has its price
        self._blob = tempfile.NamedTemporaryFile(dir=blobs, prefix=".", delete=False)  # noqa: SIM115 - close()

    def write(self, data: bytes) -> int:
        """Take the next bytes of the tar."""
        if len(self._waiting) + len(data) > CHUNK:
            self._pass_on(self._waiting)
            self._waiting = bytearray()
        if len(data) >= CHUNK:
            self._pass_on(data)
        else:
            self._waiting += data
        return len(data)

    def finish(self, *, created_by: str) -> Layer:
        """End the layer: it lies in the layout under its digest."""
        self._pass_on(self._waiting)
        self._store(self._compressor.flush())
        self._blob.flush()
        os.fsync(self._blob.fileno())
        digest = f"sha256:{self._blob_sha256.hexdigest()}"
        size = self._blob.tell()
        self.close()
        Path(self._blob.name).chmod(0o444)
        Path(self._blob.name).rename(self._blobs / digest.removeprefix("sha256:"))
        return Layer(
            digest=digest,
            diff_id=f"sha256:{self._tar_sha256.hexdigest()}",
            size_bytes=size,
            uncompressed_bytes=self._tar_bytes,
            media_type=self._media_type,
            created_by=created_by,
        )

    def close(self) -> None:
        """Let go of the file."""
        self._blob.close()

    def _pass_on(self, data: bytes | bytearray) -> None:
        size = len(data)
        self._on_bytes(size)
        self._tar_bytes += size
        self._tar_sha256.update(data)
        self._store(self._compressor.compress(data))

    def _store(self, data: bytes) -> None:
        self._blob_sha256.update(data)
        self._blob.write(data)


class LayoutWriter:
    """A layout in the making. layer() may be used from several threads at once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._blobs = folder / "blobs" / "sha256"
        self._blobs.mkdir(parents=True)

    @contextmanager
    def layer(
        self, on_bytes: Callable[[int], None] = lambda size: None, media_type: str = TAR_ZSTD
    ) -> Iterator[LayerSink]:
        """A sink for one more layer. on_bytes: called with the size of each piece of tar before it is compressed.

        media_type: TAR_ZSTD, the canonical form's, or TAR_GZIP.
        """
        sink = LayerSink(self._blobs, on_bytes, media_type)
        try:
            yield sink
        finally:
            sink.close()

    def take(self, layer: Layer, source: Path) -> None:
        """Have the blob of another layout's layer as well: by hard link, or as a copy on another file system."""
        destination = self._blobs / layer.digest.removeprefix("sha256:")
        if destination.exists():
            return
        try:
            destination.hardlink_to(source)
        except OSError:  # another file system, one without links, or as many links as it allows
            with source.open("rb") as read, destination.open("xb") as written:
                shutil.copyfileobj(read, written, CHUNK)
                os.fsync(written.fileno())

    def finish(self, *, config: Mapping[str, object], layers: Sequence[Layer], annotations: Mapping[str, str]) -> None:
        """Write config, manifest and index; what stands in the config beside rootfs and history is the caller's."""
        created = {"created": config["created"]}
        document = {
            **config,
            "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
            "history": [{**created, "created_by": layer.created_by} for layer in layers],
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": write_json_blob(self._blobs, document, "application/vnd.oci.image.config.v1+json"),
            "layers": [_descriptor(layer) for layer in layers],
            **({"annotations": dict(annotations)} if annotations else {}),
        }
        write_index(self.folder, write_json_blob(self._blobs, manifest, "application/vnd.oci.image.manifest.v1+json"))
        for folder in (self._blobs, self._blobs.parent, self.folder):
            sync(folder)


@contextmanager
def new_layout(output: Path) -> Iterator[LayoutWriter]:
    """A layout in a new folder, of which nothing stays if the block raises.

    After kill -9 a part of it may: what has to be there complete or not at all is written in a work folder and renamed.
    Raises DiskFullError; CanonicalError for another libzstd.
    """
    with room_on(output):
        writer = LayoutWriter(output)
        try:
            with room_on(output):  # once more, so that it tells what is free before the folder goes
                yield writer
        except BaseException:
            shutil.rmtree(output, ignore_errors=True)
            raise


def write_index(layout: Path, manifest: Mapping[str, object]) -> None:
    """Make a folder that has the blobs an OCI layout. manifest: the descriptor of its one image."""
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    }
    write_bytes(layout / "index.json", exact_json(index), mode=0o444)
    write_bytes(layout / "oci-layout", exact_json({"imageLayoutVersion": "1.0.0"}), mode=0o444)


def write_json_blob(blobs: Path, document: object, media_type: str) -> dict[str, object]:
    """Write a document as a blob of a layout; its descriptor. blobs: the layout's `blobs/sha256`."""
    data = exact_json(document)
    digest = hashlib.sha256(data).hexdigest()
    write_bytes(blobs / digest, data, mode=0o444)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _compressor(media_type: str) -> _Compressor:
    if media_type == TAR_GZIP:
        from spark_images.gzip_pieces import GzipPieces

        return GzipPieces()
    import zstandard

    if zstandard.ZSTD_VERSION != ZSTD_VERSION:
        found, needed = (".".join(map(str, version)) for version in (zstandard.ZSTD_VERSION, ZSTD_VERSION))
        raise CanonicalError(
            f"this environment has libzstd {found}; images are written with {needed}",
            why=("another version writes other bytes, so the same plan would give another digest",),
            hint="run through `./noxw`: it makes an environment with the locked versions",
        )
    # One thread or many give the same bytes; none at all (threads=0) would give others.
    threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=threads).compressobj()


def _descriptor(layer: Layer) -> dict[str, object]:
    descriptor: dict[str, object] = {"mediaType": layer.media_type, "digest": layer.digest, "size": layer.size_bytes}
    if layer.uncompressed_bytes is not None and layer.media_type != TAR:
        descriptor["annotations"] = {UNCOMPRESSED: str(layer.uncompressed_bytes)}
    return descriptor

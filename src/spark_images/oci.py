"""OCI image layouts: read and checked, made from a root file system, and handed over in Docker's older format."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from spark_images.errors import CanonicalError
from spark_images.layers import CHUNK, TAR, TAR_GZIP, TAR_ZSTD, Layer, open_layer
from spark_images.layout_writer import UNCOMPRESSED, ZSTD_LEVEL, ZSTD_VERSION, new_layout
from spark_images.tarform import open_canonical

# To be raised whenever the same raw image becomes other bytes; it is part of every plan.
CANONICAL_FORM = f"image/2 zstd -{ZSTD_LEVEL} libzstd {'.'.join(map(str, ZSTD_VERSION))}"

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_DOCKER_LAYERS = {  # the same bytes under Docker's names
    "application/vnd.docker.image.rootfs.diff.tar": TAR,
    "application/vnd.docker.image.rootfs.diff.tar.gzip": TAR_GZIP,
    "application/vnd.docker.image.rootfs.diff.tar.zstd": TAR_ZSTD,
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A folder with one image in it."""

    path: Path
    manifest_digest: str
    config_digest: str  # what Docker and podman call the image ID
    layers: tuple[Layer, ...]  # lowest first
    config: Mapping[str, Any]  # the image config as JSON-able data

    def blob(self, digest: str) -> Path:
        """Where the blob of this digest lies."""
        return _blob(self.path, digest)


def read_layout(path: Path) -> Layout:
    """The one image in an OCI layout. Costs milliseconds: contents of layers are not read, only their sizes.

    Raises CanonicalError if there is none, more than one, or if a blob is missing or has another size.
    """
    try:
        return _read(path)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as err:
        raise CanonicalError(
            f"`{path}` is no complete OCI layout",
            why=(f"{type(err).__name__}: {err}",),
            hint="remove the folder and run the same command again",
        ) from err


def manifest_annotations(layout: Layout) -> dict[str, str]:
    """What the manifest says beside config and layers."""
    document = json.loads(layout.blob(layout.manifest_digest).read_bytes())
    return dict(document.get("annotations") or {})


def verify_blobs(layout: Layout) -> None:
    """Read every blob and compare it with its digest; CanonicalError names the first that is something else."""

    def check(digest: str) -> None:
        with layout.blob(digest).open("rb") as blob:
            found = f"sha256:{hashlib.file_digest(blob, 'sha256').hexdigest()}"
        if found != digest:
            raise CanonicalError(
                f"a blob in `{layout.path}` is not what its name says",
                why=(f"named: {digest}", f"is:    {found}"),
                hint="remove the folder and run the same command again",
            )

    digests = [layout.manifest_digest, layout.config_digest, *(layer.digest for layer in layout.layers)]
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(check, digests):
            pass


def write_root_layout(
    tar: Path, *, architecture: str, env: Iterable[tuple[str, str]], epoch: int, output: Path
) -> Layout:
    """Make an image of one layer, which is the given uncompressed tar as it is, byte for byte.

    output: a new folder. Raises DiskFullError.
    """
    with new_layout(output) as writer, tar.open("rb", buffering=0) as source:
        with writer.layer() as sink:
            while chunk := source.read(CHUNK):
                sink.write(chunk)
            layer = sink.finish(created_by="root file system")
        config = {
            "architecture": architecture,
            "os": "linux",
            "created": timestamp(epoch),
            "config": {"Env": [f"{name}={value}" for name, value in env]},
        }
        writer.finish(config=config, layers=[layer], annotations={})
    return read_layout(output)


def docker_archive(layout: Layout, reference: str, stream: BinaryIO) -> None:
    """Write the image as `docker load` of every Docker reads it (docker-archive); its ID is layout.config_digest.

    stream: need not seek. Layers are passed through uncompressed, never held; one whose uncompressed size is not
    known is read twice.
    """
    names = {layer.diff_id: f"{layer.diff_id.removeprefix('sha256:')}/layer.tar" for layer in layout.layers}
    config = layout.blob(layout.config_digest).read_bytes()
    config_name = f"{layout.config_digest.removeprefix('sha256:')}.json"
    listed = [names[layer.diff_id] for layer in layout.layers]
    manifest = json.dumps([{"Config": config_name, "RepoTags": [reference], "Layers": listed}]).encode()
    with open_canonical(stream) as archive:
        for name, data in (("manifest.json", manifest), (config_name, config)):
            archive.addfile(_file(name, len(data)), io.BytesIO(data))
        for layer in {layer.diff_id: layer for layer in layout.layers}.values():
            size = layer.uncompressed_bytes
            if size is None:
                with open_layer(layout.blob(layer.digest), layer.media_type) as tar:
                    size = sum(len(chunk) for chunk in iter(lambda: tar.read(CHUNK), b""))
            with open_layer(layout.blob(layer.digest), layer.media_type) as tar:
                archive.addfile(_file(names[layer.diff_id], size), tar)


def timestamp(epoch: int) -> str:
    """Seconds since 1970 as image configs write times."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _file(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def _read(path: Path) -> Layout:
    if json.loads((path / "oci-layout").read_bytes())["imageLayoutVersion"] != "1.0.0":
        raise ValueError("its version is not 1.0.0")
    manifests = json.loads((path / "index.json").read_bytes())["manifests"]
    if len(manifests) != 1:
        raise ValueError(f"it holds {len(manifests)} manifests, not one")
    if (media_type := manifests[0]["mediaType"]) not in _MANIFESTS:
        raise ValueError(f"it holds a `{media_type}`, not an image's manifest")
    manifest = _json_blob(path, manifests[0])
    config = _json_blob(path, manifest["config"])
    diff_ids = config["rootfs"]["diff_ids"]
    made = [entry.get("created_by", "") for entry in config.get("history") or () if not entry.get("empty_layer")]
    if len(made) != len(diff_ids):
        made = [""] * len(diff_ids)  # the history is optional
    layers = tuple(
        _layer(path, descriptor, diff_id, created_by)
        for descriptor, diff_id, created_by in zip(manifest["layers"], diff_ids, made, strict=True)
    )
    return Layout(
        path=path,
        manifest_digest=manifests[0]["digest"],
        config_digest=manifest["config"]["digest"],
        layers=layers,
        config=config,
    )


def _layer(path: Path, descriptor: Mapping[str, Any], diff_id: str, created_by: str) -> Layer:
    media_type = _DOCKER_LAYERS.get(descriptor["mediaType"], descriptor["mediaType"])
    size = _sized_blob(path, descriptor).stat().st_size
    noted = (descriptor.get("annotations") or {}).get(UNCOMPRESSED)
    return Layer(
        digest=descriptor["digest"],
        diff_id=diff_id,
        size_bytes=size,
        uncompressed_bytes=size if media_type == TAR else int(noted) if noted else None,
        media_type=media_type,
        created_by=created_by,
    )


def _json_blob(path: Path, descriptor: Mapping[str, Any]) -> dict[str, Any]:
    data = _sized_blob(path, descriptor).read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor["digest"]:
        raise ValueError(f"the blob {descriptor['digest']} is not what its name says")
    document = json.loads(data)
    if not isinstance(document, dict):
        raise TypeError(f"the blob {descriptor['digest']} is no JSON object")
    return document


def _sized_blob(path: Path, descriptor: Mapping[str, Any]) -> Path:
    blob = _blob(path, descriptor["digest"])
    if (found := blob.stat().st_size) != descriptor["size"]:
        raise ValueError(f"the blob {descriptor['digest']} has {found} bytes, not {descriptor['size']}")
    return blob


def _blob(path: Path, digest: str) -> Path:
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"`{digest}` is no sha256 digest")
    return path / "blobs" / "sha256" / digest.removeprefix("sha256:")

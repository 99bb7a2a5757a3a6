"""OCI layouts as engines export them, made by hand: every detail of a tar entry can be set."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

from spark_images.imageconfig import ImageConfig

EPOCH = 1_700_000_000
TAR = "application/vnd.oci.image.layer.v1.tar"
CONFIG = ImageConfig(
    architecture="arm64",
    user="10001:10001",
    env=(("MODE", "serve"),),
    entrypoint=("/bin/serve", "--all"),
    command=(),
    ports=("8080/tcp",),
    workdir="",
    stop_signal="SIGTERM",
    labels=(("org.opencontainers.image.title", "hello"),),
    epoch=EPOCH,
)
SETTINGS: dict[str, Any] = {
    "User": "10001:10001",
    "Env": ["PATH=/usr/bin:/bin", "MODE=serve"],
    "Entrypoint": ["/bin/serve", "--all"],
    "ExposedPorts": {"8080/tcp": {}},
    "StopSignal": "SIGTERM",
    "Labels": {"org.opencontainers.image.title": "hello", "io.buildah.version": "1.28.2"},
}

Item = tuple[tarfile.TarInfo, bytes]


def item(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any) -> Item:
    """One tar entry; fields are attributes of TarInfo."""
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def file(name: str, content: bytes = b"", **fields: Any) -> Item:
    return item(name, content=content, **fields)


def folder(name: str, **fields: Any) -> Item:
    return item(name, tarfile.DIRTYPE, **fields)


def symlink(name: str, target: str, **fields: Any) -> Item:
    return item(name, tarfile.SYMTYPE, linkname=target, **fields)


def hardlink(name: str, target: str, **fields: Any) -> Item:
    return item(name, tarfile.LNKTYPE, linkname=target, **fields)


def tar_of(items: Iterable[Item]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in items:
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def write_raw(
    path: Path,
    layers: Sequence[Iterable[Item] | bytes],
    *,
    media_type: str = TAR,
    settings: Mapping[str, Any] = SETTINGS,
    architecture: str = "arm64",
) -> Path:
    """An OCI layout of these layers, each given by its entries or as a whole tar."""
    blobs = path / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    tars = [layer if isinstance(layer, bytes) else tar_of(layer) for layer in layers]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": dict(settings),
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in tars]},
        "history": [{"created_by": f"step {number}"} for number, _ in enumerate(tars)],
    }
    manifest = {
        "schemaVersion": 2,
        "config": put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [put(_packed(tar, media_type), media_type) for tar in tars],
    }
    index = {"manifests": [put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")]}
    (path / "index.json").write_text(json.dumps(index))
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return path


def _packed(tar: bytes, media_type: str) -> bytes:
    if media_type.endswith("gzip"):
        return gzip.compress(tar)
    return zstandard.compress(tar) if media_type.endswith("zstd") else tar

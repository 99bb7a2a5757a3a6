"""A package index on loopback: files with their times of upload and their withdrawal, as PEP 691 says them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from file_server import FileServer

from spark_images.cache import Cache
from spark_images.download import Patience
from spark_images.package_index import PackageIndex, PipConfig
from spark_images.upstream import Upstream

QUICK = Patience(timeout_s=5.0, attempts=2, backoff_s=0.01)


def publish(server: FileServer, project: str, files: dict[str, str], *, yanked: tuple[str, ...] = ()) -> None:
    """files: file name -> when it was uploaded, as `2026-11-01`; its content is its name."""
    listed = []
    for name, day in files.items():
        server.files[f"/files/{name}"] = name.encode()
        digest = hashlib.sha256(name.encode()).hexdigest()
        entry = {"filename": name, "url": server.url(f"/files/{name}"), "hashes": {"sha256": digest}, "size": len(name)}
        times = {"upload-time": f"{day}T00:00:00Z"} if day else {}
        listed.append({**entry, **times, "yanked": name in yanked})
    page = {"meta": {"api-version": "1.1"}, "name": project, "files": listed, "versions": []}
    server.files[f"/simple/{project}/"] = json.dumps(page).encode()
    server.types[f"/simple/{project}/"] = "application/vnd.pypi.simple.v1+json"


def upstream_of(server: FileServer, folder: Path) -> Upstream:
    index = PackageIndex(PipConfig(indexes=(server.url("/simple/"),)), patience=QUICK)
    return Upstream(cache=Cache(folder / "cache"), index=index)

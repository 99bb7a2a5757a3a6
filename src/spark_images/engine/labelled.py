"""An OCI layout that is another one's image with labels: same layers, by symbolic link."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_images.layout_writer import write_index, write_json_blob
from spark_images.platforms import ARCHES


def write_labelled(layout: Path, folder: Path, labels: Mapping[str, str], *, made_for: str) -> None:
    """Write to `folder` the layout's one image with these labels and the host's architecture in its config.

    made_for: goes into the history. buildah takes a finished step from its cache where layers and history are equal,
    whatever the labels say.
    """
    index = json.loads((layout / "index.json").read_bytes())
    manifest = _blob(layout, index["manifests"][0]["digest"])
    config = _blob(layout, manifest["config"]["digest"])
    config["architecture"] = ARCHES[platform.machine()]
    config.pop("variant", None)
    settings = config["config"] = config.get("config") or {}
    settings["Labels"] = {**(settings.get("Labels") or {}), **labels}
    config["history"] = [*(config.get("history") or ()), {"created_by": made_for, "empty_layer": True}]
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for layer in manifest["layers"]:
        name = layer["digest"].removeprefix("sha256:")
        link = blobs / name
        if not link.is_symlink():  # a layer may occur twice
            link.symlink_to((layout / "blobs" / "sha256" / name).absolute())
    manifest["config"] |= write_json_blob(blobs, config, manifest["config"]["mediaType"])
    write_index(folder, write_json_blob(blobs, manifest, "application/vnd.oci.image.manifest.v1+json"))


def _blob(layout: Path, digest: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((layout / "blobs" / "sha256" / digest.removeprefix("sha256:")).read_bytes())
    return found

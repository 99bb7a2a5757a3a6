"""An image in which every check of the audit holds, and ways to spoil it."""

from __future__ import annotations

import base64
import hashlib
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from elf_files import shared_library
from gpu_code import fake_cuobjdump, gpu_library
from raw_layouts import Item, file, folder, write_raw
from small_project import make_project
from values import GB10
from wheels import metadata

from spark_images.audit.facts import Subject
from spark_images.audit.run import Auditor, Result
from spark_images.cache import Cache
from spark_images.oci import read_layout

SITE = "usr/lib/python3.11/site-packages"
LIBS = "usr/lib/aarch64-linux-gnu"
SERVER, KERNELS = "opt/app/server", "opt/app/libkernels.so"
TARGET = replace(GB10, driver="580")
SETTINGS: dict[str, Any] = {
    "User": "10001:10001",
    "Env": ["PATH=/opt/app:/usr/bin:/bin", "TRITON_PTXAS_PATH=/opt/cuda/bin/ptxas", "TORCH_CUDA_ARCH_LIST=12.1a"],
    "Entrypoint": ["/opt/app/server"],
    "Cmd": ["tool"],
    "ExposedPorts": {"8080/tcp": {}},
    "Labels": {"io.spark-images.target": "gb10"},
}


def program(*needed: str, soname: str = "", **more: Any) -> bytes:
    return shared_library(soname=soname, needed=needed, **more)


def distribution(
    name: str,
    version: str = "1.0",
    *,
    files: Mapping[str, bytes] = {},
    listed: Mapping[str, bytes] = {},
    commands: str = "",
    requires: Sequence[str] = (),
) -> dict[str, Item | bytes | None]:
    """An installed distribution. listed: what RECORD says of further files, or otherwise of those that are there."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    said = {**files, **listed, f"{info}/METADATA": metadata(name, version, *requires).encode()}
    rows = [f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in said.items()]
    there = {**files, f"{info}/METADATA": said[f"{info}/METADATA"], f"{info}/RECORD": "".join(rows).encode()}
    if commands:
        there[f"{info}/entry_points.txt"] = f"[console_scripts]\n{commands}\n".encode()
    return {f"{SITE}/{path}": content for path, content in there.items()}


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


def clean_files() -> dict[str, Item | bytes | None]:
    """Path -> content; programs may be run."""
    return {
        SERVER: file(SERVER, program("libc.so.6", "libkernels.so", runpath="$ORIGIN"), mode=0o755),
        KERNELS: gpu_library(["sm_121a", "sm_80"], ["sm_120f"]),
        f"{LIBS}/libc.so.6": program(soname="libc.so.6"),
        "opt/cuda/lib64/libcudart.so.13": program("libc.so.6", "libcuda.so.1", soname="libcudart.so.13"),
        "opt/cuda/bin/ptxas": file("opt/cuda/bin/ptxas", program() + b"\0sm_90\0sm_121a\0", mode=0o755),
        "etc/passwd": b"root:x:0:0::/root:/bin/sh\nspark:x:10001:10001::/:/bin/sh\n",
        **distribution(
            "tool",
            files={"tool/__init__.py": b"from . import cli\n", "tool/cli.py": b"import json\ndef main(): ...\n"},
            commands="tool = tool.cli:main",
        ),
        **distribution("torch", files={"torch/__init__.py": b"", "torch/lib/libtorch_cuda.so": program("libc.so.6")}),
    }


def write_image(
    root: Path,
    files: Mapping[str, Item | bytes | None] = {},
    *,
    below: Sequence[Item] = (),
    settings: Mapping[str, Any] = {},
    indexed: str = "",
    history: Iterable[str] = (),
    architecture: str = "arm64",
) -> Path:
    """The clean image with these files and settings instead of its own, as an OCI layout.

    files: by path; None takes away what the clean image has. below: a layer under it.
    """
    items: list[Item] = []
    for path, content in sorted({**clean_files(), **files}.items()):
        if content is not None:
            items.append(file(path, content) if isinstance(content, bytes) else content)
    layers: list[Iterable[Item]] = [[folder("tmp", mode=0o1777), *below], items]
    layout = write_raw(root / "image", layers, settings={**SETTINGS, **settings}, architecture=architecture)
    index = json.loads((layout / "index.json").read_text())
    if indexed:
        system, _, arch = indexed.partition("/")
        index["manifests"][0]["platform"] = {"os": system, "architecture": arch}
        (layout / "index.json").write_text(json.dumps(index))
    if history:
        _rewrite_history(layout, list(history))
    return layout


def _rewrite_history(path: Path, commands: list[str]) -> None:
    """Another history in the config, and the digests that follow from it."""
    blobs, index = path / "blobs" / "sha256", json.loads((path / "index.json").read_text())

    def load(descriptor: dict[str, Any]) -> Any:
        return json.loads((blobs / descriptor["digest"].removeprefix("sha256:")).read_text())

    def store(descriptor: dict[str, Any], data: object) -> None:
        content = json.dumps(data).encode()
        descriptor.update(digest=f"sha256:{hashlib.sha256(content).hexdigest()}", size=len(content))
        (blobs / descriptor["digest"].removeprefix("sha256:")).write_bytes(content)

    manifest = load(index["manifests"][0])
    config = load(manifest["config"])
    config["history"] = [{"created_by": command, "empty_layer": True} for command in commands]
    store(manifest["config"], config)
    store(index["manifests"][0], manifest)
    (path / "index.json").write_text(json.dumps(index))


def auditor(root: Path) -> Auditor:
    """One with a project, a cache and a cuobjdump of its own."""
    root.mkdir(parents=True, exist_ok=True)
    project = make_project(root / "project")
    return Auditor(project=project, cache=Cache(root / "cache"), cuobjdump=fake_cuobjdump(root))


def audit(
    root: Path, files: Mapping[str, Item | bytes | None] = {}, *, about: Mapping[str, Any] = {}, **image: Any
) -> Result:
    """Audit the clean image with changes. about: fields of Subject that the repository's files would give."""
    path = write_image(root, files, **image)
    subject = Subject(**{"name": "image", "target": TARGET, "tree": {}, **about})
    return auditor(root / "own").layout(read_layout(path), subject)


def executable(path: str, content: bytes = b"#!/bin/sh\n", mode: int = 0o755) -> Item:
    return file(path, content, mode=mode)


def other_type(path: str, kind: bytes = tarfile.FIFOTYPE) -> Item:
    info = tarfile.TarInfo(path)
    info.type = kind
    return info, b""

"""What an image was planned from, attached to it to make it again: pins, locks, images, templates and scripts."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from spark_images.cache import Cache
from spark_images.errors import RegistryError
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.registry.artifacts import Artifact, attach, read_artifact, referrers
from spark_images.registry.client import Client
from spark_images.registry.manifest import Manifest
from spark_images.tree import write_tree
from spark_images.workfolder import work_folder

ARTIFACT_TYPE = "application/vnd.spark-images.project.v1.tar+zstd"
# What plans and builds read. Nothing else goes out: a clone may hold files that are for nobody else's eyes.
KINDS = (".Dockerfile", ".j2", ".json", ".lock", ".patch", ".txt", ".yaml")
_LARGEST = 256 << 20  # unpacked


def attach_clone(client: Client, image: Manifest, project: Project, plan: Plan, cache: Cache) -> None:
    """Attach the project's files; equal files give an equal artifact."""
    import zstandard

    root, tar = project.root, io.BytesIO()
    wanted = [root / "pins.yaml", *(root / "scripts" / name for name, _ in plan.scripts)]
    for part in ("images", "templates"):
        wanted += [path for path in (root / part).rglob("*") if path.suffix in KINDS and path.is_file()]
    with work_folder(cache, "clone") as folder:
        for path in wanted:
            copy = folder / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        write_tree(folder, out=tar)
    data = zstandard.ZstdCompressor(level=9).compress(tar.getvalue())
    attach(client, Artifact(artifact_type=ARTIFACT_TYPE, media_type=ARTIFACT_TYPE, data=data), image)


def fetch_clone(client: Client, digest: str, folder: Path) -> Project:
    """The project that an image was planned from, below `folder`. RegistryError where none is attached."""
    import zstandard

    found = referrers(client, digest, ARTIFACT_TYPE)
    if not found:
        raise RegistryError(
            f"{client.at(digest)} does not say what it was planned from",
            hint="it was pushed by an older spark-images, or copied without what refers to it",
        )
    packed = read_artifact(client, found[-1].digest)
    tar = zstandard.ZstdDecompressor().decompress(packed, max_output_size=_LARGEST)
    with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
        for member in archive:
            _unpack(archive, member, folder)
    return Project(folder)


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    """Files and folders alone, and none outside: who wrote the registry's copy is not known."""
    parts = member.name.split("/")
    if member.isdir():
        return
    if not member.isreg() or any(part in ("", ".", "..") for part in parts):
        raise RegistryError(f"the project that is attached to the image holds `{member.name}`, which is no file in it")
    path = folder.joinpath(*parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = archive.extractfile(member)
    assert content is not None  # of a regular file there always is one
    path.write_bytes(content.read())
    path.chmod(0o755 if member.mode & 0o100 else 0o644)

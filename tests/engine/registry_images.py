"""Images of ours for registries, made by hand: labels, layers, and a project that knows their targets."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_images.cache import Cache
from spark_images.imageconfig import PLAN_LABEL
from spark_images.images import Image
from spark_images.layout_writer import new_layout
from spark_images.oci import Layout, read_layout
from spark_images.project import Project
from spark_images.registry.client import Client
from spark_images.registry.forms import ZSTD, in_form, tag_of_form
from spark_images.registry.history import Move
from spark_images.registry.push import push_layout
from spark_images.registry.reference import Repository
from spark_images.registry.tags import promote, rollback
from spark_images.targets import Target
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict

EPOCH = "2026-01-01T00:00:00Z"
NAME = "noise"


def write_image(
    folder: Path,
    *,
    sizes: tuple[int, ...] = (40_000, 20_000),
    seed: int = 1,
    plan_id: str = "",
    target: str = "gb10",
    base: str = "debian",
    arch: str = "arm64",
    version: str = "1.0",
    pins: Mapping[str, str] | None = None,
    keep: Layout | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Layout:
    """An image of ours whose layers are noise, so that they do not shrink. keep: all but its last layer lies below.

    files: a further layer with these.
    """
    noise = random.Random(seed)
    labels = {
        PLAN_LABEL: plan_id or f"{seed:064x}"[::-1],
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.version": version,
        "io.spark-images.target": target,
        "io.spark-images.base": base,
        "io.spark-images.pins": json.dumps(dict(pins or {"noise": version})),
    }
    with new_layout(folder) as writer:
        layers = list(keep.layers[:-1]) if keep else []
        for layer in layers:
            assert keep is not None
            writer.take(layer, keep.blob(layer.digest))
        tars = [_tar({"noise": noise.randbytes(size)}) for size in sizes] + ([_tar(files)] if files else [])
        for tar in tars:
            with writer.layer() as sink:
                sink.write(tar)
                layers.append(sink.finish(created_by="COPY --from=compile /out/noise/ /"))
        config = {"architecture": arch, "os": "linux", "created": EPOCH, "config": {"Labels": labels}}
        writer.finish(config=config, layers=layers, annotations=labels)
    return read_layout(folder)


def _tar(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def plan_id_of(layout: Layout) -> str:
    return str(layout.config["config"]["Labels"][PLAN_LABEL])


def plan_tag(layout: Layout) -> str:
    """What an image is pushed under."""
    return plan_id_of(layout)[:12]


def make_project(folder: Path) -> Project:
    """A project with two targets of different platforms and one more of the second's."""
    (folder / "images").mkdir(parents=True)
    platforms = {"gb10": "linux/arm64", "rtx50": "linux/amd64", "cpu": "linux/amd64"}
    (folder / "images/targets.yaml").write_text(
        "".join(
            f"{name}: {{platform: {platform}, cpu-architecture: native, description: a machine}}\n"
            for name, platform in platforms.items()
        )
    )
    return Project(folder)


def target_of(project: Project, name: str) -> Target:
    return next(target for target in project.targets if target.name == name)


@dataclass
class Place:
    """A machine, and a repository of the test's own for an image."""

    folder: Path
    project: Project
    cache: Cache
    client: Client
    image: Image

    def push(self, layout: Layout, layers: str = ZSTD) -> str:
        """The digest of the form that is pushed."""
        with in_form(layout, layers, self.cache) as form:
            return push_layout(
                self.client, form, tag_of_form(plan_id_of(layout), layers), states=self.cache.uploads
            ).manifest.digest

    def judge(self, layout: Layout, *gates: Gate, colour: Colour = Colour.GREEN, evidence: str = "12 checks") -> None:
        for gate in gates:
            now = datetime.now(UTC)
            verdict = Verdict(gate=gate, colour=colour, digest=layout.manifest_digest, when=now, evidence=evidence)
            keep_verdict(self.cache, plan_id_of(layout), verdict)

    def promote(self, layout: Layout, target: str = "gb10", base: str = "debian", layers: str = ZSTD) -> Move | None:
        where, plan_id = target_of(self.project, target), plan_id_of(layout)
        return promote(
            self.project, self.image, where, base, client=self.client, plan_id=plan_id, cache=self.cache, layers=layers
        )

    def rollback(self, target: str = "gb10", to: str = "") -> Move:
        return rollback(self.image, target_of(self.project, target), "debian", client=self.client, to=to)

    def tag(self, name: str) -> str | None:
        found = self.client.manifest(name)
        return found.digest if found else None


def make_place(host: str, folder: Path, image: Image, test: str) -> Place:
    """folder: of the test's own. test: its name."""
    repository = Repository(host=host, name=f"test{abs(hash(test))}/{NAME}")
    return Place(folder, make_project(folder / "project"), Cache(folder / "cache"), Client(repository), image)

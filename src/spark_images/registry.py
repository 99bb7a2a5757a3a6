"""Push an image and read it back; pull one by digest, verify it and load it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_images.build import built_layout, load_into
from spark_images.cache import Cache
from spark_images.errors import RegistryError, UsageError
from spark_images.files import sync
from spark_images.imageconfig import PLAN_LABEL
from spark_images.images import Image
from spark_images.oci import Layout, read_layout, verify_blobs
from spark_images.project import Project
from spark_images.skopeo import copy, host_of, look
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.units import format_size

_HOST = r"(?:localhost(?::\d+)?|[A-Za-z0-9-]+:\d+|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?)"
_NAMES = r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)"


def push(project: Project, image: Image, target: Target, base: str, *, cache: Cache, registry: str) -> str:
    """Push the image of today's plan as `registry/<image>:<plan_id[:12]>` and read it back; its reference by digest.

    registry: `HOST[:PORT][/NAME…]`. A tag that holds another image is never moved: RegistryError. What was done goes
    into the plan's newest record. Raises UsageError when the image is not built, CanonicalError when it is damaged.
    """
    if not re.fullmatch(f"{_HOST}{_NAMES}*", registry):
        raise UsageError(
            f"`{registry}` is not HOST/NAME in lower case",
            hint="name the registry without a scheme, e.g. `ghcr.io/you` or `127.0.0.1:5000/you`",
        )
    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)
    tagged = f"{registry}/{image.name}:{plan.plan_id[:12]}"
    by_digest = f"{registry}/{image.name}@{layout.manifest_digest}"
    pushed = push_layout(layout, tagged, by_digest)
    _record_push(cache, plan.plan_id, {"reference": by_digest, "tag": tagged, "pushed": pushed})
    return by_digest


def push_layout(layout: Layout, tagged: str, by_digest: str) -> bool:
    """Push under a tag that never moves and read it back by tag and by digest; False if it was there already."""
    digest = layout.manifest_digest
    image = tagged.rpartition("/")[2].partition(":")[0]
    there = look(tagged)
    if there is not None and _digest(there) != digest:
        raise RegistryError(
            f"{tagged} is another image, and the tag of a plan never moves",
            why=(f"there: {_digest(there)}", f"here:  {digest}"),
            hint=f"`nox -s reproduce-{image}` tells which of the two the plan gives; the other one has to be deleted",
        )
    if there is None:
        verify_blobs(layout)
        size_bytes = sum(layer.size_bytes for layer in layout.layers)
        tell(f"pushing {tagged}: {len(layout.layers)} layers, {format_size(size_bytes)}")
        copy("oci:.", f"docker://{tagged}", reference=tagged, cwd=layout.path, size_bytes=size_bytes)
    for reference in (tagged, by_digest):
        back = look(reference)
        if back is None or _digest(back) != digest:
            raise RegistryError(
                f"{reference} is not what was pushed",
                why=(f"pushed:    {digest}", f"read back: {_digest(back) if back is not None else 'nothing'}"),
                hint="push again; if it stays so, this registry rewrites manifests and cannot keep images by digest",
            )
    tell(f"{tagged} {'is pushed' if there is None else 'is there already, nothing was pushed'}; read back as {digest}")
    return there is None


def pull(project: Project, reference: str, *, cache: Cache, engine: str | None) -> str:
    """Pull `HOST/NAME@sha256:…` into cache.images/<plan_id> and load it; the name under which the engine holds it.

    Every blob is checked against its digest. Raises RegistryError, also where it is no image of this pipeline, or where
    the cache holds another image of the same plan.
    """
    from spark_images.engine import choose_engine

    if not re.fullmatch(f"{_HOST}{_NAMES}+@sha256:[0-9a-f]{{64}}", reference):
        raise UsageError(f"`{reference}` is not HOST/NAME@sha256:…", hint="`push` prints it: a digest never moves")
    chosen = choose_engine(engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ)
    offer = _offer(reference)
    place = cache.images / offer.plan_id
    if not (there := place.exists()):
        _download(reference, offer, cache)
    layout = read_layout(place)
    if layout.manifest_digest != offer.digest:
        raise RegistryError(
            f"the cache holds another image of plan {offer.plan_id[:12]}",
            why=(f"asked: {offer.digest}", f"here:  {layout.manifest_digest} in {place}"),
            hint=f"one of the two is not what the plan gives: `nox -s reproduce-{offer.image}` tells which",
        )
    local = load_into(chosen, layout, image=offer.image, plan_id=offer.plan_id)
    tell(
        f"{offer.image} {'is in the cache already, nothing was' if there else 'is'} pulled",
        f"  plan    {offer.plan_id}",
        f"  digest  {layout.manifest_digest}",
        f"  layout  {layout.path}",
        f"  {chosen.name:7} {local}",
        f"run it: `{chosen.name} run --rm {local}`",
    )
    return local


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """What a registry has under a digest, read before anything large is fetched."""

    digest: str
    plan_id: str
    image: str
    size_bytes: int


def _offer(reference: str) -> _Offer:
    digest = reference.rpartition("@")[2]
    manifest = _expect(reference, digest)
    try:
        parts = json.loads(manifest)
        config = _expect(reference, parts["config"]["digest"], "--config")
        labels = json.loads(config)["config"].get("Labels") or {}
        plan_id, image = str(labels.get(PLAN_LABEL)), str(labels.get("org.opencontainers.image.title"))
        if not (re.fullmatch("[0-9a-f]{64}", plan_id) and re.fullmatch(_NAMES, f"/{image}")):
            raise ValueError(f"its labels name plan `{plan_id}` and image `{image}`")
        size_bytes = sum(int(layer["size"]) for layer in parts["layers"])
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise RegistryError(
            f"{reference} is no image that spark-images made",
            why=(f"those say in the label `{PLAN_LABEL}` which plan they are of",),
            hint="`podman pull` and `docker pull` take any image",
        ) from err
    return _Offer(digest=digest, plan_id=plan_id, image=image, size_bytes=size_bytes)


def _expect(reference: str, digest: str, *options: str) -> bytes:
    """The manifest, or with "--config" the config, if it is the one that the digest names."""
    data = look(reference, *options)
    if data is None:
        raise RegistryError(f"{reference} is not there", hint="`push` prints the reference of what it pushed")
    if _digest(data) != digest:
        raise RegistryError(
            f"{host_of(reference)} served something else than {reference}",
            why=(f"asked: {digest}", f"got:   {_digest(data)}"),
            hint="nothing was taken over; this registry cannot be trusted",
        )
    return data


def _download(reference: str, offer: _Offer, cache: Cache) -> None:
    place = cache.images / offer.plan_id
    with _partial(cache, offer.digest) as folder:
        if place.exists():
            return  # another pull was faster
        tell(f"pulling {reference}: {format_size(offer.size_bytes)}")
        copy(f"docker://{reference}", "oci:layout", reference=reference, cwd=folder, size_bytes=offer.size_bytes)
        layout = read_layout(folder / "layout")
        verify_blobs(layout)
        for left in layout.path.glob("oci-put-blob*"):  # skopeo's, of a pull that was killed
            left.unlink()
        for path in layout.path.rglob("*"):
            sync(path)
        cache.images.mkdir(parents=True, exist_ok=True)
        try:
            layout.path.rename(place)
            sync(cache.images)
        except OSError:
            if not place.exists():  # else a build was faster; the caller compares digests
                raise
        tell("every blob is what its digest says")


@contextmanager
def _partial(cache: Cache, digest: str) -> Iterator[Path]:
    """The work folder of one digest, ours alone; waits while another process pulls the same.

    A pull that fails leaves it, and the next one takes the blobs in it as they are. clean and build remove it.
    """
    folder = cache.work / f"pull-{digest.removeprefix('sha256:')[:12]}"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX)
            if folder.exists() and os.path.samestat(os.fstat(holder), folder.stat()):
                yield folder
                shutil.rmtree(folder)
                return
        finally:
            os.close(holder)


def _record_push(cache: Cache, plan_id: str, data: dict[str, object]) -> None:
    """Into the newest record of the plan; an image that was pulled has none."""
    from spark_images.record import append_to_record, last_built_from, read_records

    if record := last_built_from(read_records(cache.records), plan_id):
        append_to_record(record.folder, "push", {**data, "when": datetime.now(UTC).isoformat(timespec="seconds")})


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"

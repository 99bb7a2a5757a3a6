"""Push an image under its plan_id: blobs first, the manifest by digest, the tag last, and everything read back.

A tag names a manifest only when every blob of it was seen there after the manifest was, so a push that ends anywhere,
however it ends, leaves a tag that works or none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.built import built_layout
from spark_images.cache import Cache
from spark_images.download import Transfer
from spark_images.errors import RegistryError
from spark_images.images import Image
from spark_images.oci import Layout, verify_blobs
from spark_images.project import Project
from spark_images.record import read_records
from spark_images.record_writer import append_to_last
from spark_images.registry.answers import Missing
from spark_images.registry.client import Client
from spark_images.registry.clone import attach_clone
from spark_images.registry.describe import describe
from spark_images.registry.forms import ZSTD, in_form, tag_of_form
from spark_images.registry.manifest import MANIFEST, Manifest
from spark_images.registry.reference import Repository, parse_reference, parse_registry
from spark_images.registry.transfers import run_transfers
from spark_images.registry.upload import BlobUpload, Sent
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.units import format_size

if TYPE_CHECKING:
    from spark_images.attest.signing import Signer

ROUNDS = 3  # a registry that loses blobs this often cannot keep an image


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """What a push came to. sent_bytes: over the wire. tagged: the tag was not there before."""

    manifest: Manifest
    tagged: bool
    blobs: Mapping[str, Sent]  # by digest
    sent_bytes: int


def push(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    cache: Cache,
    registry: str,
    signer: Signer | None = None,
    layers: str = ZSTD,
) -> str:
    """Push the image of today's plan as `registry/<image>:<plan_id[:12]>` and read it back; its reference by digest.

    layers: GZIP pushes the same image with gzip layers, as `<plan_id[:12]>-gzip` (forms.py).

    SBOM, provenance and verdicts are attached to it, signed if there is a signer. registry: `HOST[:PORT][/NAME…]`.
    A tag that holds another image is never moved: RegistryError. What was done goes into the plan's newest record.
    Raises UsageError when the image is not built, CanonicalError when it is damaged.
    """
    repository = parse_registry(registry, image.name)
    plan = project.plan(image, target, base)
    layout = built_layout(plan, cache)
    client = Client(repository)
    siblings = [parse_registry(registry, other.name) for other in project.images if other.name != image.name]
    tag = tag_of_form(plan.plan_id, layers)
    with in_form(layout, layers, cache) as form:
        pushed = push_layout(
            client,
            form,
            tag,
            states=cache.uploads,
            mounts=[*_pushed_with(form, repository, cache), *siblings],
        )
    describe(project, plan, layout, client=client, manifest=pushed.manifest, cache=cache, signer=signer)
    attach_clone(client, pushed.manifest, project, plan, cache)
    reference = client.at(pushed.manifest.digest)
    append_to_last(
        cache,
        plan.plan_id,
        "push",
        {
            "reference": reference,
            "tag": client.at(tag),
            "pushed": pushed.tagged,
            "sent_bytes": pushed.sent_bytes,
            "blobs": {digest: sent.value for digest, sent in pushed.blobs.items()},
        },
    )
    return reference


def push_layout(
    client: Client,
    layout: Layout,
    tag: str,
    *,
    states: Path,
    mounts: Sequence[Repository] = (),
) -> Pushed:
    """Push under a tag that never moves, read back by tag and by digest. mounts: where layers may lie already."""
    manifest = Manifest(media_type=MANIFEST, data=layout.blob(layout.manifest_digest).read_bytes())
    there = _same_or_none(client, tag, manifest)
    blobs, sent_bytes = _push_blobs(client, layout, manifest, tag=tag, states=states, mounts=mounts)
    if not there:
        _same_or_none(client, tag, manifest)  # as late as can be: registries know no "only if"
        client.put_manifest(tag, manifest)
    _read_back(client, tag, manifest)
    how = f"{format_size(sent_bytes)} sent" if sent_bytes else "nothing was sent"
    said = "is there already" if there else "is pushed"
    tell(f"{client.at(tag)} {said}, {how}; read back as {manifest.digest}")
    return Pushed(manifest=manifest, tagged=not there, blobs=blobs, sent_bytes=sent_bytes)


def _push_blobs(
    client: Client,
    layout: Layout,
    manifest: Manifest,
    *,
    tag: str,
    states: Path,
    mounts: Sequence[Repository],
) -> tuple[dict[str, Sent], int]:
    """Make the registry hold the blobs and, by digest, the manifest, until it does; how each came, and bytes sent."""
    sizes = {layer.digest: layer.size_bytes for layer in layout.layers}
    sizes[layout.config_digest] = layout.blob(layout.config_digest).stat().st_size
    blobs = dict.fromkeys(sizes, Sent.PRESENT)
    sent_bytes = 0

    def missing_blobs() -> dict[str, int]:
        return {digest: size for digest, size in sizes.items() if not client.has_blob(digest, size)}

    missing = missing_blobs()
    if missing:
        verify_blobs(layout)
        total = format_size(sum(missing.values()))
        tell(f"pushing {client.at(tag)}: {len(missing)} of {len(sizes)} blobs are not there, {total}")
    for _ in range(ROUNDS):
        uploads = {
            digest: BlobUpload(
                client,
                layout.blob(digest),
                digest=digest,
                transfer=Transfer(label=digest[7:19], size_bytes=size),
                states=states,
                mount_from=_mount_from(client, digest, size, mounts),
            )
            for digest, size in missing.items()
        }

        def bring(digest: str, upload: BlobUpload) -> None:
            blobs[digest] = upload.run()

        jobs = [(upload.transfer, partial(bring, digest, upload)) for digest, upload in uploads.items()]
        run_transfers("push", jobs, stop=client.stop)
        sent_bytes += sum(upload.sent_bytes for upload in uploads.values())
        try:
            if client.manifest(manifest.digest) is None:
                client.put_manifest(manifest.digest, manifest)
        except Missing as lost:
            tell(f"the registry refuses the manifest: {lost.code}")
        missing = missing_blobs()
        if not missing and client.manifest(manifest.digest) is not None:
            return blobs, sent_bytes
        tell(f"the registry has lost {len(missing)} of {len(sizes)} blobs; sending them again")
    raise RegistryError(
        f"{client.host} loses blobs: {len(missing)} of {len(sizes)} are gone after {ROUNDS} uploads",
        why=tuple(missing),
        hint="no tag was moved; look at the registry's storage and its clean-up jobs, then push again",
    )


def _mount_from(client: Client, digest: str, size: int, mounts: Iterable[Repository]) -> str:
    """The first repository there that has the blob; asking costs less than sending where it is no small one."""
    if size < 1 << 20:
        return ""
    for other in mounts:
        if other.host == client.host and other.name != client.repository.name:
            try:
                if client.has_blob(digest, size, of=other.name):
                    return other.name
            except RegistryError:  # not ours to look at; what we may do here shows when we push
                continue
    return ""


def _same_or_none(client: Client, tag: str, manifest: Manifest) -> bool:
    there = client.manifest(tag)
    if there is not None and there.digest != manifest.digest:
        image = client.repository.name.rpartition("/")[2]
        raise RegistryError(
            f"{client.at(tag)} is another image, and the tag of a plan never moves",
            why=(f"there: {there.digest}", f"here:  {manifest.digest}"),
            hint=f"`./noxw -s reproduce-{image}` tells which of the two the plan gives; the other has to be deleted",
        )
    return there is not None


def _read_back(client: Client, tag: str, manifest: Manifest) -> None:
    for wanted in (tag, manifest.digest):
        back = client.manifest(wanted)
        if back is None or back.digest != manifest.digest:
            raise RegistryError(
                f"{client.at(wanted)} is not what was pushed",
                why=(f"pushed:    {manifest.digest}", f"read back: {back.digest if back else 'nothing'}"),
                hint="push again; if it stays so, this registry rewrites manifests and cannot keep images by digest",
            )


def _pushed_with(layout: Layout, repository: Repository, cache: Cache) -> list[Repository]:
    """Repositories at this host to which images with a layer of this one went, by the records."""
    layers = {layer.digest for layer in layout.layers}
    found: dict[Repository, None] = {}
    for record in reversed(read_records(cache.records)):
        if record.result and layers.intersection(layer.digest for layer in record.result.layers):
            for done in record.appended("push"):
                found[parse_reference(str(done.get("reference"))).repository] = None
    return [other for other in found if other.host == repository.host and other.name != repository.name]

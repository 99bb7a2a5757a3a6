"""Delete from a registry the images that no rule keeps, with all that refers to them."""

from __future__ import annotations

from datetime import datetime

from spark_images.attest.provenance import PREDICATE_TYPE
from spark_images.errors import UsageError
from spark_images.registry.artifacts import drop_referrers
from spark_images.registry.client import Client
from spark_images.registry.listing import Listed, Listing, read_listing
from spark_images.registry.retention import Kept, Stored, decide
from spark_images.registry.statements import attached_statements
from spark_images.terminal import tell
from spark_images.units import format_size


def prune_registry(client: Client, *, keep: int, delete: bool) -> tuple[Kept, ...]:
    """Say which images are kept and why, and which are not; delete those if told to. keep: newest per target."""
    if keep < 1:
        raise UsageError(
            "`--keep` has to be at least 1", hint="an empty repository is deleted where the registry is managed"
        )
    listing = read_listing(client)
    decided = decide(_stored(client, listing), listing.moves, newest_per_target=keep)
    sizes = {image.offer.digest: image.offer.size_bytes for image in listing.images}
    gone = [kept.image for kept in decided if not kept.because]
    for kept in decided:
        print(f"{kept.image.tag}  {'keep' if kept.because else 'delete'}  {kept.because}".rstrip())
    size = format_size(sum(sizes[image.digest] for image in gone))
    if not gone:
        tell(f"{client.repository}: every one of {len(decided)} images is kept")
    elif not delete:
        tell(f"{client.repository}: {len(gone)} of {len(decided)} images would go, up to {size}; `--delete` does it")
    else:
        _delete(client, gone, keep=keep)
        tell(
            f"{client.repository}: {len(gone)} of {len(decided)} images are deleted, up to {size}",
            "the registry frees their blobs when it collects garbage",
        )
    return decided


def _delete(client: Client, gone: list[Stored], *, keep: int) -> None:
    """Look again first: somebody may have promoted one of them since."""
    listing = read_listing(client)
    now = decide(_stored(client, listing), listing.moves, newest_per_target=keep)
    kept = {one.image.digest for one in now if one.because}
    for image in gone:
        if image.digest in kept:
            tell(f"{image.tag} stays: it is named by now")
            continue
        drop_referrers(client, image.digest)
        client.delete_manifest(image.digest)


def _stored(client: Client, listing: Listing) -> list[Stored]:
    return [
        Stored(
            tag=image.tag,
            digest=image.offer.digest,
            target=f"{image.offer.target} on {image.offer.base}",
            built=_built(client, image),
            tags=image.tags,
        )
        for image in listing.images
    ]


def _built(client: Client, image: Listed) -> datetime | None:
    """The latest that its provenance says."""
    times = []
    for statement in attached_statements(client, image.offer.digest, PREDICATE_TYPE, None):
        stated = ((statement.predicate.get("runDetails") or {}).get("metadata") or {}).get("finishedOn")
        try:
            times.append(datetime.fromisoformat(str(stated)))
        except ValueError:
            continue
    return max(times, default=None)

"""Pull an image by digest: only the blobs that are nowhere on this machine, every one checked, then loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.built import load_into
from spark_images.cache import Cache
from spark_images.download import OtherSizeError, Transfer, TransferError, download
from spark_images.errors import InterruptedByUser, RegistryError
from spark_images.files import sync
from spark_images.layout_writer import write_index
from spark_images.oci import Layout, read_layout, verify_blobs
from spark_images.registry.client import Client
from spark_images.registry.offer import Offer, read_offer
from spark_images.registry.reference import parse_reference
from spark_images.registry.transfers import run_transfers
from spark_images.store import Store, digest_of
from spark_images.terminal import tell
from spark_images.units import format_size
from spark_images.workfolder import settle, work_folder

if TYPE_CHECKING:
    from spark_images.attest.signing import PublicKey


def pull(reference: str, *, cache: Cache, engine: str | None, key: PublicKey | None = None) -> str:
    """Pull `HOST/NAME@sha256:…` into cache.images and load it; the name under which the engine holds it.

    Every blob is checked against its digest. key: the image has to be signed by it, with its provenance, before
    anything of it is fetched; then a tag will do as well. Raises SignatureError where it is not; RegistryError, also
    where it is no image of this pipeline, or where the cache holds another image of the same plan.
    """
    from spark_images.engine import choose_engine

    wanted = parse_reference(reference, digest_needed=key is None)
    chosen = choose_engine(engine, cache=cache, env=os.environ)
    client = Client(wanted.repository)
    offer = read_offer(client, wanted.wanted)
    if key is not None:
        from spark_images.registry.verification import verify_offer

        verified = verify_offer(client, offer, key)
        tell(f"{offer.reference} is signed by {verified.key_hint}, with provenance of {verified.materials} materials")
    layout, fetched_bytes = _canonical_here(offer, cache), None
    if layout is None:
        fetched_bytes = pull_layout(client, offer, cache)
        layout = read_layout(cache.images / offer.place)
    if layout.manifest_digest not in (offer.digest, offer.form_of):
        raise RegistryError(
            f"the cache holds another image of plan {offer.plan_id[:12]}",
            why=(f"asked: {offer.digest}", f"here:  {layout.manifest_digest} in {layout.path}"),
            hint=f"one of the two is not what the plan gives: `./noxw -s reproduce-{offer.image}` tells which",
        )
    local = load_into(chosen, layout, image=offer.image, plan_id=offer.plan_id)
    how = "is in the cache already, nothing was pulled"
    if fetched_bytes is not None:
        how = f"is pulled: {format_size(fetched_bytes)} of {format_size(offer.size_bytes)} were not here"
    tell(
        f"{offer.image} {how}",
        f"  plan    {offer.plan_id}",
        f"  digest  {layout.manifest_digest}",
        f"  layout  {layout.path}",
        f"  {chosen.name:7} {local}",
        f"run it: `{chosen.name} run --rm {local}`",
    )
    return local


def _canonical_here(offer: Offer, cache: Cache) -> Layout | None:
    """The image of another form's config in the cache: the same image, with nothing left to pull."""
    place = cache.images / offer.plan_id
    if not offer.form_of or not place.exists():
        return None
    layout = read_layout(place)
    same = (layout.manifest_digest, layout.config_digest) == (offer.form_of, offer.config_digest)
    return layout if same else None


def pull_layout(client: Client, offer: Offer, cache: Cache) -> int | None:
    """Make cache.images/<offer.place> the image's layout; the bytes that came over the wire, None where it is there."""
    place = cache.images / offer.place
    if place.exists():
        return None
    store = Store(cache.store)
    fetched_bytes = _fetch(client, offer, store, cache)
    with work_folder(cache, "pull") as folder:
        layout = folder / "layout"
        blobs = layout / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for digest in offer.sizes:
            store.link(digest, blobs / digest.removeprefix("sha256:"))
        for digest, data in ((offer.config_digest, offer.config_data), (offer.digest, offer.manifest.data)):
            (blobs / digest.removeprefix("sha256:")).write_bytes(data)
        descriptor = {
            "digest": offer.digest,
            "mediaType": offer.manifest.media_type,
            "size": len(offer.manifest.data),
        }
        write_index(layout, descriptor)
        verify_blobs(read_layout(layout))
        for path in layout.rglob("*"):
            sync(path)
        settle(layout, place)  # where a build or another pull was faster, the caller compares digests
    tell("every blob is what its digest says")
    return fetched_bytes


def _fetch(client: Client, offer: Offer, store: Store, cache: Cache) -> int:
    """Every layer into the store: from images that are here, or from the registry. Returns the bytes that came."""
    absent = {digest: size for digest, size in offer.sizes.items() if not store.verify(digest)}
    for digest in tuple(absent):
        store.path(digest).unlink(missing_ok=True)  # damaged: what is there did not verify
        for blob in _held(cache, digest):
            if digest_of(blob) == digest:
                store.path(digest).parent.mkdir(parents=True, exist_ok=True)
                try:
                    store.path(digest).hardlink_to(blob)
                except FileExistsError:
                    pass  # another pull was here
                except OSError:
                    continue  # no links between these folders
                del absent[digest]
                break
    if not absent:
        return 0
    tell(f"pulling {offer.reference}: {format_size(sum(absent.values()))} of {format_size(offer.size_bytes)}")
    got: list[int] = []

    def bring(digest: str, transfer: Transfer) -> None:
        got.append(_bring(client, digest, transfer, store))

    transfers = {digest: Transfer(label=digest[7:19], size_bytes=size) for digest, size in absent.items()}
    jobs = [(transfer, partial(bring, digest, transfer)) for digest, transfer in transfers.items()]
    run_transfers("pull", jobs, stop=client.stop)
    return sum(got)


def _held(cache: Cache, digest: str) -> Iterator[Path]:
    name = digest.removeprefix("sha256:")
    for folder in (cache.images, cache.roots):
        yield from folder.glob(f"*/blobs/sha256/{name}")


def _bring(client: Client, digest: str, transfer: Transfer, store: Store) -> int:
    """One blob into the store; the bytes that came over the wire. What an earlier pull left of it is used."""
    with store.incoming(digest, stop=client.stop) as incoming:
        if incoming.present:
            return 0
        for resumed in (True, False):
            began = incoming.open(resume=resumed)
            try:
                download(
                    client.session(),
                    client.blob_url(digest),
                    incoming,
                    size_bytes=transfer.size_bytes,
                    transfer=transfer,
                    patience=client.patience,
                    stop=client.stop,
                )
            except OtherSizeError as err:
                raise _damaged(client, digest, f"it has {err.size_bytes} bytes, not {transfer.size_bytes}") from err
            except TransferError as err:
                if client.stop.is_set():
                    raise InterruptedByUser("stopped") from None
                if str(err).startswith(("401", "403")):
                    raise client.refused(str(err)) from None
                raise client.error(f"blob {digest}: {err}" if str(err)[:1].isdecimal() else str(err)) from err
            if incoming.found() == digest:
                incoming.commit()
                return transfer.done_bytes - began
            found = incoming.found()
            incoming.discard()
            if not (began and resumed):  # else what was left may have been the wrong part
                raise _damaged(client, digest, f"got:   {found}")
        raise AssertionError("the second round returns or raises")


def _damaged(client: Client, digest: str, fact: str) -> RegistryError:
    return RegistryError(
        f"{client.host} served a blob that is not what its digest says",
        why=(f"asked: {digest}", fact),
        hint="its storage is damaged: delete the image there and push it again from where it was built",
    )

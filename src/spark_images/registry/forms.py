"""The forms of an image in a registry: its layers as they were built, or as gzip for what cannot read zstd.

Both have one config, so engines hold them under one image ID, and one tar in each layer: the config names its sha256
(diff_id), which engines and we check. Only the canonical form, with zstd, is what a build gives and is compared with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.errors import CanonicalError
from spark_images.layers import CHUNK, TAR_GZIP, TAR_ZSTD, Layer, open_layer
from spark_images.layout_writer import LayoutWriter, new_layout
from spark_images.oci import Layout, manifest_annotations, read_layout
from spark_images.registry.client import Client
from spark_images.registry.offer import FORM_OF, Offer
from spark_images.registry.statements import attached_verdicts
from spark_images.terminal import tell
from spark_images.verdicts import kept_verdicts
from spark_images.workfolder import work_folder

if TYPE_CHECKING:
    from pathlib import Path

    from spark_images.verdict import Verdict

ZSTD, GZIP = "zstd", "gzip"


def tag_of_form(plan_id: str, layers: str) -> str:
    """The tag that never moves: of the canonical form the plan's, of the other one with its name behind."""
    return plan_id[:12] if layers == ZSTD else f"{plan_id[:12]}-{layers}"


@contextmanager
def in_form(layout: Layout, layers: str, cache: Cache) -> Iterator[Layout]:
    """The layout in the form wanted, for the time of the block."""
    if layers == ZSTD:
        yield layout
        return
    tell("writing the layers as gzip")
    with work_folder(cache, "gzip") as folder:
        yield write_gzip(layout, folder / "layout")


def write_gzip(layout: Layout, output: Path) -> Layout:
    """The same image with gzip in place of zstd; equal images give equal manifests on every machine (gzip_pieces.py).

    CanonicalError where a layer is not what the config says, or where this environment has another libdeflate.
    """
    with new_layout(output) as writer, ThreadPoolExecutor(2) as pool:
        layers = list(pool.map(lambda layer: _as_gzip(writer, layout, layer), layout.layers))
        annotations = {**manifest_annotations(layout), FORM_OF: layout.manifest_digest}
        writer.finish(config=layout.config, layers=layers, annotations=annotations)
    made = read_layout(output)
    if made.config_digest != layout.config_digest:
        raise CanonicalError(
            f"`{layout.path}` has a config that was not written by this spark-images",
            why=(f"there: {layout.config_digest}", f"written again: {made.config_digest}"),
            hint="build the image again, then push it",
        )
    return made


def _as_gzip(writer: LayoutWriter, layout: Layout, layer: Layer) -> Layer:
    """A layer that every engine reads stays as it is, such as those of a base image."""
    if layer.media_type != TAR_ZSTD:
        writer.take(layer, layout.blob(layer.digest))
        return layer
    with open_layer(layout.blob(layer.digest), layer.media_type) as tar, writer.layer(media_type=TAR_GZIP) as sink:
        while chunk := tar.read(CHUNK):
            sink.write(chunk)
        made = sink.finish(created_by=layer.created_by)
    if made.diff_id != layer.diff_id:
        raise CanonicalError(
            f"layer `{layer.digest}` is not what the image's config says",
            why=(f"config: {layer.diff_id}", f"layer:  {made.diff_id}"),
            hint="remove the folder that it lies in and build the image again",
        )
    return made


def judged(client: Client, offer: Offer, cache: Cache) -> tuple[Verdict, ...]:
    """The verdicts on an image, whichever form was before the gates, as said of the form on offer."""
    digests = [offer.digest, *_canonical(client, offer, cache)]
    found = list(kept_verdicts(cache, offer.plan_id))
    for digest in digests:
        found += attached_verdicts(client, digest)
    return said_of(found, digests, offer.digest)


def said_of(verdicts: Iterable[Verdict], digests: Collection[str], digest: str) -> tuple[Verdict, ...]:
    """Verdicts on any of some forms of one image as verdicts on one of them; those on other images are left out."""
    return tuple(replace(verdict, digest=digest) for verdict in verdicts if verdict.digest in digests)


def _canonical(client: Client, offer: Offer, cache: Cache) -> tuple[str, ...]:
    """The canonical form's digest, if it is here or there and has the same config; an annotation proves nothing."""
    if not offer.form_of:
        return ()
    place = cache.images / offer.plan_id
    if place.exists() and (here := read_layout(place)).manifest_digest == offer.form_of:
        return (offer.form_of,) if here.config_digest == offer.config_digest else ()
    there = client.manifest(offer.form_of)
    if there is None or there.is_index or there.document()["config"]["digest"] != offer.config_digest:
        return ()
    return (offer.form_of,)

"""What is in a repository: every image with its pins, size and verdicts, and where tags point and pointed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spark_images.errors import RegistryError
from spark_images.registry.client import Client
from spark_images.registry.history import TAG as HISTORY_TAG
from spark_images.registry.history import Move, pointed_to
from spark_images.registry.ledger import AT_ONCE, read_history
from spark_images.registry.manifest import Manifest
from spark_images.registry.pull import Offer, read_offer
from spark_images.registry.reference import Reference, Repository
from spark_images.registry.statements import attached_verdicts
from spark_images.registry.tags import members
from spark_images.units import format_size
from spark_images.verdict import Gate, Verdict, latest_verdicts

PLAN_TAG = re.compile(r"[0-9a-f]{12}(-gzip)?")  # tag_of_form
_FALLBACK_TAG = re.compile(r"sha256-[0-9a-f]{64}(\..*)?")


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One image under the tag of its plan."""

    tag: str
    offer: Offer
    verdicts: dict[Gate, Verdict]
    tags: tuple[str, ...]  # readable ones that name it now, by themselves or in an index
    was: tuple[str, ...]  # readable ones that named it before

    @property
    def size_bytes(self) -> int:
        """Of all layers."""
        return sum(self.offer.sizes.values())

    def label(self, name: str) -> str:
        """What the image says of itself."""
        return self.offer.labels.get(name, "")

    def document(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "tag": self.tag,
            "digest": self.offer.manifest.digest,
            "plan_id": self.offer.plan_id,
            "image": self.offer.image,
            "version": self.label("org.opencontainers.image.version"),
            "target": self.label("io.spark-images.target"),
            "base": self.label("io.spark-images.base"),
            "platform": self.offer.platform,
            "size_bytes": self.size_bytes,
            "pins": json.loads(self.label("io.spark-images.pins") or "{}"),
            "verdicts": {gate.value: verdict.document() for gate, verdict in self.verdicts.items()},
            "tags": list(self.tags),
            "pointed_to_by": list(self.was),
        }


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A repository as it is. readable: tag -> platform -> digest. moves: of readable tags, oldest first."""

    repository: Repository
    images: tuple[Listed, ...]
    readable: dict[str, dict[str, str]]
    moves: tuple[Move, ...]

    def document(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "repository": str(self.repository),
            "images": [image.document() for image in self.images],
            "tags": {
                tag: {"names": names, "named": list(pointed_to(self.moves, tag))}
                for tag, names in self.readable.items()
            },
            "history": [move.document() for move in self.moves],
        }


def read_listing(client: Client, repository: Repository) -> Listing:
    """Everything about a repository; its images newest promotion first, then by tag."""
    tags = client.tags(repository)
    plans = [tag for tag in tags if PLAN_TAG.fullmatch(tag)]
    others = [tag for tag in tags if is_readable(tag)]
    moves = read_history(client, repository, tags)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        named = dict(zip(others, pool.map(lambda tag: _named(client, repository, tag), others), strict=True))
        readable = {tag: names for tag, names in named.items() if names}
        images = [one for one in pool.map(lambda tag: _listed(client, repository, tag, readable, moves), plans) if one]
    newest = {move.digest: number for number, move in enumerate(moves)}
    images.sort(key=lambda image: (-newest.get(image.offer.manifest.digest, -1), image.tag))
    return Listing(repository=repository, images=tuple(images), readable=readable, moves=moves)


def is_readable(tag: str) -> bool:
    """Whether people chose the tag: it names no plan, no entry of the history and nothing that belongs to an image."""
    return not (PLAN_TAG.fullmatch(tag) or HISTORY_TAG.fullmatch(tag) or _FALLBACK_TAG.fullmatch(tag))


def print_listing(listing: Listing) -> None:
    """A table for people, on stdout."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("plan", "version", "target", "base", "size", *(gate.value for gate in Gate), "tags", "had been"):
        table.add_column(
            column, justify="right" if column == "size" else "left", no_wrap=column not in ("tags", "had been")
        )
    for image in listing.images:
        table.add_row(
            image.tag,
            image.label("org.opencontainers.image.version"),
            image.label("io.spark-images.target"),
            image.label("io.spark-images.base"),
            format_size(image.size_bytes),
            *(image.verdicts[gate].colour.value if gate in image.verdicts else "-" for gate in Gate),
            " ".join(image.tags),
            " ".join(image.was),
        )
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else 180)
    console.print(f"{listing.repository}: {len(listing.images)} images", highlight=False)
    console.print(table)


def _named(client: Client, repository: Repository, tag: str) -> dict[str, str]:
    manifest = client.manifest(repository, tag)
    try:
        return members(client, repository, manifest) if manifest else {}
    except (KeyError, ValueError, RegistryError):  # somebody else's tag for something else
        return {}


def _listed(
    client: Client, repository: Repository, tag: str, readable: dict[str, dict[str, str]], moves: Sequence[Move]
) -> Listed | None:
    try:
        offer = read_offer(client, Reference(repository=repository, tag=tag))
    except RegistryError:  # not ours, or incomplete; `explain` on it says which
        return None
    digest = offer.manifest.digest
    now = tuple(name for name, names in readable.items() if digest in names.values())
    was = {name for move in moves if move.digest == digest for name, _ in move.tags}
    return Listed(
        tag=tag,
        offer=offer,
        verdicts=latest_verdicts(attached_verdicts(client, repository, digest), digest),
        tags=now,
        was=tuple(sorted(was - set(now))),
    )


def single_image(client: Client, reference: Reference, platform: str = "") -> tuple[Reference, Manifest]:
    """What a reference names, by digest: of an index the image for a platform, or the only one."""
    manifest = client.manifest(reference.repository, reference.wanted)
    if manifest is None:
        raise RegistryError(f"{reference} is not there", hint="`nox -s list-<image>` shows what there is")
    if manifest.is_index:
        found = members(client, reference.repository, manifest)
        if platform not in found and len(found) != 1:
            raise RegistryError(
                f"{reference} is an index of several images",
                why=tuple(f"{name}: {digest}" for name, digest in found.items()),
                hint="name one of them by its digest",
            )
        digest = found.get(platform) or next(iter(found.values()))
        return single_image(client, Reference(repository=reference.repository, digest=digest))
    return Reference(repository=reference.repository, digest=manifest.digest), manifest

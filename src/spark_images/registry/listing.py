"""What is in a repository: every image with its pins, size and verdicts, and where tags point and pointed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from spark_images.errors import RegistryError
from spark_images.registry.client import Client
from spark_images.registry.history import TAG as HISTORY_TAG
from spark_images.registry.history import Move, pointed_to
from spark_images.registry.ledger import AT_ONCE, read_history
from spark_images.registry.offer import Offer, members, read_offer
from spark_images.registry.reference import Repository
from spark_images.registry.statements import attached_verdicts
from spark_images.terminal import print_table
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

    def document(self) -> dict[str, Any]:
        """As JSON-able data."""
        return {
            "tag": self.tag,
            "digest": self.offer.digest,
            "plan_id": self.offer.plan_id,
            "image": self.offer.image,
            "version": self.offer.version,
            "target": self.offer.target,
            "base": self.offer.base,
            "platform": self.offer.platform,
            "size_bytes": self.offer.size_bytes,
            "pins": self.offer.pins,
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


def read_listing(client: Client) -> Listing:
    """Everything about a repository; its images newest promotion first, then by tag."""
    tags = client.tags()
    plans = [tag for tag in tags if PLAN_TAG.fullmatch(tag)]
    others = [tag for tag in tags if is_readable(tag)]
    moves = read_history(client, tags)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        named = dict(zip(others, pool.map(lambda tag: _named(client, tag), others), strict=True))
        readable = {tag: names for tag, names in named.items() if names}
        images = [one for one in pool.map(lambda tag: _listed(client, tag, readable, moves), plans) if one]
    newest = {move.digest: number for number, move in enumerate(moves)}
    images.sort(key=lambda image: (-newest.get(image.offer.digest, -1), image.tag))
    return Listing(repository=client.repository, images=tuple(images), readable=readable, moves=moves)


def is_readable(tag: str) -> bool:
    """Whether people chose the tag: it names no plan, no entry of the history and nothing that belongs to an image."""
    return not (PLAN_TAG.fullmatch(tag) or HISTORY_TAG.fullmatch(tag) or _FALLBACK_TAG.fullmatch(tag))


def print_listing(listing: Listing) -> None:
    """A table for people, on stdout."""
    gates = tuple(gate.value for gate in Gate)
    rows = [
        (
            image.tag,
            image.offer.version,
            f"{image.offer.target}-{image.offer.base}",
            format_size(image.offer.size_bytes),
            *(image.verdicts[gate].colour.value if gate in image.verdicts else "-" for gate in Gate),
            " ".join((*image.tags, *(f"({tag}, before)" for tag in image.was))),
        )
        for image in listing.images
    ]
    print(f"{listing.repository}: {len(rows)} image{'' if len(rows) == 1 else 's'}")
    print_table(
        ("plan", "version", "for", "size", *gates, "tags"), rows, right=("size",), whole=("plan", "for", *gates)
    )


def _named(client: Client, tag: str) -> dict[str, str]:
    manifest = client.manifest(tag)
    try:
        return members(client, manifest) if manifest else {}
    except (KeyError, ValueError, RegistryError):  # somebody else's tag for something else
        return {}


def _listed(client: Client, tag: str, readable: dict[str, dict[str, str]], moves: Sequence[Move]) -> Listed | None:
    try:
        offer = read_offer(client, tag)
    except RegistryError:  # not ours, or incomplete; `explain` on it says which
        return None
    digest = offer.digest
    now = tuple(name for name, names in readable.items() if digest in names.values())
    was = {name for move in moves if move.digest == digest for name, _ in move.tags}
    return Listed(
        tag=tag,
        offer=offer,
        verdicts=latest_verdicts(attached_verdicts(client, digest), digest),
        tags=now,
        was=tuple(sorted(was - set(now))),
    )

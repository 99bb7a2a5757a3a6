"""Readable tags: moved last, only to images whose gates allow it, and every move written down before it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from spark_images.cache import Cache
from spark_images.errors import PromotionError, RegistryError
from spark_images.exact_json import exact_json
from spark_images.images import Image
from spark_images.project import Project
from spark_images.registry.client import Client
from spark_images.registry.forms import ZSTD, judged, tag_of_form
from spark_images.registry.history import Kind, Move, last_good
from spark_images.registry.ledger import read_history, stands_already, write_down
from spark_images.registry.manifest import INDEX, Manifest
from spark_images.registry.offer import Offer, members, read_offer
from spark_images.registry.reference import tag_of
from spark_images.registry.statements import attach_verdicts
from spark_images.targets import Target
from spark_images.terminal import tell
from spark_images.verdict import Colour, Gate, Verdict, all_green, latest_verdicts, obstacles
from spark_images.verdicts import keep_verdict

if TYPE_CHECKING:
    from spark_images.attest.signing import Signer

LATEST = "latest"


def promote(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    client: Client,
    plan_id: str,
    cache: Cache,
    signer: Signer | None = None,
    because: str = "",
    layers: str = ZSTD,
) -> Move | None:
    """Move the readable tags to the image of a plan; the move, None where they are there already.

    `latest` moves only if all three gates are green, the target's tags also if smoke was skipped. The first base of a
    target has the target's own tags, others have theirs with the base's name, and never `latest`. layers: the form that
    the tags are to name; verdicts on one form of an image hold for the other. Raises PromotionError where a gate is red
    or did not run, RegistryError where the image is not complete in the registry.
    """
    tag = tag_of_form(plan_id, layers)
    offer = _whole_offer(client, tag, target, base)
    digest = offer.digest
    verdicts = latest_verdicts(judged(client, offer, cache), digest)
    if Gate.SMOKE not in verdicts:
        skipped = Verdict(
            gate=Gate.SMOKE,
            colour=Colour.SKIPPED,
            digest=digest,
            when=datetime.now(UTC),
            evidence=f"it never ran on a GPU of target `{target.name}`",
        )
        keep_verdict(cache, offer.plan_id, skipped)
        verdicts = {**verdicts, Gate.SMOKE: skipped}
    if why := obstacles(verdicts):
        raise PromotionError(
            f"{client.at(tag)} is not promoted: its gates are not passed",
            why=why,
            hint=" and ".join(f"`./noxw -s {said.partition(':')[0]}-{image.name}`" for said in why),
        )
    attach_verdicts(client, offer.manifest, verdicts.values(), signer)
    line = line_of(image, target, base)
    wanted = {tag_of(offer.version, line): digest, line: digest}
    if line != target.name:
        tell(f"`{LATEST}` does not move: it serves `{target.name}`, and this is `{line}`")
    elif not all_green(verdicts):
        tell(f"`{LATEST}` does not move: smoke was skipped, {verdicts[Gate.SMOKE].evidence}")
    elif _first_of_platform(project, image, target) != target.name:
        other = _first_of_platform(project, image, target)
        tell(f"`{LATEST}` does not move: for {target.platform} it is the image of target `{other}`")
    else:
        wanted[LATEST] = _latest_with(client, offer)
    return _move(client, Kind.PROMOTE, offer, line, wanted, because)


def line_of(image: Image, target: Target, base: str) -> str:
    """The tag that follows the images of a target on a base: `gb10`, and for other bases than its first `gb10-ngc`."""
    return target.name if dict(image.supports)[target.name][0] == base else tag_of(target.name, base)


def rollback(image: Image, target: Target, base: str, *, client: Client, to: str = "", because: str = "") -> Move:
    """Move the target's tag, and every other readable tag that names its image, back to the last good image.

    to: a tag or digest to go back to instead. A tag of a version stays with the images of that version. Raises
    PromotionError where there is nothing to go back to.
    """
    moves = read_history(client)
    line = line_of(image, target, base)
    current = client.manifest(line)
    if current is None:
        raise PromotionError(f"{client.at(line)} is not there", hint=f"`./noxw -s promote-{image.name}` moves it")
    if to:
        wanted = to
    else:
        good = last_good(moves, line, current.digest)
        if good is None:
            raise PromotionError(
                f"{client.at(line)} was never another image that was not left",
                why=(f"it is {current.digest}",),
                hint=f"`./noxw -s list-{image.name}` shows what there is; `--to` names one",
            )
        wanted = good.digest
    offer = _whole_offer(client, wanted, target, base)
    digest = offer.digest
    if digest not in {move.digest for move in moves if move.target == line}:
        raise PromotionError(
            f"{client.at(wanted)} was never promoted to {client.at(line)}",
            hint=f"`./noxw -s promote-{image.name} -- --plan {offer.plan_id[:12]}` asks its gates",
        )
    tags = {line: digest}
    version_tag = tag_of(offer.version, line)
    if (named := client.manifest(version_tag)) and named.digest == current.digest:
        tags[version_tag] = digest
    latest = client.manifest(LATEST)
    if latest and current.digest in members(client, latest).values():
        if green := _once_latest(client, moves, offer, line, current.digest):
            tags[LATEST] = _latest_with(client, green)
        else:
            tell(f"`{LATEST}` stays at {current.digest}: no image before it had all gates green")
    moved = _move(client, Kind.ROLLBACK, offer, line, tags, because)
    if moved is None:
        raise PromotionError(f"{client.at(line)} is {digest} already", hint="nothing was moved")
    return moved


def _whole_offer(client: Client, wanted: str, target: Target, base: str) -> Offer:
    """The image, of which everything is there and which is for the target and on the base."""
    offer = read_offer(client, wanted)
    found = (offer.target, offer.platform, offer.base)
    if found != (target.name, target.platform, base):
        raise PromotionError(
            f"{client.at(wanted)} is for {found[0]} ({found[1]}) on {found[2]}, "
            f"not for {target.name} ({target.platform}) on {base}",
            hint="a target's tag names only images of that target",
        )
    gone = [digest for digest, size in offer.sizes.items() if not client.has_blob(digest, size)]
    if gone:
        raise RegistryError(
            f"{client.at(wanted)} is not complete: {len(gone)} of its layers are not there",
            why=tuple(gone),
            hint="push it again from where it was built; it is then brought back",
        )
    return offer


def _once_latest(client: Client, moves: Sequence[Move], offer: Offer, line: str, current: str) -> Offer | None:
    """What `latest` goes back to: the offer, if it was `latest` before, else the last good image that was."""
    relevant = [move for move in moves if move.kind is Kind.ROLLBACK or LATEST in dict(move.tags)]
    if any(move.digest == offer.digest for move in relevant if move.kind is Kind.PROMOTE):
        return offer
    good = last_good(relevant, line, current)
    return read_offer(client, good.digest) if good else None


def _first_of_platform(project: Project, image: Image, target: Target) -> str:
    """The target whose images `latest` serves on a platform: the first that image.yaml supports."""
    platforms = {one.name: one.platform for one in project.targets}
    return next(name for name, _ in image.supports if platforms[name] == target.platform)


def _latest_with(client: Client, offer: Offer) -> str:
    """What `latest` is to name so that this platform gets the image: the image alone, or with others in an index."""
    there = client.manifest(LATEST)
    found = {**(members(client, there) if there else {}), offer.platform: offer.digest}
    if len(found) == 1:
        return offer.digest
    entries = []
    for platform, digest in sorted(found.items()):
        manifest = client.manifest(digest)
        if manifest is None:
            raise RegistryError(
                f"{client.at(LATEST)} names {digest} for {platform}, which is not there",
                hint="promote an image of that platform first",
            )
        system, _, architecture = platform.partition("/")
        entries.append(
            {
                "mediaType": manifest.media_type,
                "digest": digest,
                "size": len(manifest.data),
                "platform": {"os": system, "architecture": architecture},
            }
        )
    data = exact_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    index = Manifest(media_type=INDEX, data=data)
    client.put_manifest(index.digest, index)
    return index.digest


def _move(
    client: Client,
    kind: Kind,
    offer: Offer,
    target: str,
    tags: Mapping[str, str],
    because: str,
) -> Move | None:
    """Write the move down, then make it, then look; None where every tag is where it should be."""
    there = {tag: client.manifest(tag) for tag in tags}
    stale = [tag for tag, digest in tags.items() if (found := there[tag]) is None or found.digest != digest]
    if not stale:
        tell(f"{client.repository}: {', '.join(f'`{tag}`' for tag in tags)} name {offer.digest} already")
        return None
    moves = read_history(client)
    before = there.get(target)
    move = Move(
        number=max((move.number for move in moves), default=0) + 1,
        kind=kind,
        when=datetime.now(UTC),
        target=target,
        version=offer.version,
        plan_id=offer.plan_id,
        digest=offer.digest,
        left=before.digest if before else "",
        tags=tuple(sorted(tags.items())),
        because=because,
    )
    if not stands_already(moves, move):
        write_down(client, move)
    for tag in sorted(stale, key=lambda tag: tag == LATEST):  # latest last: most people read that one
        manifest = client.manifest(tags[tag])
        assert manifest is not None  # the offer or the index that was just read or written
        client.put_manifest(tag, manifest)
        back = client.manifest(tag)
        if back is None or back.digest != tags[tag]:
            raise RegistryError(
                f"{client.at(tag)} is not what it was moved to",
                why=(f"moved to:  {tags[tag]}", f"read back: {back.digest if back else 'nothing'}"),
                hint="the same command again moves it; somebody else may move the same tags now",
            )
        was = there[tag]
        tell(f"{client.at(tag)} -> {tags[tag][:19]}, was {was.digest[:19] if was else 'not there'}")
    return move

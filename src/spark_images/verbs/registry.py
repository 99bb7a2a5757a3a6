"""Images in a registry: push, promote, rollback, list, explain, verify-reference, prune-registry, pull."""

from __future__ import annotations

import argparse
import json
import os
import re
from typing import TYPE_CHECKING

from spark_images.errors import UsageError
from spark_images.verbs.base import Verbs, cache_of_user, engine, project_of, variant, variant_of

if TYPE_CHECKING:
    from spark_images.registry.client import Client
    from spark_images.registry.reference import Repository


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    push = verbs.add("push", _push, "Push a built image to a registry under its plan_id and read it back.")
    variant(push)
    _registry(push)
    _layers(push)
    _signing_key(push)

    promote = verbs.add("promote", _promote, "Move the readable tags to a pushed image whose gates are passed.")
    variant(promote)
    _registry(promote)
    _layers(promote)
    _signing_key(promote)
    promote.add_argument("--plan", metavar="TAG", help="of the image, 12 hex digits (default: today's plan)")
    promote.add_argument("--because", default="", metavar="TEXT", help="goes into the history")

    rollback = verbs.add("rollback", _rollback, "Move the readable tags back to the last good image.")
    variant(rollback)
    _registry(rollback)
    rollback.add_argument("--to", default="", metavar="TAG|DIGEST", help="this one instead of the last good one")
    rollback.add_argument("--because", default="", metavar="TEXT", help="goes into the history")

    listing = verbs.add("list", _list, "List an image's versions in a registry: pins, sizes, verdicts, tags.")
    listing.add_argument("image", help="a folder below images/")
    _registry(listing)
    listing.add_argument("--json", action="store_true")

    explain = verbs.add("explain", _explain, "Say what is in an image, how it was made and how to make it again.")
    explain.add_argument("reference", metavar="HOST/NAME/IMAGE:TAG")
    explain.add_argument("--json", action="store_true")

    verify = verbs.add("verify-reference", _verify, "Check signature, provenance and pins of an image in a registry.")
    verify.add_argument("reference", metavar="HOST/NAME/IMAGE:TAG")
    _public_key(verify)

    prune = verbs.add("prune-registry", _prune, "Delete images from a registry that no rule keeps; only say which.")
    prune.add_argument("image", help="a folder below images/")
    _registry(prune)
    prune.add_argument("--keep", type=int, default=5, metavar="N", help="newest images per target (default: 5)")
    prune.add_argument("--delete", action="store_true", help="do it")

    pull = verbs.add("pull", _pull, "Pull an image by digest, verify every blob, and load it into the engine.")
    pull.add_argument("reference", metavar="HOST/NAME/IMAGE@sha256:…")
    engine(pull)
    pull.add_argument("--verify", action="store_true", help="first check its signature, provenance and pins")
    _public_key(pull)


def _registry(added: argparse.ArgumentParser) -> None:
    added.add_argument("--registry", required=True, metavar="HOST/NAME")


def _layers(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--layers",
        choices=("zstd", "gzip"),
        default="zstd",
        help="gzip: the same image for Docker before 23, under a tag of its own (default: zstd)",
    )


def _signing_key(added: argparse.ArgumentParser) -> None:
    added.add_argument("--key", metavar="FILE|exec:PROGRAM", help="signs (default: $SPARK_IMAGES_SIGNING_KEY)")


def _public_key(added: argparse.ArgumentParser) -> None:
    added.add_argument("--key", metavar="FILE", help="that it has to be signed by (default: $SPARK_IMAGES_VERIFY_KEY)")


def _place(options: argparse.Namespace) -> tuple[Client, Repository]:
    from spark_images.registry.client import Client
    from spark_images.registry.reference import parse_registry

    repository = parse_registry(options.registry, options.image)
    return Client(repository.host, env=os.environ, name=repository.name), repository


def _push(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import find_signer
    from spark_images.registry.push import push

    project, image, target, base = variant_of(options)
    signer = find_signer(options.key)
    print(
        push(
            project,
            image,
            target,
            base,
            cache=cache_of_user(),
            registry=options.registry,
            signer=signer,
            layers=options.layers,
        )
    )
    return 0


def _promote(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import find_signer
    from spark_images.registry.tags import promote

    if options.plan and not re.fullmatch("[0-9a-f]{12,64}", options.plan):
        raise UsageError(
            f"`{options.plan}` is no plan: 12 hex digits or more", hint="`--layers gzip` promotes its gzip form"
        )
    project, image, target, base = variant_of(options)
    client, repository = _place(options)
    promote(
        project,
        image,
        target,
        base,
        client=client,
        repository=repository,
        plan_id=options.plan or project.plan(image, target, base).plan_id,
        cache=cache_of_user(),
        signer=find_signer(options.key),
        because=options.because,
        layers=options.layers,
    )
    return 0


def _rollback(options: argparse.Namespace) -> int:
    from spark_images.registry.tags import rollback

    _, image, target, base = variant_of(options)
    client, repository = _place(options)
    move = rollback(image, target, base, client=client, repository=repository, to=options.to, because=options.because)
    print(repository.at(move.digest))
    return 0


def _list(options: argparse.Namespace) -> int:
    from spark_images.registry.listing import print_listing, read_listing

    project_of(options).image(options.image)
    listing = read_listing(*_place(options))
    if options.json:
        print(json.dumps(listing.document(), indent=2, ensure_ascii=False))
    else:
        print_listing(listing)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from spark_images.registry.client import Client
    from spark_images.registry.explanation import explain, print_explanation
    from spark_images.registry.reference import parse_reference

    reference = parse_reference(options.reference)
    client = Client(reference.repository.host, env=os.environ, name=reference.repository.name)
    explained = explain(client, reference)
    if options.json:
        print(json.dumps(explained, indent=2, ensure_ascii=False))
    else:
        print_explanation(explained)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import MAKE, find_public_key
    from spark_images.registry.client import Client
    from spark_images.registry.listing import single_image
    from spark_images.registry.pull import read_offer
    from spark_images.registry.reference import parse_reference
    from spark_images.registry.verification import verify_offer
    from spark_images.terminal import tell

    reference = parse_reference(options.reference)
    key = find_public_key(options.key)
    if key is None:
        raise UsageError("no key is named", hint=f"`--key FILE` or $SPARK_IMAGES_VERIFY_KEY; {MAKE}")
    client = Client(reference.repository.host, env=os.environ, name=reference.repository.name)
    single, _ = single_image(client, reference)
    verified = verify_offer(client, read_offer(client, single), key)
    tell(
        f"{reference} is signed by the key {verified.key_hint}",
        f"  plan       {verified.plan_id}: image, label and provenance agree on it and on every pin",
        f"  materials  {verified.materials}",
    )
    print(single)
    return 0


def _prune(options: argparse.Namespace) -> int:
    from spark_images.registry.clean_up import prune_registry

    project_of(options).image(options.image)
    prune_registry(*_place(options), keep=options.keep, delete=options.delete)
    return 0


def _pull(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import MAKE, find_public_key
    from spark_images.doctor import Need, require
    from spark_images.registry.pull import pull

    project, cache = project_of(options), cache_of_user()
    key = find_public_key(options.key) if options.verify or options.key else None
    if options.verify and key is None:
        raise UsageError("no key is named to verify with", hint=f"`--key FILE` or $SPARK_IMAGES_VERIFY_KEY; {MAKE}")
    require(Need.ENGINE, env=os.environ)
    print(pull(project, options.reference, cache=cache, engine=options.engine, key=key))
    return 0

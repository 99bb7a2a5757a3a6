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


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    push = verbs.add(
        "push",
        _push,
        "Push a built image to a registry under its plan_id and read it back.",
        "./noxw -s push-llamacpp -- --registry ghcr.io/you --key signing.key",
    )
    variant(push)
    _registry(push)
    _layers(push)
    _signing_key(push)

    promote = verbs.add(
        "promote",
        _promote,
        "Move the readable tags to a pushed image whose gates are passed.",
        "./noxw -s promote-llamacpp -- --registry ghcr.io/you --because 'new release'",
    )
    variant(promote)
    _registry(promote)
    _layers(promote)
    _signing_key(promote)
    promote.add_argument(
        "--plan", metavar="TAG", help="promote this one: 12 hex digits (default: the plan of the files here)"
    )
    promote.add_argument("--because", default="", metavar="TEXT", help="the reason, for the history")

    rollback = verbs.add(
        "rollback",
        _rollback,
        "Move the readable tags back to the last good image.",
        "./noxw -s rollback-llamacpp -- --registry ghcr.io/you",
    )
    variant(rollback)
    _registry(rollback)
    rollback.add_argument(
        "--to", default="", metavar="TAG|DIGEST", help="go back to this one (default: the last good one)"
    )
    rollback.add_argument("--because", default="", metavar="TEXT", help="the reason, for the history")

    listing = verbs.add(
        "list",
        _list,
        "List an image's versions in a registry: pins, sizes, verdicts, tags.",
        "./noxw -s list-llamacpp -- --registry ghcr.io/you",
    )
    listing.add_argument("image", help="a folder below images/")
    _registry(listing)
    listing.add_argument("--json", action="store_true", help="print everything as JSON")

    explain = verbs.add(
        "explain",
        _explain,
        "Say what is in an image, how it was made and how to make it again.",
        "./noxw -s explain -- ghcr.io/you/llamacpp:gb10",
    )
    _reference(explain)
    explain.add_argument("--json", action="store_true", help="print everything as JSON")

    verify = verbs.add(
        "verify-reference",
        _verify,
        "Check signature, provenance and pins of an image in a registry.",
        "./noxw -s verify-reference -- ghcr.io/you/llamacpp:gb10 --key signing.pub",
    )
    _reference(verify)
    _public_key(verify)

    prune = verbs.add(
        "prune-registry",
        _prune,
        "Say which images of a registry no tag, no history and no rule keeps, or delete them.",
        "./noxw -s prune-registry-llamacpp -- --registry ghcr.io/you --keep 3",
    )
    prune.add_argument("image", help="a folder below images/")
    _registry(prune)
    prune.add_argument(
        "--keep", type=int, default=5, metavar="N", help="newest images per target, and results per CI job (default: 5)"
    )
    prune.add_argument("--delete", action="store_true", help="do it")

    pull = verbs.add(
        "pull",
        _pull,
        "Pull an image by digest, verify every blob, and load it into the engine.",
        "./noxw -s pull -- ghcr.io/you/llamacpp@sha256:… --verify --key signing.pub",
    )
    _reference(pull, "HOST/NAME/IMAGE@sha256:…")
    engine(pull)
    pull.add_argument(
        "--verify",
        action="store_true",
        help="first check its signature, provenance and pins, and refuse what does not hold",
    )
    _public_key(pull)


def _registry(added: argparse.ArgumentParser) -> None:
    added.add_argument("--registry", required=True, metavar="HOST/NAME", help="where the images lie, as ghcr.io/you")


def _reference(added: argparse.ArgumentParser, form: str = "HOST/NAME/IMAGE:TAG") -> None:
    added.add_argument("reference", metavar=form, help="an image of this repository in a registry")


def _layers(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--layers",
        choices=("zstd", "gzip"),
        default="zstd",
        help="gzip: the same image for Docker before 23, under a tag of its own (default: zstd)",
    )


def _signing_key(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--key",
        metavar="FILE|exec:PROGRAM",
        help="private key that signs what is attached (default: $SPARK_IMAGES_SIGNING_KEY; nothing is signed without)",
    )


def _public_key(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--key", metavar="FILE", help="public key that it has to be signed by (default: $SPARK_IMAGES_VERIFY_KEY)"
    )


def _client(options: argparse.Namespace) -> Client:
    from spark_images.registry.client import Client
    from spark_images.registry.reference import parse_registry

    return Client(parse_registry(options.registry, options.image))


def _client_and_wanted(options: argparse.Namespace) -> tuple[Client, str]:
    """The repository that a reference is of, and its tag or digest."""
    from spark_images.registry.client import Client
    from spark_images.registry.reference import parse_reference

    reference = parse_reference(options.reference)
    return Client(reference.repository), reference.wanted


def _push(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import find_signer
    from spark_images.registry.push import push

    project, image, target, base = variant_of(options)
    words = {"registry": options.registry, "layers": options.layers}
    print(push(project, image, target, base, cache=cache_of_user(), signer=find_signer(options.key), **words))
    return 0


def _promote(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import find_signer
    from spark_images.registry.tags import promote

    if options.plan and not re.fullmatch("[0-9a-f]{12,64}", options.plan):
        raise UsageError(
            f"`{options.plan}` is no plan: 12 hex digits or more", hint="`--layers gzip` promotes its gzip form"
        )
    project, image, target, base = variant_of(options)
    promote(
        project,
        image,
        target,
        base,
        client=_client(options),
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
    client = _client(options)
    move = rollback(image, target, base, client=client, to=options.to, because=options.because)
    print(client.at(move.digest))
    return 0


def _list(options: argparse.Namespace) -> int:
    from spark_images.registry.listing import print_listing, read_listing

    project_of(options).image(options.image)
    listing = read_listing(_client(options))
    if options.json:
        print(json.dumps(listing.document(), indent=2, ensure_ascii=False))
    else:
        print_listing(listing)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from spark_images.registry.explanation import explain, print_explanation

    explained = explain(*_client_and_wanted(options))
    if options.json:
        print(json.dumps(explained, indent=2, ensure_ascii=False))
    else:
        print_explanation(explained)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import MAKE, find_public_key
    from spark_images.registry.offer import single_offer
    from spark_images.registry.verification import verify_offer
    from spark_images.terminal import tell

    key = find_public_key(options.key)
    if key is None:
        raise UsageError("no key is named", hint=f"`--key FILE` or $SPARK_IMAGES_VERIFY_KEY; {MAKE}")
    client, wanted = _client_and_wanted(options)
    offer = single_offer(client, wanted)
    verified = verify_offer(client, offer, key)
    tell(
        f"{client.at(wanted)} is signed by the key {verified.key_hint}",
        f"  plan       {verified.plan_id}: image, label and provenance agree on it and on every pin",
        f"  materials  {verified.materials}",
    )
    print(offer.reference)
    return 0


def _prune(options: argparse.Namespace) -> int:
    from spark_images.registry.clean_up import prune_registry
    from spark_images.registry.client import Client
    from spark_images.registry.job_results import NAME, prune_results
    from spark_images.registry.reference import parse_registry

    project_of(options).image(options.image)
    prune_registry(_client(options), keep=options.keep, delete=options.delete)
    results = Client(parse_registry(options.registry, NAME))
    prune_results(results, keep=options.keep, delete=options.delete)
    return 0


def _pull(options: argparse.Namespace) -> int:
    from spark_images.attest.signing import MAKE, find_public_key
    from spark_images.doctor import Need, require
    from spark_images.registry.pull import pull

    key = find_public_key(options.key) if options.verify or options.key else None
    if options.verify and key is None:
        raise UsageError("no key is named to verify with", hint=f"`--key FILE` or $SPARK_IMAGES_VERIFY_KEY; {MAKE}")
    require(Need.ENGINE, env=os.environ)
    print(pull(options.reference, cache=cache_of_user(), engine=options.engine, key=key))
    return 0

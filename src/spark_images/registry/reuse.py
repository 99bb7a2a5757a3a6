"""Take the image of a plan from a registry instead of building it: what one runner has pushed, no other builds.

It is the layer cache of every engine at once. BuildKit's own (`--cache-to type=registry`) and podman's (`--cache-to`)
hold steps of one engine, with build stages of gigabytes; an equal plan_id is an equal image, and a component is a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_images.errors import RegistryError
from spark_images.terminal import tell
from spark_images.units import format_size

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.plan import Plan

REGISTRY = "SPARK_IMAGES_REUSE_FROM"


def reuse(plan: Plan, *, cache: Cache, env: Mapping[str, str]) -> bool:
    """Make cache.images/<plan_id> what the registry that SPARK_IMAGES_REUSE_FROM names has; False where it has none.

    With SPARK_IMAGES_VERIFY_KEY only what that key signed: SignatureError for anything else. A registry that does not
    answer is said, and False. UsageError where the variable is no HOST/NAME.
    """
    stated = env.get(REGISTRY)
    if not stated:
        return False
    from spark_images.attest.signing import find_public_key
    from spark_images.registry.client import Client
    from spark_images.registry.offer import read_offer
    from spark_images.registry.pull import pull_layout
    from spark_images.registry.reference import parse_registry
    from spark_images.registry.verification import verify_offer

    repository = parse_registry(stated, plan.image)
    key, tag = find_public_key(None, env), plan.plan_id[:12]
    try:
        client = Client(repository, env=env)
        if client.manifest(tag) is None:
            return False
        offer = read_offer(client, tag)
        if offer.plan_id != plan.plan_id:
            raise RegistryError(f"{offer.reference} is of plan {offer.plan_id[:12]}")
        if key is not None:
            verify_offer(client, offer, key)
        fetched_bytes = pull_layout(client, offer, cache)
    except RegistryError as err:
        tell(f"{err.what}: it is built here instead", *(f"  {line}" for line in err.why))
        return False
    came, trust = format_size(fetched_bytes or 0), "signed" if key else "unsigned"
    tell(f"{plan.image} is taken from {offer.reference}, {trust}: {came} came")
    return True

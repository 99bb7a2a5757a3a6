"""Whether an image in a registry is what its makers signed: checked before anything of it is run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_images.attest.bundle import SIGNED_IMAGE
from spark_images.attest.provenance import PREDICATE_TYPE, material_digests, plan_digests, stated_plan
from spark_images.errors import SignatureError
from spark_images.plan import plan_id_of
from spark_images.registry.statements import attached_statements

if TYPE_CHECKING:
    from spark_images.attest.signing import PublicKey
    from spark_images.registry.client import Client
    from spark_images.registry.offer import Offer


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What a key vouches for."""

    plan_id: str
    key_hint: str
    materials: int


def verify_offer(client: Client, offer: Offer, key: PublicKey) -> Verified:
    """Check signature, provenance and pins of an image; SignatureError says which of them does not hold, and why."""
    digest = offer.digest
    if not attached_statements(client, digest, SIGNED_IMAGE, key):
        anybody = attached_statements(client, digest, SIGNED_IMAGE, None)
        raise SignatureError(
            f"{offer.reference} is not signed by the key {key.hint}",
            why=("it is signed by another key, or altered since" if anybody else "nobody has signed it",),
            hint="nothing was run; ask whoever pushed it, or verify with the key of those who did",
        )
    provenances = attached_statements(client, digest, PREDICATE_TYPE, key)
    if not provenances:
        raise SignatureError(
            f"{offer.reference} has no provenance that the key {key.hint} signed",
            hint="push it again with the key: what is missing is then attached",
        )
    reasons: list[str] = []
    for statement in provenances:
        plan_id, plan = stated_plan(statement.predicate)
        wrong = _contradictions(offer, plan_id, plan, material_digests(statement.predicate))
        if not wrong:
            materials = len(material_digests(statement.predicate))
            return Verified(plan_id=plan_id, key_hint=key.hint, materials=materials)
        reasons += wrong
    raise SignatureError(
        f"{offer.reference} is not what its provenance says",
        why=reasons,
        hint="nothing was run; `./noxw -s explain -- REFERENCE` shows both sides",
    )


def _contradictions(offer: Offer, plan_id: str, plan: object, materials: set[str]) -> list[str]:
    """Where image, plan and materials say different things."""
    if not isinstance(plan, dict):
        return ["its provenance holds no plan"]
    found = []
    if plan_id_of(plan) != plan_id:
        found.append(f"the plan in its provenance is not plan {plan_id[:12]}")
    if offer.plan_id != plan_id:
        found.append(f"its label says plan {offer.plan_id[:12]}, its provenance {plan_id[:12]}")
    stated = offer.pins
    for name in sorted({*stated, *plan.get("pins", {})}):
        if stated.get(name) != plan.get("pins", {}).get(name):
            found.append(f"pin `{name}`: its label says {stated.get(name)}, its provenance {plan['pins'].get(name)}")
    if plan.get("platform") != offer.platform:
        found.append(f"it is for {offer.platform}, its provenance for {plan.get('platform')}")
    if missing := plan_digests(plan) - materials:
        found.append(f"{len(missing)} inputs of the plan are not among the materials, such as {min(missing)}")
    return found

"""What a reference alone tells of an image: what is inside, how it was made, how to make it again."""

from __future__ import annotations

import json
from typing import Any

from spark_images.attest import provenance, sbom
from spark_images.attest.bundle import BUNDLE_TYPE
from spark_images.layer_chart import layer_name
from spark_images.registry import clone
from spark_images.registry.artifacts import read_artifact, referrers
from spark_images.registry.client import Client
from spark_images.registry.ledger import read_history
from spark_images.registry.listing import is_readable
from spark_images.registry.offer import Offer, members, single_offer
from spark_images.registry.statements import attached_statements, attached_verdicts
from spark_images.units import format_size
from spark_images.verdict import latest_verdicts


def explain(client: Client, wanted: str) -> dict[str, Any]:
    """All of it as JSON-able data. What is attached is believed as it is; `verify-reference` asks for a key."""
    offer = single_offer(client, wanted)
    digest = offer.digest
    attached = referrers(client, digest)
    boms = attached_statements(client, digest, sbom.PREDICATE_TYPE, None)
    made = attached_statements(client, digest, provenance.PREDICATE_TYPE, None)
    tags = client.tags()
    readable = [tag for tag in tags if is_readable(tag)]
    named = [tag for tag in readable if digest in _names(client, tag)]
    moves = read_history(client, tags)
    config = offer.config["config"]
    has_clone = any(entry.artifact_type == clone.ARTIFACT_TYPE for entry in attached)
    return {
        "reference": offer.reference,
        "image": offer.image,
        "version": offer.version,
        "target": offer.target,
        "base": offer.base,
        "platform": offer.platform,
        "licenses": offer.labels.get("org.opencontainers.image.licenses", ""),
        "plan_id": offer.plan_id,
        "image_id": offer.config_digest,
        "form_of": offer.form_of,
        "pins": offer.pins,
        "size_bytes": offer.size_bytes,
        "layers": _layers(offer),
        "runs": {key: config[key] for key in ("User", "Entrypoint", "Cmd", "Env", "ExposedPorts") if config.get(key)},
        "tags": named,
        "history": [move.document() for move in moves if digest in (move.digest, move.left)],
        "verdicts": {
            gate.value: verdict.document()
            for gate, verdict in latest_verdicts(attached_verdicts(client, digest), digest).items()
        },
        "contents": _count(boms[-1].predicate) if boms else {},
        "made": _made(made[-1].predicate) if made else {},
        "signed_by": sorted(
            {_hint(read_artifact(client, entry.digest)) for entry in attached if entry.artifact_type == BUNDLE_TYPE}
        ),
        "again": [
            *([f"./noxw -s reproduce-{offer.image} -- --reference {offer.reference}"] if has_clone else []),
            f"./noxw -s build-{offer.image} -- --target {offer.target} --base {offer.base}",
        ],
    }


def print_explanation(explained: dict[str, Any]) -> None:
    """For people, on stdout."""
    say = explained
    print(f"{say['reference']}")
    print(f"  {say['image']} {say['version']} for {say['target']} ({say['platform']}) on {say['base']}")
    print(f"  plan {say['plan_id']}")
    if say["form_of"]:
        print(f"  with gzip layers; the image {say['image_id']} that {say['form_of']} is with zstd")
    print(f"  named by {', '.join(say['tags']) or 'no readable tag'}")
    print(f"inside: {format_size(say['size_bytes'])}")
    for layer in say["layers"]:
        print(f"  {format_size(layer['size_bytes']):>10}  {layer_name(layer['made_by'])}")
    for what, number in say["contents"].items():
        print(f"  {number:>10}  {what}")
    print("pins:")
    for name, value in say["pins"].items():
        print(f"  {name:16} {value}")
    print("gates:" if say["verdicts"] else "gates: nothing is attached")
    for gate, verdict in say["verdicts"].items():
        print(f"  {gate:6} {verdict['colour']:8} {verdict['evidence']}")
    if made := say["made"]:
        print(f"made by {made['builder']}, {made['materials']} inputs, {made['finished'] or 'at an unknown time'}")
    print(f"signed by {', '.join(say['signed_by']) or 'nobody'}")
    print("to make it again:")
    if len(say["again"]) > 1:
        print(f"  {say['again'][0]}")
    print(f"  {say['again'][-1]}   # in a clone whose pins are those above")


def _names(client: Client, tag: str) -> tuple[str, ...]:
    manifest = client.manifest(tag)
    if manifest is None:
        return ()
    return (manifest.digest, *(members(client, manifest).values() if manifest.is_index else ()))


def _layers(offer: Offer) -> list[dict[str, Any]]:
    made = [entry.get("created_by", "") for entry in offer.config.get("history") or () if not entry.get("empty_layer")]
    made += [""] * (len(offer.sizes) - len(made))
    return [
        {"digest": digest, "size_bytes": size, "made_by": by}
        for (digest, size), by in zip(offer.sizes.items(), made, strict=False)
    ]


def _count(bom: Any) -> dict[str, int]:
    """Components by what they are."""
    found: dict[str, int] = {}
    for component in bom.get("components") or ():
        purl = str(component.get("purl", ""))
        kind = {"pkg:deb": "Debian packages", "pkg:pypi": "Python packages", "pkg:generic": "source trees"}.get(
            purl.partition("/")[0], "programs and libraries that no package owns"
        )
        found[kind] = found.get(kind, 0) + 1
    return found


def _made(predicate: Any) -> dict[str, Any]:
    run = predicate.get("runDetails") or {}
    versions = (run.get("builder") or {}).get("version") or {}
    return {
        "builder": ", ".join(f"{name} {value}" for name, value in versions.items()),
        "materials": len(provenance.material_digests(predicate)),
        "record": (run.get("metadata") or {}).get("invocationId", ""),
        "finished": (run.get("metadata") or {}).get("finishedOn", ""),
    }


def _hint(bundle: bytes) -> str:
    try:
        return str(json.loads(bundle)["verificationMaterial"]["publicKey"]["hint"])
    except (KeyError, TypeError, ValueError):
        return "an unknown key"

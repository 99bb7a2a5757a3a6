"""What a reference alone tells of an image: what is inside, how it was made, how to make it again."""

from __future__ import annotations

import json
from typing import Any

from spark_images.attest import provenance, sbom
from spark_images.attest.bundle import BUNDLE_TYPE
from spark_images.registry import clone
from spark_images.registry.artifacts import read_artifact, referrers
from spark_images.registry.client import Client
from spark_images.registry.ledger import read_history
from spark_images.registry.listing import is_readable, single_image
from spark_images.registry.pull import Offer, read_offer
from spark_images.registry.reference import Reference
from spark_images.registry.statements import attached_statements, attached_verdicts
from spark_images.registry.tags import members
from spark_images.units import format_size
from spark_images.verdict import latest_verdicts


def explain(client: Client, reference: Reference) -> dict[str, Any]:
    """All of it as JSON-able data. What is attached is believed as it is; `verify-reference` asks for a key."""
    single, manifest = single_image(client, reference)
    offer = read_offer(client, single)
    repository, digest = reference.repository, manifest.digest
    attached = referrers(client, repository, digest)
    boms = attached_statements(client, repository, digest, sbom.PREDICATE_TYPE, None)
    made = attached_statements(client, repository, digest, provenance.PREDICATE_TYPE, None)
    tags = client.tags(repository)
    readable = [tag for tag in tags if is_readable(tag)]
    named = [tag for tag in readable if digest in _names(client, reference, tag)]
    moves = read_history(client, repository, tags)
    config = offer.config["config"]
    has_clone = any(entry.artifact_type == clone.ARTIFACT_TYPE for entry in attached)
    return {
        "reference": str(single),
        "image": offer.image,
        "version": offer.labels.get("org.opencontainers.image.version", ""),
        "target": offer.labels.get("io.spark-images.target", ""),
        "base": offer.labels.get("io.spark-images.base", ""),
        "platform": offer.platform,
        "licenses": offer.labels.get("org.opencontainers.image.licenses", ""),
        "plan_id": offer.plan_id,
        "image_id": offer.config_digest,
        "form_of": offer.form_of,
        "pins": json.loads(offer.labels.get("io.spark-images.pins") or "{}"),
        "size_bytes": sum(offer.sizes.values()),
        "layers": _layers(offer),
        "runs": {key: config[key] for key in ("User", "Entrypoint", "Cmd", "Env", "ExposedPorts") if config.get(key)},
        "tags": named,
        "history": [move.document() for move in moves if digest in (move.digest, move.left)],
        "verdicts": {
            gate.value: verdict.document()
            for gate, verdict in latest_verdicts(attached_verdicts(client, repository, digest), digest).items()
        },
        "contents": _count(boms[-1].predicate) if boms else {},
        "made": _made(made[-1].predicate) if made else {},
        "signed_by": sorted(
            {
                _hint(read_artifact(client, repository, entry.digest))
                for entry in attached
                if entry.artifact_type == BUNDLE_TYPE
            }
        ),
        "again": [
            *([f"nox -s reproduce-{offer.image} -- --reference {single}"] if has_clone else []),
            f"nox -s build-{offer.image} -- --target {offer.labels.get('io.spark-images.target')} "
            f"--base {offer.labels.get('io.spark-images.base')}",
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
        print(f"  {format_size(layer['size_bytes']):>10}  {layer['made_by']}")
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


def _names(client: Client, reference: Reference, tag: str) -> tuple[str, ...]:
    manifest = client.manifest(reference.repository, tag)
    if manifest is None:
        return ()
    return (manifest.digest, *(members(client, reference.repository, manifest).values() if manifest.is_index else ()))


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

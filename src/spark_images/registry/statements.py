"""Statements about an image, attached to it in the registry: signed by a key as Sigstore bundles, else as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from spark_images.attest.bundle import BUNDLE_TYPE, STATEMENT_TYPE, Statement, make_bundle, open_bundle, read_statement
from spark_images.registry.artifacts import Artifact, attach, read_artifact, referrers
from spark_images.registry.client import Client
from spark_images.registry.manifest import Manifest
from spark_images.verdict import PREDICATE_TYPE, Verdict, read_verdict

if TYPE_CHECKING:
    from spark_images.attest.signing import PublicKey, Signer

_ABOUT = "dev.sigstore.bundle.predicateType"  # annotation, cosign's: readers fetch only what they look for


def attach_statement(client: Client, image: Manifest, statement: Statement, signer: Signer | None) -> bool:
    """Attach a statement, signed if there is a signer; False where it is attached and, if so, signed already."""
    key = signer.public if signer else None
    if statement in attached_statements(client, image.digest, statement.predicate_type, key):
        return False
    annotations = [(_ABOUT, statement.predicate_type)]
    kind, data = STATEMENT_TYPE, statement.encoded()
    if signer is not None:
        kind, data = BUNDLE_TYPE, make_bundle(data, sign=signer.sign, key_hint=signer.public.hint)
        annotations.append(("dev.sigstore.bundle.content", "dsse-envelope"))
    artifact = Artifact(artifact_type=kind, media_type=kind, data=data, annotations=tuple(annotations))
    attach(client, artifact, image)
    return True


def attached_statements(
    client: Client, digest: str, predicate_type: str, key: PublicKey | None
) -> tuple[Statement, ...]:
    """The statements of one type about the image of this digest; those about another one are passed over.

    key: only what it signed; None: all of them, believed as they are.
    """
    found = []
    for entry in referrers(client, digest):
        if entry.annotations.get(_ABOUT, predicate_type) != predicate_type:
            continue
        payload: bytes | None = None
        if entry.artifact_type == BUNDLE_TYPE:
            payload = open_bundle(read_artifact(client, entry.digest), key.signed if key else None)
        elif entry.artifact_type == STATEMENT_TYPE and key is None:
            payload = read_artifact(client, entry.digest)
        statement = read_statement(payload) if payload is not None else None
        if statement and (statement.digest, statement.predicate_type) == (digest, predicate_type):
            found.append(statement)
    return tuple(found)


def attach_verdicts(client: Client, image: Manifest, verdicts: Iterable[Verdict], signer: Signer | None) -> None:
    """Attach what was found out; what is attached already stays and is not repeated."""
    key = signer.public if signer else None
    there = [verdict.document() for verdict in attached_verdicts(client, image.digest, key)]
    stated = [verdict.document() for verdict in sorted(verdicts, key=lambda verdict: verdict.when)]
    if news := [document for document in stated if document not in there]:
        statement = Statement(digest=image.digest, predicate_type=PREDICATE_TYPE, predicate={"verdicts": news})
        attach_statement(client, image, statement, signer)


def attached_verdicts(client: Client, digest: str, key: PublicKey | None = None) -> tuple[Verdict, ...]:
    """The verdicts that are attached to an image; with a key those that it signed."""
    found: list[Verdict] = []
    for statement in attached_statements(client, digest, PREDICATE_TYPE, key):
        listed = statement.predicate.get("verdicts")
        found += [verdict for data in listed or () if (verdict := read_verdict(data)) and verdict.digest == digest]
    return tuple(found)

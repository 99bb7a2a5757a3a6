"""In-toto statements, and signed ones as Sigstore bundles, which `cosign verify` and `verify-attestation` read. Pure.

The formats: in-toto attestation framework v1, DSSE 1.0 (github.com/secure-systems-lab/dsse), Sigstore bundle 0.3.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_images.exact_json import exact_json

STATEMENT = "https://in-toto.io/Statement/v1"
STATEMENT_TYPE = "application/vnd.in-toto+json"
BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
SIGNED_IMAGE = "https://sigstore.dev/cosign/sign/v1"  # the statement that `cosign sign` makes: this image, no more


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A predicate about one image."""

    digest: str  # of the image's manifest
    predicate_type: str
    predicate: Mapping[str, Any]

    def encoded(self) -> bytes:
        """As in-toto writes it; equal statements give equal bytes."""
        document = {
            "_type": STATEMENT,
            "subject": [{"digest": {"sha256": self.digest.removeprefix("sha256:")}}],
            "predicateType": self.predicate_type,
            "predicate": dict(self.predicate),
        }
        return exact_json(document)


def read_statement(data: bytes) -> Statement | None:
    """The statement in a document; None where it is none of version 1 about one sha256."""
    try:
        document = json.loads(data)
        (subject,) = document["subject"]
        if document["_type"] != STATEMENT:
            return None
        return Statement(
            digest=f"sha256:{subject['digest']['sha256']}",
            predicate_type=str(document["predicateType"]),
            predicate=dict(document.get("predicate") or {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def make_bundle(payload: bytes, *, sign: Callable[[bytes], bytes], key_hint: str) -> bytes:
    """The statement with a signature over it, in one document. key_hint: PublicKey.hint."""
    signature = sign(_signed_bytes(STATEMENT_TYPE, payload))
    document = {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": key_hint}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": STATEMENT_TYPE,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return exact_json(document)


def open_bundle(data: bytes, signed: Callable[[bytes, bytes], bool] | None) -> bytes | None:
    """The payload, if one of its signatures holds. signed: (bytes, signature) -> whether it is the key's; None: all do.

    None for what is no bundle with an in-toto statement in it, and where no signature holds.
    """
    try:
        envelope = json.loads(data)["dsseEnvelope"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        kind = str(envelope["payloadType"])
        signatures = [base64.b64decode(one["sig"], validate=True) for one in envelope["signatures"]]
    except (KeyError, TypeError, ValueError):
        return None
    if kind != STATEMENT_TYPE:
        return None
    if signed is not None and not any(signed(_signed_bytes(kind, payload), one) for one in signatures):
        return None
    return payload


def _signed_bytes(kind: str, payload: bytes) -> bytes:
    """DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind.encode(), len(payload), payload)

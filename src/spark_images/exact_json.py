"""JSON with one text for equal documents: for what is signed, or named by its digest. Pure."""

from __future__ import annotations

import json


def exact_json(document: object) -> bytes:
    """Keys sorted, no spaces, UTF-8."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

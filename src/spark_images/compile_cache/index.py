"""What a shared store holds of one compile: ccache's keys with digest and size, those brought last at the end. Pure.

ccache's stores cannot be asked what they hold, and the network is off while a key becomes known. So the pipeline notes
beside the entries which of them a compile needed. A signature over that note covers every entry, by its digest.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from spark_images.exact_json import exact_json

KEY = re.compile(r"[0-9a-v]{20,64}")  # ccache 4's: hexadecimal, then base 32
LARGEST_BYTES = (
    4 << 30
)  # of all entries; the whole of vLLM's kernels is about a tenth, so old releases are kept a while
LARGEST_ENTRY_BYTES = 256 << 20  # a Redis value may have 512 MB; the largest object of vLLM's build has 40
LARGEST_DOCUMENT_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry of ccache's. digest: "sha256:…" of the bytes that the store should give for the key."""

    key: str
    digest: str
    size_bytes: int


def index_name(*, image: str, target: str, base: str, builder: str) -> str:
    """Under which name the note of a compile lies. builder: the platform of the compilers."""
    return f"{image}-{target}-{base}-{builder.replace('/', '-')}"


def write_index(name: str, entries: Iterable[Entry]) -> bytes:
    """The note as bytes; equal entries give equal bytes."""
    rows = [[entry.key, entry.digest, entry.size_bytes] for entry in entries]
    return exact_json({"entries": rows, "of": name})


def read_index(name: str, data: bytes) -> tuple[Entry, ...]:
    """What write_index wrote under this name. ValueError for anything else: the store may hold whatever others put."""
    try:
        document = json.loads(data)
        of, rows = document["of"], document["entries"]
        entries = tuple(Entry(key=key, digest=digest, size_bytes=size) for key, digest, size in rows)
    except (KeyError, TypeError, ValueError) as err:
        raise ValueError("it is no index of spark-images") from err
    if of != name:
        raise ValueError(f"it is the index of `{of}`")
    for entry in entries:
        if not (isinstance(entry.key, str) and KEY.fullmatch(entry.key)):
            raise ValueError(f"`{entry.key}` is no key of ccache's")
        if not (isinstance(entry.digest, str) and re.fullmatch("sha256:[0-9a-f]{64}", entry.digest)):
            raise ValueError(f"`{entry.digest}` is no digest")
        if type(entry.size_bytes) is not int or not 0 <= entry.size_bytes <= LARGEST_ENTRY_BYTES:
            raise ValueError(f"`{entry.size_bytes}` is no size of an entry")
    return entries


def seal(index: bytes, signature: bytes | None) -> bytes:
    """The note with its signature, as it lies in the store."""
    signed = base64.b64encode(signature or b"").decode()
    return json.dumps({"index": index.decode(), "signature": signed}, sort_keys=True, indent=0).encode()


def unseal(data: bytes) -> tuple[bytes, bytes]:
    """Note and signature, which is empty where nobody signed. ValueError for anything else."""
    try:
        document = json.loads(data)
        return document["index"].encode(), base64.b64decode(document["signature"], validate=True)
    except (KeyError, TypeError, AttributeError, ValueError) as err:
        raise ValueError("it is no index of spark-images") from err


def joined(old: Iterable[Entry], new: Iterable[Entry], *, largest_bytes: int = LARGEST_BYTES) -> tuple[Entry, ...]:
    """Old and new entries, each key once and as it came last; the oldest are left out where all would be too much."""
    every = {entry.key: entry for entry in old}
    for entry in new:
        every.pop(entry.key, None)
        every[entry.key] = entry
    kept: list[Entry] = []
    size = 0
    for entry in reversed(every.values()):
        size += entry.size_bytes
        if size > largest_bytes:
            break
        kept.append(entry)
    return tuple(reversed(kept))

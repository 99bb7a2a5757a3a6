"""Manifests: the documents that a registry keeps under digests and tags."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from spark_images.errors import RegistryError

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest as it was served: its bytes are what its digest is taken over."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.data)

    def document(self) -> dict[str, Any]:
        """Its JSON; RegistryError where it is none."""
        try:
            document = json.loads(self.data)
            if not isinstance(document, dict):
                raise TypeError("it is no object")
        except (ValueError, TypeError) as err:
            raise RegistryError(f"the manifest {self.digest} is no JSON object") from err
        return document

    @property
    def is_index(self) -> bool:
        return "index" in self.media_type or "manifest.list" in self.media_type


def digest_of(data: bytes) -> str:
    """`sha256:…` of bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"

"""What belongs to an image and is no image: attestations, SBOMs and signatures as OCI artifacts that refer to it.

They hang on the image's digest by `subject` (OCI image specification 1.1). A registry without the referrers API gets
the fallback that the specification names: an index under the tag `sha256-<digest>`, which the client keeps.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from spark_images.errors import RegistryError
from spark_images.exact_json import exact_json
from spark_images.registry.answers import Missing
from spark_images.registry.client import Client
from spark_images.registry.manifest import INDEX, MANIFEST, Manifest, digest_of

EMPTY = b"{}"
EMPTY_TYPE = "application/vnd.oci.empty.v1+json"
ROUNDS = 5  # of writing the fallback index while others write it


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """An artifact's one content. artifact_type: what readers look for."""

    artifact_type: str
    media_type: str
    data: bytes = field(repr=False)
    annotations: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Referrer:
    """An artifact that refers to an image, as the registry lists it."""

    digest: str
    artifact_type: str
    annotations: Mapping[str, str]


def descriptor(manifest: Manifest) -> dict[str, Any]:
    """How other manifests name this one."""
    return {"mediaType": manifest.media_type, "digest": manifest.digest, "size": len(manifest.data)}


def artifact_manifest(artifact: Artifact, subject: Manifest | None, *, embed: bool = False) -> Manifest:
    """The manifest of an artifact; equal contents give equal digests. embed: the content stands in it as well."""
    content = {"mediaType": artifact.media_type, "digest": digest_of(artifact.data), "size": len(artifact.data)}
    if embed:
        content["data"] = base64.b64encode(artifact.data).decode()
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": artifact.artifact_type,
        "config": {"mediaType": EMPTY_TYPE, "digest": digest_of(EMPTY), "size": len(EMPTY)},
        "layers": [content],
        **({"subject": descriptor(subject)} if subject else {}),
        **({"annotations": dict(artifact.annotations)} if artifact.annotations else {}),
    }
    return Manifest(media_type=MANIFEST, data=exact_json(document))


def put_artifact(client: Client, artifact: Artifact, *, tag: str, embed: bool = False) -> None:
    """Store an artifact of its own, under a tag."""
    manifest = artifact_manifest(artifact, None, embed=embed)
    _put_blobs(client, artifact)
    client.put_manifest(tag, manifest)


def attach(client: Client, artifact: Artifact, subject: Manifest) -> None:
    """Attach an artifact to the image whose manifest is `subject`. Attached already, nothing changes."""
    manifest = artifact_manifest(artifact, subject)
    if any(there.digest == manifest.digest for there in referrers(client, subject.digest)):
        return
    _put_blobs(client, artifact)
    response = client.put_manifest(manifest.digest, manifest)
    if "OCI-Subject" not in response.headers:  # this registry keeps no list of its own
        entry = {**descriptor(manifest), "artifactType": artifact.artifact_type}
        if artifact.annotations:
            entry["annotations"] = dict(artifact.annotations)
        _list_in_tag(client, subject.digest, add=[entry])


def referrers(client: Client, digest: str, artifact_type: str = "") -> tuple[Referrer, ...]:
    """What refers to the image of this digest, all or of one type."""
    found: list[dict[str, Any]] = []
    with suppress(Missing, ValueError, KeyError, TypeError):  # no such address, or another program behind it
        answer = client.ask("GET", f"referrers/{digest}", headers={"Accept": INDEX})
        found += answer.json()["manifests"]
    if not found:
        found = _in_tag(client, digest)
    listed = (
        Referrer(
            digest=str(entry["digest"]),
            artifact_type=str(entry.get("artifactType", "")),
            annotations=entry.get("annotations") or {},
        )
        for entry in found
    )
    return tuple(entry for entry in listed if not artifact_type or entry.artifact_type == artifact_type)


def read_artifact(client: Client, digest: str) -> bytes:
    """The content of an artifact, checked; RegistryError where it is not there."""
    manifest = client.manifest(digest)
    if manifest is None:
        raise RegistryError(f"{client.at(digest)} is not there")
    return content_of(client, manifest)


def content_of(client: Client, manifest: Manifest) -> bytes:
    """The one content of an artifact's manifest: from the manifest where it stands in it, else the blob."""
    try:
        (content,) = manifest.document()["layers"]
        embedded = base64.b64decode(content["data"]) if "data" in content else b""
        digest = str(content["digest"])
    except (KeyError, TypeError, ValueError) as err:
        raise RegistryError(f"{client.at(manifest.digest)} is no artifact with one content") from err
    return embedded if digest_of(embedded) == digest else client.blob(digest)


def drop_referrers(client: Client, digest: str) -> None:
    """Delete what refers to an image, and the fallback tag."""
    for entry in referrers(client, digest):
        drop_referrers(client, entry.digest)
        client.delete_manifest(entry.digest)
    fallback = client.manifest(fallback_tag(digest))
    if fallback is not None:
        client.delete_manifest(fallback.digest)


def fallback_tag(digest: str) -> str:
    """`sha256-<hex>`."""
    return digest.replace(":", "-")


def _put_blobs(client: Client, artifact: Artifact) -> None:
    for data in (EMPTY, artifact.data):
        client.put_blob(data)


def _in_tag(client: Client, digest: str) -> list[dict[str, Any]]:
    index = client.manifest(fallback_tag(digest))
    return list(index.document().get("manifests") or ()) if index else []


def _list_in_tag(client: Client, digest: str, *, add: Sequence[dict[str, Any]]) -> None:
    """Read, add, write, and look whether somebody wrote in between: then again."""
    wanted = {str(entry["digest"]) for entry in add}
    for _ in range(ROUNDS):
        there = _in_tag(client, digest)
        missing = [entry for entry in add if entry["digest"] not in _digests(there)]
        if not missing:
            return
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [*there, *missing]}
        client.put_manifest(fallback_tag(digest), Manifest(media_type=INDEX, data=exact_json(document)))
        if wanted <= _digests(_in_tag(client, digest)):
            return
    raise RegistryError(
        f"{client.at(fallback_tag(digest))} is written by others all the time",
        hint="the same command again adds what is missing",
    )


def _digests(entries: Iterable[Mapping[str, Any]]) -> set[str]:
    return {str(entry["digest"]) for entry in entries}

"""An image's bill of materials as CycloneDX 1.6, from what is in it and from the source trees of its plan. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_images.attest.contents import Contents, DebPackage, LooseFile, PythonPackage

PREDICATE_TYPE = "https://cyclonedx.org/bom"  # of the in-toto statement, as cosign and in-toto name it
_NAMESPACE = uuid.UUID("6f5c0f6c-8a8e-5d0f-9a55-2f1d6b1f4f0e")  # ours: a serial number is a function of the image


@dataclass(frozen=True, kw_only=True)
class SourceTree:
    """A source tree that was compiled into the image."""

    name: str
    version: str
    url: str  # of the repository, "" for an sdist
    commit: str  # "" for an sdist
    digest: str  # "sha256:…" of the canonical tar or the file
    patches: tuple[tuple[str, str], ...] = ()  # what was changed in it: the patch's path in the project, and its text


def make_sbom(
    *,
    digest: str,
    image: str,
    version: str,
    created: str,
    tool_version: str,
    contents: Contents,
    sources: Iterable[SourceTree],
) -> dict[str, Any]:
    """The document; equal arguments give equal documents. digest: of the image. created: ISO 8601, the image's own."""
    main = f"pkg:oci/{_quote(image)}@{_quote(digest)}"
    components = [
        *(_deb(package, contents.distribution) for package in contents.debs),
        *(_python(package) for package in contents.python),
        *(_source(tree) for tree in sources),
        *(_file(file) for file in contents.loose),
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, digest)}",
        "version": 1,
        "metadata": {
            "timestamp": created,
            "tools": {"components": [{"type": "application", "name": "spark-images", "version": tool_version}]},
            "component": {
                "type": "container",
                "bom-ref": main,
                "name": image,
                "version": version,
                "purl": main,
                "hashes": [_sha256(digest)],
            },
        },
        "components": components,
        "dependencies": [{"ref": main, "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _deb(package: DebPackage, distribution: str) -> dict[str, Any]:
    vendor = distribution.partition("-")[0] or "debian"
    asked = [("arch", package.arch), ("distro", distribution)]
    query = "&".join(f"{key}={_quote(value)}" for key, value in asked if value)
    purl = f"pkg:deb/{vendor}/{_quote(package.name)}@{_quote(package.version)}" + (f"?{query}" if query else "")
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
    }
    if package.maintainer:
        component["supplier"] = {"name": package.maintainer.partition(" <")[0]}
    if package.source:
        component["properties"] = [{"name": "io.spark-images:source-package", "value": package.source}]
    return component


def _python(package: PythonPackage) -> dict[str, Any]:
    purl = f"pkg:pypi/{_quote(package.name)}@{_quote(package.version)}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "properties": [{"name": "io.spark-images:files", "value": str(package.files)}],
    }
    if package.record_sha256:
        component["properties"].append({"name": "io.spark-images:record-sha256", "value": package.record_sha256})
    if package.licenses:
        component["licenses"] = [{"expression": package.licenses}]
    return component


def _source(tree: SourceTree) -> dict[str, Any]:
    qualifiers = f"?vcs_url={_quote(f'git+{tree.url}@{tree.commit}')}" if tree.url else ""
    purl = f"pkg:generic/{_quote(tree.name)}@{_quote(tree.version)}{qualifiers}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": tree.name,
        "version": tree.version,
        "purl": purl,
        "hashes": [_sha256(tree.digest)],
        "scope": "required",
        "properties": [{"name": "io.spark-images:compiled-in", "value": "source tree of the plan"}],
    }
    if tree.url:
        component["externalReferences"] = [{"type": "vcs", "url": tree.url}]
        component["pedigree"] = {"commits": [{"uid": tree.commit, "url": tree.url}]}
    if tree.patches:
        patches = [_patch(path, text) for path, text in tree.patches]
        component["pedigree"] = {**component.get("pedigree", {}), "patches": patches}
    return component


def _patch(path: str, text: str) -> dict[str, Any]:
    return {
        "type": "unofficial",  # CycloneDX's word for one that upstream has not taken
        "diff": {"url": path, "text": {"contentType": "text/x-diff", "content": text}},
    }


def _file(file: LooseFile) -> dict[str, Any]:
    return {
        "type": "file",
        "bom-ref": f"file:/{file.path}",
        "name": f"/{file.path}",
        "hashes": [_sha256(f"sha256:{file.sha256}")],
        "properties": [{"name": "io.spark-images:size-bytes", "value": str(file.size_bytes)}],
    }


def _sha256(digest: str) -> dict[str, str]:
    return {"alg": "SHA-256", "content": digest.removeprefix("sha256:")}


def _quote(text: str) -> str:
    """Percent-encoded, as package URLs want every part of them."""
    return re.sub(r"[^A-Za-z0-9._~-]", lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)

"""How an image was made, as SLSA v1 provenance: the pins with their digests, the builder, the times. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "io.spark-images:plan:v1"  # externalParameters: what was asked; internalParameters: the whole plan
BUILDER = "io.spark-images:builder"


@dataclass(frozen=True, kw_only=True)
class Material:
    """One input of a build: where it is to be had, and its sha256."""

    uri: str
    digest: str  # "sha256:…"
    name: str = ""
    commit: str = ""  # of a source tree


@dataclass(frozen=True, kw_only=True)
class Run:
    """The attempt that made the image; all "" for an image that came by pull and is described again."""

    record: str = ""
    started: str = ""  # ISO 8601, UTC
    finished: str = ""
    engine: str = ""  # "podman 4.3.1"


def make_provenance(
    *,
    plan_id: str,
    plan: Mapping[str, Any],
    materials: Iterable[Material],
    tool_version: str,
    run: Run,
) -> dict[str, Any]:
    """The predicate. plan: its document, of which plan_id is the digest."""
    metadata = {"invocationId": run.record, "startedOn": run.started, "finishedOn": run.finished}
    version = {"spark-images": tool_version, **({"engine": run.engine} if run.engine else {})}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {key: plan[key] for key in ("image", "target", "base")} | {"pins": plan["pins"]},
            "internalParameters": {"planId": plan_id, "plan": dict(plan)},
            "resolvedDependencies": [_descriptor(material) for material in materials],
        },
        "runDetails": {
            "builder": {"id": BUILDER, "version": version},
            "metadata": {key: value for key, value in metadata.items() if value},
        },
    }


def stated_plan(predicate: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """plan_id and plan that a provenance states; ("", {}) where it states none."""
    try:
        inside = predicate["buildDefinition"]["internalParameters"]
        plan = inside["plan"]
        return (str(inside["planId"]), plan) if isinstance(plan, Mapping) else ("", {})
    except (KeyError, TypeError):
        return "", {}


def material_digests(predicate: Mapping[str, Any]) -> set[str]:
    """The digests of all materials."""
    try:
        listed = predicate["buildDefinition"]["resolvedDependencies"]
        return {f"sha256:{entry['digest']['sha256']}" for entry in listed}
    except (KeyError, TypeError):
        return set()


def plan_digests(plan: Mapping[str, Any]) -> set[str]:
    """The digests of everything that a plan's document takes in: inputs and .debs."""
    found = {str(digest) for digest in (plan.get("inputs") or {}).values()}
    for root in (plan.get("roots") or {}).values():
        found.update(
            match[0] for deb in root["debs"].values() if (match := re.search(r"sha256:[0-9a-f]{64}", str(deb)))
        )
    return found


def _descriptor(material: Material) -> dict[str, Any]:
    digest = {"sha256": material.digest.removeprefix("sha256:")}
    if material.commit:
        digest["gitCommit"] = material.commit
    return {"uri": material.uri, "digest": digest, **({"name": material.name} if material.name else {})}

"""What is attached to a pushed image: bill of materials, provenance, verdicts, and a signature if there is a key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, assert_never

from spark_images import __version__
from spark_images.attest import provenance, sbom
from spark_images.attest.bundle import SIGNED_IMAGE, Statement
from spark_images.cache import Cache
from spark_images.exact_json import exact_json
from spark_images.files import read_json, write_bytes
from spark_images.imageconfig import VERSION_LABEL
from spark_images.pins import (
    ArchiveRoute,
    Content,
    GitRoute,
    IndexRoute,
    SdistPin,
    SdistRoute,
    TreeContent,
    UrlRoute,
)
from spark_images.record import RecordView, last_built_from, read_records
from spark_images.registry.forms import said_of
from spark_images.registry.statements import attach_statement, attach_verdicts
from spark_images.terminal import tell
from spark_images.verdict import latest_verdicts
from spark_images.verdicts import kept_verdicts

if TYPE_CHECKING:
    from spark_images.attest.signing import Signer
    from spark_images.oci import Layout
    from spark_images.plan import Plan
    from spark_images.project import Project
    from spark_images.registry.client import Client
    from spark_images.registry.manifest import Manifest


def describe(
    project: Project,
    plan: Plan,
    layout: Layout,
    *,
    client: Client,
    manifest: Manifest,
    cache: Cache,
    signer: Signer | None,
) -> None:
    """Attach everything that is known of an image; what is attached already stays as it is.

    layout: the canonical form. manifest: of the form that was pushed.
    """
    record = last_built_from(read_records(cache.records), plan.plan_id)
    predicates = [
        (sbom.PREDICATE_TYPE, image_sbom(project, plan, layout, cache, digest=manifest.digest)),
        (provenance.PREDICATE_TYPE, image_provenance(plan, record)),
    ]
    if signer is not None:
        predicates.append((SIGNED_IMAGE, {}))
    done = []
    for kind, predicate in predicates:
        statement = Statement(digest=manifest.digest, predicate_type=kind, predicate=predicate)
        if attach_statement(client, manifest, statement, signer):
            done.append(_NAMES[kind])
    known = said_of(kept_verdicts(cache, plan.plan_id), (layout.manifest_digest, manifest.digest), manifest.digest)
    verdicts = latest_verdicts(known, manifest.digest)
    attach_verdicts(client, manifest, verdicts.values(), signer)
    if done:
        tell(f"attached: {', '.join(done)}{'' if signer else '; nothing is signed, as no key is named'}")


_NAMES = {sbom.PREDICATE_TYPE: "SBOM", provenance.PREDICATE_TYPE: "provenance", SIGNED_IMAGE: "signature"}


def image_sbom(project: Project, plan: Plan, layout: Layout, cache: Cache, *, digest: str) -> dict[str, Any]:
    """The bill of materials; reading a large image takes a while, so it is kept by the digest that it names."""
    from spark_images.attest.contents import read_contents

    kept = cache.sboms / f"{digest.removeprefix('sha256:')}.json"
    if (there := read_json(kept)) is not None:
        return there
    tell("reading what is in the image, for its bill of materials")
    document = sbom.make_sbom(
        digest=digest,
        image=plan.image,
        version=dict(plan.config.labels).get(VERSION_LABEL, ""),
        created=str(layout.config.get("created", "")),
        tool_version=__version__,
        contents=read_contents(layout),
        sources=_sources(project, plan),
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(kept, exact_json(document))
    return document


def image_provenance(plan: Plan, record: RecordView | None) -> dict[str, Any]:
    """The provenance; record: of the attempt that built the image, where this machine did."""
    run = provenance.Run()
    if record is not None:
        started = read_json(record.folder / "started.json") or {}
        facts = started.get("engine") or {}
        built = record.result.seconds if record.result else 0.0
        run = provenance.Run(
            record=record.id,
            started=_utc(record.started.timestamp()),
            finished=_utc(record.started.timestamp() + built),
            engine=f"{facts.get('name', '')} {facts.get('version', '')}".strip(),
        )
    document = json.loads(json.dumps(plan.document()))
    materials = [_material(content) for content in plan.contents]
    return provenance.make_provenance(
        plan_id=plan.plan_id, plan=document, materials=materials, tool_version=__version__, run=run
    )


def _sources(project: Project, plan: Plan) -> list[sbom.SourceTree]:
    """The source trees that the plan compiles, those that a release vendors or fetches included."""
    found = []
    changes = tuple((path, (project.root / path).read_text(encoding="utf-8")) for path, _ in plan.patches)
    for entry in {entry.content.digest: entry for entry in plan.inputs}.values():
        content, patches = entry.content, changes if entry.path.startswith("sources/") else ()
        if isinstance(content, TreeContent):
            name, _, version = content.label.partition(" ")
            git = next((route for route in content.routes if isinstance(route, GitRoute)), None)
            url, commit = (git.url, git.commit) if git else ("", "")
        elif isinstance(pin := project.pins[content.pin], SdistPin):
            name, version, url, commit = pin.project, pin.version, "", ""
        else:
            continue
        found.append(
            sbom.SourceTree(name=name, version=version, url=url, commit=commit, digest=content.digest, patches=patches)
        )
    return sorted(found, key=lambda tree: (tree.name, tree.version))


def _material(content: Content) -> provenance.Material:
    route = content.routes[0]
    match route:
        case UrlRoute() | ArchiveRoute():
            uri, commit = route.url, ""
        case GitRoute():
            uri, commit = f"git+{route.url}@{route.commit}", route.commit
        case IndexRoute():
            uri, commit = f"pkg:pypi/{route.project}?file_name={route.filename}", ""
        case SdistRoute():
            uri, commit = f"pkg:pypi/{route.project}@{route.version}", ""
        case _:
            assert_never(route)
    kind = "tree of " if isinstance(content, TreeContent) else ""
    return provenance.Material(uri=uri, digest=content.digest, name=f"{kind}{content.label}", commit=commit)


def _utc(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

"""What is attached to a pushed image, judged by programs and schemas that are not ours: cosign, CycloneDX, in-toto."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement as TheirStatement
from registries import DEBIANS, DISTRIBUTION, Registry, distribution, tool
from registry_images import plan_tag, write_image
from values import PINS, toy_plan

from spark_images.attest import provenance, sbom
from spark_images.attest.bundle import SIGNED_IMAGE, Statement, open_bundle
from spark_images.attest.contents import Contents
from spark_images.attest.signing import Signer, find_public_key, find_signer
from spark_images.cache import Cache
from spark_images.errors import SignatureError
from spark_images.oci import Layout
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.registry.artifacts import read_artifact, referrers
from spark_images.registry.client import Client
from spark_images.registry.describe import describe
from spark_images.registry.manifest import MANIFEST, Manifest
from spark_images.registry.offer import Offer, read_offer
from spark_images.registry.push import push_layout
from spark_images.registry.reference import Repository
from spark_images.registry.statements import attach_statement, attached_statements, attached_verdicts
from spark_images.registry.verification import verify_offer
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict

COSIGN = tool("cosign")
pytestmark = pytest.mark.skipif(not (DEBIANS or DISTRIBUTION), reason="needs docker-registry (or registry)")
needs_cosign = pytest.mark.skipif(not COSIGN, reason="needs cosign")

ELF = b"\x7fELF" + bytes(60)
STATUS = (
    "Package: libc6\nStatus: install ok installed\nVersion: 2.36-9+deb12u10\nArchitecture: arm64\nMaintainer: A <a@b>\n"
)
SIX = "usr/local/lib/python3.11/dist-packages/six-1.17.0.dist-info"
FILES = {
    "var/lib/dpkg/status.d/libc6": STATUS.encode(),
    "var/lib/dpkg/status.d/libc6.md5sums": b"0  usr/lib/libc.so.6\n",
    "usr/lib/os-release": b'ID=debian\nVERSION_ID="12"\n',
    f"{SIX}/METADATA": b"Name: six\nVersion: 1.17.0\nLicense-Expression: MIT\n\n",
    f"{SIX}/RECORD": b"six.py,sha256=" + b"A" * 43 + b",9\n",
    "opt/hello/bin/hello": ELF,
    "usr/bin/env": ELF,
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with distribution(tmp_path_factory.mktemp("registry"), program=DISTRIBUTION or DEBIANS) as registry:
        yield registry


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two key pairs, as the README says that they are made."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("signing", "other"):
        key = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        subprocess.run([*key, "-out", f"{name}.key"], cwd=folder, check=True, capture_output=True)
        public = ["openssl", "pkey", "-in", f"{name}.key", "-pubout", "-out", f"{name}.pub"]
        subprocess.run(public, cwd=folder, check=True, capture_output=True)
    return folder


@dataclass
class Pushed:
    """An image of a plan, pushed to a repository of its own."""

    plan: Plan
    layout: Layout
    client: Client
    cache: Cache
    project: Project

    def describe(self, signer: Signer | None) -> None:
        describe(
            self.project,
            self.plan,
            self.layout,
            client=self.client,
            manifest=self.manifest,
            cache=self.cache,
            signer=signer,
        )

    @property
    def manifest(self) -> Manifest:
        return Manifest(media_type=MANIFEST, data=self.layout.blob(self.layout.manifest_digest).read_bytes())

    @property
    def offer(self) -> Offer:
        return read_offer(self.client, plan_tag(self.layout))

    def predicate(self, kind: str) -> dict[str, Any]:
        (found,) = attached_statements(self.client, self.layout.manifest_digest, kind, None)
        return dict(found.predicate)


@pytest.fixture
def pushed(registry: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> Pushed:
    plan = toy_plan()
    project = Project(tmp_path)
    project.__dict__["pins"] = PINS
    layout = write_image(tmp_path / "image", sizes=(1000,), plan_id=plan.plan_id, pins=dict(plan.pins), files=FILES)
    client = Client(Repository(host=registry.host, name=f"test{abs(hash(request.node.name))}/noise"))
    cache = Cache(tmp_path / "cache")
    push_layout(client, layout, plan_tag(layout), states=cache.uploads)
    return Pushed(plan, layout, client, cache, project)


def cosign(*words: str) -> subprocess.CompletedProcess[str]:
    assert COSIGN
    env = {**os.environ, "COSIGN_YES": "true", "COSIGN_PASSWORD": "", "SIGSTORE_NO_CACHE": "true"}
    return subprocess.run([COSIGN, *words], env=env, text=True, capture_output=True, timeout=120)


def test_sbom_is_valid_cyclonedx_and_names_what_is_in_the_image(pushed: Pushed) -> None:
    pushed.describe(None)
    document = pushed.predicate(sbom.PREDICATE_TYPE)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    found = {component["name"]: component for component in document["components"]}
    assert found["libc6"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=arm64&distro=debian-12"
    assert found["six"]["licenses"] == [{"expression": "MIT"}]
    assert found["hello"]["pedigree"]["commits"][0]["uid"] == "0123456789" * 4
    assert found["/opt/hello/bin/hello"]["type"] == "file"
    assert "/usr/bin/env" not in found  # Debian's
    assert document["metadata"]["component"]["hashes"][0]["content"] == pushed.layout.manifest_digest[7:]


def test_a_patch_of_a_source_is_in_its_pedigree() -> None:
    nothing = Contents(distribution="debian-12", debs=(), python=(), loose=())
    source = sbom.SourceTree(
        name="vllm", version="0.20.2", url="", commit="", digest=f"sha256:{'1' * 64}",
        patches=(("images/vllm/patches/a.patch", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-1\n+2\n"),),
    )  # fmt: skip
    document = sbom.make_sbom(
        digest=f"sha256:{'2' * 64}", image="vllm", version="0.20.2", created="2026-01-01T00:00:00Z",
        tool_version="1", contents=nothing, sources=[source],
    )  # fmt: skip
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
    (patch,) = document["components"][0]["pedigree"]["patches"]
    assert patch["diff"]["url"] == "images/vllm/patches/a.patch"
    assert "+2" in patch["diff"]["text"]["content"]


def test_a_broken_sbom_does_not_pass_that_validator(pushed: Pushed) -> None:
    pushed.describe(None)
    document = {**pushed.predicate(sbom.PREDICATE_TYPE), "components": [{"type": "no such type", "name": 1}]}
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is not None


def test_provenance_is_valid_slsa_with_every_input_of_the_plan(pushed: Pushed) -> None:
    pushed.describe(None)
    predicate = pushed.predicate(provenance.PREDICATE_TYPE)
    theirs = ParseDict(predicate, Provenance())  # refuses fields that SLSA does not have
    assert theirs.build_definition.build_type
    assert theirs.run_details.builder.id
    for material in theirs.build_definition.resolved_dependencies:
        ResourceDescriptor.copy_from_pb(material).validate()
    listed = {f"sha256:{one['digest']['sha256']}" for one in predicate["buildDefinition"]["resolvedDependencies"]}
    assert listed == {content.digest for content in pushed.plan.contents}
    assert predicate["runDetails"]["builder"]["version"]["spark-images"]


def test_statements_are_valid_in_toto(pushed: Pushed) -> None:
    pushed.describe(None)
    checked = 0
    for entry in referrers(pushed.client, pushed.layout.manifest_digest):
        theirs = TheirStatement.copy_from_pb(
            ParseDict(json.loads(read_artifact(pushed.client, entry.digest)), TheirStatement([], "", {}).pb)
        )
        theirs.validate()
        checked += 1
    assert checked == 2


def test_describing_twice_attaches_nothing_twice(pushed: Pushed, keys: Path) -> None:
    signer = find_signer(str(keys / "signing.key"))
    for _ in range(2):
        pushed.describe(signer)
    found = referrers(pushed.client, pushed.layout.manifest_digest)
    kinds = [entry.annotations["dev.sigstore.bundle.predicateType"] for entry in found]
    assert sorted(kinds) == sorted([sbom.PREDICATE_TYPE, provenance.PREDICATE_TYPE, SIGNED_IMAGE])


@needs_cosign
def test_cosign_accepts_the_signature_by_our_key_and_by_no_other(pushed: Pushed, keys: Path) -> None:
    pushed.describe(find_signer(str(keys / "signing.key")))
    reference = pushed.client.at(pushed.layout.manifest_digest)
    options = ["--insecure-ignore-tlog=true", "--allow-http-registry"]
    good = cosign("verify", "--key", str(keys / "signing.pub"), *options, reference)
    assert good.returncode == 0, good.stderr
    assert pushed.layout.manifest_digest in good.stdout
    assert cosign("verify", "--key", str(keys / "other.pub"), *options, reference).returncode != 0


@needs_cosign
@pytest.mark.parametrize("kind", ["cyclonedx", "slsaprovenance1"])
def test_cosign_verifies_sbom_and_provenance(pushed: Pushed, keys: Path, kind: str) -> None:
    pushed.describe(find_signer(str(keys / "signing.key")))
    reference = pushed.client.at(pushed.layout.manifest_digest)
    options = ["--insecure-ignore-tlog=true", "--allow-http-registry", "--type", kind]
    good = cosign("verify-attestation", "--key", str(keys / "signing.pub"), *options, reference)
    assert good.returncode == 0, good.stderr
    assert cosign("verify-attestation", "--key", str(keys / "other.pub"), *options, reference).returncode != 0


@needs_cosign
def test_what_cosign_signs_we_accept(pushed: Pushed, tmp_path: Path) -> None:
    made = subprocess.run([str(COSIGN), "generate-key-pair"], cwd=tmp_path, env={**os.environ, "COSIGN_PASSWORD": ""})
    assert made.returncode == 0
    reference = pushed.client.at(pushed.layout.manifest_digest)
    options = ["--tlog-upload=false", "--use-signing-config=false", "--allow-http-registry"]
    signed = cosign("sign", "--key", str(tmp_path / "cosign.key"), *options, reference)
    assert signed.returncode == 0, signed.stderr
    key = find_public_key(str(tmp_path / "cosign.pub"))
    assert attached_statements(pushed.client, pushed.layout.manifest_digest, SIGNED_IMAGE, key)


def test_verification_accepts_what_was_signed(pushed: Pushed, keys: Path) -> None:
    pushed.describe(find_signer(str(keys / "signing.key")))
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    verified = verify_offer(pushed.client, pushed.offer, key)
    assert (verified.plan_id, verified.materials) == (pushed.plan.plan_id, len(pushed.plan.contents))


def test_an_unsigned_image_is_refused(pushed: Pushed, keys: Path) -> None:
    pushed.describe(None)
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    with pytest.raises(SignatureError, match="is not signed by the key") as caught:
        verify_offer(pushed.client, pushed.offer, key)
    assert caught.value.why == ("nobody has signed it",)


def test_a_signature_by_another_key_is_refused(pushed: Pushed, keys: Path) -> None:
    pushed.describe(find_signer(str(keys / "other.key")))
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    with pytest.raises(SignatureError) as caught:
        verify_offer(pushed.client, pushed.offer, key)
    assert caught.value.why == ("it is signed by another key, or altered since",)


def test_an_image_that_was_altered_after_signing_is_refused(pushed: Pushed, keys: Path, tmp_path: Path) -> None:
    """Somebody puts another image under the tag and hangs the old one's signatures on it."""
    pushed.describe(find_signer(str(keys / "signing.key")))
    altered = write_image(tmp_path / "altered", plan_id=pushed.plan.plan_id, pins=dict(pushed.plan.pins), seed=9)
    push_layout(pushed.client, altered, "altered", states=pushed.cache.uploads)
    stolen = replace(pushed, layout=altered)
    for entry in referrers(pushed.client, pushed.layout.manifest_digest):
        from spark_images.registry.artifacts import Artifact, attach

        data = read_artifact(pushed.client, entry.digest)
        kind = entry.artifact_type
        artifact = Artifact(
            artifact_type=kind, media_type=kind, data=data, annotations=tuple(entry.annotations.items())
        )
        attach(pushed.client, artifact, stolen.manifest)
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    offer = read_offer(pushed.client, "altered")
    with pytest.raises(SignatureError, match="is not signed by the key"):
        verify_offer(pushed.client, offer, key)


def test_a_label_that_says_other_pins_than_the_provenance_is_refused(
    registry: Registry, pushed: Pushed, keys: Path, tmp_path: Path
) -> None:
    pins = {**dict(pushed.plan.pins), "hello": "b13 of somebody else"}
    lying = write_image(tmp_path / "lying", plan_id=pushed.plan.plan_id, pins=pins, seed=9)
    push_layout(pushed.client, lying, "lying", states=pushed.cache.uploads)
    replace(pushed, layout=lying).describe(find_signer(str(keys / "signing.key")))
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    offer = read_offer(pushed.client, "lying")
    with pytest.raises(SignatureError, match="is not what its provenance says") as caught:
        verify_offer(pushed.client, offer, key)
    assert "pin `hello`: its label says b13 of somebody else" in caught.value.render()


def test_a_changed_byte_in_a_signed_statement_breaks_it(pushed: Pushed, keys: Path) -> None:
    signer, key = find_signer(str(keys / "signing.key")), find_public_key(str(keys / "signing.pub"))
    assert key
    statement = Statement(digest=pushed.layout.manifest_digest, predicate_type=SIGNED_IMAGE, predicate={})
    attach_statement(pushed.client, pushed.manifest, statement, signer)
    (entry,) = referrers(pushed.client, pushed.layout.manifest_digest)
    bundle = json.loads(read_artifact(pushed.client, entry.digest))
    assert open_bundle(json.dumps(bundle).encode(), key.signed) == statement.encoded()
    other = Statement(digest="sha256:" + "0" * 64, predicate_type=SIGNED_IMAGE, predicate={}).encoded()
    import base64

    bundle["dsseEnvelope"]["payload"] = base64.b64encode(other).decode()
    assert open_bundle(json.dumps(bundle).encode(), key.signed) is None


def test_verdicts_travel_with_the_image(pushed: Pushed, keys: Path) -> None:
    verdict = Verdict(
        gate=Gate.TEST, colour=Colour.GREEN, digest=pushed.layout.manifest_digest, when=datetime.now(UTC), evidence="4"
    )
    keep_verdict(pushed.cache, pushed.plan.plan_id, verdict)
    pushed.describe(find_signer(str(keys / "signing.key")))
    digest = pushed.layout.manifest_digest
    assert attached_verdicts(pushed.client, digest) == (verdict,)
    assert attached_verdicts(pushed.client, digest, find_public_key(str(keys / "other.pub"))) == ()


def test_a_key_that_a_program_holds_signs_as_well(pushed: Pushed, keys: Path, tmp_path: Path) -> None:
    program = tmp_path / "kms"
    program.write_text(
        f"#!/bin/sh\ncase $1 in\npublic-key) cat {keys}/signing.pub ;;\n"
        f"sign) openssl dgst -sha256 -sign {keys}/signing.key ;;\nesac\n"
    )
    program.chmod(0o755)
    pushed.describe(find_signer(f"exec:{program}"))
    key = find_public_key(str(keys / "signing.pub"))
    assert key
    assert verify_offer(pushed.client, pushed.offer, key)


def test_a_key_from_the_environment_signs_as_well(pushed: Pushed, keys: Path) -> None:
    env = {"SPARK_IMAGES_SIGNING_KEY": (keys / "signing.key").read_text()}
    pushed.describe(find_signer(None, env))
    key = find_public_key(None, {"SPARK_IMAGES_VERIFY_KEY": str(keys / "signing.pub")})
    assert key
    assert verify_offer(pushed.client, pushed.offer, key)

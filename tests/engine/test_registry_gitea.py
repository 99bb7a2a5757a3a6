"""A real Gitea as the registry: personal tokens, no referrers API, proxies before it that cut large bodies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fault_proxy import fault_proxy, limit_body, reset_in_body, status
from registries import GITEA, Registry, gitea, tool
from registry_images import make_project, plan_tag, target_of, write_image
from values import HELLO

from spark_images.attest.bundle import SIGNED_IMAGE, Statement
from spark_images.attest.signing import find_public_key, find_signer
from spark_images.cache import Cache
from spark_images.errors import RegistryError
from spark_images.oci import Layout
from spark_images.registry import upload
from spark_images.registry.clean_up import prune_registry
from spark_images.registry.client import Client
from spark_images.registry.ledger import read_history
from spark_images.registry.listing import read_listing
from spark_images.registry.manifest import MANIFEST, Manifest
from spark_images.registry.offer import read_offer
from spark_images.registry.pull import pull_layout
from spark_images.registry.push import push_layout
from spark_images.registry.reference import Repository
from spark_images.registry.statements import attach_statement, attached_statements
from spark_images.registry.tags import promote, rollback
from spark_images.registry.upload import Sent
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict

USER, PASSWORD = "spark", "pass-w0rd-of-gitea"
IMAGE = replace(HELLO, name="noise")
pytestmark = pytest.mark.skipif(not GITEA, reason="needs gitea")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Registry, str]]:
    with tempfile.TemporaryDirectory() as top:  # pytest's folders are for one user alone, and it runs as another
        Path(top).chmod(0o755)
        with gitea(Path(top, "gitea"), user=USER, password=PASSWORD) as running:
            yield running


@pytest.fixture
def env(server: tuple[Registry, str], tmp_path: Path) -> dict[str, str]:
    """With a login by personal token, as Gitea's documentation has it."""
    (tmp_path / "config.json").write_text(
        json.dumps({"auths": {server[0].host: {"username": USER, "password": server[1]}}})
    )
    return {**os.environ, "DOCKER_CONFIG": str(tmp_path)}


@pytest.fixture
def client(server: tuple[Registry, str], env: dict[str, str], request: pytest.FixtureRequest) -> Client:
    """Of a repository of the test's own."""
    client = Client(Repository(host=server[0].host, name=f"{USER}/t{abs(hash(request.node.name))}"), env=env)
    client.patience = replace(client.patience, backoff_s=0.02)
    return client


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def push(client: Client, layout: Layout, cache: Cache) -> dict[str, Sent]:
    return dict(push_layout(client, layout, plan_tag(layout), states=cache.uploads).blobs)


def manifest_of(layout: Layout) -> Manifest:
    return Manifest(media_type=MANIFEST, data=layout.blob(layout.manifest_digest).read_bytes())


def test_push_and_pull_by_personal_token(client: Client, cache: Cache, tmp_path: Path) -> None:
    layout = write_image(tmp_path / "image", sizes=(3_000_000, 1000))
    push(client, layout, cache)
    again = push(client, layout, cache)
    assert set(again.values()) == {Sent.PRESENT}
    pulled = pull_layout(client, read_offer(client, layout.manifest_digest), cache)
    assert pulled == sum(layer.size_bytes for layer in layout.layers)


def test_without_a_login_access_is_refused(client: Client, cache: Cache, tmp_path: Path) -> None:
    layout = write_image(tmp_path / "image")
    stranger = Client(client.repository, env={"HOME": str(tmp_path)})
    with pytest.raises(RegistryError, match="refuses access"):
        push(stranger, layout, cache)


def test_a_proxy_that_cuts_large_bodies_gets_small_ones(
    client: Client, cache: Cache, env: dict[str, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(upload, "FIRST_CHUNK", 1 << 20)
    monkeypatch.setattr(upload, "LEAST_CHUNK", 1 << 16)
    layout = write_image(tmp_path / "image", sizes=(3_000_000,))
    with fault_proxy(client.host) as proxy:
        proxy.add("PATCH", "", limit_body(300_000), times=None)
        write_login(tmp_path, proxy.host, client.host)
        through = Client(replace(client.repository, host=proxy.host), env=env)
        through.patience = client.patience
        push(through, layout, cache)
    write_login(tmp_path, client.host, proxy.host)
    assert client.manifest(plan_tag(layout))


def write_login(folder: Path, host: str, other: str) -> None:
    """Let the login for the other host be for this one."""
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace(other, host))


@pytest.mark.parametrize("passed_on", [True, False])
def test_a_break_in_the_middle_of_a_chunk_leaves_no_broken_blob(
    client: Client, cache: Cache, env: dict[str, str], tmp_path: Path, passed_on: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(upload, "FIRST_CHUNK", 1 << 18)
    monkeypatch.setattr(upload, "MOST_CHUNK", 1 << 18)
    layout = write_image(tmp_path / "image", sizes=(2_000_000,))
    with fault_proxy(client.host) as proxy:
        proxy.add("PATCH", "", reset_in_body(100_000, registry_gets_it=passed_on), after=3, times=2)
        proxy.add("PUT", "/blobs/", status(500), times=1)
        write_login(tmp_path, proxy.host, client.host)
        through = Client(replace(client.repository, host=proxy.host), env=env)
        through.patience = client.patience
        push(through, layout, cache)
    write_login(tmp_path, client.host, proxy.host)
    elsewhere = Cache(tmp_path / "elsewhere")
    assert pull_layout(client, read_offer(client, layout.manifest_digest), elsewhere)  # every blob is checked


def test_a_layer_of_another_package_is_mounted(
    client: Client, cache: Cache, env: dict[str, str], tmp_path: Path
) -> None:
    layout = write_image(tmp_path / "image", sizes=(3_000_000, 1000))
    push(client, layout, cache)
    here = client.repository
    other = Client(replace(here, name=f"{here.name}-other"), env=env)
    pushed = push_layout(other, layout, plan_tag(layout), states=cache.uploads, mounts=[here])
    assert pushed.blobs[layout.layers[0].digest] is Sent.MOUNTED


def test_tags_move_and_move_back_and_statements_are_found_without_a_referrers_api(
    client: Client, cache: Cache, tmp_path: Path
) -> None:
    project = make_project(tmp_path / "project")
    target = target_of(project, "gb10")
    images = [write_image(tmp_path / f"image{seed}", seed=seed) for seed in (1, 2)]
    for layout in images:
        push(client, layout, cache)
        plan_id = layout.config["config"]["Labels"]["io.spark-images.plan-id"]
        for gate in Gate:
            verdict = Verdict(
                gate=gate, colour=Colour.GREEN, digest=layout.manifest_digest, when=datetime.now(UTC), evidence="12"
            )
            keep_verdict(cache, plan_id, verdict)
        promote(project, IMAGE, target, "debian", client=client, plan_id=plan_id, cache=cache)
    rollback(IMAGE, target, "debian", client=client)
    latest = client.manifest("latest")
    assert latest
    assert latest.digest == images[0].manifest_digest
    listing = read_listing(client)
    assert [set(image.verdicts) for image in listing.images] == [set(Gate), set(Gate)]
    assert len(read_history(client)) == 3
    assert all(kept.because for kept in prune_registry(client, keep=1, delete=True))


@pytest.mark.skipif(not (tool("cosign") and shutil.which("openssl")), reason="needs cosign and openssl")
def test_cosign_accepts_our_signature_there(client: Client, cache: Cache, env: dict[str, str], tmp_path: Path) -> None:
    layout = write_image(tmp_path / "image")
    push(client, layout, cache)
    make = (
        "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out k && openssl pkey -in k -pubout -out k.pub"
    )
    subprocess.run(["sh", "-c", make], cwd=tmp_path, check=True, capture_output=True)
    signer = find_signer(str(tmp_path / "k"))
    statement = Statement(digest=layout.manifest_digest, predicate_type=SIGNED_IMAGE, predicate={})
    attach_statement(client, manifest_of(layout), statement, signer)
    key = find_public_key(str(tmp_path / "k.pub"))
    assert attached_statements(client, layout.manifest_digest, SIGNED_IMAGE, key)
    subprocess.run(
        [str(tool("cosign")), "login", client.host, "-u", USER, "--password-stdin"],
        input=PASSWORD, text=True, env=env, check=True, capture_output=True,
    )  # fmt: skip
    verify = [str(tool("cosign")), "verify", "--key", "k.pub", "--insecure-ignore-tlog=true", "--allow-http-registry"]
    done = subprocess.run(
        [*verify, client.at(layout.manifest_digest)], cwd=tmp_path, env=env, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr

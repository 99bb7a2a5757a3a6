"""Against a real registry: Debian's docker-registry on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_server import digest

from spark_images.download import Patience
from spark_images.errors import ContentError, RouteError
from spark_images.pinned_image import fetch_image, image_blobs, image_layout
from spark_images.pins import ImagePin
from spark_images.store import Store

OCI = "application/vnd.oci.image"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
PATIENCE = Patience(timeout_s=20)

pytestmark = pytest.mark.skipif(
    not (shutil.which("docker-registry") and shutil.which("skopeo")), reason="needs docker-registry and skopeo"
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`127.0.0.1:<port>` of a registry with an empty storage folder."""
    folder = tmp_path_factory.mktemp("registry")
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '{host}'}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(config)], stdout=log, stderr=log)
    try:
        last = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{host}/v2/", timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < last, "the registry does not answer"
                time.sleep(0.05)
        yield host
    finally:
        process.terminate()
        process.wait(10)


def send(registry: str, method: str, path: str, data: bytes, media: str = "application/octet-stream") -> str:
    url = path if path.startswith("http") else f"http://{registry}{path}"
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": media})
    with urllib.request.urlopen(request, timeout=10) as response:
        return str(response.headers.get("Location", ""))


def push_blob(registry: str, data: bytes) -> dict[str, Any]:
    where = send(registry, "POST", "/v2/base/blobs/uploads/", b"")
    send(registry, "PUT", f"{where}{'&' if '?' in where else '?'}digest={digest(data)}", data)
    return {"digest": digest(data), "size": len(data)}


def push_manifest(registry: str, manifest: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(manifest, indent=3).encode()
    send(registry, "PUT", f"/v2/base/manifests/{digest(data)}", data, manifest["mediaType"])
    return {"mediaType": manifest["mediaType"], "digest": digest(data), "size": len(data)}


def push_image(registry: str, arch: str, *, docker: bool = False) -> dict[str, Any]:
    layer = hashlib.sha512(arch.encode()).digest() * 100
    config = json.dumps(
        {"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(layer)]}}
    )
    kinds = (
        (DOCKER, "application/vnd.docker.container.image.v1+json", "application/vnd.docker.image.rootfs.diff.tar.gzip")
        if docker
        else (f"{OCI}.manifest.v1+json", f"{OCI}.config.v1+json", f"{OCI}.layer.v1.tar")
    )
    manifest = {
        "schemaVersion": 2,
        "mediaType": kinds[0],
        "config": {"mediaType": kinds[1], **push_blob(registry, config.encode())},
        "layers": [{"mediaType": kinds[2], **push_blob(registry, layer)}],
    }
    return push_manifest(registry, manifest) | {"platform": {"os": "linux", "architecture": arch}}


def push_index(registry: str, *arches: str) -> str:
    children = [push_image(registry, arch) for arch in arches]
    index = {"schemaVersion": 2, "mediaType": f"{OCI}.index.v1+json", "manifests": children}
    return str(push_manifest(registry, index)["digest"])


def pin_of(registry: str, name: str) -> ImagePin:
    return ImagePin(name="base", line=1, ref=f"{registry}/base:1.0-tag", digest=name)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_whole_index_comes_and_is_kept_by_digest(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64", "arm64"))

    digests = fetch_image(pin, store=store, patience=PATIENCE)

    assert digests[0] == pin.digest
    assert len(digests) == 1 + 2 * 3
    assert all(store.verify(found) for found in digests)
    assert image_blobs(pin, store) == set(digests)
    assert list((store.root / "partial").iterdir()) == []


def test_of_an_index_only_the_platform_comes_that_was_asked(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64", "arm64"))

    digests = fetch_image(pin, store=store, platform="linux/arm64", patience=PATIENCE)

    assert len(digests) == 1 + 3
    assert all(store.verify(found) for found in digests)
    configs = [json.loads(store.path(found).read_bytes()) for found in digests[2:3]]
    assert [config["architecture"] for config in configs] == ["arm64"]
    assert set(digests) < image_blobs(pin, store)


def test_image_that_is_here_is_not_asked_for_again(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64"))
    digests = fetch_image(pin, store=store, patience=PATIENCE)

    elsewhere = ImagePin(name="base", line=1, ref="127.0.0.1:9/base", digest=pin.digest)
    assert fetch_image(elsewhere, store=store, patience=PATIENCE) == digests


def test_what_is_missing_of_an_image_comes_again(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64"))
    digests = fetch_image(pin, store=store, patience=PATIENCE)
    store.prune(set(digests[:-1]))
    assert fetch_image(pin, store=store, patience=PATIENCE) == digests
    assert store.verify(digests[-1])


def test_manifest_in_dockers_form_keeps_its_digest(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_image(registry, "arm64", docker=True)["digest"])
    digests = fetch_image(pin, store=store, platform="linux/arm64", patience=PATIENCE)
    assert digests[0] == pin.digest
    assert all(store.verify(found) for found in digests)


def test_layout_of_a_platform_is_what_skopeo_reads(registry: str, store: Store, tmp_path: Path) -> None:
    pin = pin_of(registry, push_index(registry, "amd64", "arm64"))
    digests = fetch_image(pin, store=store, platform="linux/arm64", patience=PATIENCE)

    named = image_layout(pin, store, tmp_path / "layout", platform="linux/arm64")

    assert named == digests[1]
    read = ["skopeo", "inspect", "--config", "--override-arch=arm64", f"oci:{tmp_path / 'layout'}"]
    config = json.loads(subprocess.run(read, check=True, capture_output=True).stdout)
    assert config["architecture"] == "arm64"
    blob = tmp_path / "layout" / "blobs" / "sha256" / named.removeprefix("sha256:")
    assert blob.samefile(store.path(named))


def test_layout_of_an_index_names_the_pins_digest(registry: str, store: Store, tmp_path: Path) -> None:
    pin = pin_of(registry, push_index(registry, "amd64", "arm64"))
    digests = fetch_image(pin, store=store, patience=PATIENCE)

    assert image_layout(pin, store, tmp_path / "layout") == pin.digest
    assert len(list((tmp_path / "layout" / "blobs" / "sha256").iterdir())) == len(set(digests))


def test_platform_that_the_index_lacks_names_those_it_has(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64", "arm64"))
    with pytest.raises(ContentError) as caught:
        fetch_image(pin, store=store, platform="linux/riscv64", patience=PATIENCE)
    assert "it is for linux/amd64, linux/arm64" in caught.value.render()


def test_registry_that_is_not_there_is_a_missing_route(store: Store) -> None:
    with pytest.raises(RouteError) as caught:
        fetch_image(pin_of("127.0.0.1:9", "sha256:" + "0" * 64), store=store, patience=PATIENCE)
    text = caught.value.render()
    assert "the image of pin `base` cannot be had from 127.0.0.1:9/base:1.0-tag" in text
    assert "connection refused" in text
    assert "skopeo login 127.0.0.1:9" in text


def test_unknown_digest_is_a_missing_route(registry: str, store: Store) -> None:
    with pytest.raises(RouteError, match="cannot be had from"):
        fetch_image(pin_of(registry, "sha256:" + "0" * 64), store=store, patience=PATIENCE)


def test_registry_that_hangs_ends_in_an_error(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        pin = pin_of(f"127.0.0.1:{silent.getsockname()[1]}", "sha256:" + "0" * 64)
        with pytest.raises(RouteError) as caught:
            fetch_image(pin, store=store, patience=Patience(timeout_s=1))
    assert "nothing arrived for 1 s" in caught.value.render()


def test_killed_fetch_leaves_nothing_that_the_next_one_minds(registry: str, store: Store) -> None:
    pin = pin_of(registry, push_index(registry, "amd64"))
    key = hashlib.sha256(f"image {pin.digest} None".encode()).hexdigest()
    left = store.root / "partial" / f"{key}.d" / "image"
    left.mkdir(parents=True)
    (left / "version").write_text(f"of process {os.getpid()}")
    assert fetch_image(pin, store=store, patience=PATIENCE)[0] == pin.digest

"""What is refused before skopeo runs, what its words become, and registries that do what none should."""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from raw_layouts import file, write_raw
from values import GB10, HELLO

from spark_images.cache import Cache
from spark_images.errors import CanonicalError, RegistryError, UsageError
from spark_images.oci import Layout, read_layout
from spark_images.project import Project
from spark_images.registry import pull, push, push_layout
from spark_images.skopeo import registry_error, tls_verify

needs_skopeo = pytest.mark.skipif(not shutil.which("skopeo"), reason="needs skopeo")
TAG = "you/hello:0123456789ab"


@dataclass
class Odd:
    """A registry that has every blob and takes every manifest; how it answers may be changed."""

    host: str = ""
    manifest: bytes | None = None
    status: int = 200  # of everything
    altered: bytes = b""  # what it adds to a manifest that it serves by tag
    altered_by_digest: bytes = b""
    uploads: list[str] = field(default_factory=list)


@pytest.fixture
def odd() -> Iterator[Odd]:
    registry = Odd()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body: bytes = b"", status: int = 200) -> None:
            self.send_response(registry.status if registry.status != 200 else status)
            self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            if "/manifests/" not in self.path:
                self.answer(b"{}")
            elif registry.manifest is None:
                self.answer(b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', 404)
            else:
                by_digest = "/manifests/sha256:" in self.path
                self.answer(registry.manifest + (registry.altered_by_digest if by_digest else registry.altered))

        def do_HEAD(self) -> None:
            self.answer()

        def do_PUT(self) -> None:
            registry.uploads.append(self.path)
            registry.manifest = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status=201)

        def log_message(self, *words: object) -> None:
            """Nothing on the test's terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    registry.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield registry
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """An image in a folder whose name holds what skopeo takes for the end of a path."""
    return read_layout(write_raw(tmp_path / "a:colon" / "layout", [[file("made")]]))


def push_to(host: str, layout: Layout) -> bool:
    return push_layout(layout, f"{host}/{TAG}", f"{host}/you/hello@{layout.manifest_digest}")


@needs_skopeo
def test_push_uploads_once_and_then_finds_it_there(odd: Odd, layout: Layout) -> None:
    assert push_to(odd.host, layout)
    assert not push_to(odd.host, layout)
    assert odd.uploads == [f"/v2/{TAG.replace(':', '/manifests/')}"]


@needs_skopeo
def test_tag_with_another_image_is_not_moved(odd: Odd, layout: Layout) -> None:
    odd.manifest = b'{"another": "image"}'
    with pytest.raises(RegistryError, match="is another image, and the tag of a plan never moves") as caught:
        push_to(odd.host, layout)
    assert caught.value.why == (
        f"there: sha256:{hashlib.sha256(odd.manifest).hexdigest()}",
        f"here:  {layout.manifest_digest}",
    )
    assert odd.uploads == []


@needs_skopeo
@pytest.mark.parametrize(("where", "named"), [("altered", TAG), ("altered_by_digest", "you/hello@sha256:")])
def test_registry_that_rewrites_a_manifest_is_found_on_reading_back(
    odd: Odd, layout: Layout, where: str, named: str
) -> None:
    setattr(odd, where, b"\n")
    with pytest.raises(RegistryError, match=f"{named}.*is not what was pushed"):
        push_to(odd.host, layout)


@needs_skopeo
def test_damaged_layout_is_not_pushed(odd: Odd, layout: Layout) -> None:
    blob = layout.blob(layout.layers[0].digest)
    blob.write_bytes(b"x" * blob.stat().st_size)
    with pytest.raises(CanonicalError, match="is not what its name says"):
        push_to(odd.host, layout)
    assert odd.uploads == []


@needs_skopeo
@pytest.mark.parametrize(
    ("status", "what"),
    [
        (401, "refuses access"),
        (403, "refuses access"),
        (404, "did not do what was asked"),  # of everything: a web server, no registry
        (500, "did not do what was asked"),
    ],
)
def test_status_of_the_registry_is_told(odd: Odd, layout: Layout, status: int, what: str) -> None:
    odd.status = status
    with pytest.raises(RegistryError, match=what) as caught:
        push_to(odd.host, layout)
    assert str(status) in caught.value.render() or "unauthorized" in caught.value.render()


@needs_skopeo
def test_registry_that_takes_connections_and_says_nothing_is_given_up(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_IMAGES_TIMEOUT_S", "0.5")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RegistryError, match=f"{host} does not answer"):
            push_to(host, layout)


@pytest.mark.parametrize(
    "registry",
    ["https://ghcr.io/you", "ghcr.io/You", "you", "you/images", "ghcr.io/you/", "me:pw@ghcr.io/you", "a.b/$(x)"],
)
def test_registry_that_is_no_host_and_name_is_a_usage_error(tmp_path: Path, registry: str) -> None:
    with pytest.raises(UsageError, match="is not HOST/NAME"):
        push(Project(tmp_path), HELLO, GB10, "debian", cache=Cache(tmp_path), registry=registry)


@pytest.mark.parametrize(
    "reference",
    ["ghcr.io/you/hello:latest", "ghcr.io/you/hello", "hello@sha256:" + "0" * 64, "ghcr.io/you/x@sha256:00"],
)
def test_reference_without_a_digest_is_a_usage_error(tmp_path: Path, reference: str) -> None:
    with pytest.raises(UsageError, match="is not HOST/NAME@sha256"):
        pull(Project(tmp_path), reference, cache=Cache(tmp_path), engine=None)


@pytest.mark.parametrize(
    ("host", "verify"),
    [
        ("localhost", "false"),
        ("localhost:5000", "false"),
        ("127.0.0.1:5000", "false"),
        ("127.1.2.3", "false"),
        ("192.168.1.2:5000", "true"),
        ("localhost.example.org", "true"),
        ("ghcr.io", "true"),
    ],
)
def test_only_loopback_may_do_without_tls(host: str, verify: str) -> None:
    assert tls_verify(f"{host}/you/hello") == verify


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (
            'pinging container registry h:1: Get \\"http://h:1/v2/\\": dial tcp h:1: connect: connection refused',
            "answer",
        ),
        ("pinging container registry h: dial tcp: lookup h on 10.0.0.1:53: no such host", "does not answer"),
        ('Get \\"https://h/v2/\\": net/http: TLS handshake timeout', "does not answer"),
        ('Get \\"https://h/v2/\\": x509: certificate signed by unknown authority', "cannot be trusted"),
        ('Get \\"https://h:1/v2/\\": http: server gave HTTP response to HTTPS client', "cannot be trusted"),
        ("reading manifest x in h/y: unauthorized: authentication required", "refuses access"),
        ("unable to retrieve auth token: invalid username/password: unauthorized: no", "refuses access"),
        ("errors:\\ndenied: requested access to the resource is denied", "refuses access"),
        ("open /root/.docker/config.json: permission denied", "did not do what was asked"),
        ("writing blob: happened during read: Digest did not match, expected sha256:0, got sha256:1", "served a blob"),
        ("writing blob: uploading layer: received unexpected HTTP status: 500", "did not do what was asked"),
    ],
)
def test_skopeos_words_become_one_cause_and_what_to_do(said: str, what: str) -> None:
    logged = f'time="2026-11-21T14:51:06Z" level=fatal msg="Error parsing image name \\"docker://h/y:x\\": {said}"\n'
    error = registry_error("registry.example/you/hello:x", logged)
    assert what in error.what
    assert error.why[-1] == said.replace('\\"', '"').rpartition("\\n")[2]
    assert error.hint


def test_signed_addresses_are_not_shown() -> None:
    said = 'Get "https://blobs.example/x?X-Amz-Signature=5ec2e7&a=b": EOF'
    assert registry_error("ghcr.io/you/hello", said).why == ('Get "https://blobs.example/x?…": EOF',)

"""What is refused before a registry is asked, and registries that do what none should."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from raw_layouts import file, write_raw
from values import GB10, HELLO

from spark_images.cache import Cache
from spark_images.errors import CanonicalError, RegistryError, UsageError
from spark_images.loopback import is_loopback
from spark_images.oci import Layout, read_layout
from spark_images.project import Project
from spark_images.registry.answers import said_by
from spark_images.registry.client import Client
from spark_images.registry.job_results import prune_results
from spark_images.registry.pull import pull
from spark_images.registry.push import push, push_layout
from spark_images.registry.reference import Repository

NAME, TAG = "you/hello", "0123456789ab"


@dataclass
class Odd:
    """A registry that has every blob of the image and takes every manifest; how it answers may be changed."""

    host: str = ""
    image: Layout | None = None
    manifests: dict[str, bytes] = field(default_factory=dict)  # by tag or digest
    status: int = 200  # of everything
    altered: bytes = b""  # what it adds to a manifest that it serves by tag
    altered_by_digest: bytes = b""
    uploads: list[str] = field(default_factory=list)


@pytest.fixture
def odd() -> Iterator[Odd]:
    registry = Odd()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, body: bytes = b"", status: int = 200, size: int | None = None) -> None:
            self.send_response(registry.status if registry.status != 200 else status)
            self.send_header("Content-Type", "application/vnd.oci.image.manifest.v1+json")
            self.send_header("Content-Length", str(len(body) if size is None else size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_GET(self) -> None:
            wanted = self.path.rpartition("/")[2]
            if self.path.endswith("/tags/list"):
                self.answer(json.dumps({"tags": list(registry.manifests)}).encode())
            elif "/manifests/" not in self.path:
                self.answer(b"{}")
            elif wanted not in registry.manifests:
                self.answer(b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}', 404)
            else:
                altered = registry.altered_by_digest if wanted.startswith("sha256:") else registry.altered
                self.answer(registry.manifests[wanted] + altered)

        def do_HEAD(self) -> None:
            blob = registry.image.blob(self.path.rpartition("/")[2]) if registry.image else None
            self.answer(status=404) if blob is None else self.answer(size=blob.stat().st_size)

        def do_POST(self) -> None:
            self.answer()

        def do_PUT(self) -> None:
            registry.uploads.append(self.path)
            registry.manifests[self.path.rpartition("/")[2]] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(status=201)

        def do_DELETE(self) -> None:
            gone = self.path.rpartition("/")[2].removeprefix("sha256:")
            kept = {tag: data for tag, data in registry.manifests.items() if hashlib.sha256(data).hexdigest() != gone}
            registry.manifests = kept
            self.answer(status=202)

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
    return read_layout(write_raw(tmp_path / "image" / "layout", [[file("made")]]))


def push_to(odd: Odd | str, layout: Layout) -> bool:
    if isinstance(odd, Odd):
        odd.image = layout if odd.image is None else odd.image
    host = odd.host if isinstance(odd, Odd) else odd
    client = Client(Repository(host=host, name=NAME), env={**os.environ, "HOME": str(layout.path)})
    client.patience = replace(client.patience, backoff_s=0.01)
    return push_layout(client, layout, TAG, states=layout.path.parent / "uploads").tagged


def test_push_uploads_once_and_then_finds_it_there(odd: Odd, layout: Layout) -> None:
    assert push_to(odd, layout)
    assert not push_to(odd, layout)
    assert odd.uploads == [f"/v2/{NAME}/manifests/{layout.manifest_digest}", f"/v2/{NAME}/manifests/{TAG}"]


def test_tag_with_another_image_is_not_moved(odd: Odd, layout: Layout) -> None:
    odd.manifests[TAG] = b'{"another": "image"}'
    with pytest.raises(RegistryError, match="is another image, and the tag of a plan never moves") as caught:
        push_to(odd, layout)
    assert caught.value.why == (
        f"there: sha256:{hashlib.sha256(odd.manifests[TAG]).hexdigest()}",
        f"here:  {layout.manifest_digest}",
    )
    assert odd.uploads == []


@pytest.mark.parametrize("where", ["altered", "altered_by_digest"])
def test_registry_that_rewrites_a_manifest_is_found_on_reading_back(odd: Odd, layout: Layout, where: str) -> None:
    push_to(odd, layout)
    setattr(odd, where, b"\n")
    with pytest.raises(RegistryError, match="is another image" if where == "altered" else "served something else"):
        push_to(odd, layout)


def test_what_a_registry_does_not_keep_as_it_was_pushed_is_found_on_reading_back(odd: Odd, layout: Layout) -> None:
    odd.altered = b"\n"
    with pytest.raises(RegistryError, match="is not what was pushed") as caught:
        push_to(odd, layout)
    assert caught.value.why[0] == f"pushed:    {layout.manifest_digest}"


def test_damaged_layout_is_not_pushed(odd: Odd, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "has_blob", lambda *words, **options: False)
    blob = layout.blob(layout.layers[0].digest)
    blob.write_bytes(b"x" * blob.stat().st_size)
    with pytest.raises(CanonicalError, match="is not what its name says"):
        push_to(odd, layout)
    assert odd.uploads == []


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
        push_to(odd, layout)
    assert str(status) in caught.value.render() or "unauthorized" in caught.value.render()


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
        pull(reference, cache=Cache(tmp_path), engine=None)


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("localhost", True),
        ("localhost:5000", True),
        ("127.0.0.1:5000", True),
        ("[::1]:5000", True),
        ("127.1.2.3", True),
        ("192.168.1.2:5000", False),
        ("localhost.example.org", False),
        ("ghcr.io", False),
    ],
)
def test_only_loopback_may_do_without_tls(host: str, may: bool) -> None:
    assert is_loopback(host) is may


def result(number: int, kind: str = "application/vnd.spark-images.ci-results.v1.tar+gzip") -> bytes:
    return json.dumps({"artifactType": kind, "number": number}).encode()


def test_of_results_only_what_a_job_of_ours_left_is_deleted(odd: Odd) -> None:
    odd.manifests = {f"checks-{run}-1": result(run) for run in (1, 2)}
    odd.manifests |= {f"nightly-2024-{month}": result(month, "application/vnd.other") for month in (5, 6)}
    prune_results(Client(Repository(host=odd.host, name="you/ci-results")), keep=1, delete=True)
    assert sorted(odd.manifests) == ["checks-2-1", "nightly-2024-5", "nightly-2024-6"]


def test_results_that_nobody_may_see_are_passed_over(odd: Odd, capsys: pytest.CaptureFixture[str]) -> None:
    odd.status = 403
    prune_results(Client(Repository(host=odd.host, name="you/ci-results")), keep=1, delete=True)
    assert "/you/ci-results is passed over" in capsys.readouterr().err


def test_an_error_about_a_digest_with_405_in_it_stays_what_it_is(odd: Odd) -> None:
    odd.status = 403
    with pytest.raises(RegistryError, match="refuses access"):
        Client(Repository(host=odd.host, name=NAME)).delete_manifest(f"sha256:405{'0' * 61}")


def test_of_a_long_answer_the_end_is_kept_which_says_why() -> None:
    response = requests.Response()
    response.request = requests.Request("PUT", "http://127.0.0.1/").prepare()
    detail = {"Op": "write", "Path": f"/{'long/' * 80}", "Err": 28}  # as distribution says that its disk is full
    response._content = json.dumps(
        {"errors": [{"code": "UNKNOWN", "message": "unknown error", "detail": detail}]}
    ).encode()
    code, words = said_by(response)
    assert (code, len(words)) == ("UNKNOWN", 300)
    assert words.startswith("UNKNOWN: unknown error: ")
    assert words.endswith("'Err': 28}")

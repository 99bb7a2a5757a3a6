"""What goes wrong between here and a registry, done to real pushes and pulls by a proxy: no tag is ever broken."""

from __future__ import annotations

import base64
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest
from fault_proxy import (
    Exchange,
    Guard,
    Proxy,
    fault_proxy,
    limit_body,
    lose_answer,
    lose_blob,
    reset_in_body,
    slow,
    status,
    wrong_digest,
)
from registries import DEBIANS, DISTRIBUTION, Registry, distribution

from spark_images.cache import Cache
from spark_images.errors import RegistryError
from spark_images.imageconfig import PLAN_LABEL
from spark_images.layout_writer import new_layout
from spark_images.oci import Layout, read_layout
from spark_images.registry import upload
from spark_images.registry.client import Client
from spark_images.registry.offer import read_offer
from spark_images.registry.pull import pull_layout
from spark_images.registry.push import Pushed, push_layout
from spark_images.registry.reference import Repository
from spark_images.registry.upload import Sent

pytestmark = pytest.mark.skipif(not (DEBIANS or DISTRIBUTION), reason="needs docker-registry (or registry)")

KIB = 1 << 10
TAG = "0123456789ab"
BLOBS = (1500 * KIB, 700 * KIB, 300 * KIB)  # layers of the image, about
KILLS = int(os.environ.get("SPARK_IMAGES_TEST_KILLS", "4"))


def write_image(folder: Path, sizes: tuple[int, ...] = BLOBS, seed: int = 1) -> Layout:
    """An image of ours whose layers are noise, so that they do not shrink."""
    noise = random.Random(seed)
    labels = {PLAN_LABEL: f"{seed:064x}", "org.opencontainers.image.title": "noise"}
    with new_layout(folder) as writer:
        layers = []
        for size in sizes:
            with writer.layer() as sink:
                sink.write(noise.randbytes(size))
                layers.append(sink.finish(created_by="noise"))
        config = {
            "architecture": "arm64",
            "os": "linux",
            "created": "2026-01-01T00:00:00Z",
            "config": {"Labels": labels},
        }
        writer.finish(config=config, layers=layers, annotations={})
    return read_layout(folder)


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    return write_image(tmp_path_factory.mktemp("image") / "layout")


def on_each_registry(test: Callable[..., None]) -> Callable[..., None]:
    """Marks what depends on how a registry is written; the rest runs on one."""
    test.__dict__["on_each"] = True
    return test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "shared" in metafunc.fixturenames:
        programs = [program for program in (DISTRIBUTION, DEBIANS) if program]
        chosen = programs if getattr(metafunc.function, "on_each", False) else programs[:1]
        metafunc.parametrize("shared", chosen, indirect=True, scope="module", ids=lambda p: Path(p).name)


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with distribution(tmp_path_factory.mktemp("registry"), program=request.param) as registry:
        yield registry


@pytest.fixture
def proxy(shared: Registry) -> Iterator[Proxy]:
    """A proxy before it, with a repository of the test's own behind."""
    with fault_proxy(shared.host) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the product does with 16 MiB takes no time with these."""
    for name, value in {"FIRST_CHUNK": 256 * KIB, "LEAST_CHUNK": 64 * KIB, "MOST_CHUNK": 256 * KIB}.items():
        monkeypatch.setattr(upload, name, value)


class Pusher:
    """Pushes one image to a repository of its own."""

    def __init__(self, layout: Layout, states: Path) -> None:
        self.layout, self.states = layout, states
        self.name = f"test/r{os.getpid()}-{time.monotonic_ns()}"

    def client(self, host: str) -> Client:
        client = Client(Repository(host=host, name=self.name))
        client.patience = replace(client.patience, backoff_s=0.02, timeout_s=20)
        return client

    def __call__(self, host: str, tag: str = TAG) -> Pushed:
        return push_layout(self.client(host), self.layout, tag, states=self.states)

    def at(self, host: str, tag: str = TAG) -> str | None:
        """The digest that the tag has, asked without the proxy."""
        found = self.client(host).manifest(tag)
        return found.digest if found else None


@pytest.fixture
def push(layout: Layout, tmp_path: Path) -> Pusher:
    return Pusher(layout, tmp_path / "uploads")


def sent(pushed: Pushed) -> list[Sent]:
    return sorted(pushed.blobs.values(), key=lambda how: how.value)


def total(layout: Layout) -> int:
    return sum(layer.size_bytes for layer in layout.layers) + layout.blob(layout.config_digest).stat().st_size


def test_large_blobs_go_in_chunks_and_arrive(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    pushed = push(proxy.host)
    assert proxy.count("PATCH", "") >= 6 + 3 + 2 + 1
    assert (pushed.tagged, pushed.sent_bytes) == (True, total(push.layout))
    assert push.at(shared.host) == push.layout.manifest_digest
    assert shared.broken_tags() == []


@pytest.mark.parametrize("code", [500, 502, 503, 504, 429, 408])
def test_a_passing_status_costs_one_chunk_and_no_blob(push: Pusher, proxy: Proxy, shared: Registry, code: int) -> None:
    proxy.add("PATCH", "", status(code), after=2, times=2)
    pushed = push(proxy.host)
    assert pushed.sent_bytes <= total(push.layout) + 2 * 256 * KIB
    assert push.at(shared.host) == push.layout.manifest_digest


@pytest.mark.parametrize("where", ["HEAD", "POST", "PUT", "GET"])
def test_a_passing_status_of_any_other_request_is_survived(
    push: Pusher, proxy: Proxy, shared: Registry, where: str
) -> None:
    fault = proxy.add(where, "", status(503, {"Retry-After": "0"}), times=2)
    push(proxy.host)
    assert fault.happened == 2
    assert push.at(shared.host) == push.layout.manifest_digest


def test_retry_after_is_waited_for(push: Pusher, proxy: Proxy) -> None:
    proxy.add("POST", "", status(429, {"Retry-After": "1"}))
    began = time.monotonic()
    push(proxy.host)
    assert time.monotonic() - began >= 1


def test_a_date_in_retry_after_counts_from_the_servers_clock_which_may_be_wrong(push: Pusher, proxy: Proxy) -> None:
    def years_ahead(exchange: Exchange) -> None:
        exchange.drain()
        exchange.handler.send_response_only(503)
        future = time.time() + 5 * 365 * 86400
        exchange.handler.send_header("Date", formatdate(future, usegmt=True))
        exchange.handler.send_header("Retry-After", formatdate(future + 1, usegmt=True))
        exchange.handler.send_header("Content-Length", "0")
        exchange.handler.end_headers()

    proxy.add("POST", "", years_ahead)
    began = time.monotonic()
    push(proxy.host)
    assert 0.9 <= time.monotonic() - began < 20


@on_each_registry
def test_a_connection_that_breaks_before_the_registry_has_anything_costs_one_chunk(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    fault = proxy.add("PATCH", "", reset_in_body(100 * KIB, registry_gets_it=False), after=3, times=2)
    pushed = push(proxy.host)
    assert fault.happened == 2
    assert pushed.sent_bytes <= total(push.layout) + 2 * 256 * KIB
    assert push.at(shared.host) == push.layout.manifest_digest


@on_each_registry
def test_a_connection_that_breaks_in_the_middle_of_a_chunk_costs_no_other_blob(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    fault = proxy.add("PATCH", "", reset_in_body(100 * KIB, registry_gets_it=True), after=3, times=2)
    pushed = push(proxy.host)
    assert fault.happened == 2
    assert push.at(shared.host) == push.layout.manifest_digest
    assert pushed.sent_bytes <= total(push.layout) + 2 * 1600 * KIB
    assert shared.broken_tags() == []


@on_each_registry
@pytest.mark.parametrize(
    ("method", "path"), [("PATCH", ""), ("PUT", "/blobs/"), ("PUT", "/manifests/sha256"), ("PUT", TAG)]
)
def test_an_answer_that_is_lost_is_found_out(
    push: Pusher, proxy: Proxy, shared: Registry, method: str, path: str
) -> None:
    fault = proxy.add(method, path, lose_answer, times=2)
    push(proxy.host)
    assert fault.happened == 2
    assert push.at(shared.host) == push.layout.manifest_digest
    assert shared.broken_tags() == []


@on_each_registry
def test_chunks_shrink_until_a_proxy_lets_them_through(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    proxy.add("PATCH", "", limit_body(100 * KIB), times=None)
    push(proxy.host)
    assert push.at(shared.host) == push.layout.manifest_digest


def test_a_proxy_that_lets_nothing_through_is_named(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    proxy.add("PATCH", "", limit_body(10), times=None)
    with pytest.raises(RegistryError) as caught:
        push(proxy.host)
    assert "413" in caught.value.render() or "connection broke" in caught.value.render()
    assert push.at(shared.host) is None


@on_each_registry
def test_a_blob_that_the_registry_takes_and_loses_is_sent_again_before_any_tag(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    fault = proxy.add("PUT", "/blobs/uploads/", lose_blob, times=2)
    push(proxy.host)
    assert fault.happened == 2
    assert push.at(shared.host) == push.layout.manifest_digest
    assert shared.broken_tags() == []


def test_a_registry_that_goes_on_losing_blobs_gets_no_tag(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    proxy.add("PUT", "/blobs/uploads/", lose_blob, times=None)
    with pytest.raises(RegistryError, match="did not do what was asked") as caught:
        push(proxy.host)
    assert "does not have it" in caught.value.render()
    assert push.at(shared.host) is None


@on_each_registry
def test_a_blob_that_vanishes_from_under_a_tag_is_brought_back_by_the_same_command(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    push(proxy.host)
    lost = push.layout.layers[0].digest
    push.client(proxy.host).ask("DELETE", f"blobs/{lost}", good=(202,))
    assert shared.broken_tags() != []
    pushed = push(proxy.host)
    assert (pushed.tagged, pushed.blobs[lost]) == (False, Sent.UPLOADED)
    assert pushed.sent_bytes == push.layout.layers[0].size_bytes
    assert shared.broken_tags() == []


@pytest.mark.parametrize(("method", "path"), [("PUT", "/blobs/"), ("PUT", "/manifests/"), ("GET", "/manifests/")])
def test_a_wrong_digest_in_an_answer_is_not_believed_but_asked_again(
    push: Pusher, proxy: Proxy, shared: Registry, method: str, path: str
) -> None:
    if method == "GET":
        push(shared.host)
    fault = proxy.add(method, path, wrong_digest)
    push(proxy.host)
    assert fault.happened == 1
    assert push.at(shared.host) == push.layout.manifest_digest


def test_a_registry_whose_digests_stay_wrong_is_an_error(push: Pusher, proxy: Proxy) -> None:
    proxy.add("PUT", "/manifests/", wrong_digest, times=None)
    with pytest.raises(RegistryError) as caught:
        push(proxy.host)
    assert "sha256:0000" in caught.value.render()


def test_a_slow_line_is_no_error(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    proxy.add("PATCH", "", slow(1000 * KIB), times=None)
    push(proxy.host)
    assert push.at(shared.host) == push.layout.manifest_digest


def test_tokens_that_expire_all_the_time_are_renewed(push: Pusher, shared: Registry, tmp_path: Path) -> None:
    guard = Guard("spark", "pw-5ecret", token_s=0.7)
    config = tmp_path / "config.json"
    with fault_proxy(shared.host, guard) as proxy:
        proxy.add("PATCH", "", slow(500 * KIB), times=None)
        config.write_text(f'{{"auths": {{"{proxy.host}": {{"username": "spark", "password": "pw-5ecret"}}}}}}')
        client = Client(Repository(host=proxy.host, name=push.name), env={"REGISTRY_AUTH_FILE": str(config)})
        push_layout(client, push.layout, TAG, states=push.states)
    assert push.at(shared.host) == push.layout.manifest_digest
    assert len(guard.issued) > 3
    assert any(scope.endswith(":pull,push") for scope in guard.scopes[-1])


def test_a_login_that_is_refused_is_told_once_and_says_where_to_log_in(
    push: Pusher, shared: Registry, tmp_path: Path
) -> None:
    with fault_proxy(shared.host, Guard("spark", "right")) as proxy:
        config = tmp_path / "config.json"
        config.write_text(f'{{"auths": {{"{proxy.host}": {{"username": "spark", "password": "wr0ng-pw"}}}}}}')
        client = Client(Repository(host=proxy.host, name=push.name), env={"REGISTRY_AUTH_FILE": str(config)})
        with pytest.raises(RegistryError, match="refuses access") as caught:
            push_layout(client, push.layout, TAG, states=push.states)
    assert "wr0ng-pw" not in caught.value.render()
    assert f"docker login {proxy.host}" in caught.value.hint


def test_neither_password_nor_token_is_in_a_traceback_or_file_or_on_the_command_line(
    push: Pusher, shared: Registry, tmp_path: Path
) -> None:
    guard, config = Guard("spark", "pw-5ecret"), tmp_path / "config.json"
    with fault_proxy(shared.host, guard) as proxy:
        config.write_text(f'{{"auths": {{"{proxy.host}": {{"username": "spark", "password": "pw-5ecret"}}}}}}')
        proxy.add("PATCH", "", status(403), after=3, times=None)  # an upload in the middle keeps its state
        running = start_push(push, proxy.host, REGISTRY_AUTH_FILE=str(config))
        said = running.communicate(timeout=120)[1]
    assert "Traceback" in said  # which the command line never shows: it holds all that the error carries
    assert guard.issued
    kept = [path.read_text() for path in push.states.rglob("*") if path.is_file()]
    assert any("location" in text for text in kept)
    secrets = [guard.password, base64.b64encode(b"spark:pw-5ecret").decode(), *guard.issued]
    written = [said, str(running.args), *kept]
    assert not [text for text in written if any(secret in text for secret in secrets)]


def test_a_registry_whose_disk_is_full_is_told_so_and_takes_the_rest_later(push: Pusher, tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs to mount a small file system")
    try:
        with distribution(folder) as registry:
            with pytest.raises(RegistryError) as caught:
                push(registry.host)
            assert "has no room left" in caught.value.what, caught.value.render()
            assert push.at(registry.host) is None
            subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
            push(registry.host)
            assert push.at(registry.host) == push.layout.manifest_digest
            assert registry.broken_tags() == []
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


PUSH = """
import sys
from pathlib import Path
from spark_images.oci import read_layout
from spark_images.registry import upload
from spark_images.registry.client import Client
from spark_images.registry.push import push_layout
from spark_images.registry.reference import Repository
host, name, tag, states, *layouts = sys.argv[1:]
upload.FIRST_CHUNK = upload.MOST_CHUNK = 256 << 10
for layout in layouts:
    push_layout(Client(Repository(host=host, name=name)), read_layout(Path(layout)), tag, states=Path(states))
"""


def start_push(
    push: Pusher, host: str, tag: str = TAG, layout: Layout | None = None, **env: str
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PUSH, host, push.name, tag, str(push.states), str((layout or push.layout).path)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})


@on_each_registry
def test_killed_at_random_points_no_tag_is_broken_and_complete_blobs_are_not_sent_again(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    rng = random.Random(20261121)
    proxy.add("PATCH", "", slow(8 << 20), times=None)
    began = time.monotonic()
    running = start_push(push, proxy.host, tag="whole")
    assert running.wait(120) == 0, running.stderr and running.stderr.read()
    whole_s = time.monotonic() - began

    for round_number in range(KILLS):
        push.name = f"test/killed{os.getpid()}-{time.monotonic_ns()}"
        running = start_push(push, proxy.host)
        time.sleep(rng.uniform(0.1, 1.05) * whole_s)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert shared.broken_tags() == [], round_number
        client = push.client(shared.host)
        there = {layer.digest for layer in push.layout.layers if client.has_blob(layer.digest, layer.size_bytes)}
        again = push(proxy.host)
        assert {digest for digest, how in again.blobs.items() if how is Sent.PRESENT} >= there, round_number
        assert push.at(shared.host) == push.layout.manifest_digest
        assert shared.broken_tags() == [], round_number


@on_each_registry
def test_an_upload_that_was_killed_between_chunks_goes_on_where_it_was(
    push: Pusher, proxy: Proxy, shared: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stands for the end of the process: nothing catches it."""

    chunks = iter(range(100))
    real = Client.once

    def dying(self: Client, method: str, url: str, **options: object) -> object:
        if method == "PATCH" and next(chunks) >= 4:
            raise Killed
        return real(self, method, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("spark_images.registry.transfers.AT_ONCE", 1)
    with monkeypatch.context() as patched:
        patched.setattr(Client, "once", dying)
        with pytest.raises(Killed):
            push(proxy.host)
    again = push(proxy.host)
    assert again.sent_bytes == total(push.layout) - 4 * 256 * KIB
    assert push.at(shared.host) == push.layout.manifest_digest


def test_of_two_pushes_of_one_image_at_once_each_blob_is_sent_by_one(
    push: Pusher, proxy: Proxy, shared: Registry
) -> None:
    proxy.add("PATCH", "", slow(4 << 20), times=None)
    both = [start_push(push, proxy.host) for _ in range(2)]
    for running in both:
        assert running.wait(120) == 0, running.stderr and running.stderr.read()
    assert proxy.count("PUT", "/blobs/uploads/") == len(push.layout.layers) + 1
    assert push.at(shared.host) == push.layout.manifest_digest


def test_two_pushes_of_one_image_from_two_machines_at_once_both_succeed(
    push: Pusher, proxy: Proxy, shared: Registry, tmp_path: Path
) -> None:
    first = start_push(push, proxy.host)
    push.states = tmp_path / "another machine"
    second = start_push(push, proxy.host)
    for running in (first, second):
        assert running.wait(120) == 0, running.stderr and running.stderr.read()
    assert push.at(shared.host) == push.layout.manifest_digest
    assert shared.broken_tags() == []


def test_of_two_images_pushed_under_one_tag_at_once_the_tag_is_one_of_them_whole(
    push: Pusher, proxy: Proxy, shared: Registry, tmp_path: Path
) -> None:
    """Registries have no "only if": within milliseconds the later one wins, else it is refused."""
    other = write_image(tmp_path / "other", sizes=(600 * KIB,), seed=2)
    both = [start_push(push, proxy.host), start_push(push, proxy.host, layout=other)]
    ended = [(running.wait(120), running.stderr.read() if running.stderr else "") for running in both]
    assert push.at(shared.host) in (push.layout.manifest_digest, other.manifest_digest)
    assert 0 in [status for status, _ in ended], ended
    assert all("never moves" in said or "is not what was pushed" in said for status, said in ended if status)
    assert shared.broken_tags() == []


def test_two_images_at_once_under_tags_of_their_own_both_arrive(
    push: Pusher, proxy: Proxy, shared: Registry, tmp_path: Path
) -> None:
    other = write_image(tmp_path / "other", sizes=(600 * KIB,), seed=3)
    both = [start_push(push, proxy.host), start_push(push, proxy.host, tag="other", layout=other)]
    for running in both:
        assert running.wait(120) == 0, running.stderr and running.stderr.read()
    assert (push.at(shared.host), push.at(shared.host, "other")) == (push.layout.manifest_digest, other.manifest_digest)


@on_each_registry
def test_a_layer_of_another_repository_is_mounted_and_not_sent(push: Pusher, proxy: Proxy, shared: Registry) -> None:
    first = push.name
    push(proxy.host)
    push.name = f"{first}-other"
    mounts = [Repository(host=proxy.host, name=first)]
    pushed = push_layout(push.client(proxy.host), push.layout, TAG, states=push.states, mounts=mounts)
    assert pushed.blobs[push.layout.layers[0].digest] is Sent.MOUNTED
    assert pushed.sent_bytes < 1 << 20
    assert shared.broken_tags() == []


def pull_from(push: Pusher, host: str, cache: Cache) -> int:
    client = push.client(host)
    pulled = pull_layout(client, read_offer(client, push.layout.manifest_digest), cache)
    assert pulled is not None
    return pulled


@pytest.mark.parametrize(
    "act",
    [
        status(503),
        status(429, {"Retry-After": "0"}),
        lambda exchange: exchange.reset(),
    ],
    ids=["503", "429", "reset"],
)
def test_a_pull_survives_what_a_push_survives(
    push: Pusher, proxy: Proxy, tmp_path: Path, act: Callable[[Exchange], None]
) -> None:
    push(proxy.host)
    proxy.add("GET", "/blobs/", act, after=1, times=2)
    cache = Cache(tmp_path / "cache")
    assert pull_from(push, proxy.host, cache) == sum(layer.size_bytes for layer in push.layout.layers)
    (place,) = cache.images.iterdir()
    assert read_layout(place).manifest_digest == push.layout.manifest_digest


def test_a_pull_takes_what_is_here_from_here(push: Pusher, proxy: Proxy, tmp_path: Path) -> None:
    """As after a bump that changed one layer: the others are those of the image that is here."""
    push(proxy.host)
    cache = Cache(tmp_path / "cache")
    pull_from(push, proxy.host, cache)
    bumped = write_bumped(tmp_path / "bumped", push.layout)
    push.layout = bumped
    push(proxy.host, tag="bumped")
    assert pull_from(push, proxy.host, cache) == bumped.layers[-1].size_bytes


def write_bumped(folder: Path, old: Layout) -> Layout:
    """The image with another last layer."""
    labels = {PLAN_LABEL: f"{99:064x}", "org.opencontainers.image.title": "noise"}
    with new_layout(folder) as writer:
        for layer in old.layers[:-1]:
            writer.take(layer, old.blob(layer.digest))
        with writer.layer() as sink:
            sink.write(random.Random(99).randbytes(200 * KIB))
            last = sink.finish(created_by="noise")
        config = {**{key: old.config[key] for key in ("architecture", "os", "created")}, "config": {"Labels": labels}}
        writer.finish(config=config, layers=[*old.layers[:-1], last], annotations={})
    return read_layout(folder)


def test_ctrl_c_ends_a_push_in_seconds(push: Pusher, proxy: Proxy) -> None:
    proxy.add("PATCH", "", slow(50 * KIB), times=None)
    running = start_push(push, proxy.host)
    last = time.monotonic() + 60
    while not proxy.count("PATCH", "") and time.monotonic() < last:
        time.sleep(0.05)
    began = time.monotonic()
    running.send_signal(signal.SIGINT)
    running.wait(60)
    assert time.monotonic() - began < 30

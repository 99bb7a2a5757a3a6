"""A built image through a real registry and back, on each engine that answers."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import tiny
from pipeline import Pipeline, make_pipeline, output_of

from spark_images.engine.base import Engine
from spark_images.imageconfig import PLAN_LABEL
from spark_images.layout_writer import new_layout
from spark_images.oci import Layout, read_layout
from spark_images.record import read_records

PROGRAM = shutil.which("docker-registry") or shutil.which("registry")  # Debian's name, and distribution's own
USER, PASSWORD = "spark", "secret"
HTPASSWD = "spark:$2b$04$FeLLQq.ebD2yesEC1Gt.v.UdB1D4J0O0dPhorOPNPWhG9coP1ABBe\n"  # bcrypt of PASSWORD

pytestmark = pytest.mark.skipif(
    not (PROGRAM and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)


@dataclass(frozen=True)
class Registry:
    """A registry on loopback with a storage folder of its own."""

    host: str
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def blob(self, digest: str) -> Path:
        """Where it keeps a blob."""
        name = digest.removeprefix("sha256:")
        return self.folder / "data/docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def holds(self, layout: Path, reference: str) -> str:
        """Make it hold a layout by other means than ours; the reference by digest."""
        repository = f"{self.host}/{reference}"
        target = f"docker://{repository}"
        copy = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false", "oci:.", target]
        subprocess.run(copy, cwd=layout, check=True)
        return f"{repository.rpartition(':')[0]}@{read_layout(layout).manifest_digest}"


@pytest.fixture
def start_registry(tmp_path: Path) -> Iterator[Callable[..., Registry]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(settings: str = "") -> Registry:
        folder = tmp_path / "registry"
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            host = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "config.yml").write_text(
            f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
            f"http: {{addr: '{host}'}}\n{settings}"
        )
        with (folder / "log").open("wb") as log:
            command = [str(PROGRAM), "serve", str(folder / "config.yml")]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        registry = Registry(host, folder)
        last = time.monotonic() + 20
        while True:
            try:
                urllib.request.urlopen(f"http://{host}/v2/", timeout=1).close()
                return registry
            except urllib.error.HTTPError:  # it wants a login
                return registry
            except OSError:
                assert processes[-1].poll() is None, registry.log
                assert time.monotonic() < last, "the registry does not answer"
                time.sleep(0.05)

    yield start
    for process in processes:
        process.terminate()
        process.wait(10)


@pytest.fixture
def registry(start_registry: Callable[..., Registry]) -> Registry:
    return start_registry()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """One for both engines: what the first has built, the second only loads."""
    return make_pipeline(tmp_path_factory.mktemp("hello"), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def hello(project: Pipeline, engine: Engine) -> Iterator[Pipeline]:
    """The small project with its image built and in the engine."""
    built = project("build", "hello", "--engine", engine.name, "--memory", "512MiB")
    assert built.returncode == 0, built.stderr
    yield project
    engine.client().images.remove(local_name(project), force=True)
    assert project("clean", "--engine", engine.name).returncode == 0


@pytest.fixture
def elsewhere(hello: Pipeline, tmp_path: Path) -> Pipeline:
    """The project with an empty cache, as on another machine."""
    return replace(hello, env={**hello.env, "SPARK_IMAGES_CACHE": str(tmp_path / "elsewhere")})


def image_layout(pipeline: Pipeline) -> Layout:
    (place,) = (pipeline.cache / "images").iterdir()
    return read_layout(place)


def local_name(pipeline: Pipeline) -> str:
    return f"localhost/spark-images/hello:{image_layout(pipeline).path.name[:12]}"


def root_layout(pipeline: Pipeline) -> Path:
    """Another image than hello."""
    return next((pipeline.cache / "roots").glob("*/index.json")).parent


def push(pipeline: Pipeline, registry: Registry) -> str:
    """The reference that push prints."""
    pushed = pipeline("push", "hello", "--registry", f"{registry.host}/you")
    assert pushed.returncode == 0, pushed.stderr
    return pushed.stdout.strip()


def failure(done: subprocess.CompletedProcess[str], status: int = 70) -> str:
    """The text of an error that ended a verb."""
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "\nhint: " in done.stderr
    return done.stderr


def test_what_is_pushed_is_pulled_by_digest_into_an_empty_cache_and_runs(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    built, name = image_layout(hello), local_name(hello)
    reference = push(hello, registry)
    engine.client().images.remove(name)
    assert engine.image_id(name) is None

    pulled = elsewhere("pull", reference, "--engine", engine.name)

    assert pulled.returncode == 0, pulled.stderr
    assert reference == f"{registry.host}/you/hello@{built.manifest_digest}"
    assert pulled.stdout == f"{name}\n"
    assert f"{engine.name} run --rm {name}" in pulled.stderr
    layout = image_layout(elsewhere)
    assert (layout.path.name, layout.manifest_digest) == (built.path.name, built.manifest_digest)
    assert engine.image_id(name) == built.config_digest
    assert output_of(engine, name) == 'hello world, version 1.0, a "quoted" $HOME\n'
    assert list((elsewhere.cache / "work").iterdir()) == []


def test_a_pulled_image_counts_as_built(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    assert elsewhere("pull", push(hello, registry), "--engine", engine.name).returncode == 0
    again = elsewhere("build", "hello", "--engine", engine.name)
    assert again.returncode == 0, again.stderr
    assert "is built already" in again.stderr


def test_the_second_push_pushes_nothing_and_both_are_in_the_record(hello: Pipeline, registry: Registry) -> None:
    before = len(read_records(hello.cache / "records")[-1].appended("push"))
    reference = push(hello, registry)
    uploads = registry.log.count('"PUT ')
    again = hello("push", "hello", "--registry", f"{registry.host}/you")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == reference
    assert "is there already, nothing was pushed" in again.stderr
    assert uploads > 0
    assert registry.log.count('"PUT ') == uploads
    first, second = read_records(hello.cache / "records")[-1].appended("push")[before:]
    tag = f"{registry.host}/you/hello:{image_layout(hello).path.name[:12]}"
    assert (first["pushed"], first["reference"], first["tag"]) == (True, reference, tag)
    assert (second["pushed"], second["reference"]) == (False, reference)


def test_a_tag_that_holds_another_image_is_not_moved(hello: Pipeline, registry: Registry) -> None:
    tag = f"you/hello:{image_layout(hello).path.name[:12]}"
    there = registry.holds(root_layout(hello), tag).rpartition("@")[2]
    said = failure(hello("push", "hello", "--registry", f"{registry.host}/you"))
    assert "the tag of a plan never moves" in said
    assert there in said
    assert image_layout(hello).manifest_digest in said
    with urllib.request.urlopen(
        urllib.request.Request(
            f"http://{registry.host}/v2/{tag.replace(':', '/manifests/')}",
            headers={"Accept": "application/vnd.oci.image.manifest.v1+json"},
        )
    ) as answer:
        assert answer.headers["Docker-Content-Digest"] == there


def test_a_registry_that_is_down_is_named(hello: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    assert f"{host} does not answer" in failure(hello("push", "hello", "--registry", f"{host}/you"))
    reference = f"{host}/you/hello@{image_layout(hello).manifest_digest}"
    assert f"{host} does not answer" in failure(hello("pull", reference))


def test_a_damaged_layer_is_found_and_once_repaired_only_that_is_pulled_again(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference, layers = push(hello, registry), image_layout(hello).layers
    assert len(layers) > 1
    blob = registry.blob(layers[-1].digest)
    good = blob.read_bytes()
    blob.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    said = failure(elsewhere("pull", reference, "--engine", engine.name))
    assert "served a blob that is not what its digest says" in said
    assert not (elsewhere.cache / "images").exists()

    blob.write_bytes(good)
    (left,) = (elsewhere.cache / "work").glob("pull-*/layout")
    (left / "oci-put-blob123").write_text("of a pull that was killed")
    pulled = elsewhere("pull", reference, "--engine", engine.name)
    assert pulled.returncode == 0, pulled.stderr
    assert {path.name for path in image_layout(elsewhere).path.iterdir()} == {"blobs", "index.json", "oci-layout"}
    assert image_layout(elsewhere).manifest_digest == reference.rpartition("@")[2]
    asked = [registry.log.count(f'"GET /v2/you/hello/blobs/{layer.digest} ') for layer in layers]
    assert asked == [1] * (len(layers) - 1) + [2]


def test_a_blob_that_a_stopped_pull_left_damaged_is_found(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[0]
    left = elsewhere.cache / f"work/pull-{reference.rpartition(':')[2][:12]}/layout/blobs/sha256"
    left.mkdir(parents=True)
    (left / layer.digest.removeprefix("sha256:")).write_bytes(b"x" * layer.size_bytes)
    said = failure(elsewhere("pull", reference, "--engine", engine.name), status=50)
    assert f"named: {layer.digest}" in said
    assert not (elsewhere.cache / "images").exists()


def test_a_damaged_config_is_found(hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine) -> None:
    reference = push(hello, registry)
    blob = registry.blob(image_layout(hello).config_digest)
    blob.write_bytes(blob.read_bytes().replace(b"10001:10001", b"0:000000000"))
    said = failure(elsewhere("pull", reference, "--engine", engine.name))
    assert "served a blob that is not what its digest says" in said
    assert image_layout(hello).config_digest in said
    assert not (elsewhere.cache / "images").exists()


def test_a_second_pull_transfers_nothing(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[-1]
    first, second = (elsewhere("pull", reference, "--engine", engine.name) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "is in the cache already" not in first.stderr
    assert "is in the cache already" in second.stderr
    assert registry.log.count(f'"GET /v2/you/hello/blobs/{layer.digest} ') == 1


def test_of_two_pulls_at_once_one_transfers(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[-1]
    pulls = [elsewhere.start("pull", reference, "--engine", engine.name) for _ in range(2)]
    said = [running.communicate(timeout=60)[0] for running in pulls]
    assert [running.returncode for running in pulls] == [0, 0], said
    assert registry.log.count(f'"GET /v2/you/hello/blobs/{layer.digest} ') == 1


def test_an_image_for_another_architecture_is_pulled(
    elsewhere: Pipeline, registry: Registry, engine: Engine, tmp_path: Path
) -> None:
    labels = {PLAN_LABEL: "f00" * 21 + "d", "org.opencontainers.image.title": "foreign"}
    root = tiny.write_root(tmp_path, "root", {"program": b""}, architecture=tiny.FOREIGN)
    config = {**read_layout(root.layout).config, "config": {"Labels": labels}}
    with new_layout(tmp_path / "foreign") as writer:
        for layer in read_layout(root.layout).layers:
            writer.take(layer, read_layout(root.layout).blob(layer.digest))
        writer.finish(config=config, layers=read_layout(root.layout).layers, annotations={})
    reference = registry.holds(tmp_path / "foreign", "you/foreign:1")
    pulled = elsewhere("pull", reference, "--engine", engine.name)
    assert pulled.returncode == 0, pulled.stderr
    name = pulled.stdout.strip()
    assert name == "localhost/spark-images/foreign:f00f00f00f00"
    assert engine.client().images.get(name).attrs["Architecture"] == tiny.FOREIGN
    engine.client().images.remove(name)


def test_another_image_of_the_plan_in_the_cache_is_an_error_and_stays(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference = push(hello, registry)
    place = elsewhere.cache / "images" / image_layout(hello).path.name
    shutil.copytree(root_layout(hello), place)
    there = read_layout(place).manifest_digest
    said = failure(elsewhere("pull", reference, "--engine", engine.name))
    assert "the cache holds another image of plan" in said
    assert there in said
    assert read_layout(place).manifest_digest == there


def test_an_image_that_is_not_ours_is_refused(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference = registry.holds(root_layout(hello), "you/other:1")
    said = failure(elsewhere("pull", reference, "--engine", engine.name))
    assert "is no image that spark-images made" in said


def test_a_digest_that_the_registry_does_not_have_is_an_error(
    hello: Pipeline, registry: Registry, engine: Engine
) -> None:
    reference = f"{registry.host}/you/hello@sha256:{'0' * 64}"
    assert f"{reference} is not there" in failure(hello("pull", reference, "--engine", engine.name))


@pytest.mark.parametrize("of", ["skopeo", "docker"])
def test_a_login_of_skopeo_or_docker_is_used_and_never_shown(
    hello: Pipeline, start_registry: Callable[..., Registry], tmp_path: Path, of: str
) -> None:
    users = tmp_path / "htpasswd"
    users.write_text(HTPASSWD)
    registry = start_registry(f"auth: {{htpasswd: {{realm: test, path: {users}}}}}\n")
    home = {**hello.env, "HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}
    home.pop("REGISTRY_AUTH_FILE", None)
    user = replace(hello, env=home)
    refused = failure(user("push", "hello", "--registry", f"{registry.host}/you"))
    assert "skopeo login" in refused

    kept = {"skopeo": tmp_path / "run/containers/auth.json", "docker": tmp_path / "home/.docker/config.json"}[of]
    kept.parent.mkdir(parents=True)
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    kept.write_text(json.dumps({"auths": {registry.host: {"auth": secret}}}))
    pushed = user("push", "hello", "--registry", f"{registry.host}/you")
    assert pushed.returncode == 0, pushed.stderr
    assert not [word for word in (PASSWORD, secret) if word in pushed.stderr + pushed.stdout]

    kept.write_text(json.dumps({"auths": {registry.host: {"auth": base64.b64encode(b"spark:wrong").decode()}}}))
    assert "refuses access" in failure(user("push", "hello", "--registry", f"{registry.host}/you"))


def test_an_image_that_is_not_built_is_not_pushed(elsewhere: Pipeline, registry: Registry) -> None:
    said = failure(elsewhere("push", "hello", "--registry", f"{registry.host}/you"), status=2)
    assert "nox -s build-hello" in said


def test_without_skopeo_push_says_how_to_get_it(hello: Pipeline, tmp_path: Path) -> None:
    without = {key: value for key, value in hello.env.items() if key != "SPARK_IMAGES_INSTALL"}
    missing = replace(hello, env={**without, "PATH": str(tmp_path)})
    said = failure(missing("push", "hello", "--registry", "127.0.0.1:1/you"), status=14)
    assert "skopeo" in said

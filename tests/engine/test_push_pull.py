"""A built image through a real registry and back: with each engine where it matters to whom an image is given."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tiny
from pipeline import Pipeline, make_pipeline, output_of
from registries import DEBIANS, DISTRIBUTION, Registry, distribution

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.imageconfig import PLAN_LABEL
from spark_images.layout_writer import new_layout
from spark_images.oci import Layout, read_layout
from spark_images.record import read_records
from spark_images.verdict import Colour, Gate, Verdict
from spark_images.verdicts import keep_verdict

USER, PASSWORD = "spark", "secret"
HTPASSWD = "spark:$2b$04$FeLLQq.ebD2yesEC1Gt.v.UdB1D4J0O0dPhorOPNPWhG9coP1ABBe\n"  # bcrypt of PASSWORD

pytestmark = pytest.mark.skipif(
    not ((DEBIANS or DISTRIBUTION) and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)


def holds(registry: Registry, layout: Path, reference: str) -> str:
    """Make it hold a layout by other means than ours; the reference by digest."""
    repository = f"{registry.host}/{reference}"
    target = f"docker://{repository}"
    copy = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false", "oci:.", target]
    subprocess.run(copy, cwd=layout, check=True)
    return f"{repository.rpartition(':')[0]}@{read_layout(layout).manifest_digest}"


@pytest.fixture
def start_registry(tmp_path: Path) -> Iterator[Callable[..., Registry]]:
    with ExitStack() as stack:
        yield lambda settings="": stack.enter_context(distribution(tmp_path / "registry", settings=settings))


@pytest.fixture
def registry(start_registry: Callable[..., Registry]) -> Registry:
    return start_registry()


@pytest.fixture(scope="module")
def hello(tmp_path_factory: pytest.TempPathFactory, default_engine: Engine) -> Iterator[Pipeline]:
    """The small project with its image built."""
    made = make_pipeline(tmp_path_factory.mktemp("hello"), tmp_path_factory.mktemp("cache"))
    done = made("build", "hello", "--memory", "512MiB")
    assert done.returncode == 0, done.stderr
    yield made
    default_engine.client().images.remove(local_name(made), force=True)
    done = made("clean")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def loaded(hello: Pipeline, engine: Engine) -> Pipeline:
    """The image in each engine: what another has built, this one only loads."""
    done = hello("build", "hello", "--engine", engine.name)
    assert done.returncode == 0, done.stderr
    return hello


@pytest.fixture
def elsewhere(hello: Pipeline, tmp_path: Path) -> Pipeline:
    """The project with an empty cache, as on another machine."""
    cache = tmp_path / "elsewhere"
    return replace(
        hello, env={**hello.env, "SPARK_IMAGES_CACHE": str(cache), "SPARK_IMAGES_STORE": str(cache / "store")}
    )


def image_layout(pipeline: Pipeline) -> Layout:
    (place,) = (pipeline.cache / "images").iterdir()
    return read_layout(place)


def local_name(pipeline: Pipeline) -> str:
    return f"localhost/spark-images/hello:{image_layout(pipeline).path.name[:12]}"


def root_layout(pipeline: Pipeline) -> Path:
    """A root of .debs: another image than hello."""
    return next(path for path in (pipeline.cache / "roots").iterdir() if "-linux-" not in path.name)


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
    loaded: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine
) -> None:
    built, name = image_layout(loaded), local_name(loaded)
    reference = push(loaded, registry)
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


def test_a_pulled_image_counts_as_built(hello: Pipeline, elsewhere: Pipeline, registry: Registry) -> None:
    assert elsewhere("pull", push(hello, registry)).returncode == 0
    again = elsewhere("build", "hello")
    assert again.returncode == 0, again.stderr
    assert "is built already" in again.stderr


def test_the_second_push_pushes_nothing_and_both_are_in_the_record(hello: Pipeline, registry: Registry) -> None:
    before = len(read_records(hello.cache / "records")[-1].appended("push"))
    reference = push(hello, registry)
    uploads = registry.log.count('"PUT ')
    again = hello("push", "hello", "--registry", f"{registry.host}/you")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == reference
    assert "is there already, nothing was sent" in again.stderr
    assert uploads > 0
    assert registry.log.count('"PUT ') == uploads
    first, second = read_records(hello.cache / "records")[-1].appended("push")[before:]
    tag = f"{registry.host}/you/hello:{image_layout(hello).path.name[:12]}"
    assert (first["pushed"], first["reference"], first["tag"]) == (True, reference, tag)
    assert (second["pushed"], second["reference"]) == (False, reference)


def test_a_tag_that_holds_another_image_is_not_moved(hello: Pipeline, registry: Registry) -> None:
    tag = f"you/hello:{image_layout(hello).path.name[:12]}"
    there = holds(registry, root_layout(hello), tag).rpartition("@")[2]
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
    hello: Pipeline, elsewhere: Pipeline, registry: Registry
) -> None:
    reference, layers = push(hello, registry), image_layout(hello).layers
    assert len(layers) > 1
    blob = registry.blob(layers[-1].digest)
    good = blob.read_bytes()
    blob.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))

    said = failure(elsewhere("pull", reference))
    assert "served a blob that is not what its digest says" in said
    assert not (elsewhere.cache / "images").exists()

    blob.write_bytes(good)
    pulled = elsewhere("pull", reference)
    assert pulled.returncode == 0, pulled.stderr
    assert {path.name for path in image_layout(elsewhere).path.iterdir()} == {"blobs", "index.json", "oci-layout"}
    assert image_layout(elsewhere).manifest_digest == reference.rpartition("@")[2]
    assert registry.log.count(f'"GET /v2/you/hello/blobs/{layers[-1].digest} ') == 2


def test_what_a_stopped_pull_left_damaged_is_fetched_anew(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry
) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[0]
    left = elsewhere.cache / "store/partial"
    left.mkdir(parents=True)
    (left / layer.digest.removeprefix("sha256:")).write_bytes(b"x" * (layer.size_bytes // 2))
    pulled = elsewhere("pull", reference)
    assert pulled.returncode == 0, pulled.stderr
    assert image_layout(elsewhere).manifest_digest == reference.rpartition("@")[2]


def test_a_damaged_config_is_found(hello: Pipeline, elsewhere: Pipeline, registry: Registry) -> None:
    reference = push(hello, registry)
    blob = registry.blob(image_layout(hello).config_digest)
    blob.write_bytes(blob.read_bytes().replace(b"10001:10001", b"0:000000000"))
    said = failure(elsewhere("pull", reference))
    assert "served a blob that is not what its digest says" in said
    assert image_layout(hello).config_digest in said
    assert not (elsewhere.cache / "images").exists()


def test_a_second_pull_transfers_nothing(hello: Pipeline, elsewhere: Pipeline, registry: Registry) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[-1]
    first, second = (elsewhere("pull", reference) for _ in range(2))
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "is in the cache already" not in first.stderr
    assert "is in the cache already" in second.stderr
    assert registry.log.count(f'"GET /v2/you/hello/blobs/{layer.digest} ') == 1


def test_of_two_pulls_at_once_one_transfers(hello: Pipeline, elsewhere: Pipeline, registry: Registry) -> None:
    reference, layer = push(hello, registry), image_layout(hello).layers[-1]
    pulls = [elsewhere.start("pull", reference) for _ in range(2)]
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
    reference = holds(registry, tmp_path / "foreign", "you/foreign:1")
    pulled = elsewhere("pull", reference, "--engine", engine.name)
    assert pulled.returncode == 0, pulled.stderr
    name = pulled.stdout.strip()
    assert name == "localhost/spark-images/foreign:f00f00f00f00"
    assert engine.client().images.get(name).attrs["Architecture"] == tiny.FOREIGN
    engine.client().images.remove(name)


def test_another_image_of_the_plan_in_the_cache_is_an_error_and_stays(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry
) -> None:
    reference = push(hello, registry)
    place = elsewhere.cache / "images" / image_layout(hello).path.name
    shutil.copytree(root_layout(hello), place)
    there = read_layout(place).manifest_digest
    said = failure(elsewhere("pull", reference))
    assert "the cache holds another image of plan" in said
    assert there in said
    assert read_layout(place).manifest_digest == there


def test_an_image_that_is_not_ours_is_refused(hello: Pipeline, elsewhere: Pipeline, registry: Registry) -> None:
    reference = holds(registry, root_layout(hello), "you/other:1")
    said = failure(elsewhere("pull", reference))
    assert "is no image that spark-images made" in said


def test_a_digest_that_the_registry_does_not_have_is_an_error(hello: Pipeline, registry: Registry) -> None:
    reference = f"{registry.host}/you/hello@sha256:{'0' * 64}"
    assert f"{reference} is not there" in failure(hello("pull", reference))


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
    assert "podman login" in refused

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
    assert "./noxw -s build-hello" in said


# --- promoted, explained, signed, made again --------------------------------------------------------------------------


@pytest.fixture
def secretive(hello: Pipeline, start_registry: Callable[..., Registry], tmp_path: Path) -> tuple[Pipeline, Registry]:
    """A registry that wants a login, and a user whose login lies in Docker's config."""
    users = tmp_path / "htpasswd"
    users.write_text(HTPASSWD)
    registry = start_registry(f"auth: {{htpasswd: {{realm: test, path: {users}}}}}\n")
    config = tmp_path / "docker/config.json"
    config.parent.mkdir()
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    config.write_text(json.dumps({"auths": {registry.host: {"auth": secret}}}))
    return replace(hello, env={**hello.env, "DOCKER_CONFIG": str(config.parent)}), registry


def judge(pipeline: Pipeline, *gates: Gate) -> None:
    layout = image_layout(pipeline)
    for gate in gates:
        verdict = Verdict(
            gate=gate, colour=Colour.GREEN, digest=layout.manifest_digest, when=datetime.now(UTC), evidence="by hand"
        )
        keep_verdict(Cache(pipeline.cache), layout.path.name, verdict)


def make_key(folder: Path) -> None:
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", "k"], cwd=folder, check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", "k", "-pubout", "-out", "k.pub"], cwd=folder, check=True)


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_way_of_an_image_from_push_to_rollback_and_no_secret_is_left_anywhere(
    secretive: tuple[Pipeline, Registry], tmp_path: Path
) -> None:
    pipeline, registry = secretive
    make_key(tmp_path)
    (tmp_path / "other").mkdir()
    make_key(tmp_path / "other")
    where = ["--registry", f"{registry.host}/you"]
    said = []

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        done = pipeline(*words)
        said.append(done.stdout + done.stderr)
        return done

    reference = good(run("push", "hello", *where, "--key", str(tmp_path / "k"))).strip()
    assert "did not run" in failure(run("promote", "hello", *where), status=71)
    good(run("test", "hello"))
    judge(pipeline, Gate.AUDIT)
    good(run("promote", "hello", *where))
    listing = json.loads(good(run("list", "hello", *where, "--json")))
    (image,) = listing["images"]
    assert image["tags"] == ["1.0-here", "here"]  # no GPU: latest stays where it is
    assert {gate: verdict["colour"] for gate, verdict in image["verdicts"].items()} == {
        "audit": "green", "test": "green", "smoke": "skipped",
    }  # fmt: skip
    assert f"{image['tag']}" in good(run("list", "hello", *where))
    explained = json.loads(good(run("explain", f"{registry.host}/you/hello:here", "--json")))
    assert explained["reference"] == reference
    assert explained["contents"]["Debian packages"] > 5
    assert explained["pins"]["hello"].startswith("1.0 ")
    assert len(explained["signed_by"]) == 1
    assert "to make it again" in good(run("explain", reference))
    assert good(run("verify-reference", reference, "--key", str(tmp_path / "k.pub"))).strip() == reference
    refused = failure(run("verify-reference", reference, "--key", str(tmp_path / "other/k.pub")), status=72)
    assert "signed by another key" in refused
    assert "was never another image" in failure(run("rollback", "hello", *where), status=71)
    assert "keep" in good(run("prune-registry", "hello", *where))

    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    kept = [path for top in (pipeline.cache, pipeline.project, registry.folder) for path in top.rglob("*")]
    texts = [*said, *(path.read_bytes().decode("latin-1") for path in kept if path.is_file())]
    private = (tmp_path / "k").read_text().splitlines()[1]
    assert len(texts) > 50
    assert secret in Path(pipeline.env["DOCKER_CONFIG"], "config.json").read_text()  # so this search would find it
    assert not [text for text in texts if f"{USER}:{PASSWORD}" in text or secret in text or private in text]


def test_pull_with_verify_takes_the_signed_image_and_refuses_the_unsigned(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, tmp_path: Path
) -> None:
    make_key(tmp_path)
    reference = push(hello, registry)
    verify = ["--verify", "--key", str(tmp_path / "k.pub")]
    assert "nobody has signed it" in failure(elsewhere("pull", reference, *verify), status=72)
    assert not (elsewhere.cache / "images").exists()
    good(hello("push", "hello", "--registry", f"{registry.host}/you", "--key", str(tmp_path / "k")))
    assert good(elsewhere("pull", reference, *verify)) == f"{local_name(hello)}\n"


def test_the_gzip_form_is_pushed_signed_verified_and_pulled_as_the_same_image(
    loaded: Pipeline, elsewhere: Pipeline, registry: Registry, engine: Engine, tmp_path: Path
) -> None:
    make_key(tmp_path)
    built, name = image_layout(loaded), local_name(loaded)
    key = ["--key", str(tmp_path / "k")]
    reference = good(loaded("push", "hello", "--registry", f"{registry.host}/you", "--layers", "gzip", *key)).strip()
    tag = f"{registry.host}/you/hello:{built.path.name[:12]}-gzip"
    assert not reference.endswith(built.manifest_digest)
    assert good(loaded("verify-reference", tag, "--key", str(tmp_path / "k.pub"))).strip() == reference
    assert f"with gzip layers; the image {built.config_digest}" in good(loaded("explain", tag))
    verify = ["--verify", "--key", str(tmp_path / "k.pub"), "--engine", engine.name]
    assert "nothing was pulled" in loaded("pull", tag, *verify).stderr
    engine.client().images.remove(name)
    assert good(elsewhere("pull", tag, *verify)) == f"{name}\n"
    assert engine.image_id(name) == built.config_digest
    assert not (elsewhere.cache / "images" / built.path.name).exists()  # it is not what a build gives


def test_an_image_is_made_again_from_its_reference_alone(
    hello: Pipeline, elsewhere: Pipeline, registry: Registry, tmp_path: Path
) -> None:
    reference = push(hello, registry)
    nothing = tmp_path / "no clone of it"
    nothing.mkdir()
    stranger = replace(elsewhere, project=nothing)
    made = good(stranger("reproduce", "hello", "--reference", reference, "--memory", "512MiB"))
    digest = reference.rpartition("@")[2]
    assert [line.split()[-1] for line in made.splitlines()] == [digest, digest]

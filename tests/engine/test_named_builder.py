"""SPARK_IMAGES_BUILDER: a build on a BuildKit daemon of somebody else's, reached over TLS as one in a cluster is."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from pipeline import Pipeline, make_pipeline

from spark_images.cache import Cache
from spark_images.engine import choose_engine
from spark_images.engine.base import BUILDER, Engine
from spark_images.engine.named_builder import NamedBuilder, native_platform
from spark_images.errors import EngineError
from spark_images.platforms import ARCHES

KIT = Path(__file__).parents[2] / "ci/runner"
INSPECTED = """\
Name:   there
Driver: remote

Nodes:
Name:             there0
Status:           running
Platforms:        linux/arm64, linux/arm/v7
"""


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, text=True, capture_output=True).stdout.strip()


@dataclass(frozen=True)
class Daemon:
    """A BuildKit daemon in a container, and the builder of buildx that leads to it."""

    builder: str
    container: str


@pytest.fixture(scope="module")
def ours(buildkit_image: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    try:
        cache = Cache(tmp_path_factory.mktemp("cache"))
        engine = choose_engine("docker", cache=cache, buildkit_image=buildkit_image, env=os.environ)
        engine.prepare()
    except EngineError as err:
        if "docker" in os.environ.get("SPARK_IMAGES_REQUIRE_ENGINES", "").split(","):
            raise
        pytest.skip(f"docker does not answer: {err.what}")
    return engine


@pytest.fixture(scope="module")
def daemon(ours: Engine, buildkit_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """As ci/runner/kubernetes/buildkit/buildkitd.yaml runs it: TLS, and clients with a certificate only."""
    name = f"test-buildkitd-{uuid.uuid4().hex[:12]}"
    certificates = tmp_path_factory.mktemp("certificates") / "made"
    subprocess.run([KIT / "buildkit-certs", certificates, "buildkitd"], check=True)
    manifest = yaml.safe_load_all((KIT / "kubernetes/buildkit/buildkitd.yaml").read_text())
    settings = next(manifest)["data"]["buildkitd.toml"]
    (certificates / "daemon/buildkitd.toml").write_text(settings.replace("/run/secrets/buildkit", "/daemon"))
    docker("create", "--name", name, "--privileged", "--publish", "127.0.0.1::1234", buildkit_image,
           "--config", "/daemon/buildkitd.toml")  # fmt: skip
    try:
        docker("cp", str(certificates / "daemon"), f"{name}:/daemon")
        docker("start", name)
        port = docker("port", name, "1234/tcp").rpartition(":")[2]
        files = {"cacert": "ca.pem", "cert": "cert.pem", "key": "key.pem"}
        options = ",".join(f"{option}={certificates / 'client' / file}" for option, file in files.items())
        named = ["--driver-opt", f"{options},servername=buildkitd"]  # in a cluster the address has that name
        docker("buildx", "create", "--name", name, "--driver", "remote", *named, f"tcp://127.0.0.1:{port}")
        try:
            wait_for(name)
            yield Daemon(name, name)
        finally:
            docker("buildx", "rm", "--force", name)
    finally:
        docker("rm", "--force", "--volumes", name)


def wait_for(builder: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        said = subprocess.run(["docker", "buildx", "inspect", builder], text=True, capture_output=True).stdout
        if native_platform(said):
            return
        time.sleep(0.5)
    pytest.fail(f"the builder does not answer: {said}")


@pytest.fixture
def pipeline(tmp_path: Path, daemon: Daemon) -> Pipeline:
    made = make_pipeline(tmp_path, tmp_path / "cache")
    made.env[BUILDER] = daemon.builder
    return made


def test_a_named_builder_gives_the_digest_of_our_own_and_is_left_as_it_is(pipeline: Pipeline, daemon: Daemon) -> None:
    built = pipeline("build", "hello", "--memory", "512MiB")
    assert built.returncode == 0, built.stderr
    record = next(pipeline.cache.glob("records/*/started.json"))
    assert daemon.builder in json.loads(record.read_text())["engine"]["builder"]
    assert "limit_mib=512" in (record.parent / "log.txt").read_text()  # the cap, as the step itself saw it
    assert pipeline("clean").returncode == 0
    assert docker("inspect", "--format", "{{.State.Running}}", daemon.container) == "true"
    del pipeline.env[BUILDER]
    again = pipeline("build", "hello", "--engine", "docker", "--memory", "512MiB", "--rebuild")  # compares digests
    assert again.returncode == 0, again.stderr


def test_the_daemon_answers_the_probe_of_its_pod_and_nobody_without_a_certificate(daemon: Daemon) -> None:
    manifest = list(yaml.safe_load_all((KIT / "kubernetes/buildkit/buildkitd.yaml").read_text()))
    pod = next(document for document in manifest if document["kind"] == "StatefulSet")["spec"]["template"]["spec"]
    assert "linux/" in docker("exec", daemon.container, *pod["containers"][0]["readinessProbe"]["exec"]["command"])
    port = docker("port", daemon.container, "1234/tcp").rpartition(":")[2]
    asked = ["openssl", "s_client", "-ign_eof", "-connect", f"127.0.0.1:{port}", "-alpn", "h2"]  # its word comes last
    said = subprocess.run(asked, input=b"", capture_output=True, timeout=60)
    assert b"certificate required" in said.stdout + said.stderr


def test_a_builder_that_is_not_there_is_an_error_with_its_name(ours: Engine, tmp_path: Path) -> None:
    nobody = NamedBuilder(name="nobody", machine="x86_64", folder=tmp_path, env=os.environ)
    with pytest.raises(EngineError, match="the builder `nobody` does not answer") as raised:
        nobody.ensure(None, lambda line: None)
    assert BUILDER in raised.value.hint


def test_a_builder_of_another_architecture_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    other = next(machine for machine in ARCHES if machine != platform.machine())
    there = NamedBuilder(name=daemon.builder, machine=other, folder=tmp_path, env=os.environ)
    with pytest.raises(EngineError, match=f"this machine on `linux/{ARCHES[other]}`"):
        there.ensure(None, lambda line: None)


def test_podman_does_not_take_the_place_of_docker_where_a_builder_is_named(tmp_path: Path) -> None:
    env = {**os.environ, BUILDER: "there", "DOCKER_HOST": f"unix://{tmp_path}/nobody"}
    with pytest.raises(EngineError, match="docker: no engine answers"):
        choose_engine(None, cache=Cache(tmp_path), buildkit_image="", env=env)


def test_the_platform_of_a_builder_is_the_first_that_it_lists() -> None:
    assert native_platform(INSPECTED) == "linux/arm64"
    assert native_platform(INSPECTED.replace("linux/arm64,", "linux/amd64*,")) == "linux/amd64"
    assert native_platform("Name: there\nError: no route to host\n") == ""

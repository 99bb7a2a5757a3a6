"""Two runners, a network namespace each, that have a registry and the volume of the store in common, and no more."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pipeline import make_pipeline, rests_under_300_mib
from processes import command_of, guards_below
from registries import DEBIANS, DISTRIBUTION
from runners import Runner, runner_on

from spark_images.bench.machines import SWITCH, Machine, machines, unable
from spark_images.engine import guard
from spark_images.engine.base import Engine

pytestmark = pytest.mark.skipif(bool(unable()), reason=unable() or "-")
by_podman = pytest.mark.parametrize("engine", ["podman"], indirect=True)  # kills on every engine are test_pipeline's


@dataclass
class Pair:
    """Both runners, and the machine between them for servers."""

    switch: Machine
    first: Runner
    second: Runner
    engine: str

    def build(self, runner: Runner, *options: str) -> str:
        """What a build said that went well."""
        done = runner("build", "hello", "--engine", self.engine, "--memory", "512MiB", *options)
        assert done.returncode == 0, done.stderr
        return done.stderr


@pytest.fixture
def pair(tmp_path: Path, engine: Engine, buildkit_image: str) -> Iterator[Pair]:
    store = tmp_path / "volume"
    pipeline = make_pipeline(tmp_path, tmp_path / "unused", "hello")
    with ExitStack() as stack:
        switch, *two = stack.enter_context(machines(tmp_path / "machines", 2, pipeline.env, store=store))
        first, second = (runner_on(machine, pipeline) for machine in two)
        for runner in (first, second):
            stack.callback(runner.drop, engine.name, buildkit_image)
        # No network leads out of the machines, so what is missing on the volume comes before.
        fetched = pipeline.command("fetch", "hello")
        subprocess.run(fetched, env={**pipeline.env, "SPARK_IMAGES_STORE": str(store)}, check=True, timeout=300)
        yield Pair(switch, first, second, engine.name)


@pytest.fixture
def registry(pair: Pair, tmp_path: Path) -> Iterator[str]:
    """HOST:PORT of a registry with TLS beside the two, as nothing else may be reached without; both trust it."""
    program = DEBIANS or DISTRIBUTION
    if program is None:
        pytest.skip("needs docker-registry (or registry)")
    key, certificate = tmp_path / "tls.key", tmp_path / "tls.crt"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    make += [
        "-subj",
        "/CN=test",
        "-addext",
        f"subjectAltName=IP:{SWITCH}",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(make, check=True, capture_output=True)
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {tmp_path / 'registry'}}}}}\n"
        f"http: {{addr: '{SWITCH}:5443', tls: {{certificate: {certificate}, key: {key}}}}}\n"
    )
    pair.first, pair.second = (one.with_env(REQUESTS_CA_BUNDLE=str(certificate)) for one in (pair.first, pair.second))
    server = subprocess.Popen([*pair.switch.inside, program, "serve", str(settings)])
    try:
        connect = f"import socket; socket.create_connection(({SWITCH!r}, 5443), 5)"
        last = time.monotonic() + 60
        while subprocess.run([*pair.first.inside, sys.executable, "-c", connect], capture_output=True).returncode:
            assert server.poll() is None, "the registry has ended"
            assert time.monotonic() < last, "the registry does not answer"
        yield f"{SWITCH}:5443"
    finally:
        server.terminate()
        server.wait(20)


def keys(folder: Path) -> tuple[str, str]:
    """A key to sign with, and its public part."""
    private, public = folder / "signing.key", folder / "signing.pub"
    curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
    subprocess.run(["openssl", "genpkey", *curve, "-out", str(private)], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return str(private), str(public)


@by_podman
def test_what_one_builds_and_pushes_the_other_verifies_pulls_takes_over_and_builds_alike(
    pair: Pair, registry: str, tmp_path: Path
) -> None:
    private, public = keys(tmp_path)
    pair.build(pair.first)
    pushed = pair.first("push", "hello", "--registry", f"{registry}/you", "--key", private)
    assert pushed.returncode == 0, pushed.stderr
    reference = pushed.stdout.split()[0]

    verified = pair.second("verify-reference", reference, "--key", public)
    assert verified.returncode == 0, verified.stderr
    pulled = pair.second("pull", reference, "--engine", pair.engine, "--verify", "--key", public)
    assert pulled.returncode == 0, pulled.stderr
    assert pair.second.digest() == pair.first.digest()
    assert "same digest as before" in pair.build(pair.second, "--rebuild")

    other = pair.second.with_env(
        SPARK_IMAGES_CACHE=f"{pair.second.cache}-new",
        SPARK_IMAGES_REUSE_FROM=f"{registry}/you",
        SPARK_IMAGES_VERIFY_KEY=public,
    )
    said = pair.build(other)
    assert "is taken from" in said
    assert not (other.cache / "records").exists(), "nothing was built"
    assert other.digest() == pair.first.digest()


@by_podman
def test_the_job_of_a_killed_runner_is_taken_by_the_other_and_nothing_stays_locked(pair: Pair) -> None:
    pair.first.misbehave(rests_under_300_mib("resting until it is killed"))
    running = pair.first.start("build", "hello", "--engine", pair.engine, "--memory", "300MiB")
    assert running.stdout is not None
    last = time.monotonic() + 120
    while "resting until it is killed" not in "".join(
        log.read_text() for log in pair.first.cache.glob("records/*/log.txt")
    ):
        assert running.poll() is None, running.stdout.read()
        assert time.monotonic() < last, "the step does not begin"
        time.sleep(0.1)
    guards = guards_below(running.pid)
    assert guards
    os.kill(running.pid, signal.SIGKILL)
    running.communicate(timeout=60)

    pair.build(pair.second)
    pair.build(pair.first)
    assert pair.first.digest() == pair.second.digest()
    for runner in (pair.first, pair.second):
        assert not [path for path in (runner.cache / "work").iterdir() if path.is_dir()]
    assert not [one for one in guards if os.fsencode(guard.__file__) in command_of(one)]
    store = Path(pair.first.env["SPARK_IMAGES_STORE"])
    assert not list(store.glob("partial/*.lock"))


BRING = """
import sys, time
from pathlib import Path
from spark_images.store import Store
with Store(Path(sys.argv[1])).incoming(sys.argv[2]) as incoming:
    print(incoming.open(), flush=True)
    if sys.argv[3] == "stop":
        incoming.write(b"half ")
        time.sleep(600)
    incoming.write(b"a loaf")
    incoming.commit()
"""


def test_what_a_killed_machine_began_to_bring_to_the_volume_the_other_completes(tmp_path: Path) -> None:
    digest = f"sha256:{hashlib.sha256(b'half a loaf').hexdigest()}"
    with machines(tmp_path / "machines", 2, os.environ) as (_, one, other):
        command = [sys.executable, "-c", BRING, str(tmp_path / "volume"), digest]
        holder = subprocess.Popen([*one.inside, *command, "stop"], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"0\n"
        waiter = subprocess.Popen([*other.inside, *command, "complete"], stdout=subprocess.PIPE, text=True)
        partial = tmp_path / "volume" / "partial" / digest.removeprefix("sha256:")
        last = time.monotonic() + 60
        while partial.stat().st_size < len("half "):
            assert time.monotonic() < last
            time.sleep(0.05)
        holder.kill()
        said, _ = waiter.communicate(timeout=60)
    assert said == "5\n", "it goes on from what the killed one has written"
    assert waiter.returncode == 0
    assert not list((tmp_path / "volume").glob("partial/*"))

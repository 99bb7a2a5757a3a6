"""A container of the GPU smoke checks, without the GPU: what it can and cannot do, on each engine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import compile_probe, write_root

from spark_images import smoke, smoke_commands
from spark_images.engine.base import Engine
from spark_images.smoke import Place, run_check
from spark_images.smoke_commands import LABEL, Container, container_command
from spark_images.verdict import Colour

REFERENCE = "localhost/spark-images/smoke-test:1"
MEMORY = 256 << 20


@pytest.fixture(scope="module")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An image whose only program is the probe."""
    folder = tmp_path_factory.mktemp("smoke")
    root = write_root(folder, "root", {"probe": compile_probe(folder)})
    engine.load(root.layout, REFERENCE)
    yield REFERENCE
    subprocess.run([engine.name, "rmi", REFERENCE], env={**os.environ, **engine.env}, capture_output=True)


@pytest.fixture
def container(engine: Engine, image: str, tmp_path: Path) -> Container:
    for name in ("scripts", "work"):
        (tmp_path / name).mkdir()
    return Container(
        engine=engine.name,
        image=image,
        rootless=engine.name == "podman" and os.geteuid() != 0,
        user=f"{os.geteuid()}:{os.getegid()}",
        memory_bytes=MEMORY,
        scripts=str(tmp_path / "scripts"),
        work=str(tmp_path / "work"),
        labels=((LABEL, f"test-{os.getpid()}-{engine.name}"),),
    )


def probe(engine: Engine, container: Container, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*container_command(container, "/probe", gpu=False), *words]
    return subprocess.run(command, env={**os.environ, **engine.env}, capture_output=True, text=True, timeout=120)


def test_container_has_only_the_loopback_and_is_under_the_memory_limit(engine: Engine, container: Container) -> None:
    done = probe(engine, container, "net", "limit")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("/proc/net/dev") and "|" not in line]
    interfaces = [line.split()[1] for line in lines]
    assert interfaces == ["lo:"]
    assert str(MEMORY) in done.stdout


def test_container_writes_to_tmp_and_the_work_folder_alone(engine: Engine, container: Container) -> None:
    assert probe(engine, container, "write", "/tmp/here").returncode == 0
    assert probe(engine, container, "write", f"{container.work}/here").returncode == 0
    assert Path(container.work, "here").read_text() == "made in a step\n"
    for place in ("/here", "/spark/smoke/here"):
        assert probe(engine, container, "write", place).returncode != 0


def test_check_that_is_ended_leaves_no_container(
    engine: Engine, container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(smoke.CHECK_LIMIT_S, "toy", 5.0)
    monkeypatch.setattr(smoke_commands, "gpu_words", lambda engine: [])
    monkeypatch.setattr(smoke, "check_command", lambda check, **rest: ["/probe", "sleep", "600"])
    env = {**os.environ, **engine.env}
    place = Place(scripts=tmp_path, python="", work=tmp_path / "work", env=env, container=container)
    result = run_check("toy", place, None)
    assert (result.colour, result.why) == (Colour.RED, "hangs")
    command = [engine.name, "ps", "-aq", "--filter", f"label={LABEL}={container.labels[0][1]}"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == ""

"""Which engine builds where the chosen one cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_images.cache import Cache
from spark_images.engine import able_engine
from spark_images.engine.base import Engine
from spark_images.engine.buildkit import BuildKitEngine
from spark_images.engine.podman import PodmanEngine
from spark_images.errors import EngineError


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


@pytest.fixture
def docker(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Docker without BuildKit's image."""

    def prepare(self: BuildKitEngine) -> None:
        raise EngineError("docker cannot get it", why=["no such host"])

    monkeypatch.setattr(BuildKitEngine, "prepare", prepare)
    return BuildKitEngine(cache, "buildkit:v0", env={})


def able(docker: Engine, cache: Cache, *, named: bool, path: Path | None = None) -> Engine:
    return able_engine(docker, named=named, cache=cache, env={"PATH": str(path or "/nowhere")})


def program(folder: Path) -> Path:
    (folder / "podman").write_text("#!/bin/sh\n")
    (folder / "podman").chmod(0o755)
    return folder


def test_podman_builds_where_buildkits_image_cannot_be_had(
    docker: Engine, cache: Cache, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = able(docker, cache, named=False, path=program(tmp_path))
    assert isinstance(chosen, PodmanEngine)
    assert capsys.readouterr().err == "docker cannot get it: podman builds instead\n  no such host\n"


def test_an_engine_that_was_named_is_not_replaced(docker: Engine, cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="docker cannot get it"):
        able(docker, cache, named=True, path=program(tmp_path))


def test_without_podman_the_error_is_dockers(docker: Engine, cache: Cache) -> None:
    with pytest.raises(EngineError, match="docker cannot get it"):
        able(docker, cache, named=False)

"""One plan, two engines, one digest."""

from __future__ import annotations

from pathlib import Path

import pytest
from pipeline import make_pipeline

from spark_images.engine.base import Engine


def test_podman_and_buildkit_give_one_digest_with_cold_caches(tmp_path: Path, engines: tuple[Engine, ...]) -> None:
    if len(engines) < 2:
        pytest.skip(f"only {[engine.name for engine in engines]} answers here")
    pipeline = make_pipeline(tmp_path, tmp_path / "cache")
    built = pipeline("reproduce", "hello", "--engine", "podman", "--engine", "docker", "--memory", "512MiB")
    assert built.returncode == 0, built.stderr
    podman, docker = (line.split()[-1] for line in built.stdout.splitlines())
    assert podman == docker

"""One plan, two engines, one digest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pipeline import make_pipeline

from spark_images.cache import Cache
from spark_images.engine import NAMES, choose_engine
from spark_images.errors import EngineError


def test_podman_and_buildkit_give_one_digest_with_cold_caches(tmp_path: Path, buildkit_image: str) -> None:
    pipeline = make_pipeline(tmp_path, tmp_path / "cache")
    for name in NAMES:
        try:
            choose_engine(name, cache=Cache(pipeline.cache), buildkit_image=buildkit_image, env=os.environ)
        except EngineError as err:
            if name in os.environ.get("SPARK_IMAGES_REQUIRE_ENGINES", "").split(","):
                raise
            pytest.skip(f"{name} does not answer: {err.what}")
    named = [word for name in NAMES for word in ("--engine", name)]
    built = pipeline("reproduce", "hello", *named, "--memory", "512MiB")
    assert built.returncode == 0, built.stderr
    first, second = (line.split()[-1] for line in built.stdout.splitlines())
    assert first == second

"""The engines that answer on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_images.cache import Cache
from spark_images.engine import NAMES, choose_engine
from spark_images.engine.base import Engine
from spark_images.errors import EngineError
from spark_images.project import Project


@pytest.fixture(scope="session")
def buildkit_image() -> str:
    """What BuildKit runs from: the pin, or what SPARK_IMAGES_BUILDKIT_IMAGE names."""
    return Project(Path(__file__).parents[2]).buildkit_image(os.environ)


@pytest.fixture(scope="session")
def engine_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cache]:
    """The cache folder of each engine: nothing here touches the user's builders and caches."""
    return {name: Cache(tmp_path_factory.mktemp(f"cache-{name}")) for name in NAMES}


@pytest.fixture(scope="session", params=NAMES)
def engine(request: pytest.FixtureRequest, engine_caches: dict[str, Cache], buildkit_image: str) -> Iterator[Engine]:
    """Each engine, with a cache folder of its own. One that SPARK_IMAGES_REQUIRE_ENGINES names has to answer."""
    name: str = request.param
    try:
        chosen = choose_engine(name, cache=engine_caches[name], buildkit_image=buildkit_image, env=os.environ)
        chosen.facts()
    except EngineError as err:
        if name in os.environ.get("SPARK_IMAGES_REQUIRE_ENGINES", "").split(","):
            pytest.fail(f"{name} is required and does not answer: {err.render()}")
        pytest.skip(f"{name} does not answer: {err.what}")
    yield chosen
    chosen.drop_caches()

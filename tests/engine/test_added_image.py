"""The image of docs/adding-an-image.md, built and tested by the page's own commands, for a machine like this one."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from followed import ROOT, bring_nox, environment, follow
from pipeline import ARCHES, make_pipeline

from spark_images.cache import Cache
from spark_images.engine.base import Engine


@pytest.mark.parametrize("engine", ["podman"], indirect=True)  # one is enough: the image is the same from the other
def test_the_image_of_the_page_is_built_and_passes_its_gates(
    tmp_path: Path, engine: Engine, engine_caches: dict[str, Cache]
) -> None:
    cache = engine_caches[engine.name].root
    pipeline = make_pipeline(tmp_path, cache)
    folder = pipeline.project
    bring_nox(folder)
    with (folder / "images/targets.yaml").open("a") as targets:
        native = f"platform: linux/{ARCHES[platform.machine()]}, cpu-architecture: native"
        targets.write(f"gb10: {{{native}, description: this machine}}\n")
    # The page names no engine: where Docker does not answer, it is podman that builds.
    env = environment(cache, DOCKER_HOST=f"unix://{tmp_path}/none")

    follow(ROOT / "docs/adding-a-pin.md", folder, env, "A project on the package index")
    printed = follow(ROOT / "docs/adding-an-image.md", folder, env, "The files", "Render and look", "Build and test")

    tested = printed["./noxw -s verify-web"]
    assert re.search(r"^=+ 1 passed", tested, re.MULTILINE), tested
    assert pipeline("clean", "--engine", engine.name).returncode == 0

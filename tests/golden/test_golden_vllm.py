"""The Dockerfile of vLLM from source, for releases that differ in what they fetch, leave out and are told."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from spark_images.pins import SdistPin
from spark_images.project import Project

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "vllm"
ACCEPT = "SPARK_IMAGES_ACCEPT_GOLDEN"


def rendered(release: str, base: str) -> str:
    """As the committed Dockerfile would be if that release were pinned."""
    project = Project(REPOSITORY)
    pins = project.pins
    moved = (
        replace(pin, version=release) if isinstance(pin, SdistPin) and pin.project == "vllm" else pin
        for pin in pins.pins
    )
    project.__dict__["pins"] = replace(pins, pins=tuple(moved))
    image = project.image("vllm")
    return project.rendered(image, *project.variant(image, "gb10", base))


@pytest.mark.parametrize(
    ("release", "base"),
    [
        *((release, "debian") for release in ("0.17.1", "0.19.1", "0.20.2", "0.22.1", "0.28.0", "0.33.0")),
        *((release, "ngc") for release in ("0.19.1", "0.20.2", "0.33.0")),
    ],
)
def test_the_dockerfile_of_a_release_is_this(release: str, base: str) -> None:
    golden, text = FOLDER / f"{release}-gb10-{base}.Dockerfile", rendered(release, base)
    if os.environ.get(ACCEPT) == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"where that is meant, accept it with `{ACCEPT}=1 pytest {Path(__file__).name}`"


@pytest.mark.parametrize("base", ["debian", "ngc"])
def test_the_pinned_release_is_among_them(base: str) -> None:
    committed = REPOSITORY / f"images/vllm/gb10-{base}.Dockerfile"
    release = next(
        pin.version for pin in Project(REPOSITORY).pins.pins if pin.name == "vllm" and isinstance(pin, SdistPin)
    )
    assert committed.read_text() == (FOLDER / f"{release}-gb10-{base}.Dockerfile").read_text()

"""A proof of equal digests needs two builds, whatever engines are named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_project import make_project

from spark_images import reproduce
from spark_images.build import BuildOptions
from spark_images.cache import Cache


@pytest.mark.parametrize(
    ("named", "built"),
    [((), [None, None]), (("podman",), ["podman", "podman"]), (("podman", "docker"), ["podman", "docker"])],
)
def test_at_least_two_builds_without_caches_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: tuple[str, ...], built: list[str | None]
) -> None:
    made: list[BuildOptions] = []

    def build(*_: object, options: BuildOptions, **__: object) -> SimpleNamespace:
        made.append(options)
        return SimpleNamespace(manifest_digest="sha256:0")

    monkeypatch.setattr(reproduce, "build", build)
    project = make_project(tmp_path)
    image = project.image("hello")
    variant = project.variant(image, None, None)
    reproduce.reproduce(project, image, *variant, cache=Cache(tmp_path), engines=named, memory_bytes=None)
    assert [options.engine for options in made] == built
    assert all(options.cold for options in made)
    assert len({len(options.machine) for options in made}) == len(made)

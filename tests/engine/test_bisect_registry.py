"""Searches over images that a real registry holds: by their tags without any build, and by the pins in their labels."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from registries import DEBIANS, DISTRIBUTION, Registry, distribution
from registry_images import write_image
from small_project import make_project

from spark_images.bisect.ends import StateEnd, read_end
from spark_images.bisect.subject import change_set
from spark_images.cache import Cache
from spark_images.cli import main
from spark_images.errors import BisectError
from spark_images.project import Project
from spark_images.registry.client import Client
from spark_images.registry.reference import Repository
from spark_images.repin import ToValues

pytestmark = pytest.mark.skipif(
    not ((DEBIANS or DISTRIBUTION) and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)
VERSIONS = tuple(f"1.{number}" for number in range(7, 15))  # 1.10 comes after 1.9
CHECK = (
    "skopeo inspect --config --tls-verify=false docker://$SPARK_IMAGE "
    '| grep -Eq \'"org.opencontainers.image.version": ?"1[.][789]"\''
)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """One tag per version, each an image whose labels hold its pins, and a tag of another target."""
    with distribution(tmp_path / "registry") as running:
        for number, version in enumerate(VERSIONS):
            pins = {"extra": f"{version} sha256:{number:064x}", "patch": f"1 sha256:{'b' * 64}"}
            folder = tmp_path / version
            write_image(folder, sizes=(10,), seed=number + 1, version=version, pins=pins)
            for tag in (f"{version}-gb10", *(["1.9-cpu"] if version == "1.9" else [])):
                target = f"docker://{running.host}/you/noise:{tag}"
                copy = ["skopeo", "copy", "--quiet", "--preserve-digests", "--dest-tls-verify=false", "oci:.", target]
                subprocess.run(copy, cwd=folder, check=True)
        yield running


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("SPARK_IMAGES_CACHE", str(tmp_path / "cache"))
    return make_project(tmp_path / "project")


def search(project: Project, registry: Registry, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    ends = ("--good", f"{registry.host}/you/noise:1.7-gb10", "--bad", f"{registry.host}/you/noise:1.14-gb10")
    command = ["--project", str(project.root), "bisect", "hello", *ends, "--tags", "*-gb10", "--check", CHECK, "--json"]
    status = main([*command, *words])
    said = capsys.readouterr()
    assert status == 0, said.err
    document: dict[str, Any] = json.loads(said.out)
    return document


def test_tags_are_searched_in_the_order_of_their_numbers_and_nothing_is_built(
    project: Project, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    found = search(project, registry, capsys)
    assert (found["before"]["label"], found["after"]["label"]) == ("1.9-gb10", "1.10-gb10")
    assert "1.9-cpu" not in {one["label"] for one in found["tried"]}


def test_an_image_that_the_registry_has_lost_is_skipped(
    project: Project, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = Repository(host=registry.host, name="you/noise")
    client = Client(repository)
    for tag in ("1.10-gb10", "1.11-gb10"):
        manifest = client.manifest(tag)
        assert manifest is not None
        registry.blob(manifest.digest).unlink()
    found = search(project, registry, capsys)
    assert found["before"]["label"] == "1.9-gb10"
    assert {one["cause"] for one in found["tried"] if one["verdict"] == "skip"} <= {"missing"}


def test_an_end_that_the_registry_has_lost_is_an_error(
    project: Project, registry: Registry, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = ("--good", f"{registry.host}/you/noise:1.6-gb10", "--bad", f"{registry.host}/you/noise:1.14-gb10")
    status = main(["--project", str(project.root), "bisect", "hello", *ends, "--tags", "*", "--check", CHECK])
    assert status not in (0, BisectError.exit_status)
    assert f"there is no image {registry.host}/you/noise:1.6-gb10" in capsys.readouterr().err


def test_two_images_differ_in_the_pins_of_their_labels(project: Project, registry: Registry, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    good, bad = (
        read_end(f"{registry.host}/you/noise:{tag}-gb10", project=project, cache=cache) for tag in ("1.8", "1.12")
    )
    assert isinstance(good, StateEnd)
    assert isinstance(bad, StateEnd)
    changes = change_set(good, bad, pins=project.pins)
    assert changes.told == {"extra": "1.8 -> 1.12"}
    (move,) = changes.candidate(frozenset({"extra"})).moves
    assert move == ToValues(pin="extra", values=((("version",), "1.12"), (("sha256",), f"{5:064x}")))

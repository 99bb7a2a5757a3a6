"""vLLM from source, release by release: the Dockerfile that it would get, what speaks against it, what it fetches.

Of the releases all is real that stands in vllm_releases.yaml: digests and upload times of the sdists of vLLM and of the
FlashInfer that it asks for, and what its CMake files fetch. Bases, CUDA, build tools and the day of the requirements
stay as pins.yaml has them, so that some of the Dockerfiles could not be built: REFUSED says which, and why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cmake_excerpts import RELEASES as EXCERPTS
from cmake_excerpts import cmake_files
from packaging.version import Version

from spark_images.cmake.fetches import Fetch
from spark_images.compat.file import read_facts
from spark_images.compat.release import vllm_release
from spark_images.contents import sdist_content
from spark_images.errors import UpstreamError
from spark_images.fetch import fetch
from spark_images.package_index import PackageIndex
from spark_images.pins import Pin, RequirementsPin, SdistPin
from spark_images.project import Project
from spark_images.sources_lock import read_cmake_files
from spark_images.store import Store
from spark_images.together import refusals
from spark_images.vllm.external_sources import refuse_differences, release_fetches

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "vllm"
RECORDED = FOLDER.with_name("vllm_releases.yaml")
ACCEPT = "SPARK_IMAGES_ACCEPT_GOLDEN"
SDISTS = "SPARK_IMAGES_SDISTS"  # set to 1: download them all, 850 MB, a minute or some
FACTS = read_facts(REPOSITORY / "images/compat.yaml")
KNOWN: dict[str, dict[str, Any]] = yaml.safe_load(RECORDED.read_text()) if RECORDED.exists() else {}
VLLM, FLASHINFER = "vllm", "flashinfer-python"
SDIST = ("released", "sha256")  # what is recorded of one
RENDERED = (
    *((release, "debian") for release in ("0.17.1", "0.19.1", "0.20.2", "0.22.1", "0.28.0", "0.33.0")),
    *((release, "ngc") for release in ("0.17.1", "0.19.1", "0.20.2", "0.22.1", "0.28.0", "0.33.0")),
)
CPU_TORCH = "the wheel of torch 2.10.0 on PyPI for linux/arm64 is for CPUs only"
NO_RUST = "vllm {} is built with setuptools-rust>=1.9.0, and none takes part in this build"
NO_GRPC = "vllm 0.17.1 is built with grpcio-tools==1.78.0, and none takes part in this build"
OLD_GCC = "vllm 0.33.0 needs GCC 13 or newer, and base debian has 12.2.0"
OLD_TORCH = "vllm {} needs torch 2.11 or newer, and base ngc 26.01 has torch 2.10.0a0+a36e1d39eb.nv26.01.42222806"
REFUSED = {
    ("0.17.1", "debian"): (CPU_TORCH, NO_GRPC),
    ("0.19.1", "debian"): (CPU_TORCH,),
    ("0.22.1", "debian"): (NO_RUST.format("0.22.1"),),
    ("0.28.0", "debian"): (NO_RUST.format("0.28.0"),),
    ("0.33.0", "debian"): (OLD_GCC, NO_RUST.format("0.33.0")),
    ("0.17.1", "ngc"): (NO_GRPC,),
    ("0.22.1", "ngc"): (NO_RUST.format("0.22.1"),),
    ("0.28.0", "ngc"): (OLD_TORCH.format("0.28.0"), NO_RUST.format("0.28.0")),
    ("0.33.0", "ngc"): (OLD_TORCH.format("0.33.0"), NO_RUST.format("0.33.0")),
}


def project_at(release: str) -> Project:
    """The repository with that release pinned, and the FlashInfer that it asks for."""
    project = Project(REPOSITORY)
    versions = {VLLM: release, FLASHINFER: FACTS.vllm.flashinfer.at(Version(release)).value}
    moved: list[Pin] = []
    for pin in project.pins.pins:
        if isinstance(pin, SdistPin) and pin.project in versions:
            version = versions[pin.project]
            moved.append(replace(pin, version=version, **{key: KNOWN[pin.project][version][key] for key in SDIST}))
        elif isinstance(pin, RequirementsPin):
            names = (package.partition("==") for package in pin.packages)
            moved.append(replace(pin, packages=tuple(f"{name}=={versions.get(name, is_)}" for name, _, is_ in names)))
        else:
            moved.append(pin)
    project.__dict__["pins"] = replace(project.pins, pins=tuple(moved))
    return project


@pytest.mark.parametrize(("release", "base"), RENDERED)
def test_the_dockerfile_of_a_release_is_this(release: str, base: str) -> None:
    project = project_at(release)
    image = project.image("vllm")
    golden, text = (
        FOLDER / f"{release}-gb10-{base}.Dockerfile",
        project.rendered(image, *project.variant(image, "gb10", base)),
    )
    if os.environ.get(ACCEPT) == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), f"where that is meant, accept it with `{ACCEPT}=1 pytest {Path(__file__).name}`"


@pytest.mark.parametrize(("release", "base"), RENDERED)
def test_what_could_not_be_built_is_refused_with_its_reason(release: str, base: str) -> None:
    project = project_at(release)
    image = project.image("vllm")
    target, base = project.variant(image, "gb10", base)
    found = refusals(image, target, base, pins=project.pins, facts=FACTS, wheels={}, debs=project.debs_lock)
    assert tuple(refusal.what for refusal in found if refusal.certain) == REFUSED.get((release, base), ())
    assert all(refusal.source for refusal in found)


@pytest.mark.parametrize("base", ["debian", "ngc"])
def test_the_pinned_release_is_among_them(base: str) -> None:
    committed = REPOSITORY / f"images/vllm/gb10-{base}.Dockerfile"
    pinned = {pin.project: pin for pin in Project(REPOSITORY).pins.pins if isinstance(pin, SdistPin)}
    for pin in pinned.values():
        recorded = KNOWN[pin.project][pin.version]
        assert (pin.released, pin.sha256) == (recorded["released"], recorded["sha256"])
    assert committed.read_text() == (FOLDER / f"{pinned[VLLM].version}-gb10-{base}.Dockerfile").read_text()


# --- what every release fetches ---------------------------------------------------------------------------------------


def recorded_fetches(release: str) -> tuple[Fetch, ...]:
    return tuple(Fetch(**{**UNRECORDED, **entry}) for entry in KNOWN[VLLM][release]["fetches"])


# What stands in the record only where it is something else, and at the end what is not recorded.
UNRECORDED: dict[str, Any] = {"submodules": None, "folder": "", "environment": (), "fetchcontent_options": True}
UNRECORDED |= {"shallow": False, "definitions": ()}


def as_recorded(fetches: tuple[Fetch, ...]) -> list[dict[str, Any]]:
    fields = ("name", "url", "ref", "submodules", "folder", "environment", "fetchcontent_options", "place")
    rows = ({name: getattr(fetch, name) for name in fields} for fetch in fetches)
    return [
        {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in row.items()
            if name not in UNRECORDED or value != UNRECORDED[name]
        }
        for row in rows
    ]


def test_every_release_that_is_written_down_was_looked_into() -> None:
    assert [*KNOWN[VLLM]] == [str(release) for release in FACTS.vllm.releases]


@pytest.mark.parametrize("release", [str(release) for release in FACTS.vllm.releases])
def test_a_release_fetches_what_is_written_down_of_it(release: str) -> None:
    refuse_differences(recorded_fetches(release), vllm_release(FACTS.vllm, release).sources, release=f"vllm {release}")


@pytest.mark.parametrize("release", [str(release) for release in FACTS.vllm.releases])
def test_another_revision_than_is_written_down_is_found_in_each(release: str) -> None:
    first, *others = recorded_fetches(release)
    sources = vllm_release(FACTS.vllm, release).sources
    with pytest.raises(UpstreamError) as caught:
        refuse_differences((replace(first, ref="v0"), *others), sources, release=f"vllm {release}")
    assert caught.value.why == (f"{first.place}: ref of `cutlass` is `v0`, stated is `{first.ref}`",)


@pytest.mark.parametrize("release", EXCERPTS)
def test_the_excerpts_are_read_as_the_whole_sdists_were(release: str) -> None:
    def without_places(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in row.items() if name != "place"} for row in rows]

    found = as_recorded(release_fetches(cmake_files(release)))
    assert without_places(found) == without_places(KNOWN[VLLM][release]["fetches"])


@pytest.mark.skipif(os.environ.get(SDISTS) != "1", reason=f"downloads 850 MB: only with {SDISTS}=1")
@pytest.mark.timeout(1800)
def test_the_sdists_say_what_is_recorded(tmp_path: Path) -> None:
    """With SPARK_IMAGES_ACCEPT_GOLDEN=1 as well what they say is written down, as for a new release of compat.yaml."""
    text = written({project: dict(look_into(project, tmp_path)) for project in (VLLM, FLASHINFER)})
    if os.environ.get(ACCEPT) == "1":
        RECORDED.write_text(text)
    assert text == RECORDED.read_text()


def look_into(project: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    index = PackageIndex.from_env()
    asked = (FACTS.vllm.flashinfer.at(release).value for release in FACTS.vllm.releases)
    for version in map(str, FACTS.vllm.releases) if project == VLLM else dict.fromkeys(asked):
        file = index.find_sdist(project, version)
        assert file.uploaded is not None, "this index gives no times; PyPI's does"
        found: dict[str, Any] = {"released": file.uploaded.replace(microsecond=0), "sha256": file.sha256}
        if project == VLLM:
            pin = SdistPin(name=project, line=1, project=project, version=version, sha256=str(file.sha256))
            store, content = Store(folder / version), sdist_content(pin)
            fetch([content], store=store)
            found["fetches"] = as_recorded(release_fetches(read_cmake_files(store.path(content.digest))))
            store.path(content.digest).unlink()
        yield version, found


def written(known: dict[str, dict[str, dict[str, Any]]]) -> str:
    lines = [
        "# Of each release of images/compat.yaml: when its sdist came to PyPI, its sha256, what its CMake files fetch",
        "# for CUDA (all submodules, where none are named). Of FlashInfer the releases that these ask for.",
        f"# Remade by `{SDISTS}=1 {ACCEPT}=1 pytest tests/golden/test_golden_vllm.py`; do not edit.",
    ]
    for project, releases in known.items():
        lines.append(f"{project}:")
        for version, found in releases.items():
            lines.append(f"  {version}:")
            lines += [
                f"    {key}: {found[key]:%Y-%m-%dT%H:%M:%SZ}" if key == "released" else f"    {key}: {found[key]!r}"
                for key in SDIST
            ]
            lines += ["    fetches:"] if "fetches" in found else []
            lines += [
                f"      - {yaml.safe_dump(row, default_flow_style=True, sort_keys=False, width=1000).strip()}"
                for row in found.get("fetches", ())
            ]
    return "\n".join(lines) + "\n"

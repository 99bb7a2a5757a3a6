"""Plans of single objects, from the project's own pins and images."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from spark_images.errors import ConfigError, UsageError
from spark_images.images import Image
from spark_images.plan import Plan
from spark_images.project import Project
from spark_images.unit_plan import plan_units

PROJECT = Project(Path(__file__).parents[2])


@cache
def compiled(name: str) -> Image:
    return PROJECT.image(name).on("debian")


def plan(name: str = "vllm", target: str = "gb10", what: Image | None = None) -> Plan:
    what = what or compiled(name)
    return plan_units(
        what,
        PROJECT.target(target),
        ["*/cache_kernels.cu.o"],
        builder="linux/amd64",
        pins=PROJECT.pins,
        facts=PROJECT.required_facts,
        wheels={use.pin: PROJECT.wheels_lock(use.pin) for use in what.compile.wheels},
        debs=PROJECT.debs_lock,
        sources=PROJECT.sources_of(what),
        scripts=dict.fromkeys(what.scripts, "0" * 64),
    )


@pytest.mark.parametrize("name", ["vllm", "flashinfer"])
def test_every_script_that_a_compile_names_is_there(name: str) -> None:
    assert [script for script in compiled(name).scripts if not (PROJECT.root / "scripts" / script).is_file()] == []
    assert f"compile_{name}" in compiled(name).scripts


def test_the_compilers_are_the_builders_and_all_that_is_linked_is_the_targets() -> None:
    paths = [entry.path for entry in plan().inputs]

    builder = [path for path in paths if path.startswith("wheels/builder/")]
    target = [path for path in paths if path.startswith("wheels/target/")]
    assert not [path for path in builder if "aarch64" in path]
    assert not [path for path in target if "x86_64" in path]
    assert len([path for path in paths if "/torch-2.11" in path]) == 1
    assert {path.partition("-")[0].rpartition("/")[2] for path in builder} >= {"nvidia_cuda_nvcc", "cmake", "ninja"}
    assert "sources/vllm-0.20.2.tar.gz" in paths


def test_sources_that_nobody_has_seen_are_left_out_of_inputs_and_of_the_compile() -> None:
    made = plan()
    trees = [entry.path for entry in made.inputs if entry.path.startswith("trees/")]
    words = shlex.split(made.dockerfile.replace("\\\n", " "))
    lacking = {words[place + 1] for place, word in enumerate(words) if word == "--lacking"}

    known = {source.name for source in PROJECT.sources_lock("vllm").sources if source.tree}
    assert {path.removeprefix("trees/").split("/")[0].removesuffix(".tar") for path in trees} <= known
    assert len(lacking) == len({source.name for source in PROJECT.sources_lock("vllm").sources} - known)
    assert words[words.index("--units") + 1] == "*/cache_kernels.cu.o"


def test_the_root_has_cross_compilers_and_pythons_headers() -> None:
    (root,) = plan().roots

    packages = {deb.package for deb in root.debs}
    assert packages >= {"g++-aarch64-linux-gnu", "libpython3.11-dev", "ccache"}
    assert {deb.arch for deb in root.debs} <= {"amd64", "all"}


def test_flashinfer_needs_no_other_source() -> None:
    assert not [entry.path for entry in plan("flashinfer").inputs if entry.path.startswith("trees/")]


def test_a_target_for_which_no_torch_is_locked_is_refused() -> None:
    with pytest.raises(UsageError, match="no torch is locked for target `hopper`: pin `vllm-gb10-debian`"):
        plan(target="hopper")


def test_a_target_without_a_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="target `cpu` has no GPU"):
        plan(target="cpu")


def test_a_project_that_no_lock_has_is_named() -> None:
    vllm = compiled("vllm")
    uses = tuple(replace(one, builder=("nothing",)) if one.pin == "vllm-build" else one for one in vllm.compile.wheels)

    with pytest.raises(ConfigError, match=r"vllm-build: .*build\.lock has no wheel of `nothing` for linux/amd64"):
        plan(what=replace(vllm, compile=replace(vllm.compile, wheels=uses)))


def test_an_image_that_is_made_of_wheels_has_no_units() -> None:
    with pytest.raises(UsageError, match="`vllm` is not compiled from an sdist, but made of `vllm-gb10-debian`"):
        plan(what=PROJECT.image("vllm").on("debian-wheel"))

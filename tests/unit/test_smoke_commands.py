from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_images.project import Project
from spark_images.smoke_commands import FIRST, Container, container_command, moved_caches, target_words, wrapper_in
from spark_images.targets import Target

GB10 = Target(
    name="gb10",
    platform="linux/arm64",
    compute_capability="12.1a",
    cuda_architecture="121a-real",
    cpu_architecture="armv9-a",
    unified_memory=True,
    description="a Spark",
    gpu_names=("GB10",),
    driver="580",
)
PODMAN = Container(
    engine="podman",
    image="localhost/toy:1",
    rootless=True,
    user="1000:1000",
    memory_bytes=1 << 30,
    scripts="/clone/scripts/smoke",
    work="/cache/smoke",
    labels=(("io.spark-images.smoke", "7"),),
)


def options(command: list[str], name: str) -> list[str]:
    """The values of an option that may be given several times."""
    return [command[at + 1] for at, word in enumerate(command) if word == name]


def test_podman_gets_the_gpu_by_cdi_and_docker_by_its_own_option() -> None:
    assert options(container_command(PODMAN, "python3"), "--device") == ["nvidia.com/gpu=all"]
    docker = container_command(replace(PODMAN, engine="docker", rootless=False), "python3")
    assert options(docker, "--gpus") == ["all"]
    assert options(docker, "--device") == []
    assert options(docker, "--userns") == []


def test_container_has_no_network_nothing_writable_no_capabilities_and_a_memory_limit() -> None:
    command = container_command(PODMAN, "python3")
    assert options(command, "--network") == ["none"]
    assert "--read-only" in command
    assert options(command, "--cap-drop") == ["all"]
    assert "no-new-privileges" in options(command, "--security-opt")
    assert options(command, "--memory") == options(command, "--memory-swap") == [str(1 << 30)]
    writable = [volume for volume in options(command, "--volume") if not volume.endswith(":ro")]
    assert writable == ["/cache/smoke:/cache/smoke"]
    assert command[-3:] == ["--entrypoint", "python3", "localhost/toy:1"]


def test_nvidias_entry_point_starts_the_program_where_the_image_has_it() -> None:
    wrapper = wrapper_in(["/opt/nvidia/nvidia_entrypoint.sh", "vllm", "serve"])
    command = container_command(replace(PODMAN, wrapper=wrapper), "python3")
    assert command[-4:] == ["--entrypoint", "/opt/nvidia/nvidia_entrypoint.sh", "localhost/toy:1", "python3"]
    assert wrapper_in(["/opt/llama.cpp/bin/llama-server"]) == ""


def test_what_is_compiled_at_run_time_can_be_loaded_and_is_kept() -> None:
    command = container_command(PODMAN, "python3")
    assert any(mount.startswith("/tmp:") and "exec" in mount for mount in options(command, "--tmpfs"))
    assert "FLASHINFER_WORKSPACE_BASE=/cache/smoke/flashinfer" in options(command, "--env")


def test_caches_of_the_image_lie_where_the_container_can_write() -> None:
    project = Project(Path(__file__).parents[2])
    image = project.image("vllm")
    for target, base in project.variants(image):
        runtime = image.on(base).runtime
        settings = [f"{name}={value}" for name, value in runtime.env]
        moved = moved_caches(settings, runtime.folders, PODMAN.work)
        assert {"TRITON_CACHE_DIR", "VLLM_CACHE_ROOT", "CUDA_CACHE_PATH", "HF_HOME"} <= dict(moved).keys(), target.name
        given = options(container_command(replace(PODMAN, moved=moved), "python3"), "--env")
        assert "TRITON_CACHE_DIR=/cache/smoke/cache/triton" in given
        assert [one for one in given if one.startswith("PATH=")] == []


@pytest.mark.parametrize("value", ["/cached", "cache", "", "/opt/cache/a"])
def test_what_only_looks_like_a_cache_keeps_its_place(value: str) -> None:
    assert moved_caches([f"A={value}"], ["/cache"], "/work") == ()


def test_device_is_told_all_of_the_target_and_others_its_compute_capability() -> None:
    assert target_words("torch_matmul", GB10) == ["--compute-capability", "12.1a"]
    words = target_words(FIRST, GB10)
    assert options(words, "--unified-memory") == ["yes"]
    assert options(words, "--driver") == ["580"]
    assert options(words, "--gpu-name") == ["GB10"]


@pytest.mark.parametrize("check", [FIRST, "torch_matmul"])
def test_without_a_target_a_check_goes_by_the_gpu_that_is_there(check: str) -> None:
    assert target_words(check, None) == []

"""The commands that compile a release, by the facts of the project's own images/compat.yaml."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from spark_images.compat.build import in_serving_set
from spark_images.compat.command import (
    PATCHES,
    TREES,
    CompileCommand,
    Kernels,
    flashinfer_command,
    sdist_command,
    vllm_command,
)
from spark_images.compat.file import read_facts
from spark_images.compat.release import flashinfer_release, vllm_release
from spark_images.cuda_arch import Capability
from spark_images.errors import ConfigError
from spark_images.targets import read_targets

FACTS = read_facts(Path(__file__).parents[2] / "images" / "compat.yaml")
TARGET = next(one for one in read_targets(Path(__file__).parents[2] / "images/targets.yaml") if one.name == "gb10")
GB10, HOPPER = Capability(12, 1), Capability(9, 0)


def of_vllm(
    version: str = "0.20.2", gpu: Capability = GB10, *, all_kernels: bool = False, lacking: tuple[str, ...] = ()
) -> CompileCommand:
    release = vllm_release(FACTS.vllm, version)
    return vllm_command(
        FACTS.vllm, release, gpu=gpu, arch="arm64", cuda="13.0", all_kernels=all_kernels, lacking=lacking
    )


def patched(command: CompileCommand) -> list[str]:
    words = command.arguments
    given = [words[place + 1] for place, word in enumerate(words) if word == "--patch"]
    assert given == [f"{PATCHES}/{patch.name}.patch" for patch in command.patches]
    return [patch.name for patch in command.patches]


def test_the_environment_says_architecture_and_local_sources() -> None:
    environment = dict(of_vllm().environment)

    assert environment["TORCH_CUDA_ARCH_LIST"] == "12.1a"
    assert environment["VLLM_CUTLASS_SRC_DIR"] == f"{TREES}/cutlass"
    assert "-DFETCHCONTENT_FULLY_DISCONNECTED=ON" in environment["CMAKE_ARGS"].split()
    assert f"-DCUTLASS_INCLUDE_DIR={TREES}/cutlass/include" in environment["CMAKE_ARGS"].split()
    assert "MAX_JOBS" not in environment


def test_patches_leave_out_what_the_gpu_never_calls_unless_all_kernels_are_wanted() -> None:
    assert patched(of_vllm()) == ["leave-out-fa3", "leave-out-cutlass-mla"]
    assert patched(of_vllm("0.24.0")) == ["leave-out-fa3"]
    assert patched(of_vllm(all_kernels=True)) == []
    assert patched(of_vllm(gpu=HOPPER)) == []


def test_a_source_that_is_lacking_takes_its_own_cmake_file_out() -> None:
    words = of_vllm(lacking=("qutlass", "deepgemm")).arguments

    assert [words[place + 1] for place, word in enumerate(words) if word == "--lacking"] == [
        "cmake/external_projects/qutlass.cmake",
        "cmake/external_projects/deepgemm.cmake",
    ]


def test_without_cutlass_nothing_compiles() -> None:
    with pytest.raises(ConfigError, match=r"nothing of vllm 0\.20\.2 compiles without `cutlass`"):
        of_vllm(lacking=("cutlass",))


@pytest.mark.parametrize(
    ("version", "script"), [("0.20.2", "use_existing_torch.py"), ("0.33.0", "tools/use_existing_torch.py")]
)
def test_in_an_image_it_takes_the_torch_and_the_cuda_that_are_there(version: str, script: str) -> None:
    there = sdist_command("vllm", version, TARGET, facts=FACTS, cuda="13.1.1", image_python="3.12")
    elsewhere = sdist_command("vllm", version, TARGET, facts=FACTS, cuda="13.1.1")

    assert there.arguments == ("arm64", "--existing-torch", script, *elsewhere.arguments[1:])
    assert dict(there.environment).items() - dict(elsewhere.environment).items() == {
        ("SPARK_CUDA", "/usr/local/cuda"),
        ("SPARK_TORCH", "/usr/local/lib/python3.12/dist-packages/torch"),
    }
    assert dict(there.environment)["VLLM_MAIN_CUDA_VERSION"] == "13.1"


@pytest.mark.parametrize("command", [of_vllm(), of_vllm().with_units(["*/a b*.o", "x'y"])])
def test_a_shell_reads_the_line_as_it_was_meant(command: CompileCommand) -> None:
    listed = shlex.quote("printf '%s\\n' \"$@\"")
    said = subprocess.run(
        ["sh", "-c", f"sh -c {listed} - {command.line()}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    variables = [f"{name}={value}" for name, value in command.environment]
    assert said == ["env", *variables, "/spark/scripts/compile_vllm", *command.arguments]


def test_flashinfer_is_told_the_serving_set_or_nothing() -> None:
    release = flashinfer_release(FACTS.flashinfer, "0.6.8.post1")
    serving = flashinfer_command(FACTS.flashinfer, release, gpu=GB10, arch="arm64")
    whole = flashinfer_command(FACTS.flashinfer, release, gpu=GB10, arch="arm64", kernels=Kernels.ALL)
    none = flashinfer_command(FACTS.flashinfer, release, gpu=GB10, arch="arm64", kernels=Kernels.NONE)

    assert dict(serving.environment)["FLASHINFER_CUDA_ARCH_LIST"] == "12.1a"
    split = serving.arguments.index("--keep")
    assert serving.arguments[:2] == ("arm64", "--leave")
    assert set(serving.arguments[2:split]) == set(FACTS.flashinfer.leave)
    assert set(serving.arguments[split + 1 :]) == set(FACTS.flashinfer.keep)
    assert whole.arguments == ("arm64",)
    assert none.arguments == ("arm64", "--leave", "*")
    assert in_serving_set(FACTS.flashinfer, "norm")

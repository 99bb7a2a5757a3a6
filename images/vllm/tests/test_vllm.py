"""vLLM at work inside the image, as far as it goes without a GPU: everything is loaded for real, nothing is computed.

One process says it all, as loading torch and vLLM under emulation takes minutes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from docker import DockerClient
from docker.models.containers import Container

from spark_images.engine.containers import running
from spark_images.imagetest import ImageUnderTest
from spark_images.ingredients import installed_pin, source_of
from spark_images.units import GIB
from spark_images.vllm.history import read_knowledge

HERE = Path(__file__).parent
LOAD_TIMEOUT_S = 1800  # 130 s under emulation on a machine with other work, of which torch takes half
KERNEL = """\
#include <cuda.h>
#include <cuda_runtime.h>
__global__ void twice(float *x) { x[threadIdx.x] *= 2; }
extern "C" int run(float *x) {
  twice<<<1, 32>>>(x);
  return cuInit(0) + static_cast<int>(cudaDeviceSynchronize());
}
"""
EXTENSION = "#include <Python.h>\n#include <cuda.h>\nint made(void) { return PY_MAJOR_VERSION + (int)cuInit(0); }\n"

TRITON_TAKES = """\
import inspect, sys
from triton.backends.nvidia.compiler import get_ptxas
print(get_ptxas(*map(int, sys.argv[1:][: len(inspect.signature(get_ptxas).parameters)])).path)
"""

pytestmark = pytest.mark.timeout(LOAD_TIMEOUT_S + 60)


@pytest.fixture(scope="module")
def given(shared_folder: Path) -> Path:
    """What is mounted into the container: the scripts of these tests, and the sign by which vLLM assumes a GPU."""
    for name in ("report.py", "stub_driver"):
        shutil.copy(HERE / name, shared_folder)
    (shared_folder / "tegra").touch()  # NVIDIA's older boards have this file and no NVML
    (shared_folder / "kernel.cu").write_text(KERNEL)
    (shared_folder / "extension.c").write_text(EXTENSION)
    return shared_folder


@pytest.fixture(scope="module")
def machine(client: DockerClient, under_test: ImageUnderTest, given: Path) -> Iterator[Container]:
    """A container with a driver that does nothing in /tmp, for as long as the tests take."""
    with started(client, under_test, given, "sleep", "7200") as container:
        assert said(container, "sh", "/given/stub_driver", "/tmp") == ""
        yield container


def started(
    client: DockerClient, under_test: ImageUnderTest, given: Path, *command: str
) -> AbstractContextManager[Container]:
    """A container of the image with this command, where a driver in /tmp counts as one."""
    mounts = {given: "/given", given / "tegra": "/etc/nv_tegra_release"}
    options = {"network": "none", "mounts": mounts, "env": {"LD_LIBRARY_PATH": "/tmp"}, "memory_bytes": 8 * GIB}
    return running(client, under_test.reference, command=list(command), **options)


@pytest.fixture(scope="module")
def report(machine: Container) -> dict[str, Any]:
    """What report.py found."""
    found: dict[str, Any] = json.loads(said(machine, "python3", "/given/report.py").splitlines()[-1])
    return found


def said(container: Container, *command: str) -> str:
    """What a command in the container prints on stdout; it must succeed, and in time."""
    status, (out, err) = container.exec_run(["timeout", str(LOAD_TIMEOUT_S), *command], demux=True)
    assert status == 0, f"{command} ended with status {status}:\n{(err or b'').decode()}"
    return (out or b"").decode()


def test_vllm_is_the_pinned_release_with_the_locked_torch(report: dict[str, Any], under_test: ImageUnderTest) -> None:
    locked, source = locked_in(under_test), source_of(under_test.image, under_test.project.pins)
    given = {"torch": locked.get("torch"), "cuda": locked.get("nvidia-cuda-runtime"), **dict(source.provided)}
    assert report["vllm"].partition("+")[0] == source.version
    assert report["torch"].partition("+")[0] == given["torch"]
    assert report["cuda"] == ".".join(str(given["cuda"]).split(".")[:2])


def test_every_locked_distribution_is_installed_and_no_other(
    report: dict[str, Any], under_test: ImageUnderTest
) -> None:
    locked = locked_in(under_test)
    found = {name: version.partition("+")[0] for name, version in report["distributions"].items()}
    if under_test.image.runtime.image:  # which has many others
        found = {name: version for name, version in found.items() if name in locked}
    assert found == locked


def test_its_libraries_load_and_bring_their_operators(report: dict[str, Any]) -> None:
    assert report["platform"] == "cuda"
    assert {
        "_C::cutlass_scaled_mm",
        "_C::cutlass_scaled_fp4_mm",
        "_C::rms_norm",
        "_moe_C::moe_align_block_size",
        "_moe_C::topk_softmax",
        "_C_cache_ops::reshape_and_cache_flash",
    } <= report["operators"].keys()
    assert [name for name, on_gpu in report["operators"].items() if not on_gpu] == []


def test_it_knows_the_flags_and_variables_that_were_read_from_its_source(
    report: dict[str, Any], under_test: ImageUnderTest
) -> None:
    knowledge = read_knowledge(under_test.project.root / "images" / "vllm-knowledge.json")
    names = knowledge.names(report["vllm"])
    read = {flag for flag in names.flags if "." not in flag}
    real = {flag for flag in report["flags"] if flag.startswith("--") and not flag.startswith("--no-")} - {"--help"}
    aliases = {alias for flag in names.flags.values() for alias in flag.aliases}
    assert read - real == set()
    assert real - read - aliases == set()
    assert set(report["variables"]) - set(names.variables) == set()


def test_the_command_line_says_its_version(machine: Container, report: dict[str, Any]) -> None:
    assert said(machine, "vllm", "--version").split()[-1] == report["vllm"]


def test_its_nvcc_compiles_for_the_target_as_flashinfer_asks_it_to(
    machine: Container, under_test: ImageUnderTest
) -> None:
    arch = "sm_" + under_test.target.compute_capability.replace(".", "")
    library = ["-L/usr/local/cuda/lib64", "-L/tmp", "-lcudart", "-lcuda"]
    said(
        machine, "nvcc", f"-arch={arch}", "-shared", "-Xcompiler=-fPIC", "-o", "/tmp/k.so", "/given/kernel.cu", *library
    )
    assert said(machine, "sh", "-c", "grep -c ELF /tmp/k.so") != "0\n"


def test_the_ptxas_that_triton_takes_knows_the_target(machine: Container, under_test: ImageUnderTest) -> None:
    """By its own word: from 3.6 on it has a second one for Blackwell, and TRITON_PTXAS_PATH names the first."""
    arch = under_test.target.compute_capability.replace(".", "")
    for ptxas in (said(machine, "python3", "-c", TRITON_TAKES, arch.strip("af")).strip(), "$TRITON_PTXAS_PATH"):
        assert f"sm_{arch}" in said(machine, "sh", "-c", f'"{ptxas}" --help')


def test_the_c_compiler_builds_what_triton_builds(machine: Container, under_test: ImageUnderTest) -> None:
    python = source_of(under_test.image, under_test.project.pins).python
    include = [f"-I/usr/include/python{python}", "-I/usr/local/cuda/include"]
    said(
        machine, "gcc", "-shared", "-fPIC", "-O3", *include, "-o", "/tmp/e.so", "/given/extension.c", "-L/tmp", "-lcuda"
    )


@pytest.mark.parametrize("folder", ["/models", "/cache"])
def test_user_can_write_where_recipes_mount_volumes(machine: Container, folder: str) -> None:
    assert said(machine, "sh", "-c", f"mkdir -p {folder}/a && echo yes >{folder}/a/b && cat {folder}/a/b") == "yes\n"


def test_a_flag_that_vllm_does_not_know_ends_the_container_with_an_error(
    client: DockerClient, under_test: ImageUnderTest, given: Path
) -> None:
    begins = ("sh", "-c", "sh /given/stub_driver /tmp && exec vllm serve --no-such-flag")
    with started(client, under_test, given, *begins) as container:
        status = container.wait(timeout=LOAD_TIMEOUT_S)["StatusCode"]
        printed = container.logs().decode()
    assert status == 2, printed
    assert "unrecognized arguments: --no-such-flag" in printed


def locked_in(under_test: ImageUnderTest) -> dict[str, str]:
    installed = installed_pin(under_test.image, under_test.project.pins)
    assert installed is not None
    return {wheel.project: wheel.version for wheel in under_test.project.wheels_lock(installed.name).wheels}

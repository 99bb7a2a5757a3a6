"""What must hold in the image's files; nothing is run."""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest

from spark_images.cuobjdump import list_gpu_code
from spark_images.imagechecks import (
    check_build_tools,
    check_cuda_major,
    check_elf_machine,
    check_gpu_code,
    check_leftovers,
    check_licences,
    check_needed,
    check_setuid,
    check_world_writable,
    find_library,
)
from spark_images.imagefiles import extract_file
from spark_images.imagetest import ImageUnderTest
from spark_images.oci import read_layout
from spark_images.pins import WheelsPin

BIN = "/opt/llama.cpp/bin"
CUDA = "/usr/local/cuda/lib64"
CUDA_BACKEND = f"{BIN}/libggml-cuda.so"


def holds(findings: tuple[str, ...]) -> None:
    """Fail with all findings, a line each."""
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def test_every_elf_file_is_for_the_target(under_test: ImageUnderTest) -> None:
    holds(check_elf_machine(under_test.files, under_test.target.arch))


def test_every_needed_library_is_in_the_image_but_the_drivers(under_test: ImageUnderTest) -> None:
    holds(check_needed(under_test.files))


def test_cuda_backend_finds_the_images_own_cuda_libraries(under_test: ImageUnderTest) -> None:
    backend = under_test.files[CUDA_BACKEND]
    assert backend.elf is not None
    libraries = [name for name in backend.elf.needed if name.startswith(("libcudart.", "libcublas."))]
    assert len(libraries) == 2
    found = [find_library(under_test.files, backend, name) for name in libraries]
    assert [posixpath.dirname(path) for path in found if path] == [CUDA, CUDA]


def test_the_driver_is_not_in_the_image(under_test: ImageUnderTest) -> None:
    assert [path for path in under_test.files if posixpath.basename(path).startswith("libcuda.so")] == []


def test_cuda_backend_holds_code_for_the_target_gpu_and_no_other(under_test: ImageUnderTest, tmp_path: Path) -> None:
    library = tmp_path / "libggml-cuda.so"
    extract_file(read_layout(under_test.layout), CUDA_BACKEND, library)
    holds(check_gpu_code(list_gpu_code(under_test.cuobjdump, library), under_test.target.cuda_architecture))


def test_all_cuda_libraries_are_of_the_pinned_major_version(under_test: ImageUnderTest) -> None:
    pin = under_test.project.pins["cuda"]
    assert isinstance(pin, WheelsPin)
    holds(check_cuda_major(under_test.files, int(pin.version.split(".")[0])))


def test_no_build_tools_and_no_development_files(under_test: ImageUnderTest) -> None:
    holds(check_build_tools(under_test.files))


def test_no_caches_and_no_leftovers_of_the_build(under_test: ImageUnderTest) -> None:
    holds(check_leftovers(under_test.files))


def test_no_file_is_setuid_or_setgid(under_test: ImageUnderTest) -> None:
    holds(check_setuid(under_test.files))


def test_nothing_is_world_writable_but_the_temporary_folders(under_test: ImageUnderTest) -> None:
    holds(check_world_writable(under_test.files))


def test_what_was_compiled_belongs_to_root_and_is_not_writable(under_test: ImageUnderTest) -> None:
    ours = [file for path, file in under_test.files.items() if path.startswith((f"{BIN}/", f"{CUDA}/"))]
    assert len(ours) > 10
    assert [file.path for file in ours if file.uid != 0 or (file.kind == "file" and file.mode & 0o022)] == []


def test_licences_of_everything_are_there(under_test: ImageUnderTest) -> None:
    folders = ("/usr/share/licenses/llama.cpp", "/usr/share/licenses/cuda")
    holds(check_licences(under_test.files, folders))

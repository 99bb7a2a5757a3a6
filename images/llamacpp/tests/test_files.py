"""What must hold in the image's files beyond what the audit asks of any image; nothing is run.

Where the image stands on another one, only what lies on top of that is ours to answer for.
"""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest

from spark_images.cuobjdump import list_gpu_code
from spark_images.imagechecks import (
    Tree,
    check_build_tools,
    check_gpu_code,
    check_leftovers,
    check_licences,
    find_library,
)
from spark_images.imagefiles import extract_file
from spark_images.imagetest import ImageUnderTest
from spark_images.oci import read_layout

BIN = "/opt/llama.cpp/bin"
CUDA = "/usr/local/cuda/lib64"
CUDA_BACKEND = f"{BIN}/libggml-cuda.so"
LICENCES = "/usr/share/licenses"


def holds(findings: tuple[str, ...]) -> None:
    """Fail with all findings, a line each."""
    if findings:
        pytest.fail("\n".join(findings), pytrace=False)


def stands_on_an_image(under_test: ImageUnderTest) -> bool:
    return bool(under_test.image.runtime.image)


@pytest.fixture(scope="module")
def ours(under_test: ImageUnderTest) -> Tree:
    """The files that we brought."""
    if not stands_on_an_image(under_test):
        return under_test.files
    return {path: file for path, file in under_test.files.items() if path.startswith(("/opt/llama.cpp/", LICENCES))}


def test_cuda_backend_finds_the_images_own_cuda_libraries(under_test: ImageUnderTest) -> None:
    backend = under_test.files[CUDA_BACKEND]
    assert backend.elf is not None
    libraries = [name for name in backend.elf.needed if name.startswith(("libcudart.", "libcublas."))]
    assert len(libraries) == 2
    found = [find_library(under_test.files, backend, name) for name in libraries]
    if stands_on_an_image(under_test):  # which has its own places
        assert None not in found
    else:
        assert [posixpath.dirname(path) for path in found if path] == [CUDA, CUDA]


def test_cuda_backend_holds_code_for_the_target_gpu_and_no_other(under_test: ImageUnderTest, tmp_path: Path) -> None:
    library = tmp_path / "libggml-cuda.so"
    extract_file(read_layout(under_test.layout), CUDA_BACKEND, library)
    holds(check_gpu_code(list_gpu_code(under_test.cuobjdump, library), under_test.target.cuda_architecture))


def test_no_build_tools_and_no_development_files(ours: Tree) -> None:
    holds(check_build_tools(ours))


def test_no_caches_and_no_leftovers_of_the_build(ours: Tree) -> None:
    holds(check_leftovers(ours))


def test_what_was_compiled_belongs_to_root_and_is_not_writable(ours: Tree) -> None:
    compiled = [file for path, file in ours.items() if path.startswith((f"{BIN}/", f"{CUDA}/"))]
    assert len(compiled) > 10
    assert [file.path for file in compiled if file.uid != 0 or (file.kind == "file" and file.mode & 0o022)] == []


def test_licences_of_everything_are_there(ours: Tree, under_test: ImageUnderTest) -> None:
    if stands_on_an_image(under_test):
        assert any(path.startswith(f"{LICENCES}/llama.cpp/") and file.size for path, file in ours.items())
    else:
        holds(check_licences(ours, (f"{LICENCES}/llama.cpp", f"{LICENCES}/cuda")))

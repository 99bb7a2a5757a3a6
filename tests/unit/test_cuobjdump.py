from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from spark_images.cuobjdump import MEMBER, GpuCode, list_gpu_code, parse_listing, unpack_cuobjdump
from spark_images.errors import CheckError, ContentError

# As cuobjdump 13.2.78 prints it for a library compiled with
# -gencode arch=compute_121a,code=[sm_121a,compute_121a] -gencode arch=compute_120,code=sm_120
LISTING = """\
PTX file    1: ptx.1.sm_121a.ptx
ELF file    1: both.1.sm_121a.cubin
ELF file    2: both.2.sm_120.cubin
ELF file  144: libggml-cuda.144.sm_121a.cubin
"""


def wheel_with(path: Path, script: str, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, f"#!{sys.executable}\n{script}")
    return path


def test_listing_is_counted_by_architecture() -> None:
    assert parse_listing(LISTING) == GpuCode(cubins={"sm_121a": 2, "sm_120": 1}, ptx={"sm_121a": 1})


def test_empty_listing_is_no_code() -> None:
    assert parse_listing("\n") == GpuCode(cubins={}, ptx={})


def test_line_of_another_form_is_an_error_and_not_ignored() -> None:
    with pytest.raises(CheckError, match="not understood"):
        parse_listing("ELF file    1: k.1.sm_121a.cubin\nNVVM file   1: k.1.sm_121a.nvvm\n")


def test_program_is_unpacked_once_and_runs(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "nvidia.whl", "print('ELF file    1: k.1.sm_121a.cubin')")
    first = unpack_cuobjdump(wheel, tmp_path / "tools")
    made = first.stat().st_mtime_ns
    assert unpack_cuobjdump(wheel, tmp_path / "tools") == first
    assert first.stat().st_mtime_ns == made
    assert list_gpu_code(first, tmp_path / "k.so") == GpuCode(cubins={"sm_121a": 1}, ptx={})


def test_other_wheel_gives_another_program(tmp_path: Path) -> None:
    one = unpack_cuobjdump(wheel_with(tmp_path / "1.whl", "1"), tmp_path / "tools")
    two = unpack_cuobjdump(wheel_with(tmp_path / "2.whl", "2"), tmp_path / "tools")
    assert one.read_bytes() != two.read_bytes()


def test_wheel_without_the_program_is_an_error(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "other.whl", "", member="nvidia/cu13/bin/ptxas")
    with pytest.raises(ContentError, match=r"`other\.whl` holds no `nvidia/cu13/bin/cuobjdump`"):
        unpack_cuobjdump(wheel, tmp_path / "tools")


def test_file_without_device_code_is_an_empty_answer(tmp_path: Path) -> None:
    script = """import sys; sys.exit("cuobjdump info    : File '/bin/true' does not contain device code")"""
    program = unpack_cuobjdump(wheel_with(tmp_path / "n.whl", script), tmp_path)
    assert list_gpu_code(program, tmp_path / "true") == GpuCode(cubins={}, ptx={})


def test_failure_of_the_program_is_an_error_with_its_words(tmp_path: Path) -> None:
    script = """import sys; sys.exit("cuobjdump fatal   : Invalid fatbin header in 'g'")"""
    program = unpack_cuobjdump(wheel_with(tmp_path / "n.whl", script), tmp_path)
    with pytest.raises(CheckError, match=r"cannot read `g\.so`") as caught:
        list_gpu_code(program, tmp_path / "g.so")
    assert "Invalid fatbin header" in caught.value.render()


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="does not run"):
        list_gpu_code(tmp_path / "cuobjdump", tmp_path / "g.so")

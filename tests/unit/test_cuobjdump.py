from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from elf_files import object_file, shared_library
from gpu_code import REAL_DUMP, dump, fake_cuobjdump, fatbin, gpu_library, real_fatbin

from spark_images.cuda_arch import Code, Kind, has_kernels, parse_arch
from spark_images.cuobjdump import (
    MEMBER,
    GpuCode,
    divide,
    list_gpu_code,
    parse_dump,
    parse_loose,
    parts,
    read_modules,
    unpack_cuobjdump,
)
from spark_images.errors import CheckError, ContentError
from spark_images.fatbin import read_fatbins


def wheel_with(path: Path, program: bytes, member: str = MEMBER) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, program)
    return path


def file_of(folder: Path, content: bytes) -> Path:
    path = folder / "k.so"
    path.write_bytes(content)
    return path


def names(*pieces: object) -> list[str]:
    return [str(piece) for piece in pieces]


# --- the program ------------------------------------------------------------------------------------------------------


def test_program_is_unpacked_once_and_runs(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "nvidia.whl", fake_cuobjdump(tmp_path).read_bytes())
    first = unpack_cuobjdump(wheel, tmp_path / "tools")
    made = first.stat().st_mtime_ns
    assert unpack_cuobjdump(wheel, tmp_path / "tools") == first
    assert first.stat().st_mtime_ns == made
    found = list_gpu_code(first, file_of(tmp_path, gpu_library(["sm_121a"])))
    assert found == GpuCode(cubins={"sm_121a": 1}, ptx={})


def test_other_wheel_gives_another_program(tmp_path: Path) -> None:
    one = unpack_cuobjdump(wheel_with(tmp_path / "1.whl", b"1"), tmp_path / "tools")
    two = unpack_cuobjdump(wheel_with(tmp_path / "2.whl", b"2"), tmp_path / "tools")
    assert one.read_bytes() != two.read_bytes()


def test_wheel_without_the_program_is_an_error(tmp_path: Path) -> None:
    wheel = wheel_with(tmp_path / "other.whl", b"", member="nvidia/cu13/bin/ptxas")
    with pytest.raises(ContentError, match=r"`other\.whl` holds no `nvidia/cu13/bin/cuobjdump`"):
        unpack_cuobjdump(wheel, tmp_path / "tools")


def test_failure_of_the_program_is_an_error_with_its_words(tmp_path: Path) -> None:
    file = file_of(tmp_path, gpu_library(["sm_121a"], said=""))
    with pytest.raises(CheckError, match=r"cannot read `k\.so`") as caught:
        read_modules(fake_cuobjdump(tmp_path), file)
    assert "Invalid ELF" in caught.value.render()


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match="does not run"):
        read_modules(tmp_path / "cuobjdump", file_of(tmp_path, gpu_library(["sm_80"])))


# --- what it says -----------------------------------------------------------------------------------------------------


def test_family_code_keeps_its_letter() -> None:
    first, second = parse_dump(dump(["sm_120f", "compute_121a"]))
    assert first.code == Code(Kind.CUBIN, parse_arch("12.0f"))
    assert (second.code, second.isa) == (Code(Kind.PTX, parse_arch("12.1a")), (9, 0))


def test_code_for_the_device_linker_is_passed_over() -> None:
    nvvm = "Fatbin nvvm code:\n=================\narch = sm_90\ncode version = [1,65]\n"
    assert names(*(piece.code for piece in parse_dump(nvvm + dump(["sm_90"])))) == ["sm_90"]


@pytest.mark.parametrize("text", ["Fatbin elf code:\n", "Fatbin elf code:\narch = sm_90\nFatbin elf code:\n"])
def test_piece_that_is_not_described_in_full_is_an_error(text: str) -> None:
    with pytest.raises(CheckError, match="without its architecture"):
        parse_dump(text)


def test_cubin_that_is_a_file_is_named_by_the_list() -> None:
    assert str(parse_loose("ELF file    1: a.sm_121a.cubin\n")) == "12.1a"
    with pytest.raises(CheckError, match="does not say"):
        parse_loose("\n")


# --- the two together -------------------------------------------------------------------------------------------------


def test_modules_are_told_apart(tmp_path: Path) -> None:
    file = file_of(tmp_path, gpu_library(["sm_80", "compute_80"], ["sm_121a"]))
    modules = read_modules(fake_cuobjdump(tmp_path), file)
    assert [names(*(piece.code for piece in module)) for module in modules] == [["sm_80", "compute_80"], ["sm_121a"]]
    assert modules[0][1].size_bytes == 160


def test_module_without_a_kernel_is_told_apart(tmp_path: Path) -> None:
    file = file_of(tmp_path, gpu_library(["sm_75!"], ["sm_75!", "sm_80"]))
    modules = read_modules(fake_cuobjdump(tmp_path), file)
    assert [has_kernels(module) for module in modules] == [False, True]


def test_counts_are_over_all_modules(tmp_path: Path) -> None:
    file = file_of(tmp_path, gpu_library(["sm_120f", "compute_80"], ["sm_120f"]))
    assert list_gpu_code(fake_cuobjdump(tmp_path), file) == GpuCode(cubins={"sm_120f": 2}, ptx={"sm_80": 1})


@pytest.mark.parametrize(
    "said",
    [dump(["sm_80"]), dump(["sm_80", "sm_90"]), dump(["sm_80", "compute_120"]), dump(["sm_80", "sm_120", "sm_90"])],
)
def test_listing_of_other_code_than_the_file_holds_is_an_error(tmp_path: Path, said: str) -> None:
    file = file_of(tmp_path, gpu_library(["sm_80", "sm_120"], said=said))
    with pytest.raises(CheckError, match="other GPU code"):
        read_modules(fake_cuobjdump(tmp_path), file)


def test_file_without_gpu_code_is_an_empty_answer(tmp_path: Path) -> None:
    program = tmp_path / "cuobjdump"
    program.write_text(
        "#!/bin/sh\necho \"cuobjdump info    : File 'true' does not contain device code\" >&2; exit 255\n"
    )
    program.chmod(0o755)
    assert read_modules(program, file_of(tmp_path, shared_library())) == ()
    assert read_modules(program, file_of(tmp_path, object_file({".text": bytes(8)}))) == ()


def test_cuobjdump_gets_a_few_fatbins_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_images.cuobjdump.PART_BYTES", 400)
    content = object_file(
        {".nv_fatbin": fatbin(["sm_80", "sm_90"], ["sm_121a"], ["sm_75"]) + bytes(16) + fatbin(["sm_90a"])}
    )
    with file_of(tmp_path, content).open("rb") as stream:
        assert [len(part) for part in parts(read_fatbins(stream))] == [1, 2, 1]
    modules = read_modules(fake_cuobjdump(tmp_path), file_of(tmp_path, content))
    assert [str(piece.code) for module in modules for piece in module] == [
        "sm_80",
        "sm_90",
        "sm_121a",
        "sm_75",
        "sm_90a",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cuobjdump", "k.so"]


def test_real_fatbin_is_divided_as_cuobjdump_lists_it(tmp_path: Path) -> None:
    with file_of(tmp_path, real_fatbin()).open("rb") as stream:
        (module,) = divide(parse_dump(REAL_DUMP), read_fatbins(stream))
    assert names(*(piece.code for piece in module)) == ["compute_80", "sm_80", "sm_120f", "compute_121a", "sm_121a"]
    assert all(piece.size_bytes > 100 for piece in module)

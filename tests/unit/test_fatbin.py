from __future__ import annotations

import io

import pytest
from elf_files import object_file, shared_library
from gpu_code import fatbin, real_fatbin

from spark_images.elf import BrokenElfError
from spark_images.fatbin import CUBIN, PTX, Entry, has_gpu_code, is_cubin, read_fatbins


def read(content: bytes) -> list[list[tuple[int, int]]]:
    return [[(entry.kind, entry.number) for entry in found.entries] for found in read_fatbins(io.BytesIO(content))]


def test_every_fatbin_of_a_section_is_found_with_its_entries() -> None:
    found = read(object_file({".text": bytes(8), ".nv_fatbin": fatbin(["sm_80", "compute_80"], ["sm_121a"])}))
    assert found == [[(CUBIN, 80), (PTX, 80)], [(CUBIN, 121)]]


def test_zeros_between_fatbins_are_passed_over() -> None:
    assert read(object_file({".nv_fatbin": fatbin(["sm_80"]) + bytes(24) + fatbin(["sm_90"]) + bytes(8)})) == [
        [(CUBIN, 80)],
        [(CUBIN, 90)],
    ]


def test_code_for_the_device_linker_counts_only_where_there_is_no_other() -> None:
    relocatable = {"__nv_relfatbin": fatbin(["sm_90"])}
    assert read(object_file(relocatable)) == [[(CUBIN, 90)]]
    assert read(object_file({**relocatable, ".nv_fatbin": fatbin(["sm_80"])})) == [[(CUBIN, 80)]]


def test_real_fatbin_is_read_whole() -> None:
    (found,) = read_fatbins(io.BytesIO(real_fatbin()))
    assert [(entry.kind, entry.number) for entry in found.entries] == [
        (PTX, 80),
        (CUBIN, 80),
        (CUBIN, 120),
        (PTX, 121),
        (CUBIN, 121),
    ]
    assert found.entries[0] == Entry(PTX, 80, 386)  # uncompressed; it lies there in 248 bytes


@pytest.mark.parametrize("cut", [1, 30, 60, 100])
def test_section_that_ends_within_a_fatbin_is_broken(cut: int) -> None:
    with pytest.raises(BrokenElfError, match="cut off"):
        read(object_file({".nv_fatbin": fatbin(["sm_80"])[:-cut]}))


def test_section_with_something_else_is_broken() -> None:
    with pytest.raises(BrokenElfError, match="no fatbin at offset"):
        read(object_file({".nv_fatbin": b"something else, that is no fatbin"}))


def test_cubin_without_a_kernel_is_hollow() -> None:
    (found,) = read_fatbins(io.BytesIO(object_file({".nv_fatbin": fatbin(["sm_75!", "sm_80", "compute_80"])})))
    assert [entry.hollow for entry in found.entries] == [True, False, False]


def test_real_cubins_are_not_hollow() -> None:
    (found,) = read_fatbins(io.BytesIO(real_fatbin()))
    assert not any(entry.hollow for entry in found.entries)


def test_files_with_gpu_code_are_told_from_others_by_their_headers() -> None:
    assert has_gpu_code(io.BytesIO(object_file({".nv_fatbin": fatbin(["sm_80"])})))
    assert has_gpu_code(io.BytesIO(real_fatbin()))
    assert not has_gpu_code(io.BytesIO(shared_library()))
    assert not has_gpu_code(io.BytesIO(b"text"))


def test_cubin_is_known_by_its_machine() -> None:
    assert is_cubin(object_file({}, machine=190))
    assert not is_cubin(object_file({}))
    assert not is_cubin(b"\x7fELF")

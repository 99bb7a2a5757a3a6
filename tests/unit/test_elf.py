from __future__ import annotations

import io
import platform
import subprocess
import sys
from pathlib import Path

import pytest
from elf_files import EM_AARCH64, EM_X86_64, shared_library
from hypothesis import given
from hypothesis import strategies as st

from spark_images.elf import BrokenElfError, ElfFacts, is_elf, read_elf


def test_facts_of_a_library_for_another_machine() -> None:
    content = shared_library(
        machine=EM_AARCH64,
        soname="libggml.so.0",
        needed=["libggml-base.so.0", "libc.so.6"],
        runpath="$ORIGIN:/usr/local/cuda/lib64",
    )
    assert read_elf(io.BytesIO(content)) == ElfFacts(
        machine="aarch64",
        soname="libggml.so.0",
        needed=("libggml-base.so.0", "libc.so.6"),
        runpath=("$ORIGIN", "/usr/local/cuda/lib64"),
    )


def test_machine_is_the_files_and_not_the_hosts() -> None:
    machines = [read_elf(io.BytesIO(shared_library(machine=number))).machine for number in (EM_AARCH64, EM_X86_64)]
    assert machines == ["aarch64", "x86_64"]


def test_rpath_and_runpath_are_kept_apart() -> None:
    facts = read_elf(io.BytesIO(shared_library(rpath="/old", runpath="/new")))
    assert (facts.rpath, facts.runpath) == (("/old",), ("/new",))


def test_a_real_program_of_this_machine_needs_the_c_library() -> None:
    with Path(sys.executable).resolve().open("rb") as stream:
        facts = read_elf(stream)
    assert facts.machine == platform.machine()
    listed = subprocess.run(["ldd", sys.executable], capture_output=True, text=True, check=True, timeout=30).stdout
    assert set(facts.needed) <= {line.split()[0] for line in listed.splitlines()}
    assert "libc.so.6" in facts.needed


@pytest.mark.parametrize("content", [b"", b"\x7fEL", b"#!/bin/sh\n"])
def test_other_files_are_not_elf(content: bytes) -> None:
    assert not is_elf(content)


@given(st.integers(min_value=4, max_value=len(shared_library(needed=["libc.so.6"])) - 1))
def test_truncated_file_is_called_broken_or_read_but_never_crashes(length: int) -> None:
    content = shared_library(needed=["libc.so.6"])[:length]
    assert is_elf(content)
    try:
        facts = read_elf(io.BytesIO(content))
    except BrokenElfError:
        return
    assert facts.machine == "aarch64"


def test_file_cut_off_in_its_header_is_broken() -> None:
    with pytest.raises(BrokenElfError, match="not readable as ELF"):
        read_elf(io.BytesIO(shared_library()[:40]))

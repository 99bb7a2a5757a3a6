"""What single objects turned out to be, read from an engine's export."""

from __future__ import annotations

from pathlib import Path

import pytest
from elf_files import EM_X86_64, object_file
from gpu_code import fake_cuobjdump, gpu_library
from raw_layouts import file, write_raw

from spark_images.buildlog import UnitMeasured
from spark_images.cuda_arch import Capability, Run
from spark_images.errors import CheckError
from spark_images.oci import read_layout
from spark_images.unit_objects import CompiledUnit, differing, look_at_objects

GPU = Capability(12, 1)


def look(tmp_path: Path, objects: dict[str, bytes], *measured: str) -> tuple[CompiledUnit, ...]:
    raw = write_raw(tmp_path / "raw", [[file(f"objects/{name}", content) for name, content in objects.items()]])
    (tmp_path / "work").mkdir()
    units = {
        name: UnitMeasured(step="units", unit=name, peak_mib=9, seconds=2, cpu_s=1, expected_mib=9, tries=1)
        for name in measured
    }
    return look_at_objects(
        read_layout(raw), tmp_path / "work", units,
        of="vllm", machine="aarch64", cuobjdump=fake_cuobjdump(tmp_path), gpu=GPU,
    )  # fmt: skip


def test_code_and_how_it_runs_are_told_and_what_was_measured_belongs_to_it(tmp_path: Path) -> None:
    objects = {
        "a.dir/both.o": gpu_library(["sm_120f"], ["compute_80"]),
        "a.dir/host.o": object_file({".text": b"code"}),
        "build/x.o": gpu_library(["sm_121a"]),
    }

    absolute, both, host = look(tmp_path, objects, "/build/x.o", "a.dir/both.o")

    assert (both.code, both.run, both.measured is not None) == (("sm_120f", "compute_80"), Run.JIT, True)
    assert (host.code, host.run, host.measured) == ((), None, None)
    assert (absolute.unit, absolute.run, absolute.measured is not None) == ("/build/x.o", Run.NATIVE, True)


def test_an_object_of_another_machine_and_code_that_does_not_run_are_errors(tmp_path: Path) -> None:
    objects = {
        "host.o": object_file({".text": b"code"}, machine=EM_X86_64),
        "old.o": gpu_library(["sm_90a"]),
        "good.o": gpu_library(["sm_120"]),
    }

    with pytest.raises(CheckError, match="2 objects of `vllm` are not for its machine") as caught:
        look(tmp_path, objects)

    assert caught.value.why == (
        "`host.o` is for x86_64, not aarch64",
        "`old.o` holds GPU code that does not run on 12.1",
    )


def test_objects_that_came_out_differently_are_named(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "2").mkdir()
    same, changed = object_file({".text": b"same"}), object_file({".text": b"new"})

    first = look(tmp_path / "1", {"a.o": same, "b.o": same})

    assert differing(first, first) == ()
    assert differing(first, look(tmp_path / "2", {"a.o": same, "b.o": changed})) == ("b.o",)

"""What single objects turned out to be: for which machine, with which GPU code, and which bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_images.buildlog import UnitMeasured
from spark_images.cuda_arch import Capability, Run, best_run
from spark_images.cuobjdump import read_modules
from spark_images.elf import read_elf
from spark_images.errors import CheckError
from spark_images.fatbin import has_gpu_code
from spark_images.files import room_on
from spark_images.imagefiles import walk_files
from spark_images.oci import Layout

FOLDER = "objects/"  # where scripts/compile_units lays them out


@dataclass(frozen=True, kw_only=True)
class CompiledUnit:
    """One object. code: each kind of its GPU code once, "sm_120f", "compute_80"; run: how it runs on the target."""

    unit: str
    size_bytes: int
    sha256: str
    code: tuple[str, ...]
    run: Run | None  # None where it holds no GPU code
    measured: UnitMeasured | None  # None where the compile cache had it


def look_at_objects(
    layout: Layout,
    folder: Path,
    measured: Mapping[str, UnitMeasured],
    *,
    of: str,
    machine: str,
    cuobjdump: Path,
    gpu: Capability,
) -> tuple[CompiledUnit, ...]:
    """Every object below objects/. folder: to work in. measured: by the unit's name. of: the project, for messages.

    Raises CheckError where one is not for `machine`, or holds GPU code that does not run on `gpu`.
    """
    units, wrong = [], []
    names = {unit.removeprefix("/"): unit for unit in measured}
    file = folder / "object"
    for entry in walk_files(layout):
        if entry.type != "file" or not entry.path.startswith(FOLDER):
            continue
        path = entry.path.removeprefix(FOLDER)
        unit = names.get(path, path)
        with room_on(folder), entry.open() as content:
            file.write_bytes(content.read())
        with file.open("rb") as stream:
            found, has_code = read_elf(stream).machine, has_gpu_code(stream)
        if found != machine:
            wrong.append(f"`{unit}` is for {found}, not {machine}")
        modules = read_modules(cuobjdump, file) if has_code else ()
        runs = [best_run((piece.code for piece in module), gpu) for module in modules]
        if Run.NOT in runs:
            wrong.append(f"`{unit}` holds GPU code that does not run on {gpu}")
        units.append(
            CompiledUnit(
                unit=unit,
                size_bytes=entry.size,
                sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
                code=tuple(dict.fromkeys(str(piece.code) for module in modules for piece in module)),
                run=max(runs, key=list(Run).index, default=None),
                measured=measured.get(unit),
            )
        )
    if wrong:
        raise CheckError(f"{len(wrong)} objects of `{of}` are not for its machine", why=wrong)
    return tuple(sorted(units, key=lambda one: one.unit))


def differing(first: Sequence[CompiledUnit], second: Sequence[CompiledUnit]) -> tuple[str, ...]:
    """Objects of two runs that are not the same bytes."""
    before = {unit.unit: unit.sha256 for unit in first}
    return tuple(unit.unit for unit in second if before.get(unit.unit) != unit.sha256)

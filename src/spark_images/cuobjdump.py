"""NVIDIA's cuobjdump: which GPU code a library holds. The program comes out of a pinned wheel."""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.cuda_arch import Arch, Code, Embedded, Kind, Module, parse_arch
from spark_images.elf import BrokenElfError
from spark_images.errors import CheckError, ContentError, HostProgramError
from spark_images.fatbin import CUBIN, PTX, Fatbin, is_cubin, read_fatbins
from spark_images.files import write_bytes
from spark_images.process import capture, quoted
from spark_images.store import Store, digest_of

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.pins import FileContent
    from spark_images.project import Project

PIN = "cuda-inspect"  # holds it; a project without GPU images needs none
MEMBER = "nvidia/cu13/bin/cuobjdump"  # where the wheels of CUDA 13 keep it
PART_BYTES = 64 << 20
TIMEOUT_S = 600  # 0.1 s for 144 cubins on a quiet machine; NVIDIA's largest libraries take some seconds

_BEGIN = re.compile(r"^Fatbin (?P<kind>\w+) code:$")
_ARCH = re.compile(r"^arch = sm_(?P<number>\d+[af]?)$")
_ISA = re.compile(r"^code version = \[(?P<major>\d+),(?P<minor>\d+)\]$")
_LOOSE = re.compile(r"^ELF file +\d+: .*\.sm_(?P<number>\d+[af]?)\.cubin$")
_KINDS = {"elf": Kind.CUBIN, "ptx": Kind.PTX}


@dataclass(frozen=True, kw_only=True)
class GpuCode:
    """What a file carries for GPUs: architecture ("sm_121a", "sm_120f") -> number of cubins, and of PTX texts."""

    cubins: Mapping[str, int]
    ptx: Mapping[str, int]


def cuobjdump_content(project: Project) -> FileContent | None:
    """The wheel with NVIDIA's cuobjdump for this machine; None where the project pins none."""
    from spark_images.contents import wheel_content
    from spark_images.host import host_platform

    if all(pin.name != PIN for pin in project.pins.pins):
        return None
    wheels = project.wheels_lock(PIN).wheels
    return wheel_content(PIN, next(wheel for wheel in wheels if wheel.platform == host_platform()))


def cuobjdump_of(project: Project, cache: Cache) -> Path | None:
    """NVIDIA's cuobjdump for this machine, fetched and unpacked where it is not yet; None as cuobjdump_content."""
    from spark_images.fetch import fetch

    content = cuobjdump_content(project)
    if content is None:
        return None
    store = Store(cache.store)
    fetch((content,), store=store, quiet=True)
    return unpack_cuobjdump(store.path(content.digest), cache.tools)


def unpack_cuobjdump(wheel: Path, tools: Path) -> Path:
    """The program, unpacked from a wheel whose content was verified into `tools`/<sha256 of the wheel>; done once."""
    folder = tools / digest_of(wheel).removeprefix("sha256:")
    program = folder / "cuobjdump"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(MEMBER)
    except (zipfile.BadZipFile, KeyError) as err:
        raise ContentError(f"`{wheel.name}` holds no `{MEMBER}`") from err
    write_bytes(program, content, mode=0o777)
    return program


def list_gpu_code(program: Path, file: Path) -> GpuCode:
    """How much code a file holds for each architecture; none is an empty answer. Raises as read_modules."""
    counts: dict[Kind, Counter[str]] = {kind: Counter() for kind in Kind}
    for module in read_modules(program, file):
        counts[Kind.CUBIN].update(f"sm_{code.arch.number}" for code, *_ in module if code.kind is Kind.CUBIN)
        counts[Kind.PTX].update(f"sm_{code.arch.number}" for code, *_ in module if code.kind is Kind.PTX)
    return GpuCode(cubins=dict(counts[Kind.CUBIN]), ptx=dict(counts[Kind.PTX]))


def read_modules(program: Path, file: Path) -> tuple[Module, ...]:
    """The modules of an ELF file, a fatbin or a cubin, as cuobjdump names their code; () where it finds none.

    What the driver gets: relocatable code, which only the device linker reads, counts where there is nothing else.
    cuobjdump gets a few fatbins at a time, in files beside `file`: it holds all that it is given, uncompressed, and
    that were 4.8 GB of torch 2.11.
    Raises CheckError where it fails, or where what it says is not how the file itself is divided.
    """
    found: list[Module] = []
    with file.open("rb") as stream:
        try:
            if is_cubin(stream.read(64)):
                code = Code(Kind.CUBIN, parse_loose(_run(program, file, "--list-elf", of=file.name)))
                return ((Embedded(code, (0, 0), file.stat().st_size),),)
            fatbins = read_fatbins(stream)
        except BrokenElfError as err:
            raise CheckError(f"`{file.name}`: its GPU code cannot be taken apart") from err
        for part in parts(fatbins):
            with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".fatbin") as few:
                for fatbin in part:
                    stream.seek(fatbin.start)
                    few.write(stream.read(fatbin.end - fatbin.start))
                    few.write(bytes(-few.tell() % 8))
                few.flush()
                found += divide(parse_dump(_run(program, Path(few.name), of=file.name)), part)
    return tuple(found)


def parts(fatbins: Sequence[Fatbin]) -> list[list[Fatbin]]:
    """The fatbins in their order, in groups of at most PART_BYTES of code; a larger one is a group by itself."""
    groups: list[list[Fatbin]] = []
    room = 0
    for fatbin in fatbins:
        if not groups or fatbin.size_bytes > room:
            groups.append([])
            room = PART_BYTES
        groups[-1].append(fatbin)
        room -= fatbin.size_bytes
    return groups


def _run(program: Path, file: Path, *options: str, of: str) -> str:
    command = [str(program), *options, str(file)]
    try:
        done = capture(command, timeout_s=TIMEOUT_S)
    except HostProgramError as err:
        raise CheckError("`cuobjdump` does not run to its end", why=[quoted(command)]) from err
    if done.status != 0 and "does not contain device code" not in done.stderr:
        raise CheckError(
            f"`cuobjdump` cannot read `{of}`",
            why=[quoted(command), f"status {done.status}: {done.stderr.strip()}"],
        )
    return done.stdout.decode(errors="replace")


def parse_dump(text: str) -> tuple[Embedded, ...]:
    """The cubins and PTX texts that `cuobjdump` describes, in the file's order; sizes it does not tell.

    Only this form names family code: `--list-elf` calls a cubin of sm_120f plainly sm_120. CheckError at a piece
    that is not described in full.
    """
    found, kind, number = [], "", ""
    for line in (line.strip() for line in text.splitlines()):
        if match := _BEGIN.match(line):
            if kind:
                raise CheckError("`cuobjdump` printed a piece of code without its architecture and version")
            kind, number = match["kind"], ""
        elif kind and (match := _ARCH.match(line)):
            number = match["number"]
        elif kind and number and (match := _ISA.match(line)):
            if kind in _KINDS:
                code = Code(_KINDS[kind], parse_arch(number))
                found.append(Embedded(code, (int(match["major"]), int(match["minor"])), 0))
            kind = ""
    if kind:
        raise CheckError("`cuobjdump` printed a piece of code without its architecture and version")
    return tuple(found)


def parse_loose(text: str) -> Arch:
    """The architecture of a cubin that is a file, from `cuobjdump --list-elf`; CheckError for other words."""
    for line in text.splitlines():
        if match := _LOOSE.match(line.strip()):
            return parse_arch(match["number"])
    raise CheckError("`cuobjdump` does not say what a cubin is for", why=text.splitlines()[:3])


def divide(pieces: Sequence[Embedded], borders: Sequence[Fatbin]) -> tuple[Module, ...]:
    """What cuobjdump lists, divided as the file is; CheckError where the two differ in anything but that."""
    left, modules = iter(pieces), []
    for fatbin in borders:
        module = []
        for entry in fatbin.entries:
            if entry.kind in (PTX, CUBIN):
                piece = next(left, None)
                kind = Kind.PTX if entry.kind == PTX else Kind.CUBIN
                if (
                    piece is None
                    or piece.code.kind is not kind
                    or int(piece.code.arch.number.rstrip("af")) != entry.number
                ):
                    raise CheckError(
                        "`cuobjdump` lists other GPU code than the file holds",
                        why=[
                            f"listed: {piece.code if piece else 'nothing'}",
                            f"there:  {kind.value} for {entry.number}",
                        ],
                    )
                module.append(piece._replace(size_bytes=entry.size_bytes, hollow=entry.hollow))
        modules.append(tuple(module))
    if piece := next(left, None):
        raise CheckError(
            "`cuobjdump` lists other GPU code than the file holds", why=[f"listed beyond it: {piece.code}"]
        )
    return tuple(modules)

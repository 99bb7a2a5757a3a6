"""Where the fatbins lie in a file, and what each holds: the borders that cuobjdump's listings do not show.

Nothing of the form is published. It was read off files that nvcc 13.0 made, and every answer is held against
cuobjdump's own (cuobjdump.py), so that a form which is not understood is an error and no wrong answer.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import BinaryIO

from spark_images.elf import BrokenElfError

MAGIC = struct.pack("<I", 0xBA55ED50)
EXECUTABLE, RELOCATABLE = ".nv_fatbin", "__nv_relfatbin"  # the second is for the device linker, not for the driver
CUDA_MACHINE = 190  # EM_CUDA: a cubin that is a file of its own
PTX, CUBIN = 1, 2  # kinds of entries; others are for the device linker

_HEADER = struct.Struct("<4sHHQ")  # magic, version, bytes of this header, bytes of all entries
_ENTRY = struct.Struct("<HHIQ")  # kind, version, bytes of this header, bytes of what follows it
_LARGEST_HOLLOW_BYTES = 16 << 10  # those that were seen have less than 2 KB
_ZSTD = b"\x28\xb5\x2f\xfd"  # how nvcc compresses since CUDA 12.8
_REST = struct.Struct("<IIHHIII8s8sQ")  # compressed bytes, 4 fields, number of the architecture, …, uncompressed bytes
_SECTIONS = struct.Struct("<40xQ10xHHH")  # offset of the section headers, their size, count, index of their names
_SECTION = struct.Struct("<II8x8xQQ")  # name, type, offset, size


@dataclass(frozen=True)
class Entry:
    """One piece of code in a fatbin."""

    kind: int
    number: int  # 121 of sm_121a
    size_bytes: int  # uncompressed
    hollow: bool = False  # a cubin in which no kernel is: nvcc makes one for every source file, kernels or not


@dataclass(frozen=True)
class Fatbin:
    """One fatbin: where it lies in the file, and what it holds."""

    start: int  # bytes from the file's beginning
    end: int
    entries: tuple[Entry, ...]

    @property
    def size_bytes(self) -> int:
        """Of all its code, uncompressed."""
        return sum(entry.size_bytes for entry in self.entries)


def has_gpu_code(stream: BinaryIO) -> bool:
    """Whether the file is a cubin or a fatbin, or an ELF file with sections of them. Reads headers only."""
    head = _head(stream)
    return head[:4] == MAGIC or is_cubin(head) or any(name in (EXECUTABLE, RELOCATABLE) for name, _, _ in _all(stream))


def is_cubin(head: bytes) -> bool:
    """Whether a file that begins so (20 bytes or more) is a cubin by itself."""
    return head[:4] == b"\x7fELF" and struct.unpack_from("<H", head.ljust(20, b"\0"), 18)[0] == CUDA_MACHINE


def read_fatbins(stream: BinaryIO) -> tuple[Fatbin, ...]:
    """The fatbins of a file that the driver gets; where there is none, those that a device linker would get.

    Raises BrokenElfError where they have another form than is known here.
    """
    if _head(stream)[:4] == MAGIC:
        return tuple(_walk(stream, 0, stream.seek(0, io.SEEK_END)))
    found = {EXECUTABLE: list[Fatbin](), RELOCATABLE: list[Fatbin]()}
    for name, offset, size in _all(stream):
        if name in found:
            found[name] += _walk(stream, offset, offset + size)
    return tuple(found[EXECUTABLE] or found[RELOCATABLE])


def _head(stream: BinaryIO) -> bytes:
    stream.seek(0)
    return stream.read(64)


def _all(stream: BinaryIO) -> list[tuple[str, int, int]]:
    """Name, offset and size of every section of a 64-bit little-endian ELF file; none for anything else."""
    head = _head(stream)
    if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
        return []
    table, size, count, names_at = _SECTIONS.unpack(head)
    if not table or size < 64:
        return []
    stream.seek(table)
    rows = stream.read(size * count)
    if len(rows) != size * count or names_at >= max(count, 1):
        raise BrokenElfError("its table of sections is cut off")
    sections = [_SECTION.unpack_from(rows, size * index) for index in range(count)]
    if not sections:
        return []
    stream.seek(sections[names_at][2])
    names = stream.read(sections[names_at][3])
    return [
        (names[name : names.find(b"\0", name)].decode(errors="replace"), offset, length)
        for name, _, offset, length in sections
    ]


def _walk(stream: BinaryIO, at: int, end: int) -> list[Fatbin]:
    """The fatbins from `at` to `end`, with zeros between them."""
    found = []
    while at + _HEADER.size <= end:
        stream.seek(at)
        magic, _, header_bytes, size = _HEADER.unpack(_exactly(stream, _HEADER.size))
        if magic != MAGIC:
            if magic != bytes(4):
                raise BrokenElfError(f"no fatbin at offset {at:#x}, where one should begin")
            at += 8  # padding: they begin at multiples of 8
            continue
        body, close = at + header_bytes, at + header_bytes + size
        if close > end:
            raise BrokenElfError(f"the fatbin at offset {at:#x} is cut off")
        found.append(Fatbin(at, close, _entries(stream, body, close)))
        at = close + -close % 8
    return found


def _entries(stream: BinaryIO, at: int, end: int) -> tuple[Entry, ...]:
    found = []
    while at + _ENTRY.size <= end:
        stream.seek(at)
        kind, _, header_bytes, size = _ENTRY.unpack(_exactly(stream, _ENTRY.size))
        if header_bytes < _ENTRY.size + _REST.size or at + header_bytes + size > end:
            raise BrokenElfError(f"the piece of GPU code at offset {at:#x} is cut off")
        rest = _REST.unpack(_exactly(stream, _REST.size))
        hollow = False
        if kind == CUBIN and (rest[9] or size) <= _LARGEST_HOLLOW_BYTES:
            stream.seek(at + header_bytes)
            hollow = _is_hollow(stream.read(rest[0] or size), rest[9])
        found.append(Entry(kind, rest[4], rest[9] or size, hollow))
        at += header_bytes + size
    return tuple(found)


def _is_hollow(code: bytes, size_bytes: int) -> bool:
    from zstandard import ZstdDecompressor, ZstdError

    try:
        cubin = ZstdDecompressor().decompress(code, size_bytes) if code.startswith(_ZSTD) else code
        sections = _all(io.BytesIO(cubin))
    except (ZstdError, BrokenElfError):
        return False  # LZ4, which older compilers used, or broken: it is taken for code
    return bool(sections) and not any(name.startswith(".text") for name, _, _ in sections)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise BrokenElfError("the file is cut off")
    return data

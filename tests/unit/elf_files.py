"""Small ELF files for tests, made byte by byte: they need no compiler and exist for any machine."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

EM_X86_64, EM_AARCH64 = 62, 183
DT_NEEDED, DT_STRTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 10, 14, 15, 29
HEADER_BYTES, SEGMENT_BYTES = 64, 56


def shared_library(
    *,
    machine: int = EM_AARCH64,
    soname: str = "",
    needed: Sequence[str] = (),
    rpath: str = "",
    runpath: str = "",
) -> bytes:
    """A 64-bit little-endian shared object with program headers only, as a fully stripped one has."""
    strings = b"\0"
    tags = []
    named = [(DT_SONAME, soname), (DT_RPATH, rpath), (DT_RUNPATH, runpath), *((DT_NEEDED, name) for name in needed)]
    for tag, value in named:
        if value:
            tags.append((tag, len(strings)))
            strings += value.encode() + b"\0"
    dynamic_at = HEADER_BYTES + 2 * SEGMENT_BYTES
    strings_at = dynamic_at + 16 * (len(tags) + 3)
    tags += [(DT_STRTAB, strings_at), (DT_STRSZ, len(strings)), (0, 0)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in tags)
    size = strings_at + len(strings)
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 3, machine, 1, 0, HEADER_BYTES, 0, 0, HEADER_BYTES, SEGMENT_BYTES, 2, 0, 0, 0
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    pointer = struct.pack("<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8)
    return header + load + pointer + dynamic + strings


def object_file(sections: Mapping[str, bytes], *, machine: int = EM_AARCH64) -> bytes:
    """A 64-bit little-endian object with these sections and no program headers."""
    names = b"\0"
    headers = [bytes(64)]  # the first section is none, as the format wants it
    data = b""
    for name, content in (*sections.items(), (".shstrtab", b"")):
        name_at, names = len(names), names + name.encode() + b"\0"
        kind = 3 if name == ".shstrtab" else 1  # SHT_STRTAB, SHT_PROGBITS
        content = names if kind == 3 else content
        headers.append(
            struct.pack("<IIQQQQIIQQ", name_at, kind, 0, 0, HEADER_BYTES + len(data), len(content), 0, 0, 1, 0)
        )
        data += content
    ident = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    headers_at, count = HEADER_BYTES + len(data), len(headers)
    header = ident + struct.pack(
        "<HHIQQQIHHHHHH", 1, machine, 1, 0, 0, headers_at, 0, HEADER_BYTES, 0, 0, 64, count, count - 1
    )
    return header + data + b"".join(headers)

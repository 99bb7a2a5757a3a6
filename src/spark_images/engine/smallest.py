"""The smallest program that a container can run: it ends with status 0. Whether an engine starts it is a fair trial."""

from __future__ import annotations

import platform
import struct
from pathlib import Path

from spark_images.errors import EngineError
from spark_images.files import write_bytes

# exit(0): the ELF machine number, and the instructions.
_PROGRAMS = {
    "x86_64": (62, bytes.fromhex("b83c000000 31ff 0f05")),  # mov eax,60; xor edi,edi; syscall
    "aarch64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),  # mov x0,0; mov x8,93; svc 0
}
_BASE = 0x400000


def smallest_program(machine: str | None = None) -> bytes:
    """A static ELF executable of some 130 bytes that ends with status 0. machine: as of `uname -m`, ours if None."""
    machine = machine or platform.machine()
    if machine not in _PROGRAMS:
        raise EngineError(f"builds run on x86_64 and aarch64, not on `{machine}`")
    number, code = _PROGRAMS[machine]
    size = 64 + 56 + len(code)
    header = struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _BASE + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)  # one PT_LOAD, read and execute
    return b"\x7fELF\x02\x01\x01".ljust(16, b"\0") + header + segment + code


def write_root(folder: Path) -> None:
    """A root file system with the program as /true."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(folder / "true", smallest_program(), mode=0o777)

"""What an ELF file says of itself: machine, name, and which libraries it needs from where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

MAGIC = b"\x7fELF"
MACHINES = {"EM_AARCH64": "aarch64", "EM_X86_64": "x86_64", "EM_CUDA": "cuda"}


class BrokenElfError(ValueError):
    """A file that begins like ELF and cannot be read as such: truncated, or damaged."""


@dataclass(frozen=True, kw_only=True)
class ElfFacts:
    """The parts of an ELF file that decide where it runs and what the dynamic loader looks for."""

    machine: str  # as `uname -m` spells it ("aarch64"), else the ELF name ("EM_RISCV")
    soname: str = ""
    needed: tuple[str, ...] = ()  # DT_NEEDED, in the file's order
    rpath: tuple[str, ...] = ()  # DT_RPATH, split at colons
    runpath: tuple[str, ...] = ()  # DT_RUNPATH; where there is one, the loader ignores DT_RPATH


def is_elf(head: bytes) -> bool:
    """Whether a file that begins with `head` (4 bytes or more) is ELF."""
    return head.startswith(MAGIC)


def read_elf(stream: BinaryIO) -> ElfFacts:
    """Read the header and the dynamic segment of a seekable ELF file; BrokenElfError when that is not possible.

    The segment is read, not the section of the same name: the loader does so too, and sections may be stripped.
    """
    from elftools.common.exceptions import ELFError
    from elftools.construct.core import ConstructError
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

    try:
        elf = ELFFile(stream)
        machine = str(elf["e_machine"])
        entries: dict[str, list[str]] = {"DT_NEEDED": [], "DT_SONAME": [], "DT_RPATH": [], "DT_RUNPATH": []}
        for segment in elf.iter_segments("PT_DYNAMIC"):
            assert isinstance(segment, DynamicSegment)
            for tag in segment.iter_tags():
                if tag.entry.d_tag in entries:
                    value = getattr(tag, tag.entry.d_tag.removeprefix("DT_").lower())
                    entries[tag.entry.d_tag].append(value)
    except (ELFError, ConstructError, ValueError, AttributeError, TypeError) as err:
        # pyelftools meets offsets beyond the end of a truncated file with whatever its parser stumbles over
        raise BrokenElfError(f"not readable as ELF: {err}") from err
    return ElfFacts(
        machine=MACHINES.get(machine, machine),
        soname="".join(entries["DT_SONAME"][:1]),
        needed=tuple(entries["DT_NEEDED"]),
        rpath=_split(entries["DT_RPATH"]),
        runpath=_split(entries["DT_RUNPATH"]),
    )


def _split(paths: list[str]) -> tuple[str, ...]:
    return tuple(part for path in paths for part in path.split(":") if part)

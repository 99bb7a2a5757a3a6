"""Where two images of one plan differ: layer, file, and the section and symbols or the byte in it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence

from spark_images.elf import is_elf
from spark_images.imagefiles import layer_files
from spark_images.oci import Layout

MOST_FILES = 20  # named in a message; more say no more
MOST_SYMBOLS = 5


def layout_differences(old: Layout, new: Layout) -> tuple[str, ...]:
    """Which files of which layer differ between two layouts of one plan; of ELF files, which sections and symbols."""
    found = []
    keys = sorted((old.config.keys() | new.config.keys()) - {"rootfs"})  # which names the layers, that come below
    if differing := [key for key in keys if old.config.get(key) != new.config.get(key)]:
        found.append(f"the image configs differ in {', '.join(differing)}")
    for number, (before, after) in enumerate(zip(old.layers, new.layers, strict=False), start=1):
        if before.diff_id == after.diff_id:  # whatever their compression
            continue
        old_files = {entry.path: entry for entry in layer_files(old, before)}
        new_files = {entry.path: entry for entry in layer_files(new, after)}
        for path in sorted(old_files.keys() | new_files.keys()):
            if path not in old_files or path not in new_files:
                found.append(f"layer {number}: {path}: only in the {'old' if path in old_files else 'new'} image")
                continue
            one, two = old_files[path], new_files[path]
            if (one.type, one.mode, one.uid, one.gid, one.link) != (two.type, two.mode, two.uid, two.gid, two.link):
                found.append(f"layer {number}: {path}: mode, owner or link differ")
            elif one.type == "file":
                with one.open() as old_file, two.open() as new_file:
                    found += [
                        f"layer {number}: {path}{how}" for how in _content_differences(old_file.read(), new_file.read())
                    ]
    if len(old.layers) != len(new.layers):
        found.append(f"{len(old.layers)} layers, then {len(new.layers)}")
    return (*found[:MOST_FILES], f"and {len(found) - MOST_FILES} more") if len(found) > MOST_FILES else tuple(found)


def _content_differences(old: bytes, new: bytes) -> Iterator[str]:
    if old == new:
        return
    before, after = _sections(old), _sections(new)
    names = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    if before and after and names:
        symbols = _listed(_differing_symbols(old, new))
        yield f": sections {', '.join(names)} differ{f', symbols {symbols}' if symbols else ''}"
        return
    place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    yield f": differs from byte {place} on ({len(old)} and {len(new)} bytes)"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_SYMBOLS
    return f"{', '.join(names[:MOST_SYMBOLS])}{f' and {more} more' if more > 0 else ''}"


def _differing_symbols(old: bytes, new: bytes) -> list[str]:
    """Functions and objects whose own bytes differ, or that only one file has; none of stripped files."""
    before, after = _symbols(old), _symbols(new)
    return [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]


def _symbols(content: bytes) -> dict[str, list[str]]:
    """Name -> digests of the bytes, as static functions of one name may be many."""
    from elftools.common.exceptions import ELFError
    from elftools.construct.core import ConstructError
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    found: dict[str, list[str]] = {}
    try:
        elf = ELFFile(io.BytesIO(content))
        tables = [section for section in elf.iter_sections() if isinstance(section, SymbolTableSection)]
        tables.sort(key=lambda table: table["sh_type"] != "SHT_SYMTAB")  # the dynamic one has a part of it
        for symbol in tables[0].iter_symbols() if tables else ():
            place, kind = symbol["st_shndx"], symbol["st_info"]["type"]
            if kind not in ("STT_FUNC", "STT_OBJECT") or not isinstance(place, int) or not symbol["st_size"]:
                continue
            section = elf.get_section(place)
            if section["sh_type"] == "SHT_NOBITS":
                continue
            start = section["sh_offset"] + symbol["st_value"] - section["sh_addr"]
            data = content[start : start + symbol["st_size"]]
            found.setdefault(symbol.name, []).append(hashlib.sha256(data).hexdigest())
    except (ELFError, ConstructError, ValueError, AttributeError, TypeError):  # as _sections
        return {}
    return found


def _sections(content: bytes) -> dict[str, str]:
    """Name -> digest; empty for what is no ELF file, has no sections, or cannot be read."""
    from elftools.common.exceptions import ELFError
    from elftools.construct.core import ConstructError
    from elftools.elf.elffile import ELFFile

    if not is_elf(content):
        return {}
    try:
        return {
            section.name: hashlib.sha256(section.data()).hexdigest()
            for section in ELFFile(io.BytesIO(content)).iter_sections()
        }
    except (ELFError, ConstructError, ValueError, AttributeError, TypeError):  # as elf.py: damaged in whatever way
        return {}

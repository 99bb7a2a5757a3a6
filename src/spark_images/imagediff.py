"""Where two images of one plan differ: layer, file, and the section or byte in it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

from spark_images.elf import is_elf
from spark_images.imagefiles import layer_files
from spark_images.oci import Layout

MOST_FILES = 20  # named in a message; more say no more


def layout_differences(old: Layout, new: Layout) -> tuple[str, ...]:
    """Which files of which layer differ between two layouts of one plan, and for ELF files in which sections."""
    found = []
    keys = sorted((old.config.keys() | new.config.keys()) - {"rootfs"})  # which names the layers, that come below
    if differing := [key for key in keys if old.config.get(key) != new.config.get(key)]:
        found.append(f"the image configs differ in {', '.join(differing)}")
    for number, (before, after) in enumerate(zip(old.layers, new.layers, strict=False), start=1):
        if before.digest == after.digest:
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
        yield f": sections {', '.join(names)} differ"
        return
    place = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    yield f": differs from byte {place} on ({len(old)} and {len(new)} bytes)"


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

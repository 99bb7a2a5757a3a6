"""Checks of platform and linking: what every file is made for, and what the loader finds for it. Pure."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Subject, excused
from spark_images.imagechecks import (
    HOST_LIBRARIES,
    ImageFile,
    check_elf_machine,
    find_library,
    plain_name,
    real_path,
)

LOADER = "ld.so(8)"
MEANT = re.compile(r"/compat(?:\.real)?/|/stubs/")  # NVIDIA's forward compatibility; what only linkers read
MUST_BE_ONE = re.compile(r"(lib(?:nccl|cudart|stdc\+\+)\.so\.\d+)(?:\.\d+)*")


# --- platform ---------------------------------------------------------------------------------------------------------


@check(
    "platform.foreign-elf",
    Severity.FAIL,
    reason="a program or library of another architecture ends in `exec format error` or is passed over",
    source="ELF header, e_machine",
)
def foreign_elf(subject: Subject) -> Iterator[str]:
    programs = {
        path: file for path, file in subject.tree.items() if file.broken or (file.elf and file.elf.machine != "cuda")
    }
    if programs:
        yield from check_elf_machine(programs, subject.target.arch)


@check(
    "platform.disagreement",
    Severity.FAIL,
    reason="engines choose an image by what index and config say, not by what is in it",
    source="OCI image spec, config.md and image-index.md",
)
def disagreement(subject: Subject) -> Iterator[str]:
    if subject.settings is None:
        if subject.wheel_platforms and subject.target.platform not in subject.wheel_platforms:
            yield f"the wheel is for {', '.join(subject.wheel_platforms)}, not {subject.target.platform}"
        return
    if subject.settings.platform != subject.target.platform:
        yield f"the config says {subject.settings.platform}, the target is {subject.target.platform}"
    if subject.settings.indexed not in ("", subject.settings.platform):
        yield f"the index says {subject.settings.indexed}, the config {subject.settings.platform}"


# --- linking ----------------------------------------------------------------------------------------------------------


def _searched(subject: Subject) -> tuple[str, ...]:
    return tuple(folder for folder in subject.variable("LD_LIBRARY_PATH").split(":") if folder.startswith("/"))


def _found(subject: Subject, file: ImageFile, name: str) -> str | None:
    """What the loader takes for a needed library: RPATH, LD_LIBRARY_PATH, RUNPATH, its cache, its own folders."""
    return find_library(subject.tree, file, name, variable=_searched(subject), cache=subject.loader_cache)


@lru_cache(maxsize=2)
def unresolved(subject: Subject) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Every file, what it needs and the loader does not find, and where a library of that name lies elsewhere."""
    return tuple(_unresolved(subject))


def _unresolved(subject: Subject) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    elsewhere: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, file in subject.tree.items():
        real = real_path(subject.tree, path) if file.kind == "symlink" else path
        elf = subject.tree[real].elf if real else None
        if elf:
            names = {posixpath.basename(path), elf.soname}
            for name in names - {""}:
                elsewhere[(elf.machine, name)].append(path)
    given = HOST_LIBRARIES | {one.pattern for one in subject.brought}
    for path, file in subject.tree.items():
        if file.elf and file.elf.machine != "cuda":
            for name in file.elf.needed:
                if name not in given and _found(subject, file, name) is None:
                    yield path, name, tuple(elsewhere[(file.elf.machine, name)])


@check(
    "link.missing",
    Severity.FAIL,
    reason="the loader ends with `cannot open shared object file`, at the start or at the first import",
    source=LOADER,
)
def missing(subject: Subject) -> Iterator[str]:
    if subject.settings is None:
        return  # what a wheel needs comes from other wheels
    for path, name, elsewhere in unresolved(subject):
        if not elsewhere and not excused(subject, path):
            yield f"{path}: {name} is nowhere in the image"


@check(
    "link.only-if-loaded-before",
    Severity.WARN,
    reason="the loader does not find it from here: it works only in a process that has loaded it already",
    source=LOADER,
)
def only_if_loaded_before(subject: Subject) -> Iterator[str]:
    if subject.settings is None:
        return
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path, name, elsewhere in unresolved(subject):
        if elsewhere:
            found[(path, posixpath.dirname(elsewhere[0]))].append(name)
    for (path, folder), names in found.items():
        yield f"{path}: {', '.join(names)} in {folder}, where it is not looked for"


@check(
    "link.second-copy",
    Severity.FAIL,
    reason="two copies in one process have two states: hangs of NCCL, streams that the other does not know",
    source="public reports of two libnccl.so.2 in NGC images with torch from PyPI",
)
def second_copy(subject: Subject) -> Iterator[str]:
    copies: dict[str, dict[str, str]] = defaultdict(dict)  # name -> content -> the first path of it
    for path, file in subject.tree.items():
        match = MUST_BE_ONE.fullmatch(plain_name(file.elf.soname)) if file.elf else None
        if match and file.kind == "file":
            copies[match[1]].setdefault(subject.digests.get(path, path), path)
    for name, paths in sorted(copies.items()):
        if len(paths) > 1:
            yield f"{name}: {len(paths)} that differ: {', '.join(paths.values())}"


@check(
    "link.driver-inside",
    Severity.FAIL,
    reason="NVIDIA's container runtime mounts the host's driver; another one beside it fits no host but its builder's",
    source="NVIDIA Container Toolkit",
)
def driver_inside(subject: Subject) -> Iterator[str]:
    for path, file in subject.tree.items():
        if file.kind == "file" and file.elf and file.elf.soname in HOST_LIBRARIES and not MEANT.search(path):
            yield path

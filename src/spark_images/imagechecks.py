"""What must hold in an image's files, whatever it is for. Pure: files in, findings out; none means that it holds."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_images.platforms import MACHINES

if TYPE_CHECKING:
    from spark_images.cuobjdump import GpuCode
    from spark_images.elf import ElfFacts
    from spark_images.imagefiles import FileEntry, FileType

# Of the host's driver: mounted by NVIDIA's container runtime.
HOST_LIBRARIES = frozenset(
    f"lib{name}.so.1"
    for name in ("cuda", "nvidia-ml", "nvcuvid", "nvidia-encode", "nvidia-opticalflow", "nvidia-ptxjitcompiler")
)
SHARED_TEMPORARY = frozenset({"/tmp", "/var/tmp", "/run/lock"})  # world-writable with the sticky bit in every Debian
MAX_LINKS = 40  # as many as Linux follows

BUILD_TOOLS = re.compile(
    r"""(?x) (?: [\w.]+-linux-gnu(?:\w*)- )?
    (?: [cg]?cc | [cg]\+\+ | cpp | cc1(?:plus)? | collect2 | lto1 | lto-wrapper | clang(?:\+\+)? | tcc
      | as | ld | ld\.(?:bfd|gold|lld) | ar
      | nm | ranlib | strip | objcopy | objdump | readelf | make | gmake | ninja | cmake | ctest | ccache | memgate
      | nvcc | cicc | ptxas | cudafe\+\+ | fatbinary | nvlink | cuobjdump | nvdisasm
      | apt(?:-\w+)? | dpkg(?:-[\w-]+)? | pip3? | git | patch | pkg-config | python3? | perl )
    (?: -? \d[\d.]* )?"""
)
DEVELOPMENT_SUFFIXES = (".a", ".o", ".la", ".h", ".hpp", ".cuh", ".cmake", ".pc", ".pyc", ".cu")
LEFTOVER_NAMES = frozenset({"__pycache__", ".git", ".cache", ".ccache", "ccache", "CMakeCache.txt"})
BUILD_FOLDERS = ("/spark", "/build", "/out")
MUST_BE_EMPTY = ("/tmp", "/var/tmp", "/root", "/home", "/var/log", "/var/cache", "/var/lib/apt", "/run", *BUILD_FOLDERS)
# Those whose own version is CUDA's: libcufft.so.12, libcusparse.so.12 and libcurand.so.10 are of CUDA 13 as well.
CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas(?:Lt)?|cupti|nvrtc|nvJitLink)\.so\.(\d+)")
_AUDITWHEEL = re.compile(r"-[0-9a-f]{8,}(?=\.so\.)")  # of the content, put into the name of what it copies into a wheel


def plain_name(name: str) -> str:
    """A library's name as it was before auditwheel: `libcudart.so.12.8.90` of `libcudart-1a2b3c4d.so.12.8.90`."""
    return _AUDITWHEEL.sub("", name)


@dataclass(frozen=True, kw_only=True)
class ImageFile:
    """One path of an image after all its layers."""

    path: str  # absolute: "/usr/bin/dash"
    kind: FileType
    mode: int  # permission bits with setuid, setgid and sticky
    uid: int = 0
    size: int = 0  # bytes
    link: str = ""  # where a symbolic link points
    capabilities: bool = False  # a program that has some, whoever starts it
    elf: ElfFacts | None = None  # of a regular file that is ELF
    broken: str = ""  # why a file that begins like ELF could not be read


def of_entry(entry: FileEntry) -> ImageFile:
    """One path of a layout, of whose content nothing is known yet."""
    return ImageFile(
        path=f"/{entry.path}",
        kind=entry.type,
        mode=entry.mode,
        uid=entry.uid,
        size=entry.size,
        link=entry.link,
        capabilities=entry.capabilities,
    )


Tree = Mapping[str, ImageFile]
Findings = tuple[str, ...]


def tree_of(files: Iterable[ImageFile]) -> Tree:
    """The files by path, in the order of their paths, with the folders that a layer need not name."""
    found = {file.path: file for file in files}
    for path in [*found]:
        while (path := posixpath.dirname(path)) != "/" and path not in found:
            found[path] = ImageFile(path=path, kind="directory", mode=0o755)  # as container runtimes make them
    return dict(sorted(found.items()))


def real_path(tree: Tree, path: str) -> str | None:
    """The path behind all symbolic links, seen from inside the image; None where it leads to nothing."""
    parts = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    here, followed = "/", 0
    while parts:
        part = parts.pop()
        if part == "..":
            here = posixpath.dirname(here)
            continue
        step = posixpath.join(here, part)
        file = tree.get(step)
        if file is None:
            return None
        if file.kind == "symlink":
            followed += 1
            if followed > MAX_LINKS:
                return None
            if file.link.startswith("/"):
                here = "/"
            parts += [piece for piece in reversed(file.link.split("/")) if piece not in ("", ".")]
        else:
            here = step
    return here


def check_elf_machine(tree: Tree, architecture: str) -> Findings:
    """Every ELF file is for the architecture ("arm64"), and there are some."""
    machine = MACHINES[architecture]
    findings = [f"{file.path}: {file.broken}" for file in tree.values() if file.broken]
    programs = [(file.path, file.elf.machine) for file in tree.values() if file.elf]
    findings += [f"{path}: {found}, not {machine}" for path, found in programs if found != machine]
    return tuple(findings) if programs else (*findings, "no ELF file at all")


def find_library(
    tree: Tree, file: ImageFile, name: str, *, variable: Sequence[str] = (), cache: Mapping[str, Sequence[str]] = {}
) -> str | None:
    """The real path of the library that the loader takes for `name` when it loads `file`; None if there is none.

    variable: the folders of LD_LIBRARY_PATH. cache: name -> paths, as ldconfig wrote them into /etc/ld.so.cache.
    """
    assert file.elf is not None
    if "/" in name:  # a path is taken as it is
        folders: Iterable[str] = ("/",)
    else:
        folders = _library_folders(file, file.elf, variable, [posixpath.dirname(path) for path in cache.get(name, ())])
    for folder in folders:
        path = real_path(tree, posixpath.join(folder, name))
        found = tree[path].elf if path else None
        if found is not None and found.machine == file.elf.machine:  # the loader passes over other machines' libraries
            return path
    return None


def _library_folders(
    file: ImageFile, elf: ElfFacts, variable: Sequence[str] = (), cached: Sequence[str] = ()
) -> Iterator[str]:
    for folder in (*(() if elf.runpath else elf.rpath), *variable, *elf.runpath):
        yield posixpath.normpath(re.sub(r"\$(?:ORIGIN|\{ORIGIN\})", posixpath.dirname(file.path), folder))
    yield from cached
    triplet = f"{elf.machine}-linux-gnu"  # Debian compiles these four into its loader, others lib64
    yield from (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib", "/usr/lib", "/lib64", "/usr/lib64")


def check_gpu_code(code: GpuCode, cuda_architecture: str) -> Findings:
    """Cubins for exactly CMake's architectures ("121a-real"), and PTX only where CMake adds it (without `-real`)."""
    wanted = [entry.partition("-") for entry in cuda_architecture.split(";")]
    cubins = {f"sm_{number}" for number, _, kind in wanted if kind != "virtual"}
    ptx = {f"sm_{number}" for number, _, kind in wanted if kind != "real"}
    findings = [f"no cubin for {name}" for name in sorted(cubins - code.cubins.keys())]
    findings += [f"{code.cubins[name]} cubins for {name}" for name in sorted(code.cubins.keys() - cubins)]
    findings += [f"no PTX for {name}" for name in sorted(ptx - code.ptx.keys())]
    findings += [f"{code.ptx[name]} PTX texts for {name}" for name in sorted(code.ptx.keys() - ptx)]
    return tuple(findings)


def check_build_tools(tree: Tree) -> Findings:
    """No program that only a build needs, and nothing that only compilers read."""
    findings = []
    for file in tree.values():
        name = posixpath.basename(file.path)
        if file.kind in ("file", "symlink"):
            if BUILD_TOOLS.fullmatch(name) and (file.mode & 0o111 or file.kind == "symlink"):
                findings.append(f"{file.path}: build tool")
            elif name.endswith(DEVELOPMENT_SUFFIXES):
                findings.append(f"{file.path}: development file")
    return tuple(findings)


def check_leftovers(tree: Tree, names: frozenset[str] = LEFTOVER_NAMES) -> Findings:
    """No caches, logs, temporary files or mount points that a build left behind. Empty folders may stay."""
    findings = []
    for file in tree.values():
        inside = next((folder for folder in MUST_BE_EMPTY if file.path.startswith(f"{folder}/")), None)
        if posixpath.basename(file.path) in names or file.path in BUILD_FOLDERS:
            findings.append(f"{file.path}: left behind by the build")
        elif inside and file.kind != "directory":
            findings.append(f"{file.path}: nothing should be in {inside}")
    return tuple(findings)


def check_setuid(tree: Tree) -> Findings:
    """No file that runs as its owner or group, or with capabilities. (setgid on a folder only passes the group on.)"""
    files = [file for file in tree.values() if file.kind == "file"]
    modes = (f"{file.path}: mode {file.mode:04o}" for file in files if file.mode & 0o6000)
    return (*modes, *(f"{file.path}: has capabilities" for file in files if file.capabilities))


def check_world_writable(tree: Tree) -> Findings:
    """Nothing that everybody may write to, but the shared temporary folders, which are sticky."""
    findings = []
    for file in tree.values():
        shared = file.path in SHARED_TEMPORARY and file.kind == "directory" and file.mode & 0o1000
        if file.kind != "symlink" and file.mode & 0o002 and not shared:
            findings.append(f"{file.path}: mode {file.mode:04o}")
    return tuple(findings)


def check_licences(tree: Tree, folders: Iterable[str]) -> Findings:
    """Each folder holds a licence text, and each Debian package its copyright file."""
    findings = [
        f"{folder}: no licence text"
        for folder in folders
        if not any(file.path.startswith(f"{folder}/") and file.kind == "file" and file.size for file in tree.values())
    ]
    status = "/var/lib/dpkg/status.d/"
    packages = [path.removeprefix(status) for path in tree if path.startswith(status) and not path.endswith(".md5sums")]
    if not packages:
        findings.append(f"{status}: no package is listed")
    for package in packages:
        path = real_path(tree, f"/usr/share/doc/{package}/copyright")
        if path is None or not tree[path].size:
            findings.append(f"/usr/share/doc/{package}/copyright: missing or empty")
    return tuple(findings)

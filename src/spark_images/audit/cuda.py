"""Checks of CUDA: one major version, a driver that knows it, and compilers that know the GPU. Pure."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Subject, excused
from spark_images.cuda_arch import Capability, cuda_of_driver
from spark_images.imagechecks import CUDA_LIBRARY, plain_name, real_path

DSL_WARP = "/cutlass/cute/nvgpu/warp/mma.py"
DSL_TCGEN05 = "/cutlass/cute/nvgpu/tcgen05/"
# The programs that Triton brings, and what it reads before each. Since 3.6 there are two.
TRITON_READS = {"ptxas": "TRITON_PTXAS_PATH", "ptxas-blackwell": "TRITON_PTXAS_BLACKWELL_PATH"}
BLACKWELL = Capability(10, 0)  # from here on it takes the second


def _cuda_majors(subject: Subject) -> dict[int, list[tuple[str, str]]]:
    """Every CUDA major version with the files that are of it or need it, and the name that says so."""
    users: dict[int, list[tuple[str, str]]] = defaultdict(list)
    for path, file in subject.tree.items():
        for name in (posixpath.basename(path), *(file.elf.needed if file.elf else ())):
            match = CUDA_LIBRARY.match(plain_name(name))
            if match and int(match[1]) < 100:  # else a version of its own: libnvrtc.so.112, libcupti.so.2025.1.1
                users[int(match[1])].append((path, name))
    return users


def other_majors(subject: Subject) -> Iterator[tuple[str, str, int]]:
    """What is not of the CUDA of most: path, name, and the major version of most; the driver's where there is that."""
    users, (of_driver, _) = _cuda_majors(subject), cuda_of_driver(subject.target.driver) or (0, 0)
    main = max(users, key=lambda major: (major == of_driver, len(users[major]), major), default=0)
    for major in sorted(users.keys() - {main}):
        yield from ((path, name, main) for path, name in users[major])


@check(
    "cuda.two-majors",
    Severity.FAIL,
    reason="libraries of two CUDA versions in one image: the one that is not installed for its users crashes them",
    source="flash-attn of NGC images before 26.x on CUDA 13: libcudart.so.12",
)
def two_majors(subject: Subject) -> Iterator[str]:
    for path, name, main in other_majors(subject):
        if not excused(subject, path):
            yield f"{path}: {'is' if posixpath.basename(path) == name else 'needs'} {name}, beside CUDA {main}"


@check(
    "cuda.newer-than-driver",
    Severity.FAIL,
    reason="CUDA of a newer major version than the driver's does not start at all",
    source="NVIDIA, CUDA Compatibility, Minor Version Compatibility",
)
def newer_than_driver(subject: Subject) -> Iterator[str]:
    of_driver = cuda_of_driver(subject.target.driver)
    if of_driver is None:
        return
    for major, users in sorted(_cuda_majors(subject).items()):
        if major > of_driver[0]:
            found = "CUDA {}.{}".format(*of_driver)
            path, name = users[0]
            yield f"{path}: {name}, and driver {subject.target.driver} of `{subject.target.name}` is of {found}"


def _unfit(subject: Subject, ptxas: str, wanted: str) -> str:
    """Why Triton cannot compile for `wanted` with the program at this path, "" where it can."""
    path = real_path(subject.tree, ptxas)
    if path is None or subject.tree[path].kind != "file":
        return "is not there"
    if not subject.tree[path].mode & 0o111:
        return "may not be run"
    if path not in subject.marked:
        return "is no ELF file called ptxas, so nobody knows what it takes"
    return "" if wanted in subject.marked[path] else f"does not know {wanted}"


@check(
    "cuda.ptxas-too-old",
    Severity.FAIL,
    reason="Triton fails at the first kernel: `Value 'sm_121a' is not defined for option 'gpu-name'`",
    source="vLLM issue 32704; get_ptxas in backends/nvidia/compiler.py of triton 3.6.0",
)
def ptxas_too_old(subject: Subject) -> Iterator[str]:
    if subject.gpu is None:
        return
    wanted = f"sm_{subject.target.compute_capability.replace('.', '')}"
    idle = "ptxas" if subject.gpu >= BLACKWELL else "ptxas-blackwell"  # of the two, where they lie side by side
    judged, replaced = set(), set()  # paths; names of programs in place of which a variable's is taken
    for name, variable in TRITON_READS.items():
        if named := subject.variable(variable):
            judged.add(real_path(subject.tree, named))
            if why := _unfit(subject, named, wanted):
                yield f"{named}: {variable} names it, and it {why}"
            else:
                replaced.add(name)
    for path, known in sorted(subject.marked.items()):
        folder, name = posixpath.split(path)
        both = all(f"{folder}/{other}" in subject.marked for other in TRITON_READS)
        taken = path not in judged and name not in replaced and not (both and name == idle)
        if taken and wanted not in known:
            yield f"{path}: does not know {wanted}"


@check(
    "cuda.dsl-refuses-gpu",
    Severity.WARN,
    reason="CUTLASS DSL refuses to compile its warp-level FP4 for an architecture that its list does not name",
    source="CUTLASS issues 2800 and 3100",
)
def dsl_refuses_gpu(subject: Subject) -> Iterator[str]:
    wanted = subject.target.compute_capability.replace(".", "")
    for path, text in subject.texts.items():
        admits = re.search(rf"sm_{wanted}\b|sm_{wanted[:2]}0f|is_family_of", text)
        if path.endswith(DSL_WARP) and wanted.startswith("12") and "sm_120" in text and not admits:
            yield f"{path}: names sm_120a and not sm_{wanted}"


@check(
    "cuda.dsl-patched",
    Severity.FAIL,
    reason="GPUs of 12.x have no tcgen05: a list that admits them lets code through that cannot run",
    source="CUTLASS issue 3100; CUDA Programming Guide, 5.1",
)
def dsl_patched(subject: Subject) -> Iterator[str]:
    for path, text in subject.texts.items():
        if DSL_TCGEN05 in path and (match := re.search(r"sm_12[01]\w?", text)):
            yield f"{path}: names {match[0]}"


@check(
    "cuda.torch-without",
    Severity.FAIL,
    reason="pip replaces a CUDA build of torch by one for CPUs when a dependency asks for a version that it is not",
    source="PEP 440: 2.10.0a0 sorts before 2.10; torch 2.10.0 for aarch64 on PyPI is for CPUs",
)
def torch_without(subject: Subject) -> Iterator[str]:
    for distribution in subject.distributions:
        if distribution.name != "torch" or subject.gpu is None:
            continue
        if distribution.version.endswith("+cpu"):
            yield f"torch {distribution.version} is a build for CPUs"
        elif f"{distribution.site}/torch/lib/libtorch_cuda.so" not in subject.tree:
            yield f"torch {distribution.version} has no lib/libtorch_cuda.so: it is a build for CPUs"

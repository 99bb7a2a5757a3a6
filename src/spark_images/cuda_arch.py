"""CUDA architectures: how each tool spells them, and which code runs on which GPU. Pure.

The rules are those of NVIDIA's CUDA Programming Guide, 5.1 Compute Capabilities (families: its table of family-specific
targets). They hold among GPUs of PCs and servers, GB10 included; code for Tegra is compatible with neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, assert_never

from spark_images.errors import ConfigError


class Capability(NamedTuple):
    """The compute capability of a GPU: (12, 1) is GB10."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Variant(Enum):
    """Which instructions code may use beyond those that every later GPU has as well."""

    PLAIN = ""  # none
    FAMILY = "f"  # those of the family, e.g. FP4 on 12.x
    EXACT = "a"  # those of exactly this compute capability


@dataclass(frozen=True)
class Arch:
    """An architecture that code is compiled for; text form `12.1a`."""

    capability: Capability
    variant: Variant = Variant.PLAIN

    def __str__(self) -> str:
        return f"{self.capability}{self.variant.value}"

    @property
    def number(self) -> str:
        """`121a`, as in `sm_121a` and `compute_121a`."""
        return f"{self.capability.major}{self.capability.minor}{self.variant.value}"


class Kind(Enum):
    """What a fatbin holds for an architecture."""

    CUBIN = "cubin"  # machine code
    PTX = "PTX"  # text that the driver compiles at first use


class Code(NamedTuple):
    """One piece of GPU code in a library."""

    kind: Kind
    arch: Arch

    def __str__(self) -> str:
        return f"{'sm' if self.kind is Kind.CUBIN else 'compute'}_{self.arch.number}"


class Embedded(NamedTuple):
    """One piece of GPU code as it lies in a file."""

    code: Code
    isa: tuple[int, int]  # of PTX the version of its language: (9, 0) came with CUDA 13.0; of a cubin its ABI's
    size_bytes: int  # uncompressed where that is noted; 0 where nothing is
    hollow: bool = False  # a cubin without any kernel


Module = tuple[Embedded, ...]  # one fatbin, as a rule of one source file: the driver takes one piece of it


def has_kernels(module: Module) -> bool:
    """Whether there is something to call: nvcc makes a module of every source file, also where no kernel is in it."""
    cubins = [piece for piece in module if piece.code.kind is Kind.CUBIN]
    return not cubins or not all(piece.hollow for piece in cubins)


class Run(Enum):
    """How code comes to run on a GPU, the best first."""

    NATIVE = "natively"
    JIT = "compiled by the driver at first use"
    NOT = "not at all"


_DOTTED = re.compile(r"(\d{1,2})\.(\d)([af]?)")
_NUMBER = re.compile(r"(?:sm_|compute_)?(\d{1,2})(\d)([af]?)")

_FAMILIES = (
    frozenset({Capability(10, 0), Capability(10, 3)}),
    frozenset({Capability(11, 0)}),
    frozenset({Capability(12, 0), Capability(12, 1)}),
)

_FIRST_CUDA = {  # the first nvcc that knows the plain architecture: release notes of CUDA
    Capability(7, 5): (10, 0),
    Capability(8, 0): (11, 0),
    Capability(8, 6): (11, 1),
    Capability(8, 7): (11, 4),
    Capability(8, 9): (11, 8),
    Capability(9, 0): (11, 8),
    Capability(10, 0): (12, 8),
    Capability(10, 3): (12, 9),
    Capability(11, 0): (13, 0),
    Capability(12, 0): (12, 8),
    Capability(12, 1): (12, 9),
}
# What a branch of the driver came with, and the PTX of that CUDA: PTX ISA, Release History; CUDA Toolkit Release Notes.
_CUDA_OF_DRIVER = {525: (12, 0), 535: (12, 2), 550: (12, 4), 570: (12, 8), 575: (12, 9), 580: (13, 0), 590: (13, 1)}
_ISA_OF_CUDA = {
    (12, 0): (8, 0),
    (12, 2): (8, 2),
    (12, 4): (8, 4),
    (12, 8): (8, 7),
    (12, 9): (8, 8),
    (13, 0): (9, 0),
    (13, 1): (9, 1),
}
_FIRST_CUDA_OF_VARIANT = {Variant.PLAIN: (0, 0), Variant.EXACT: (12, 0), Variant.FAMILY: (12, 9)}

# --- spellings --------------------------------------------------------------------------------------------------------


def parse_arch(text: str) -> Arch:
    """`12.1a`, `121a`, `sm_121a` and `compute_121a` alike. Raises ConfigError for anything else.

    Raises it as well for a variant that does not exist: `a` came with 9.0, `f` with 10.0.
    """
    match = _DOTTED.fullmatch(text) or _NUMBER.fullmatch(text)
    if match is None:
        raise ConfigError(f"`{text}` is no CUDA architecture", hint="written as `12.1a`, `9.0` or `sm_121a`")
    arch = Arch(Capability(int(match[1]), int(match[2])), Variant(match[3]))
    first = {Variant.PLAIN: 0, Variant.EXACT: 9, Variant.FAMILY: 10}[arch.variant]
    if arch.capability.major < first:
        raise ConfigError(f"there is no CUDA architecture `{text}`: the suffix came with {first}.0")
    return arch


def parse_torch_list(text: str) -> tuple[Code, ...]:
    """TORCH_CUDA_ARCH_LIST: `8.0+PTX;12.0f` (or with blanks). A cubin for each, and PTX where it says so."""
    found: list[Code] = []
    for word in re.split(r"[; ]+", text.strip("; ")):
        arch = parse_arch(word.removesuffix("+PTX"))
        found.append(Code(Kind.CUBIN, arch))
        if word.endswith("+PTX"):
            found.append(Code(Kind.PTX, arch))
    return tuple(found)


def flashinfer_list(archs: Iterable[Arch]) -> str:
    """FLASHINFER_CUDA_ARCH_LIST: blanks between; always with the variant, as releases differ in what they add."""
    return " ".join(str(arch) for arch in archs)


# --- what runs where --------------------------------------------------------------------------------------------------


def run_of(code: Code, gpu: Capability) -> Run:
    """How one piece of code runs on a GPU, as far as its name tells.

    cuobjdump's lists name a cubin of `120f` plainly `sm_120`: it and a plain cubin look alike there, and both run on
    12.1. What it prints without `--list-elf` has the letter.
    """
    arch = code.arch
    match arch.variant:
        case Variant.EXACT:  # cubin and PTX alike
            fits = gpu == arch.capability
        case Variant.FAMILY:  # cubin and PTX alike; the later members run the code of the earlier ones
            related = any({gpu, arch.capability} <= family for family in _FAMILIES)
            fits = gpu == arch.capability or (gpu > arch.capability and related)
        case Variant.PLAIN if code.kind is Kind.CUBIN:
            fits = gpu.major == arch.capability.major and gpu.minor >= arch.capability.minor
        case Variant.PLAIN:
            fits = gpu >= arch.capability
        case _:
            assert_never(arch.variant)
    if not fits:
        return Run.NOT
    return Run.NATIVE if code.kind is Kind.CUBIN else Run.JIT


def best_run(codes: Iterable[Code], gpu: Capability) -> Run:
    """How a module runs that holds all of these: the driver takes a cubin before PTX."""
    runs = {run_of(code, gpu) for code in codes}
    return next((run for run in Run if run in runs), Run.NOT)


def first_cuda(arch: Arch) -> tuple[int, int] | None:
    """The first CUDA whose nvcc compiles for it, (12, 9) for `12.1a`; None where that is not known here."""
    if arch.capability not in _FIRST_CUDA:
        return None
    return max(_FIRST_CUDA[arch.capability], _FIRST_CUDA_OF_VARIANT[arch.variant])


# --- drivers ----------------------------------------------------------------------------------------------------------


def cuda_of_driver(driver: str) -> tuple[int, int] | None:
    """The CUDA that came with a branch of the driver, (13, 0) for "580"; of an unknown one the branch's before it."""
    known = [branch for branch in _CUDA_OF_DRIVER if driver and branch <= int(driver)]
    return _CUDA_OF_DRIVER[max(known)] if known else None


def isa_of_driver(driver: str) -> tuple[int, int] | None:
    """The newest PTX that a branch of the driver compiles: (9, 0) for "580"."""
    cuda = cuda_of_driver(driver)
    return None if cuda is None else _ISA_OF_CUDA[cuda]

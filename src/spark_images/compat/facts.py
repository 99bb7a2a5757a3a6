"""What releases of vLLM, FlashInfer, torch and NVIDIA's base image need: the values of images/compat.yaml. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spark_images.cuda_arch import Capability

T = TypeVar("T")


@dataclass(frozen=True)
class Fact(Generic[T]):
    """A value, and where it was read: `CMakeLists.txt:1082 of vllm 0.23.0`."""

    value: T
    source: str


@dataclass(frozen=True)
class History(Generic[T]):
    """A value over the releases of a project: each holds from its release until the next one's."""

    entries: tuple[tuple[Version, Fact[T]], ...]  # ascending

    def find(self, version: Version) -> Fact[T] | None:
        """What holds for a release; None for those before the first entry."""
        return next((fact for since, fact in reversed(self.entries) if since <= version), None)

    def at(self, version: Version) -> Fact[T]:
        """As find, for what the file says from the first release on."""
        fact = self.find(version)
        assert fact is not None, f"the reader has checked that nothing begins after {version}"
        return fact


@dataclass(frozen=True, kw_only=True)
class TorchWheel:
    """A release of torch as PyPI has it."""

    triton: str  # the triton it depends on
    cuda: tuple[tuple[str, str], ...]  # platform -> CUDA its wheel is built for; a platform's wheel without is CPU-only


@dataclass(frozen=True, kw_only=True)
class NgcBase:
    """NVIDIA's PyTorch image of one month, nvcr.io/nvidia/pytorch:<tag>-py3."""

    tag: str  # "26.01"
    torch: str  # "2.10.0a0+…", which sorts before 2.10.0
    cuda: str
    python: str
    ubuntu: str
    triton: str  # "" where nobody looked


class HandOver(Enum):
    """How CMake is told to take a source from a local tree."""

    ENVIRONMENT = "environment"  # the variable names the tree
    FETCHCONTENT = "fetchcontent"  # -DFETCHCONTENT_SOURCE_DIR_<NAME>


@dataclass(frozen=True, kw_only=True)
class Revision:
    """What a release takes of a source."""

    ref: str  # tag or commit, as the release names it
    url: str
    submodules: tuple[str, ...]  # which of its submodules it needs as well


@dataclass(frozen=True, kw_only=True)
class SourceFacts:
    """One repository that CMake fetches."""

    name: str
    hand_over: HandOver
    variable: str  # "" for FETCHCONTENT
    folder: str  # the folder of the tree that the variable has to name; "" for its root
    tags: tuple[tuple[str, str], ...]  # tag -> commit
    revisions: History[Revision]


@dataclass(frozen=True, kw_only=True)
class ArchList:
    """What TORCH_CUDA_ARCH_LIST has to be for a GPU."""

    value: str
    because: str


@dataclass(frozen=True, kw_only=True)
class ComponentFacts:
    """A part of vLLM's compile for 12.1."""

    name: str
    called_on: int | None  # the only major compute capability on which it is called
    archs: History[str]  # in the words of TORCH_CUDA_ARCH_LIST; "none" where it is not compiled
    libraries: History[tuple[str, ...]]  # those that it is linked into: "_C"
    units: tuple[str, ...]  # patterns of its objects; what two components match is the later one's


@dataclass(frozen=True, kw_only=True)
class Needless:
    """A part that is compiled for a GPU on which it is never called."""

    component: str
    units: str  # pattern of its objects
    saves: str


@dataclass(frozen=True, kw_only=True)
class Patch:
    """A unified diff that releases need."""

    name: str
    sha256: str  # hex
    releases: SpecifierSet
    until: Version | None  # the release that needs it no more; None where nobody knows of one
    major: int | None  # the compute capability it is for; None: any
    because: str
    source: str
    leaves_out: Needless | None

    @property
    def path(self) -> str:
        """Where it lies in the project."""
        return f"images/vllm/patches/{self.name}.patch"

    def is_for(self, version: Version, major: int) -> bool:
        """Whether a release needs it for a GPU of this major compute capability."""
        wanted = version in self.releases and (self.until is None or version < self.until)
        return wanted and self.major in (None, major)


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable of a build or of the image."""

    name: str
    value: str
    because: str
    source: str = ""
    at_run_time: bool = False


@dataclass(frozen=True, kw_only=True)
class Trap:
    """What goes wrong in a range of releases, and what to do instead."""

    name: str
    releases: SpecifierSet
    major: int | None  # the compute capability it is about; None: any
    what: str
    instead: str
    source: str
    at_run_time: bool  # False: in the compile, where this pipeline does what stands in `instead`


@dataclass(frozen=True, kw_only=True)
class SeenTogether:
    """What NVIDIA ships in one vLLM image."""

    tag: str
    vllm: str
    torch: str
    flashinfer: str


@dataclass(frozen=True, kw_only=True)
class VllmFacts:
    """Everything about vLLM. A History without an entry for a release: the release says nothing of it."""

    releases: tuple[Version, ...]  # ascending
    torch: History[str]
    torch_floor: History[str]
    flashinfer: History[str]
    python: History[SpecifierSet]
    gcc: History[str]
    build_requirements: History[tuple[str, ...]]
    use_existing_torch: History[str]
    sources: tuple[SourceFacts, ...]
    arch_lists: tuple[tuple[Capability, History[ArchList]], ...]
    components: tuple[ComponentFacts, ...]
    patches: tuple[Patch, ...]
    variables: tuple[tuple[SpecifierSet, Variable], ...]
    traps: tuple[Trap, ...]
    seen_together: tuple[SeenTogether, ...]


@dataclass(frozen=True, kw_only=True)
class FlashinferFacts:
    """Everything about FlashInfer."""

    releases: tuple[Version, ...]  # ascending
    cutlass: History[str]
    build_requirements: History[tuple[str, ...]]
    arch_lists: tuple[tuple[Capability, str], ...]
    variables: tuple[tuple[SpecifierSet, Variable], ...]
    traps: tuple[Trap, ...]
    leave: tuple[str, ...]  # patterns of module names that the serving set has not,
    keep: tuple[str, ...]  # but for these


@dataclass(frozen=True, kw_only=True)
class CudaChoice:
    """A GPU for which an image takes an older CUDA."""

    below: Version  # what it must be below
    choose: str
    because: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """images/compat.yaml."""

    torch: tuple[tuple[str, TorchWheel], ...]
    ngc: tuple[NgcBase, ...]  # in the order of their months
    vllm: VllmFacts
    flashinfer: FlashinferFacts
    llamacpp_cuda: tuple[tuple[Capability, CudaChoice], ...]

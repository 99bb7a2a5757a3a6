"""What the build of a release is told: variables, local sources, what is left out; and what it then holds. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spark_images.compat.check import series
from spark_images.compat.facts import (
    ComponentFacts,
    FlashinferFacts,
    HandOver,
    Needless,
    Patch,
    Trap,
    Variable,
    VllmFacts,
)
from spark_images.compat.release import FlashinferRelease, VllmRelease
from spark_images.cuda_arch import Capability, Code, Run, best_run, flashinfer_list, parse_arch, parse_torch_list
from spark_images.errors import ConfigError

T = TypeVar("T")

COMPONENTS_FOR = Capability(12, 1)  # the only GPU for which the parts of a compile are written down
CUTLASS = "cutlass"
_CUTLASS_FOLDERS = (("CUTLASS_INCLUDE_DIR", "include"), ("CUTLASS_TOOLS_UTIL_INCLUDE_DIR", "tools/util/include"))


def vllm_variables(facts: VllmFacts, release: VllmRelease, *, gpu: Capability, cuda: str) -> tuple[Variable, ...]:
    """The environment of vLLM's compile, but for its sources (local_sources) and MAX_JOBS, which is in no plan.

    cuda: the version of nvcc. Raises ConfigError for a GPU for which nobody has looked what spelling it takes.
    """
    arch_list = _for_gpu(facts.arch_lists, gpu, f"vllm {release.version}").at(release.version)
    major, minor = series(cuda)
    return (
        Variable(
            name="TORCH_CUDA_ARCH_LIST",
            value=arch_list.value.value,
            because=arch_list.value.because,
            source=arch_list.source,
        ),
        Variable(
            name="VLLM_MAIN_CUDA_VERSION",
            value=f"{major}.{minor}",
            because="where it differs from nvcc's, the version gets a suffix as +cu131",
            source="setup.py:917 of vllm 0.20.2",
        ),
        *_of_release(facts.variables, release.version),
    )


def flashinfer_variables(
    facts: FlashinferFacts, release: FlashinferRelease, *, gpu: Capability, at_run_time: bool
) -> tuple[Variable, ...]:
    """The environment of FlashInfer's build, or of an image that runs it, but for MAX_JOBS.

    Raises ConfigError for a GPU for which nobody has looked what spelling it takes.
    """
    spelling = _for_gpu(facts.arch_lists, gpu, f"flashinfer {release.version}")
    arch_list = Variable(
        name="FLASHINFER_CUDA_ARCH_LIST",
        value=flashinfer_list((parse_arch(spelling),)),
        because="it is part of the path of what was compiled ahead, so it is the same at build and at run time",
        source="flashinfer/jit/env.py",
        at_run_time=at_run_time,
    )
    others = _of_release(facts.variables, release.version)
    return (arch_list, *(variable for variable in others if variable.at_run_time == at_run_time))


@dataclass(frozen=True, kw_only=True)
class LocalSources:
    """How vLLM's build is told to fetch nothing."""

    variables: tuple[Variable, ...]
    cmake_args: tuple[str, ...]  # the words of CMAKE_ARGS


def local_sources(release: VllmRelease, trees: Mapping[str, str]) -> LocalSources:
    """Hand each source over as the release honours it. trees: name -> absolute path, submodules in their places.

    Raises ConfigError where one is missing or not one of the release's, or where a path has a blank: CMAKE_ARGS is
    split at blanks.
    """
    names = {source.name for source in release.sources}
    if missing := sorted(names - trees.keys()):
        raise ConfigError(f"vllm {release.version} also fetches {_quoted(missing)}: no tree of it is there")
    if strange := sorted(trees.keys() - names):
        raise ConfigError(f"vllm {release.version} does not take {_quoted(strange)}, of which a tree is there")
    if wrong := [path for path in trees.values() if not path.startswith("/") or len(path.split()) != 1]:
        raise ConfigError(f"`{wrong[0]}` is not an absolute path without blanks")
    variables = tuple(
        Variable(
            name=source.variable,
            value=f"{trees[source.name]}/{source.folder}".removesuffix("/"),
            because=f"the local tree of {source.name} {source.ref}",
            source=source.source,
        )
        for source in release.sources
        if source.hand_over is HandOver.ENVIRONMENT
    )
    options = tuple(
        f"-DFETCHCONTENT_SOURCE_DIR_{source.name.upper()}={trees[source.name]}"
        for source in release.sources
        if source.hand_over is HandOver.FETCHCONTENT
    )
    if (
        CUTLASS in trees
    ):  # its headers are all that is pinned of it: without its CMake files it does not say where they are
        options += tuple(f"-D{name}={trees[CUTLASS]}/{folder}" for name, folder in _CUTLASS_FOLDERS)
    return LocalSources(variables=variables, cmake_args=("-DFETCHCONTENT_FULLY_DISCONNECTED=ON", *options))


def patches_for(
    facts: VllmFacts, release: VllmRelease, gpu: Capability, *, all_kernels: bool = False
) -> tuple[Patch, ...]:
    """What is applied to a release before it is compiled for a GPU. all_kernels: also those never called on it."""
    needed = (patch for patch in facts.patches if patch.is_for(release.version, gpu.major))
    return tuple(patch for patch in needed if not (all_kernels and patch.leaves_out))


def left_out(facts: VllmFacts, release: VllmRelease, gpu: Capability) -> tuple[Needless, ...]:
    """The parts that would be compiled for a GPU and are never called on it, so that a patch leaves them out."""
    return tuple(patch.leaves_out for patch in patches_for(facts, release, gpu) if patch.leaves_out)


@dataclass(frozen=True, kw_only=True)
class Component:
    """A part of the compile, as it is expected to be found in the libraries."""

    name: str
    codes: tuple[Code, ...]
    run: Run  # how it runs on the GPU
    called: bool  # False: vLLM never calls it on this GPU
    source: str
    modules: tuple[tuple[str, int | None], ...]  # library, as "_C" -> how many of its modules; None: not counted


def vllm_components(
    facts: VllmFacts, release: VllmRelease, *, all_kernels: bool = False, units: Iterable[str] = ()
) -> tuple[Component, ...]:
    """What a compile for COMPONENTS_FOR holds, without what is left out unless it is to hold all kernels.

    units: the objects of such a compile of this release with all kernels; () where nobody has listed them.
    """
    out = () if all_kernels else tuple(part.component for part in left_out(facts, release, COMPONENTS_FOR))
    counted = _modules(facts.components, units)
    found = []
    for component in facts.components:
        archs = component.archs.at(release.version)
        if archs.value != "none" and component.name not in out:
            codes = parse_torch_list(archs.value)
            found.append(
                Component(
                    name=component.name,
                    codes=codes,
                    run=best_run(codes, COMPONENTS_FOR),
                    called=component.called_on in (None, COMPONENTS_FOR.major),
                    source=archs.source,
                    modules=tuple(sorted(counted[component.name].items()))
                    or tuple((library, None) for library in component.libraries.at(release.version).value),
                )
            )
    return tuple(found)


def _modules(components: Sequence[ComponentFacts], units: Iterable[str]) -> Mapping[str, Counter[str]]:
    """Component -> library -> modules: each file of CUDA makes one, whether or not a kernel is in it."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for unit in units:
        if match := re.search(r"([^/]+)\.dir/.*\.cu\.o$", unit):
            owners = (one.name for one in reversed(components) if any(fnmatchcase(unit, each) for each in one.units))
            found[next(owners, "")][match[1]] += 1
    return found


def traps_of(traps: Iterable[Trap], version: Version, gpu: Capability) -> tuple[Trap, ...]:
    """What a person who builds or runs this release on this GPU has to know."""
    return tuple(trap for trap in traps if version in trap.releases and trap.major in (None, gpu.major))


def in_serving_set(facts: FlashinferFacts, module: str) -> bool:
    """Whether a module of flashinfer.aot, by its name, is compiled ahead for serving."""

    def matches(patterns: tuple[str, ...]) -> bool:
        return any(fnmatchcase(module, pattern) for pattern in patterns)

    return matches(facts.keep) or not matches(facts.leave)


def _for_gpu(lists: Iterable[tuple[Capability, T]], gpu: Capability, of: str) -> T:
    known = dict(lists)
    if gpu not in known:
        raise ConfigError(
            f"nothing is known of {of} for compute capability {gpu}",
            hint=f"known are {', '.join(map(str, known))}; see `arch-lists` in images/compat.yaml",
        )
    return known[gpu]


def _of_release(variables: Iterable[tuple[SpecifierSet, Variable]], version: Version) -> tuple[Variable, ...]:
    return tuple(variable for releases, variable in variables if version in releases)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)

"""Checks of GPU code: whether each embedded module runs on the target natively, by the driver's compiler, or not. Pure.

What one call of a kernel needs is in one module. A file with native code in one module and none in another is therefore
judged module by module. A module that does not run is no failure by itself: libraries carry kernels that they choose by
GPU. It is one where no module of the file runs, and nobody has said that the file is never called.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Library, Subject, excused
from spark_images.compat.build import Component
from spark_images.cuda_arch import Capability, Code, Module, Run, best_run, has_kernels, isa_of_driver, run_of
from spark_images.units import format_size

GUIDE = "NVIDIA, CUDA Programming Guide, 5.1 Compute Capabilities"
LOOSE = (".cubin", ".fatbin")  # files that a program loads by name, each for one GPU
VLLM_LIBRARY = re.compile(r".*/vllm/(?:vllm_flash_attn/)?(?P<name>\w+)\.(?:[\w-]+\.)?so")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One library in the table."""

    path: str
    modules: Counter[Run]  # those with kernels
    codes: Counter[Code]  # all of it
    ptx_bytes: int  # what the driver would compile at first use
    problem: str

    @property
    def run(self) -> Run:
        """How the best of its modules runs."""
        return next((run for run in Run if self.modules[run]), Run.NOT)


@lru_cache(maxsize=2)
def rows(subject: Subject) -> tuple[Row, ...]:
    """The table: every file with GPU code; loose cubins and fatbins of one folder are one row. () without a GPU."""
    gpu = subject.gpu
    if gpu is None:
        return ()
    files: dict[str, list[Library]] = defaultdict(list)
    for library in subject.libraries:
        loose = library.path.endswith(LOOSE)
        files[f"{posixpath.dirname(library.path)}/*" if loose else library.path].append(library)
    found = (_row(path, libraries, gpu) for path, libraries in sorted(files.items()))
    return tuple(row for row in found if row.modules or row.problem)  # else nothing of it is ever called


def _row(path: str, libraries: Sequence[Library], gpu: Capability) -> Row:
    modules = [module for library in libraries for module in library.modules]
    runs = [(module, best_run((code for code, *_ in module), gpu)) for module in modules if has_kernels(module)]
    return Row(
        path=path,
        modules=Counter(run for _, run in runs),
        codes=Counter(code for module in modules for code, *_ in module),
        ptx_bytes=sum(piece.size_bytes for module, run in runs if run is Run.JIT for piece in _jitted(module, gpu)[:1]),
        problem="; ".join(sorted({library.problem for library in libraries if library.problem})),
    )


def _jitted(module: Module, gpu: Capability) -> Module:
    """The PTX texts that the driver may take of a module, the best first: it takes the newest that fits."""
    fitting = [piece for piece in module if run_of(piece.code, gpu) is Run.JIT]
    return tuple(sorted(fitting, key=lambda piece: piece.code.arch.capability, reverse=True))


def _codes(row: Row) -> str:
    return ", ".join(f"{count} {code}" for code, count in sorted(row.codes.items(), key=lambda item: str(item[0])))


@check(
    "gpu.unreadable",
    Severity.FAIL,
    reason="what cannot be read is not known to run, so it is never passed",
    source="cuobjdump of NVIDIA's wheel",
)
def unreadable(subject: Subject) -> Iterator[str]:
    for library in subject.libraries:
        if library.problem:
            yield f"{library.path}: {library.problem}"


@check(
    "gpu.no-usable-code",
    Severity.FAIL,
    reason="the first call of such a library ends in `no kernel image is available for execution on the device`",
    source=GUIDE,
)
def no_usable_code(subject: Subject) -> Iterator[str]:
    for row in rows(subject):
        if not row.problem and row.run is Run.NOT and not row.path.endswith("/*") and not excused(subject, row.path):
            yield f"{row.path}: of {row.modules.total()} modules none runs on {subject.gpu}: {_codes(row)}"


@check(
    "gpu.loose-code",
    Severity.WARN,
    reason="kernels that are files are loaded by name; where a folder has none for this GPU, what asks for them fails",
    source=GUIDE,
)
def loose_code(subject: Subject) -> Iterator[str]:
    for row in rows(subject):
        if not row.problem and row.run is Run.NOT and row.path.endswith("/*") and not excused(subject, row.path):
            yield f"{row.path}: of {row.modules.total()} files none runs on {subject.gpu}: {_codes(row)}"


@check(
    "gpu.module-not-usable",
    Severity.WARN,
    reason="kernels for other GPUs are dead weight at best, and at worst the ones that are called here",
    source=GUIDE,
)
def module_not_usable(subject: Subject) -> Iterator[str]:
    for row in rows(subject):
        if row.run is not Run.NOT and row.modules[Run.NOT] and not excused(subject, row.path):
            counts = ", ".join(f"{row.modules[run]} {run.value}" for run in Run if row.modules[run])
            yield f"{row.path}: {counts}"


@check(
    "gpu.jit",
    Severity.WARN,
    reason="PTX is compiled by the driver at first use, in every new container whose ~/.nv/ComputeCache is not kept",
    source="vLLM PR 40923: PTX of Marlin MoE gave wrong results on GB10; CUDA_CACHE_PATH and CUDA_CACHE_MAXSIZE",
)
def jit(subject: Subject) -> Iterator[str]:
    for row in rows(subject):
        if row.modules[Run.JIT]:
            of = f"{row.modules[Run.JIT]} of {row.modules.total()} modules"
            yield f"{row.path}: {of} only as PTX; the first start compiles {format_size(row.ptx_bytes)} of it"


@check(
    "gpu.ptx-too-new",
    Severity.FAIL,
    reason="the driver refuses PTX of a newer CUDA than its own: cudaErrorUnsupportedPtxVersion",
    source="NVIDIA, CUDA Compatibility, Minor Version Compatibility; PTX ISA, Release History",
)
def ptx_too_new(subject: Subject) -> Iterator[str]:
    gpu, newest = subject.gpu, isa_of_driver(subject.target.driver)
    if gpu is None or newest is None:
        return
    for library in subject.libraries:
        needed = [
            min(piece.isa for piece in _jitted(module, gpu))
            for module in library.modules
            if has_kernels(module) and best_run((code for code, *_ in module), gpu) is Run.JIT
        ]
        if (late := [isa for isa in needed if isa > newest]) and not excused(subject, library.path):
            form, last = ".".join(map(str, max(late))), ".".join(map(str, newest))
            driver = subject.target.driver
            yield f"{library.path}: {len(late)} modules need PTX {form}, and driver {driver} takes {last}"


# --- what was compiled here -------------------------------------------------------------------------------------------


def _by_library(components: Iterable[Component]) -> Mapping[str, list[Component]]:
    """Library, as `_C` -> the parts of the compile that are linked into it."""
    found: dict[str, list[Component]] = defaultdict(list)
    for component in components:
        for name, _ in component.modules:
            found[name].append(component)
    return found


def _vllm_libraries(subject: Subject) -> Mapping[str, list[Library]]:
    """Library, as `_C` -> the files of that name; such as `deep_gemm/_C`, which is of a project in vLLM, are not."""
    found: dict[str, list[Library]] = defaultdict(list)
    for library in subject.libraries:
        if match := VLLM_LIBRARY.fullmatch(library.path):
            found[match["name"]].append(library)
    return found


@check(
    "gpu.not-as-predicted",
    Severity.FAIL,
    reason="another architecture than the release's rules give means that a setting did not reach the compiler",
    source="images/compat.yaml",
)
def not_as_predicted(subject: Subject) -> Iterator[str]:
    if subject.predicted:
        yield from _beyond_prediction(subject)
        yield from _short_of_prediction(subject)


def _kernel_codes(library: Library) -> frozenset[Code]:
    return frozenset(code for module in library.modules if has_kernels(module) for code, *_ in module)


def _beyond_prediction(subject: Subject) -> Iterator[str]:
    expected = {code for component in subject.predicted for code in component.codes}
    for library in subject.libraries:
        strange = sorted(str(code) for code in _kernel_codes(library) - expected)
        if strange and fnmatchcase(library.path, "*/vllm/*.so"):
            yield f"{library.path}: {', '.join(strange)} is of no part of the compile"


def _short_of_prediction(subject: Subject) -> Iterator[str]:
    there = _vllm_libraries(subject)
    for name, parts in _by_library(subject.predicted).items():
        if name not in there:
            yield f"{name}: no such library with GPU code, and in it should be {', '.join(one.name for one in parts)}"
        for library in there.get(name, ()):
            for part in parts if not library.problem else ():
                if missing := ", ".join(str(code) for code in part.codes if code not in _kernel_codes(library)):
                    yield f"{library.path}: in it should be {part.name}, and {missing} is not ({part.source})"


def _counted(components: Sequence[Component]) -> Mapping[str, Counter[frozenset[Code]]]:
    """Library -> the code of a module -> how many there are, of the libraries of which every part was counted."""
    found: dict[str, Counter[frozenset[Code]]] = {}
    for name, parts in _by_library(components).items():
        counts = [(frozenset(part.codes), dict(part.modules)[name]) for part in parts]
        if all(count is not None for _, count in counts):
            found[name] = Counter()
            for codes, count in counts:
                found[name][codes] += count or 0
    return found


@check(
    "gpu.other-count",
    Severity.FAIL,
    reason="each file of CUDA makes one module: another number means that some were left out, or others compiled",
    source="images/vllm/profiles; as many modules as files: 144 in llama.cpp b11312, 52 of FA2 in vLLM 0.20.2's wheel",
)
def other_count(subject: Subject) -> Iterator[str]:
    """Exactly as many, architecture by architecture: a file without any kernel makes a module too, which is counted."""
    there = _vllm_libraries(subject)
    for name, expected in _counted(subject.predicted).items():
        for library in there.get(name, ()):
            found = Counter(frozenset(code for code, *_ in module) for module in library.modules)
            spelled = {" ".join(sorted(map(str, codes))): codes for codes in expected.keys() | found.keys()}
            for text, codes in sorted(spelled.items() if not library.problem else ()):
                if (count := found[codes]) != expected[codes]:
                    yield f"{library.path}: {count} modules of {text}, and {expected[codes]} files are compiled so"

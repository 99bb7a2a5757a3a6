"""Which releases go together, and what to choose instead where they do not. Pure: facts in, answers out.

Newness counts by major and minor version of torch: NVIDIA's `2.10.0a0` is its 2.10, although it sorts before 2.10.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from packaging.version import Version

from spark_images.compat.facts import Facts, VllmFacts
from spark_images.compat.release import VllmRelease, flashinfer_release, ngc_base, ranges, read_version, vllm_release
from spark_images.cuda_arch import Capability, first_cuda, parse_arch
from spark_images.targets import Target


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why two things do not go together."""

    what: str  # a sentence that names both
    source: str  # where that is written
    instead: str  # what to choose
    certain: bool = True  # False: nobody has seen it work; plans say so
    todo: str = ""  # what to do, where choosing another release is not it

    @property
    def hint(self) -> str:
        """What to do, as a reader is told."""
        return self.todo or (f"choose {self.instead}" if self.instead else "")


class Fit(Enum):
    """How a torch suits a release of vLLM."""

    GOOD = "good"
    UNPROVEN = "unproven"  # newer than it was written for, or much older, and nobody is known to run them together
    TOO_OLD = "too old"


def check(
    facts: Facts,
    *,
    image: str = "vllm",
    vllm: str = "",
    flashinfer: str = "",
    torch: str = "",
    cuda: str = "",
    python: str = "",
    gcc: str = "",
    target: Target | None = None,
    base: str = "",
    ngc_tag: str = "",
    allow_unknown: bool = False,
) -> tuple[Refusal, ...]:
    """Everything that speaks against a combination; empty where nothing does. What is "" is not looked at.

    On base `ngc` torch, CUDA and Python are those of the month's image; on `debian` torch is the release's own. Raises
    UsageError for a release or a month that nobody has read (see vllm_release), and for what is no version.
    """
    for of, text in (("torch", torch), ("CUDA", cuda), ("Python", python), ("GCC", gcc)):
        if text:
            read_version(text, of)
    release = vllm_release(facts.vllm, vllm, allow_unknown=allow_unknown) if vllm else None
    if flashinfer:
        flashinfer_release(facts.flashinfer, flashinfer, allow_unknown=allow_unknown)
    where = "this build"
    if base == "ngc" and ngc_tag:
        ngc = ngc_base(facts, ngc_tag)
        where = f"base ngc {ngc.tag}"
        torch, cuda, python = torch or ngc.torch, cuda or ngc.cuda, python or ngc.python
    elif base == "debian" and release is not None:
        where = "base debian"
        torch = torch or release.torch.value
    found: list[Refusal] = []
    if release is not None:
        found += _check_torch(facts, release, torch, where) if torch else ()
        found += _check_flashinfer(facts, release, flashinfer) if flashinfer else ()
        found += _check_python(facts, release, python, where) if python else ()
        found += _check_gcc(facts, release, gcc, where) if gcc else ()
        found += _check_gpu(facts, release, target) if target is not None else ()
    if base == "debian" and torch and target is not None:
        found += _check_wheel(facts, torch, target, cuda, release)
    if cuda and target is not None and target.compute_capability:
        found += _check_cuda(facts, image, cuda, target)
    return tuple(found)


def torch_fit(facts: VllmFacts, release: VllmRelease, torch: str) -> Fit:
    """How a torch suits a release: from its stable ABI's floor on, at most one minor version below what it pins.

    A newer one suits where NVIDIA ships a release of this series with a torch as new.
    """
    has, pinned, floor = series(torch), series(release.torch.value), series(release.torch_floor.value)
    if has < floor:
        return Fit.TOO_OLD
    if pinned >= has >= (pinned[0], pinned[1] - 1):
        return Fit.GOOD
    newest = (series(seen.torch) for seen in facts.seen_together if series(seen.vllm) == series(str(release.version)))
    return Fit.GOOD if pinned < has <= max(newest, default=pinned) else Fit.UNPROVEN


def series(version: str) -> tuple[int, int]:
    """(2, 10) of `2.10.0`, `2.10.0a0+a36e1d39eb` and `2.10`."""
    number = Version(version)
    return number.major, number.minor


def cuda_choice(facts: Facts, image: str, target: Target) -> str:
    """The CUDA that an image takes for a target instead of its base's: `12.8` for llama.cpp on rtx50; "" for none."""
    if image != "llamacpp" or not target.compute_capability:
        return ""
    return next((choice.choose for gpu, choice in facts.llamacpp_cuda if gpu == _gpu(target)), "")


def _check_torch(facts: Facts, release: VllmRelease, torch: str, where: str) -> Iterator[Refusal]:
    fit = torch_fit(facts.vllm, release, torch)
    if fit is Fit.GOOD:
        return
    bases = [base.tag for base in facts.ngc if torch_fit(facts.vllm, release, base.torch) is Fit.GOOD]
    others = _releases(facts, lambda other: torch_fit(facts.vllm, other, torch) is Fit.GOOD)
    instead = " or ".join(
        text
        for text in (
            f"base ngc {ranges(bases, [base.tag for base in facts.ngc])}" if bases else "",
            f"vllm {ranges(others, facts.vllm.releases)}" if others else "",
        )
        if text
    )
    has = f"{where} has torch {torch}"
    if fit is Fit.TOO_OLD:
        what = f"vllm {release.version} needs torch {release.torch_floor.value} or newer, and {has}"
        yield Refusal(what=what, source=release.torch_floor.source, instead=instead)
    else:
        what = (
            f"vllm {release.version} is written for torch {release.torch.value}, and {has}: nobody is known to run that"
        )
        yield Refusal(what=what, source=release.torch.source, instead=instead, certain=False)


def _check_flashinfer(facts: Facts, release: VllmRelease, flashinfer: str) -> Iterator[Refusal]:
    wanted = release.flashinfer
    together = [seen for seen in facts.vllm.seen_together if Version(seen.vllm) == release.version]
    if Version(flashinfer) in {Version(wanted.value), *(Version(seen.flashinfer) for seen in together)}:
        return
    others = _releases(facts, lambda other: Version(other.flashinfer.value) == Version(flashinfer))
    yield Refusal(
        what=f"vllm {release.version} asks for flashinfer {wanted.value} exactly, and this is {flashinfer}",
        source=wanted.source,
        instead=f"flashinfer {wanted.value}" + (f" or vllm {ranges(others, facts.vllm.releases)}" if others else ""),
        certain=False,
    )


def _check_python(facts: Facts, release: VllmRelease, python: str, where: str) -> Iterator[Refusal]:
    if python not in release.python.value:
        others = _releases(facts, lambda other: python in other.python.value)
        yield Refusal(
            what=f"vllm {release.version} needs Python {release.python.value}, and {where} has {python}",
            source=release.python.source,
            instead=f"vllm {ranges(others, facts.vllm.releases)}" if others else "another Python",
        )


def _check_gcc(facts: Facts, release: VllmRelease, gcc: str, where: str) -> Iterator[Refusal]:
    if release.gcc is not None and Version(gcc) < Version(release.gcc.value):
        others = _releases(facts, lambda other: other.gcc is None or Version(gcc) >= Version(other.gcc.value))
        yield Refusal(
            what=f"vllm {release.version} needs GCC {release.gcc.value} or newer, and {where} has {gcc}",
            source=release.gcc.source,
            instead=f"a newer GCC in the build stage or vllm {ranges(others, facts.vllm.releases)}",
        )


def _check_gpu(facts: Facts, release: VllmRelease, target: Target) -> Iterator[Refusal]:
    known = [gpu for gpu, _ in facts.vllm.arch_lists]
    if not target.compute_capability:
        yield Refusal(
            what=f"vllm is compiled for GPUs here, and target `{target.name}` has none",
            source="images/targets.yaml",
            instead=f"a target of compute capability {', '.join(map(str, known))}",
        )
    elif _gpu(target) not in known:
        yield Refusal(
            what=f"nobody has looked how vllm {release.version} wants the GPU of target `{target.name}` to be spelled",
            source="`arch-lists` of images/compat.yaml",
            instead=f"a target of compute capability {', '.join(map(str, known))}",
            certain=False,
        )


def _check_wheel(facts: Facts, torch: str, target: Target, cuda: str, release: VllmRelease | None) -> Iterator[Refusal]:
    source = "Requires-Dist of torch's wheels on PyPI"
    wheels = dict(facts.torch)
    wheel = wheels.get(torch)
    if wheel is None:
        what = f"nothing is known of the wheels of torch {torch} on PyPI"
        yield Refusal(what=what, source=source, instead=f"torch {', '.join(wheels)}", certain=False)
        return
    built_for = dict(wheel.cuda).get(target.platform, "")

    def good(version: str) -> bool:
        has = dict(wheels[version].cuda).get(target.platform, "") if version in wheels else ""
        return bool(has) and (not cuda or series(has)[0] == Version(cuda).major)

    if good(torch):
        return
    others = _releases(facts, lambda other: good(other.torch.value)) if release is not None else ()
    instead = f"vllm {ranges(others, facts.vllm.releases)}" if others else "another torch"
    what = f"the wheel of torch {torch} on PyPI for {target.platform} is "
    what += f"built for CUDA {built_for}, and this build has CUDA {cuda}" if built_for else "for CPUs only"
    yield Refusal(what=what, source=source, instead=f"{instead}, or base ngc")


def _check_cuda(facts: Facts, image: str, cuda: str, target: Target) -> Iterator[Refusal]:
    arch = parse_arch(target.compute_capability)
    first = first_cuda(arch)
    if first is not None and series(cuda) < first:
        needed = ".".join(map(str, first))
        yield Refusal(
            what=f"CUDA {cuda} does not compile for `{arch}`, the GPU of target `{target.name}`",
            source="release notes of CUDA",
            instead=f"CUDA {needed} or newer",
        )
    for gpu, choice in facts.llamacpp_cuda if image == "llamacpp" else ():
        if gpu == arch.capability and Version(cuda) >= choice.below:
            yield Refusal(
                what=f"llama.cpp for target `{target.name}` does not go with CUDA {cuda}: {choice.because}",
                source="reports of owners, 2026",
                instead=f"CUDA {choice.choose}",
            )


def _gpu(target: Target) -> Capability:
    return parse_arch(target.compute_capability).capability


def _releases(facts: Facts, fits: Callable[[VllmRelease], bool]) -> tuple[Version, ...]:
    return tuple(number for number in facts.vllm.releases if fits(vllm_release(facts.vllm, str(number))))

"""One release of vLLM or FlashInfer, or one month of NVIDIA's base image: what it needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from spark_images import forms
from spark_images.compat.facts import Fact, Facts, FlashinferFacts, HandOver, NgcBase, SourceFacts, VllmFacts
from spark_images.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Source:
    """One repository at what a release takes of it."""

    name: str
    url: str
    ref: str  # tag or commit, as the release names it
    commit: str  # "" where it is a tag whose commit nobody has written down
    submodules: tuple[str, ...]
    hand_over: HandOver
    variable: str  # "" for HandOver.FETCHCONTENT
    folder: str  # what the variable has to name within the tree; "" for its root
    source: str


@dataclass(frozen=True, kw_only=True)
class VllmRelease:
    """What one release of vLLM needs."""

    version: Version
    torch: Fact[str]
    torch_floor: Fact[str]  # the oldest torch that it compiles against
    flashinfer: Fact[str]
    python: Fact[SpecifierSet]
    gcc: Fact[str] | None
    build_requirements: Fact[tuple[str, ...]]  # but for torch
    use_existing_torch: Fact[str]  # to be run in the root of the tree
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class FlashinferRelease:
    """What one release of FlashInfer needs."""

    version: Version
    cutlass: Fact[str]  # the tag of the CUTLASS in its sdist
    build_requirements: Fact[tuple[str, ...]]


def vllm_release(facts: VllmFacts, version: str, *, allow_unknown: bool = False) -> VllmRelease:
    """What a release needs. UsageError for a release that nobody has read, with the nearest ones that were.

    allow_unknown: treat a newer one by the newest entries; older ones are refused still.
    """
    number = _find("vllm", facts.releases, version, allow_unknown)
    return VllmRelease(
        version=number,
        torch=facts.torch.at(number),
        # Without a stable ABI it is written for the torch that it names.
        torch_floor=facts.torch_floor.find(number) or facts.torch.at(number),
        flashinfer=facts.flashinfer.at(number),
        python=facts.python.at(number),
        gcc=facts.gcc.find(number),
        build_requirements=facts.build_requirements.at(number),
        use_existing_torch=facts.use_existing_torch.at(number),
        sources=tuple(_sources(facts.sources, number)),
    )


def flashinfer_release(facts: FlashinferFacts, version: str, *, allow_unknown: bool = False) -> FlashinferRelease:
    """As vllm_release, for FlashInfer."""
    number = _find("flashinfer", facts.releases, version, allow_unknown)
    return FlashinferRelease(
        version=number,
        cutlass=facts.cutlass.at(number),
        build_requirements=facts.build_requirements.at(number),
    )


def ngc_base(facts: Facts, tag: str) -> NgcBase:
    """NVIDIA's PyTorch image `26.01` or `26.01-py3`. UsageError for a month that is not in the table."""
    month = tag.removesuffix("-py3")
    for base in facts.ngc:
        if base.tag == month:
            return base
    known = f"{facts.ngc[0].tag} to {facts.ngc[-1].tag}"
    raise UsageError(f"nothing is known of the base image `{tag}`", hint=f"known are {known}; see images/compat.yaml")


def read_version(text: str, of: str) -> Version:
    """A version as Python's standards define it. of: whose, for the UsageError that another text raises."""
    try:
        return Version(text)
    except InvalidVersion:
        raise UsageError(f"`{text}` is no version of {of}") from None


def _find(project: str, releases: Sequence[Version], text: str, allow_unknown: bool) -> Version:
    version = read_version(text, project)
    if version in releases:
        return version
    older = [known for known in releases if known < version]
    newer = [known for known in releases if known > version]
    if older and allow_unknown:
        return version
    near = " and ".join(f"`{known}`" for known in (*older[-1:], *newer[:1]))
    how = "read its sdist and add it to images/compat.yaml, as docs/adding-a-pin.md says"
    raise UsageError(
        f"nothing is known of {project} {version}",
        why=[f"known are {ranges(releases, releases)}; nearest: {near}"],
        hint=f"take one of these, or {how}" if newer else f"take `{releases[-1]}`, or {how}",
    )


def _sources(sources: Iterable[SourceFacts], version: Version) -> Iterator[Source]:
    for source in sources:
        if (revision := source.revisions.find(version)) is not None:
            ref = revision.value.ref
            yield Source(
                name=source.name,
                url=revision.value.url,
                ref=ref,
                commit=dict(source.tags).get(ref) or forms.COMMIT.read(ref) or "",
                submodules=revision.value.submodules,
                hand_over=source.hand_over,
                variable=source.variable,
                folder=source.folder,
                source=revision.source,
            )


def ranges(some: Iterable[object], every: Sequence[object]) -> str:
    """`0.17.0 to 0.22.1, 0.26.0`: some of `every`, both in one order, in runs without a gap."""
    runs: list[list[int]] = []
    for place in map(every.index, some):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(f"{every[run[0]]} to {every[run[-1]]}" if len(run) > 1 else str(every[run[0]]) for run in runs)

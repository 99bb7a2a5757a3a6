"""images/compat.yaml, read and validated once, into the values of compat.facts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from spark_images import forms
from spark_images.compat.facts import (
    ArchList,
    ComponentFacts,
    CudaChoice,
    Fact,
    Facts,
    FlashinferFacts,
    HandOver,
    History,
    Needless,
    NgcBase,
    Patch,
    Revision,
    SeenTogether,
    SourceFacts,
    TorchWheel,
    Trap,
    Variable,
    VllmFacts,
)
from spark_images.cuda_arch import Capability
from spark_images.document import Section, reading

T = TypeVar("T")


def read_facts(path: Path) -> Facts:
    """The facts of a project. Raises ConfigError with every mistake of the file."""
    with reading(path) as top:
        top.value("schema", forms.schema(1))
        torch, ngc = top.section("torch"), top.section("ngc")
        cuda = top.section("llamacpp").section("cuda")
        return Facts(
            torch=tuple((version, _read_torch(torch.section(version))) for version in torch.names(_RELEASE)),
            ngc=tuple(_read_ngc(tag, ngc.section(tag)) for tag in ngc.names(_RELEASE)),
            vllm=_read_vllm(top.section("vllm")),
            flashinfer=_read_flashinfer(top.section("flashinfer")),
            llamacpp_cuda=tuple(
                (_capability(gpu), _read_choice(cuda.section(gpu))) for gpu in cuda.names(forms.COMPUTE_CAPABILITY)
            ),
        )


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _specifiers(text: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(text)
    except InvalidSpecifier:
        return None


_VERSION = forms.Form("a version as Python's standards define it", _version, Version("0"))
_RELEASE = forms.Form(_VERSION.expected, lambda text: text if _version(text) else None, "")
_RANGE = forms.Form("a range of releases, as `>=0.20,<0.24`", _specifiers, SpecifierSet())
_REQUIREMENT = forms.matching("a requirement, as `cmake>=3.26`", r"[a-z][a-z0-9-]*(?:[<>=!~]=?[0-9][0-9a-z.*]*,?)*")
_LINE = forms.matching("the number of a line", r"[1-9][0-9]*")
_MAJOR = forms.Form("a major compute capability", lambda text: int(text) if text.isdecimal() else None, 0)
_ARCHS = forms.matching("architectures as in TORCH_CUDA_ARCH_LIST, or `none`", r"none|[0-9.af]+(?:\+PTX)?")
_LIBRARY = forms.matching("a library's name, as `_C`", r"[A-Za-z_][A-Za-z0-9_]*", most=100)
_PATTERN = forms.matching("a pattern of module names", r"[A-Za-z0-9_*]+", most=300)


class _Project:
    """Reads what is kept per release of one project; a release that is not in its list is a mistake."""

    def __init__(self, name: str, section: Section) -> None:
        self.section = section
        self.releases = tuple(section.values("releases", _VERSION))
        self._name = name
        self._key = forms.one_of(*map(str, self.releases), what="one of `releases`,")
        if list(self.releases) != sorted(self.releases):
            section.refuse("releases", "not in ascending order")

    def history(self, key: str, form: forms.Form[T], *, begins_later: bool = False) -> History[T]:
        section = self.section.section(key)
        found = self.entries(section, lambda entry: entry.value("is", form))
        return found if begins_later else self._from_the_first(section, found)

    def lists(self, key: str, form: forms.Form[str], *, of: Section | None = None) -> History[tuple[str, ...]]:
        section = (self.section if of is None else of).section(key)
        return self._from_the_first(section, self.entries(section, lambda entry: entry.values("is", form)))

    def entries(self, section: Section, read: Callable[[Section], T]) -> History[T]:
        file = section.optional("file", forms.RELATIVE_PATH, "")
        begins = section.section("from")
        found = []
        for name in begins.names(self._key):
            entry = begins.section(name)
            line = entry.optional("line", _LINE, "")
            place = f"{file}:{line}" if line else file or "sdist"
            found.append((Version(name), Fact(read(entry), f"{place} of {self._name} {name}")))
        if found != sorted(found, key=lambda since: since[0]):
            section.refuse("from", "not in ascending order")
        return History(tuple(found))

    def _from_the_first(self, section: Section, found: History[T]) -> History[T]:
        if section.given and self.releases and not (found.entries and found.entries[0][0] == self.releases[0]):
            section.refuse("from", f"says nothing of {self.releases[0]}, the first of `releases`")
        return found

    def variables(self) -> tuple[tuple[SpecifierSet, Variable], ...]:
        section = self.section.section("variables")
        return tuple(_read_variable(name, section.section(name)) for name in section.names(forms.ENV_NAME))

    def traps(self) -> tuple[Trap, ...]:
        section = self.section.section("traps")
        return tuple(_read_trap(name, section.section(name)) for name in section.names(forms.NAME))


def _capability(text: str) -> Capability:
    major, _, minor = text.partition(".")
    return Capability(int(major), int(minor))


def _read_torch(section: Section) -> TorchWheel:
    platforms = ((platform, section.optional(platform, forms.VERSION, "")) for platform in forms.PLATFORM.choices)
    return TorchWheel(
        triton=section.value("triton", forms.VERSION), cuda=tuple((name, cuda) for name, cuda in platforms if cuda)
    )


def _read_ngc(tag: str, section: Section) -> NgcBase:
    return NgcBase(
        tag=tag,
        torch=section.value("torch", _RELEASE),
        cuda=section.value("cuda", _RELEASE),
        python=section.value("python", _RELEASE),
        ubuntu=section.value("ubuntu", _RELEASE),
        triton=section.optional("triton", _RELEASE, ""),
    )


def _read_vllm(section: Section) -> VllmFacts:
    project = _Project("vllm", section)
    sources, lists = section.section("sources"), section.section("arch-lists")
    components, patches = section.section("components"), section.section("patches")
    together = section.section("seen-together")
    return VllmFacts(
        releases=project.releases,
        torch=project.history("torch", _RELEASE),
        torch_floor=project.history("torch-floor", _RELEASE, begins_later=True),
        flashinfer=project.history("flashinfer", _RELEASE),
        python=project.history("python", _RANGE),
        gcc=project.history("gcc", _RELEASE, begins_later=True),
        build_requirements=project.lists("build-requirements", _REQUIREMENT),
        use_existing_torch=project.history("use-existing-torch", forms.RELATIVE_PATH),
        sources=tuple(_read_source(project, name, sources.section(name)) for name in sources.names(forms.NAME)),
        arch_lists=tuple(
            (_capability(gpu), project.entries(lists.section(gpu), _read_arch_list))
            for gpu in lists.names(forms.COMPUTE_CAPABILITY)
        ),
        components=tuple(
            _read_component(project, name, components.section(name)) for name in components.names(forms.NAME)
        ),
        patches=tuple(_read_patch(name, patches.section(name)) for name in patches.names(forms.NAME)),
        variables=project.variables(),
        traps=project.traps(),
        seen_together=tuple(
            SeenTogether(
                tag=tag,
                vllm=(entry := together.section(tag)).value("vllm", _RELEASE),
                torch=entry.value("torch", _RELEASE),
                flashinfer=entry.value("flashinfer", _RELEASE),
            )
            for tag in together.names(_RELEASE)
        ),
    )


def _read_flashinfer(section: Section) -> FlashinferFacts:
    project = _Project("flashinfer-python", section)
    lists, serving = section.section("arch-lists"), section.section("serving-set")
    return FlashinferFacts(
        releases=project.releases,
        cutlass=project.history("cutlass", forms.VERSION),
        build_requirements=project.lists("build-requirements", _REQUIREMENT),
        arch_lists=tuple(
            (_capability(gpu), lists.value(gpu, forms.COMPUTE_CAPABILITY))
            for gpu in lists.names(forms.COMPUTE_CAPABILITY)
        ),
        variables=project.variables(),
        traps=project.traps(),
        leave=serving.values("leave", _PATTERN),
        keep=serving.values("keep", _PATTERN),
    )


def _read_source(project: _Project, name: str, section: Section) -> SourceFacts:
    url = section.value("url", forms.URL)
    submodules = section.values("submodules", forms.RELATIVE_PATH, optional=True)
    tags = section.section("tags", optional=True)

    def read(entry: Section) -> Revision:
        return Revision(
            ref=entry.value("is", forms.VERSION),
            url=entry.optional("url", forms.URL, url),
            submodules=entry.values("submodules", forms.RELATIVE_PATH, optional=True) or submodules,
        )

    hand_over = section.value("hand-over", forms.one_of(*(way.value for way in HandOver)))
    by_variable = hand_over == HandOver.ENVIRONMENT.value
    return SourceFacts(
        name=name,
        hand_over=HandOver.ENVIRONMENT if by_variable else HandOver.FETCHCONTENT,
        variable=section.value("variable", forms.ENV_NAME) if by_variable else "",
        folder=section.optional("folder", forms.RELATIVE_PATH, ""),
        tags=tuple((tag, tags.value(tag, forms.COMMIT)) for tag in tags.names(forms.VERSION)),
        revisions=project.entries(section, read),
    )


def _read_arch_list(entry: Section) -> ArchList:
    return ArchList(value=entry.value("is", _ARCHS), because=entry.value("because", forms.TEXT))


def _read_component(project: _Project, name: str, section: Section) -> ComponentFacts:
    return ComponentFacts(
        name=name,
        called_on=section.optional("called-on", _MAJOR, None),
        archs=project.entries(section, lambda entry: entry.value("is", _ARCHS)),
        libraries=project.lists("libraries", _LIBRARY, of=section),
        units=section.values("units", forms.TEXT),
    )


def _read_patch(name: str, section: Section) -> Patch:
    part = section.section("leaves-out", optional=True)
    return Patch(
        name=name,
        sha256=section.value("sha256", forms.SHA256),
        releases=section.value("releases", _RANGE),
        until=section.optional("until", _VERSION, None),
        major=section.optional("major", _MAJOR, None),
        because=section.value("because", forms.TEXT),
        source=section.value("source", forms.TEXT),
        leaves_out=Needless(
            component=part.value("component", forms.NAME),
            units=part.value("units", forms.TEXT),
            saves=part.value("saves", forms.TEXT),
        )
        if part.given
        else None,
    )


def _read_variable(name: str, section: Section) -> tuple[SpecifierSet, Variable]:
    when = section.optional("when", forms.one_of("build", "run"), "build")
    return section.value("releases", _RANGE), Variable(
        name=name,
        value=section.value("value", forms.ENV_VALUE),
        because=section.value("because", forms.TEXT),
        source=section.optional("source", forms.TEXT, ""),
        at_run_time=when == "run",
    )


def _read_trap(name: str, section: Section) -> Trap:
    return Trap(
        name=name,
        releases=section.value("releases", _RANGE),
        major=section.optional("major", _MAJOR, None),
        what=section.value("what", forms.TEXT),
        instead=section.value("instead", forms.TEXT),
        source=section.value("source", forms.TEXT),
        at_run_time=section.optional("when", forms.one_of("build", "run"), "run") == "run",
    )


def _read_choice(section: Section) -> CudaChoice:
    return CudaChoice(
        below=section.value("below", _VERSION),
        choose=section.value("choose", _RELEASE),
        because=section.value("because", forms.TEXT),
    )

"""Checks of Python: what is installed is whole, is what the lock says, and what it starts compiles. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Distribution, Subject
from spark_images.imagechecks import real_path
from spark_images.platforms import MACHINES

RECORD = "Python packaging, Recording installed projects: RECORD"
OTHER_NAMES = {"triton": "pytorch-triton"}  # as NVIDIA's images call it, and scripts/ngc_base takes it


@check(
    "python.changed",
    Severity.FAIL,
    reason="a file that is not what its distribution brought was patched, or was overwritten by another distribution",
    source=RECORD,
)
def changed(subject: Subject) -> Iterator[str]:
    for distribution in subject.distributions:
        for entry in distribution.files:
            found = subject.digests.get(_real(subject, entry.path))
            if entry.sha256 and found and found != entry.sha256:
                yield f"{entry.path}: not as {_named(distribution)} brought it"


@check(
    "python.missing",
    Severity.FAIL,
    reason="a distribution without some of its files fails at the import that needs them",
    source=RECORD,
)
def missing(subject: Subject) -> Iterator[str]:
    for distribution in subject.distributions:
        for entry in distribution.files:
            # bytecode is made anew or left out as one pleases, so installers give it no hash
            if entry.sha256 and not _real(subject, entry.path):
                yield f"{entry.path}: {_named(distribution)} lists it"


@check(
    "python.two-owners",
    Severity.FAIL,
    reason="the distribution that was installed last decided what is in it, and removing either one breaks the other",
    source=RECORD,
)
def two_owners(subject: Subject) -> Iterator[str]:
    owners: dict[str, dict[str, Distribution]] = defaultdict(dict)  # path -> content as listed -> who
    for distribution in subject.distributions:
        for entry in distribution.files:
            if entry.sha256:
                owners[entry.path].setdefault(entry.sha256, distribution)
    for path, contents in sorted(owners.items()):
        if len(contents) > 1:  # one content of two owners, as NVIDIA's empty nvidia/__init__.py, is no conflict
            yield f"{path}: of {' and '.join(_named(one) for one in contents.values())}"


@check(
    "python.installed-twice",
    Severity.FAIL,
    reason="which of two versions is imported depends on the order of sys.path, and what pip lists on another one",
    source="importlib.metadata takes the first dist-info that it meets",
)
def installed_twice(subject: Subject) -> Iterator[str]:
    found: dict[tuple[str, str], list[Distribution]] = defaultdict(list)
    for distribution in subject.distributions:
        found[(distribution.name, distribution.site)].append(distribution)
    for (name, site), several in sorted(found.items()):
        if len(several) > 1:
            yield f"{site}: {name} as {', '.join(sorted(one.version for one in several))}"


@check(
    "python.must-be-absent",
    Severity.FAIL,
    reason="flash-attn of NVIDIA's base image is linked to another CUDA and torch, and its import kills the server",
    source="`audit.absent` of image.yaml",
)
def must_be_absent(subject: Subject) -> Iterator[str]:
    for one in subject.absent:
        for distribution in subject.distributions:
            if distribution.name == one.pattern:
                yield f"{distribution.info}: {one.because}"


@check(
    "python.not-as-locked",
    Severity.FAIL,
    reason="what the lock does not name was not tested with the rest, and nobody knows where it came from",
    source="the image's lock",
)
def not_as_locked(subject: Subject) -> Iterator[str]:
    if subject.locked is None:
        return
    locked, found = dict(subject.locked), _installed(subject)
    for name in sorted(locked.keys() | (set() if subject.stands_on else found.keys())):
        if locked.get(name) != found.get(name):
            here = found.get(name, "nothing")
            yield f"{name}: the lock says {locked.get(name, 'nothing')}, installed is {here}"
    for name, version in subject.given:
        if found.get(name, "").partition("+")[0] != version:
            yield f"{name}: the image below has {version}, installed is {found.get(name, 'nothing')}"


@check(
    "python.requirement-unmet",
    Severity.FAIL,
    reason="the import that needs it fails, or meets a version that it was not made for",
    source="Python packaging, Core metadata: Requires-Dist",
)
def requirement_unmet(subject: Subject) -> Iterator[str]:
    if subject.locked is None:
        return
    locked, found = dict(subject.locked), _installed(subject)
    # A base's 2.1.0a0 stands for 2.1.0, as it does in the lock.
    found |= {name: Version(version).base_version for name, version in subject.given if name in found}
    for distribution in subject.distributions:
        if subject.stands_on and distribution.name not in locked:
            continue  # the image below is as its makers left it
        for text in distribution.requires:
            try:
                asked = Requirement(text)
                applies = asked.marker is None or asked.marker.evaluate(_world(subject, distribution))
            except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
                continue  # old and wrong spellings, of which the solver made what it could
            name = canonicalize_name(asked.name)
            if name in subject.departed or not applies:
                continue
            if name not in found:
                yield f"{distribution.info}: {_named(distribution)} asks for `{text}`, and there is none"
            elif not _fits(asked, found[name]):
                yield f"{distribution.info}: {_named(distribution)} asks for `{text}`, installed is {found[name]}"


@check(
    "python.entry-point-missing",
    Severity.FAIL,
    reason="the command is there and ends with ModuleNotFoundError",
    source="Python packaging, Entry points",
)
def entry_point_missing(subject: Subject) -> Iterator[str]:
    yield from subject.sources.missing


@check(
    "python.does-not-compile",
    Severity.FAIL,
    reason="a module that does not compile ends the program that imports it",
    source="ast.parse of every module that the entry points come to import",
)
def does_not_compile(subject: Subject) -> Iterator[str]:
    for path, why in subject.sources.refused:
        if _python_of(subject, path) <= subject.sources.newest:
            yield f"{path}: {why}"


@check(
    "python.newer-grammar",
    Severity.WARN,
    reason="the audit reads with the grammar of the Python that runs it, which is older than the image's",
    source="ast.parse",
)
def newer_grammar(subject: Subject) -> Iterator[str]:
    own = ".".join(map(str, subject.sources.newest))
    for path, why in subject.sources.refused:
        if _python_of(subject, path) > subject.sources.newest:
            yield f"{path}: not judged by Python {own}: {why}"


def _real(subject: Subject, path: str) -> str:
    """The path behind links, "" where there is nothing."""
    return path if path in subject.digests else real_path(subject.tree, path) or ""


def _python_of(subject: Subject, path: str) -> tuple[int, int]:
    """The Python that imports the file: by its folder, or the image's /usr/bin/python3; (0, 0) where neither tells."""
    link = subject.tree.get("/usr/bin/python3")
    match = re.search(r"python(\d+)\.(\d+)", path) or re.search(r"python(\d+)\.(\d+)", link.link if link else "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _installed(subject: Subject) -> dict[str, str]:
    """Project -> version, under the names that pins.yaml gives to what the image below has."""
    found = {one.name: one.version for one in subject.distributions}
    given = (name for name, _ in subject.given if name not in found)
    return found | {name: found[OTHER_NAMES[name]] for name in given if OTHER_NAMES.get(name) in found}


def _fits(asked: Requirement, version: str) -> bool:
    try:
        return asked.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def _world(subject: Subject, distribution: Distribution) -> dict[str, str]:
    """What markers ask about, as uv takes it where it resolves for a Python without its last number."""
    python = ".".join(map(str, _python_of(subject, distribution.info)))
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": MACHINES[subject.target.arch],
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def _named(distribution: Distribution) -> str:
    return f"{distribution.name} {distribution.version}"

"""How the ends of a search are read: a version of one pin, a git revision, an image in a registry, a record, or `.`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

from spark_images.cache import Cache
from spark_images.checkout import files_at, git
from spark_images.errors import MissingError, UsageError
from spark_images.files import read_json
from spark_images.ingredients import describe_pin
from spark_images.locks import with_entries_digest
from spark_images.pins import (
    ArchivePin,
    DebsPin,
    GitPin,
    ImagePin,
    Pin,
    RequirementsPin,
    SdistPin,
    WheelsPin,
)
from spark_images.pins_edit import pin_block
from spark_images.pins_file import read_pins
from spark_images.project import Project
from spark_images.registry.reference import Reference, parse_reference
from spark_images.repin import Move, ToRelease, ToText, ToValues
from spark_images.upstream import Release

FORMS = (
    "PIN=VERSION, as `vllm=0.20.2`; PIN=PROJECT==VERSION where a pin has several packages or comes in another's sdist",
    "a git revision whose pins.yaml is meant; `.` for the files as they are here",
    "HOST/NAME:TAG or HOST/NAME@sha256:…, an image that spark-images made",
    "a record, by the name of its folder: `./noxw -s report` lists them",
)


@dataclass(frozen=True, kw_only=True)
class PinEnd:
    """A release of one pin; all other pins are as they are here. project: see upstream.Release."""

    pin: str
    project: str
    version: str


@dataclass(frozen=True, kw_only=True)
class StateEnd:
    """A state of all pins. pins: name -> plan.describe_pin's words for it; blocks: of a pins.yaml.

    locks: the lock of a pin, and what its requirements say.
    """

    name: str
    pins: Mapping[str, str]
    commit: str = ""  # of a git revision
    blocks: Mapping[str, str] = field(default_factory=dict)
    locks: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)
    reference: Reference | None = None

    def move(self, pin: Pin) -> Move:
        """What makes a pin what it is at this end."""
        if pin.name in self.blocks:
            return ToText(pin=pin.name, block=self.blocks[pin.name], files=self.locks.get(pin.name, ()))
        return _described(pin, self.pins[pin.name])


End = PinEnd | StateEnd


def read_end(text: str, *, project: Project, cache: Cache) -> End:
    """What a REF means. UsageError with the nearest pin, or with all forms; RegistryError, MissingError for images."""
    pin, equals, version = text.partition("=")
    if equals and version:
        project.pins.chosen((pin,))
        of, double, exact = version.partition("==")
        return PinEnd(pin=pin, project=of if double else "", version=exact if double else version)
    if text == ".":
        return state_of_files(project.root, name="the files here")
    if (folder := cache.records / text).is_dir() and (plan := read_json(folder / "plan.json")):
        return StateEnd(name=f"record {text}", pins=dict(plan.get("pins", {})))
    if "/" in text and (":" in text or "@" in text):
        return _state_of_image(parse_reference(text))
    return _state_of_revision(text, project, cache)


def state_of_files(root: Path, *, name: str, commit: str = "") -> StateEnd:
    """The pins of a project folder, with their lines, locks and requirements.

    commit: whose files these are, if not edited ones. Git vouches for a commit's locks, so those that are older than
    the digest over their entries need no remaking.
    """
    pins = read_pins(root / "pins.yaml")
    text = (root / "pins.yaml").read_text(encoding="utf-8")
    locks: dict[str, tuple[tuple[str, str], ...]] = {}
    for pin in pins.pins:
        path = getattr(pin, "lock", "")
        if path and (root / path).is_file():
            lock = (root / path).read_text(encoding="utf-8")
            locks[pin.name] = ((path, with_entries_digest(lock) if commit else lock),)
        if isinstance(pin, RequirementsPin):
            file = Path(pin.requirements.path)
            says = (str(file.relative_to(root)), file.read_text(encoding="utf-8"))
            locks[pin.name] = (*locks.get(pin.name, ()), says)
    return StateEnd(
        name=name,
        commit=commit,
        pins={pin.name: describe_pin(pin) for pin in pins.pins},
        blocks={pin.name: pin_block(text, pin.name) for pin in pins.pins},
        locks=locks,
    )


def state_of_commit(commit: str, project: Project, cache: Cache) -> StateEnd:
    """The pins of a commit of the project's own repository."""
    with files_at(commit, project.root, cache) as files:
        if not (files / "pins.yaml").is_file():
            raise UsageError(f"commit {commit[:12]} has no pins.yaml here")
        return state_of_files(files, name=f"revision {commit[:12]}", commit=commit)


def revisions_between(good: StateEnd, bad: StateEnd, project: Project) -> tuple[str, ...]:
    """Commits that touched pins or locks, from `good` (included) to `bad`, oldest first, first parents only.

    UsageError where no way leads from one to the other.
    """
    way = git(project.root, "merge-base", "--is-ancestor", good.commit, bad.commit)
    if way.status != 0:
        raise UsageError(f"{bad.name} is no descendant of {good.name}", hint="are good and bad the wrong way round?")
    listed = git(
        project.root,
        *("rev-list", "--first-parent", "--reverse", bad.commit, f"^{good.commit}", "--", "pins.yaml", "images"),
    )
    commits = [commit for commit in listed.stdout.decode().split() if commit != bad.commit]
    return (good.commit, *commits, bad.commit)


def _state_of_revision(text: str, project: Project, cache: Cache) -> StateEnd:
    found = git(project.root, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}") if text[:1] != "-" else None
    if found is None or found.status != 0:
        raise UsageError(f"`{text}` is no end of a search", why=[f"an end is {form}" for form in FORMS])
    return state_of_commit(found.stdout.decode().strip(), project, cache)


def _state_of_image(reference: Reference) -> StateEnd:
    from spark_images.registry.client import Client
    from spark_images.registry.offer import read_offer

    client = Client(reference.repository)
    manifest = client.manifest(reference.wanted)
    if manifest is None:
        raise MissingError(f"there is no image {reference}")
    pins = read_offer(client, manifest.digest).pins
    return StateEnd(name=str(reference), pins=pins, reference=replace(reference, digest=manifest.digest))


def _described(pin: Pin, text: str) -> Move:
    """The pin with the values that plan.describe_pin wrote down; a git tree is fetched by its commit."""
    first, _, rest = text.partition(" ")
    match pin:
        case GitPin():
            return ToRelease(pin=pin.name, release=Release(name=first, commit=rest))
        case SdistPin() | ArchivePin():
            return ToValues(pin=pin.name, values=((("version",), first), (("sha256",), rest.removeprefix("sha256:"))))
        case WheelsPin():
            return ToValues(
                pin=pin.name, values=((("version",), first), (("packages",), f"[{', '.join(rest.split())}]"))
            )
        case DebsPin():
            return ToValues(pin=pin.name, values=((("suite",), first), (("snapshot",), rest)))
        case ImagePin():
            ref, _, digest = text.partition("@")
            return ToValues(pin=pin.name, values=((("ref",), ref), (("digest",), digest)))
        case RequirementsPin():
            return ToValues(pin=pin.name, values=((("exclude-newer",), text.split()[-1]),))
        case _:
            assert_never(pin)

"""Lock files: the exact wheels and .debs behind a pin, and what they were resolved from."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from spark_images import forms
from spark_images.document import Section, reading
from spark_images.errors import StaleLockError
from spark_images.pins import DebsPin, RequirementsPin, WheelsPin
from spark_images.wheel_tags import glibc_platform, is_sdist_of, is_wheel_of
from spark_images.yaml_nodes import read_text


@dataclass(frozen=True, kw_only=True)
class LockedWheel:
    """One wheel file on a package index, or the sdist of which a build step makes one."""

    project: str
    version: str
    filename: str
    platform: str  # "linux/amd64", "linux/arm64" or "any"
    sha256: str  # 64 hex digits
    size_bytes: int
    layer: str = ""  # of the image, where a RequirementsPin is behind it

    @property
    def is_sdist(self) -> bool:
        """Whether it is source."""
        return not self.filename.endswith(".whl")


@dataclass(frozen=True, kw_only=True)
class WheelsLock:
    """The wheels behind one WheelsPin or RequirementsPin. made_from: digest of all that the pin resolves from."""

    path: str
    made_from: str
    wheels: tuple[LockedWheel, ...]


@dataclass(frozen=True, kw_only=True)
class LockedDeb:
    """One Debian package file. archive: `debian` or `debian-security`; path: below the archive's root (`pool/…`)."""

    package: str
    version: str
    arch: str  # "amd64", "arm64" or "all"
    archive: str
    path: str
    sha256: str
    size_bytes: int
    sets: tuple[str, ...]  # "<set>/<arch>" it was resolved for, e.g. "runtime/arm64"


@dataclass(frozen=True, kw_only=True)
class DebsLock:
    """The packages behind one DebsPin. made_from: digest of the pin's suite, snapshot and sets."""

    path: str
    made_from: str
    debs: tuple[LockedDeb, ...]


def made_from(pin: WheelsPin | RequirementsPin | DebsPin) -> str:
    """`sha256:…` over all that a lock is resolved from; the order in which the pin lists things does not count."""
    match pin:
        case WheelsPin():
            source: dict[str, object] = {"platforms": sorted(pin.platforms), "packages": sorted(pin.packages)}
        case DebsPin():
            sets = {
                one.name: {
                    "packages": sorted(one.packages),
                    "arches": sorted(one.arches),
                    "without": sorted(one.without),
                }
                for one in pin.sets
            }
            source = {"suite": pin.suite, "snapshot": f"{pin.snapshot:%Y%m%dT%H%M%SZ}", "sets": sets}
        case RequirementsPin():
            source = {
                "platform": glibc_platform(pin.platform),
                "python": pin.python,
                "exclude-newer": f"{pin.exclude_newer:%Y%m%dT%H%M%SZ}",
                "packages": sorted(pin.packages),
                "constraints": {one.name: one.version for one in pin.requirements.constraints},
                "overrides": {one.name: one.version for one in pin.requirements.overrides},
                "exclusions": sorted(one.name for one in pin.requirements.exclusions),
                "layers": [[layer.name, *sorted(layer.projects)] for layer in pin.requirements.layers],
            }
            if pin.requirements.sdists:
                source["sdists"] = {one.name: [one.version, *sorted(one.requires)] for one in pin.requirements.sdists}
            if pin.base:
                source["provided"] = dict(pin.provided)
        case _:
            assert_never(pin)
    return _digest(json.dumps(source, sort_keys=True))


def read_wheels_lock(path: Path, pin: WheelsPin | RequirementsPin) -> WheelsLock:
    """The wheels behind a pin: every package of it for every platform.

    Raises StaleLockError when the lock was made from another state of the pin or is not as it was written, ConfigError
    for every mistake in it.
    """
    platforms = pin.platforms if isinstance(pin, WheelsPin) else (pin.platform,)
    with reading(path, text=_whole_text(path, pin)) as top:
        wheels = tuple(_read_wheel(item.section(), pin, platforms) for item in top.items("wheels", "wheels"))
        made = _read_head(path, top, pin, _other_releases(pin, wheels))
        found = {(f"{wheel.project}=={wheel.version}", wheel.platform) for wheel in wheels}
        for package in pin.packages:
            for platform in platforms:
                if not found.intersection({(package, platform), (package, "any")}):
                    top.refuse("wheels", f"there is none of `{package}` for {platform}")
    return WheelsLock(path=str(path), made_from=made, wheels=wheels)


def read_debs_lock(path: Path, pin: DebsPin) -> DebsLock:
    """The packages behind a pin.

    Raises StaleLockError when the lock was made from another state of the pin or is not as it was written, ConfigError
    for every mistake in it.
    """
    with reading(path, text=_whole_text(path, pin)) as top:
        made = _read_head(path, top, pin)
        of_pin = forms.one_of(*(f"{entry.name}/{arch}" for entry in pin.sets for arch in entry.arches))
        debs = tuple(_read_deb(item.section(), of_pin) for item in top.items("debs", "packages"))
    return DebsLock(path=str(path), made_from=made, debs=debs)


REMAKE = "make it with `./noxw -s lock -- {}`"  # a pin
_ENTRIES = "\nentries: "  # the last line of the head
_MADE_FROM = re.compile(r"^made-from: (sha256:[0-9a-f]{64})$", re.MULTILINE)


def lock_text(*comments: str, made: str, key: str, entries: Iterable[str]) -> str:
    """A lock: what it was made from, a digest over all that follows, and under `key` a line per entry."""
    body = "".join(f"{line}\n" for line in (f"{key}:", *(f"  - {entry}" for entry in entries)))
    head = "\n".join((*(f"# {line}" for line in comments), "schema: 1", f"made-from: {made}"))
    return f"{head}{_ENTRIES}{_digest(body)}\n{body}"


def find_change(path: Path, text: str, *, hint: str = "") -> StaleLockError | None:
    """What is wrong when the entries of a lock are not those that were written: it was edited or cut since.

    Also where it does not say which were written, as locks before the digest did not. Its text need be no YAML.
    """
    digest, _, body = text.partition(_ENTRIES)[2].partition("\n")
    if not digest:
        return StaleLockError(
            f"`{path}` does not say which entries it was written with, so nobody knows whether it is whole", hint=hint
        )
    if digest == _digest(body):
        return None
    return StaleLockError(
        f"`{path}` is not as it was written: lines of it were changed, added or lost",
        why=[f"it was written with the entries {digest}", f"it has the entries {_digest(body)} now"],
        hint=hint,
    )


def with_entries_digest(text: str) -> str:
    """The lock with a digest over its entries, where it was written before locks had one.

    For a text that something else vouches for, as git does for what it keeps.
    """
    head = _MADE_FROM.search(text)
    if head is None or _ENTRIES in text:
        return text
    body = text[head.end() + 1 :]
    return f"{text[: head.end()]}{_ENTRIES}{_digest(body)}\n{body}"


def stated_made_from(text: str) -> str:
    """What a lock says it was made from, also where the rest of it is cut; "" where it does not say."""
    found = _MADE_FROM.search(text)
    return found[1] if found else ""


def _whole_text(path: Path, pin: WheelsPin | RequirementsPin | DebsPin) -> str:
    """The text of a lock with the entries that were written; of one that was made from something else it says that."""
    text = read_text(path, if_missing=REMAKE.format(pin.name))
    if change := find_change(path, text, hint=REMAKE.format(pin.name)):
        _require_made_from(path, stated_made_from(text), pin)
        raise change
    return text


def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def _read_head(
    path: Path, top: Section, pin: WheelsPin | RequirementsPin | DebsPin, others: tuple[str, ...] = ()
) -> str:
    top.value("schema", forms.schema(1))
    top.optional("entries", forms.DIGEST, "")
    made = top.value("made-from", forms.DIGEST)
    _require_made_from(path, made, pin, others)
    return made


def _require_made_from(
    path: Path, made: str, pin: WheelsPin | RequirementsPin | DebsPin, others: tuple[str, ...] = ()
) -> None:
    if made and made != made_from(pin):
        raise StaleLockError(
            f"`{path}` was made from another `{pin.name}` than line {pin.line} of pins.yaml now says",
            why=[*others, f"it was made from {made}", f"the pin is {made_from(pin)} now"],
            hint=REMAKE.format(pin.name),
        )


def _other_releases(pin: WheelsPin | RequirementsPin, wheels: tuple[LockedWheel, ...]) -> tuple[str, ...]:
    """Where the lock has a package of the pin at another version."""
    wanted = dict(package.split("==") for package in pin.packages)
    others = {w.project: w.version for w in wheels if wanted.get(w.project, w.version) != w.version}
    return tuple(
        f"it has `{name}` {version}, and the pin names {wanted[name]}" for name, version in sorted(others.items())
    )


def _read_wheel(section: Section, pin: WheelsPin | RequirementsPin, platforms: tuple[str, ...]) -> LockedWheel:
    layer, python = "", None
    if isinstance(pin, RequirementsPin):
        layer = section.value("layer", forms.one_of(*(one.name for one in pin.requirements.layers)))
        python = pin.python
    project = section.value("project", forms.PROJECT)
    sdists = pin.requirements.sdists if isinstance(pin, RequirementsPin) else ()
    is_sdist = any(one.name == project for one in sdists)
    wheel = LockedWheel(
        project=project,
        version=section.value("version", forms.VERSION),
        filename=section.value("filename", forms.SDIST_FILE if is_sdist else forms.WHEEL_FILE),
        platform=section.value("platform", forms.WHEEL_PLATFORM),
        sha256=section.value("sha256", forms.SHA256),
        size_bytes=section.value("size", forms.SIZE),
        layer=layer,
    )
    if all((wheel.project, wheel.version, wheel.filename, wheel.platform)):
        meant = platforms if wheel.platform == "any" else (wheel.platform,)
        if not set(meant) <= set(platforms):
            section.refuse("platform", f"`{wheel.platform}` is none of the pin's: {', '.join(platforms)}")
        elif wheel.is_sdist:
            if not is_sdist_of(wheel.filename, project=wheel.project, version=wheel.version):
                section.refuse("filename", f"no sdist of `{wheel.project}` {wheel.version}")
        elif not is_wheel_of(
            wheel.filename, project=wheel.project, version=wheel.version, platforms=meant, python=python
        ):
            of_python = f" and Python {python}" if python else ""
            text = f"no wheel of `{wheel.project}` {wheel.version} for {', '.join(meant)}{of_python}"
            section.refuse("filename", text)
    return wheel


def _read_deb(section: Section, of_pin: forms.Form[str]) -> LockedDeb:
    return LockedDeb(
        package=section.value("package", forms.DEB_PACKAGE),
        version=section.value("version", forms.DEB_VERSION),
        arch=section.value("arch", forms.DEB_ARCH),
        archive=section.value("archive", forms.DEB_ARCHIVE),
        path=section.value("path", forms.RELATIVE_PATH),
        sha256=section.value("sha256", forms.SHA256),
        size_bytes=section.value("size", forms.SIZE),
        sets=section.values("sets", of_pin),
    )

"""What is in an image, read from its layers once: packages by their own records, and the files that no package owns."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from spark_images.audit.facts import Distribution
from spark_images.audit.installed import distributions
from spark_images.imagefiles import walk_files

if TYPE_CHECKING:
    from spark_images.oci import Layout

_STATUS = re.compile(r"var/lib/dpkg/(?:status|status\.d/[^/.]+(?:\.[^/.]+)*)")
_INFO = ".dist-info"
_LARGEST_TEXT = 64 << 20  # a RECORD of a large wheel has 2 MB
# Debian's part, and what the RECORDs of Python's packages list: hashing gigabytes of it would say nothing new.
_OWNED = re.compile(
    r"usr/(?:bin|sbin|lib|libexec|share|include)/|etc/|var/lib/dpkg/|(?:bin|sbin|lib)/|.*/(?:dist|site)-packages/"
)


@dataclass(frozen=True, kw_only=True)
class DebPackage:
    """One Debian package, from dpkg's status."""

    name: str
    version: str
    arch: str
    source: str  # "" where it has the package's name
    maintainer: str


@dataclass(frozen=True, kw_only=True)
class LooseFile:
    """A program or library that belongs to no package: made by the build."""

    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class PythonPackage:
    """One Python distribution, from its METADATA and RECORD."""

    name: str
    version: str
    licenses: str
    record_sha256: str  # of RECORD, which has the digest of every file; "" where there is none
    files: int


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What is in an image."""

    debs: tuple[DebPackage, ...]
    python: tuple[PythonPackage, ...]
    loose: tuple[LooseFile, ...]
    distribution: str  # "debian-12"; "" where the image does not say


def read_contents(layout: Layout) -> Contents:
    """Read it; about as long as decompressing the layers takes. Raises CanonicalError for a damaged layer."""
    texts: dict[str, str] = {}
    loose: list[LooseFile] = []
    for entry in walk_files(layout):
        if entry.type != "file" or entry.link:
            continue
        if _is_text(entry.path) and entry.size <= _LARGEST_TEXT:
            with entry.open() as stream:
                texts[entry.path] = stream.read().decode(errors="replace")
        elif not _OWNED.match(entry.path) and (entry.mode & 0o111 or ".so" in entry.path.rpartition("/")[2]):
            with entry.open() as stream:
                if stream.read(4) != b"\x7fELF":
                    continue
                stream.seek(0)
                digest = hashlib.file_digest(cast(io.BufferedReader, stream), "sha256").hexdigest()
            loose.append(LooseFile(path=entry.path, sha256=digest, size_bytes=entry.size))
    found = distributions(texts)
    owned = {recorded.path for one in found for recorded in one.files}
    return Contents(
        debs=debian_packages(text for path, text in sorted(texts.items()) if _STATUS.fullmatch(path)),
        python=tuple(_python(one, texts) for one in found),
        loose=tuple(sorted((file for file in loose if file.path not in owned), key=lambda file: file.path)),
        distribution=_distribution(texts),
    )


def debian_packages(texts: Iterable[str]) -> tuple[DebPackage, ...]:
    """The packages of dpkg status files, by name and architecture."""
    found = {}
    for text in texts:
        for paragraph in re.split(r"\n\s*\n", text):
            fields = dict(re.findall(r"(?m)^([A-Za-z-]+):[ \t]*(.*)$", paragraph))
            if fields.get("Package") and not fields.get("Status", "installed").endswith(("deinstall", "not-installed")):
                package = DebPackage(
                    name=fields["Package"],
                    version=fields.get("Version", ""),
                    arch=fields.get("Architecture", ""),
                    source=fields.get("Source", ""),
                    maintainer=fields.get("Maintainer", ""),
                )
                found[package.name, package.arch] = package
    return tuple(found[key] for key in sorted(found))


def _is_text(path: str) -> bool:
    return bool(
        (_STATUS.fullmatch(path) and not path.endswith(".md5sums"))
        or path.endswith((f"{_INFO}/METADATA", f"{_INFO}/RECORD"))
        or path in ("etc/os-release", "usr/lib/os-release")
    )


def _python(one: Distribution, texts: Mapping[str, str]) -> PythonPackage:
    head = texts[f"{one.info}/METADATA"].partition("\n\n")[0]
    licenses = re.search(r"(?m)^License-Expression:[ \t]*(.+)$", head)
    record = texts.get(f"{one.info}/RECORD", "")
    return PythonPackage(
        name=one.name,
        version=one.version,
        licenses=licenses[1].strip() if licenses else "",
        record_sha256=hashlib.sha256(record.encode()).hexdigest() if record else "",
        files=len(one.files),
    )


def _distribution(texts: Mapping[str, str]) -> str:
    text = texts.get("etc/os-release") or texts.get("usr/lib/os-release") or ""
    fields = {key: value.strip('"') for key, value in re.findall(r"(?m)^([A-Z_]+)=(.*)$", text)}
    return "-".join(filter(None, (fields.get("ID"), fields.get("VERSION_ID"))))

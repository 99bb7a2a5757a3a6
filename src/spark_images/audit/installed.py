"""What the texts of an image say: its distributions, its loader's cache, its configuration. Pure."""

from __future__ import annotations

import base64
import configparser
import csv
import posixpath
import re
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from email.parser import HeaderParser
from typing import Any

from packaging.utils import canonicalize_name, parse_wheel_filename

from spark_images.audit.facts import Distribution, Recorded, Settings
from spark_images.platforms import ARCHES

CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = 48  # bytes; glibc, sysdeps/generic/dl-cache.h: struct cache_file_new
_CACHE_ENTRY = struct.Struct("<iIIIQ")  # flags, name, path, OS version, hardware capabilities


def distributions(texts: Mapping[str, str]) -> tuple[Distribution, ...]:
    """Every dist-info folder with METADATA, by path, but for those that another distribution carries within its own."""
    found = [_distribution(path.rpartition("/")[0], texts) for path in sorted(texts) if path.endswith("/METADATA")]
    carried = {entry.path for one in found for entry in one.files if not entry.path.startswith(f"{one.info}/")}
    return tuple(one for one in found if f"{one.info}/METADATA" not in carried)


def _distribution(info: str, texts: Mapping[str, str]) -> Distribution:
    said = HeaderParser().parsestr(texts[f"{info}/METADATA"])
    return Distribution(
        name=canonicalize_name(said.get("Name", "").strip()),
        version=said.get("Version", "").strip(),
        info=info,
        files=tuple(_recorded(texts.get(f"{info}/RECORD", ""), posixpath.dirname(info))),
        requires=tuple(" ".join(text.split()) for text in said.get_all("Requires-Dist", ())),
        entry_points=tuple(_console_scripts(texts.get(f"{info}/entry_points.txt", ""))),
    )


def _recorded(record: str, site: str) -> Iterator[Recorded]:
    for row in csv.reader(record.splitlines()):
        if len(row) != 3 or not row[0]:
            continue
        path = posixpath.normpath(posixpath.join(site or "/", row[0]))
        algorithm, _, value = row[1].partition("=")
        digest = ""
        if algorithm == "sha256" and re.fullmatch(r"[A-Za-z0-9_-]{43}", value):
            digest = base64.urlsafe_b64decode(value + "=").hex()
        yield Recorded(path=path, sha256=digest, size_bytes=int(row[2]) if row[2].isdigit() else None)


def _console_scripts(text: str) -> Iterator[tuple[str, str]]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names of commands keep their case
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    if parser.has_section("console_scripts"):
        for name, value in parser.items("console_scripts"):
            yield name, re.sub(r"\s*\[.*", "", value).strip()


def wheel_platforms(filename: str) -> tuple[str, ...]:
    """`linux/arm64` for each architecture that a wheel's name says; none where it is for any. Raises ValueError."""
    found = set()
    for tag in parse_wheel_filename(filename)[3]:
        machine = next((machine for machine in ARCHES if tag.platform.endswith(f"_{machine}")), "")
        if machine and "linux" in tag.platform:
            found.add(f"linux/{ARCHES[machine]}")
        elif tag.platform != "any":
            found.add(tag.platform)
    return tuple(sorted(found))


def loader_cache(data: bytes) -> dict[str, tuple[str, ...]]:
    """What ldconfig wrote into /etc/ld.so.cache: name -> paths. {} where there is no cache of glibc's present form."""
    start = data.find(CACHE_MAGIC)
    if start < 0 or len(data) < start + _CACHE_HEADER:
        return {}
    (count,) = struct.unpack_from("<I", data, start + len(CACHE_MAGIC))
    found: dict[str, list[str]] = defaultdict(list)
    for index in range(count):
        at = start + _CACHE_HEADER + index * _CACHE_ENTRY.size
        if at + _CACHE_ENTRY.size > len(data):
            return {}
        _, name, path, _, _ = _CACHE_ENTRY.unpack_from(data, at)
        found[_string(data, start + name)].append(_string(data, start + path))
    return {name: tuple(paths) for name, paths in found.items()}


def _string(data: bytes, at: int) -> str:
    return data[at : data.find(b"\0", at)].decode(errors="replace")


def settings(config: Mapping[str, Any], *, indexed: str = "") -> Settings:
    """An image config (OCI image spec, config.md); what is missing in it is empty."""
    inner: Mapping[str, Any] = config.get("config") or {}
    return Settings(
        platform=f"{config.get('os', '')}/{config.get('architecture', '')}",
        indexed=indexed,
        env=tuple(_pairs(inner.get("Env") or ())),
        user=str(inner.get("User") or ""),
        entrypoint=tuple(map(str, inner.get("Entrypoint") or ())),
        command=tuple(map(str, inner.get("Cmd") or ())),
        ports=tuple(map(str, inner.get("ExposedPorts") or ())),
        history=tuple(str(entry.get("created_by", "")) for entry in config.get("history") or ()),
        labels=tuple((str(name), str(value)) for name, value in (inner.get("Labels") or {}).items()),
    )


def _pairs(env: Iterable[str]) -> Iterator[tuple[str, str]]:
    for entry in env:
        name, _, value = str(entry).partition("=")
        yield name, value

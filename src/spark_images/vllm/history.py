"""images/vllm-knowledge.json: in which releases of vLLM each name is known. Made by `nox -s learn-vllm`, never by hand.

A range is written `FIRST-LAST`, without LAST where the newest release still knows the name; a name that went and came
back has several. FIRST is the oldest release that was read where a name is older than that.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from packaging.version import Version

from spark_images.compat.release import ranges
from spark_images.errors import ConfigError, UsageError
from spark_images.vllm.fields import Takes
from spark_images.vllm.flags import Flag
from spark_images.vllm.names import Names, Variable

Fact: TypeAlias = tuple[str, str, str]  # table, name, value: ("values", "--kv-cache-dtype", "fp8")

MAKE = "make it with `./noxw -s learn-vllm`"
_ABOUT = "In which releases of vLLM a name is known, FIRST-LAST; read from their sources by `nox -s learn-vllm`."
_ONE_EACH = ("variables", "flags", "aliases", "open", "instead")  # a name has one value in a release
_SEVERAL = ("values",)


@dataclass(frozen=True)
class Knowledge:
    """releases: those that were read, ascending. facts: what was true, and in which of them."""

    releases: tuple[Version, ...]
    facts: Mapping[Fact, tuple[Version, ...]]

    def names(self, release: str) -> Names:
        """What a release knows; UsageError for one that was not read."""
        version = self.version(release)
        true = [fact for fact, held in self.facts.items() if version in held]
        return _names(true)

    def version(self, release: str) -> Version:
        """The release as a version; UsageError for one that was not read."""
        found = next((known for known in self.releases if str(known) == release), None)
        if found is None:
            raise UsageError(
                f"nobody has read what vllm {release} knows",
                why=[f"read are {ranges(self.releases, self.releases)}"],
                hint=f"`./noxw -s learn-vllm -- {release}` reads it, if there is such a release",
            )
        return found

    def held(self, table: str, name: str, value: str | None = None) -> tuple[Version, ...]:
        """The releases in which a name was known, with this value where one is given."""
        facts = (
            held for (of, key, was), held in self.facts.items() if (of, key) == (table, name) and value in (None, was)
        )
        known = {version for held in facts for version in held}
        return tuple(version for version in self.releases if version in known)

    def every(self, table: str, name: str | None = None) -> tuple[str, ...]:
        """All names of a table over all releases; or with a name, all its values."""
        if name is None:
            return tuple(dict.fromkeys(key for of, key, _ in self.facts if of == table))
        return tuple(value for of, key, value in self.facts if (of, key) == (table, name))

    def with_release(self, version: Version, names: Names) -> Knowledge:
        """The same and one release more, or one read again."""
        per_release = {known: {fact for fact, held in self.facts.items() if known in held} for known in self.releases}
        per_release[version] = set(_facts(names))
        return merge(per_release)


def merge(per_release: Mapping[Version, Iterable[Fact]]) -> Knowledge:
    """What releases know, by fact. Facts are in the order of table and name; values in that of their first release."""
    held: defaultdict[Fact, list[Version]] = defaultdict(list)
    for version in sorted(per_release):
        for fact in sorted(per_release[version]):
            held[fact].append(version)
    ordered = sorted(held.items(), key=lambda item: (item[0][0], item[0][1], item[1][0], item[0][2]))
    return Knowledge(tuple(sorted(per_release)), {fact: tuple(versions) for fact, versions in ordered})


def to_text(knowledge: Knowledge) -> str:
    """The file: one line per name, so that a diff says what a release brought."""
    tables: dict[str, dict[str, dict[str, list[str]]]] = {table: {} for table in (*_ONE_EACH, *_SEVERAL)}
    for (table, name, value), versions in knowledge.facts.items():
        by_range = tables[table].setdefault(name, {})
        by_range.setdefault(_range(versions, knowledge.releases), []).append(value)
    releases = ", ".join(json.dumps(str(release)) for release in knowledge.releases)
    lines = ["{", '"schema": 1,', f'"about": {json.dumps(_ABOUT)},', f'"releases": [{releases}],']
    for table, names in tables.items():
        lines.append(f'"{table}": {{')
        for name, by_range in names.items():
            held: Any = by_range if table in _SEVERAL else {held: values[0] for held, values in by_range.items()}
            if table == "variables":  # there is nothing more to say of them
                (held,) = by_range
            lines.append(f"{json.dumps(name)}: {json.dumps(held, ensure_ascii=False, separators=(',', ':'))},")
        lines[-1] = lines[-1].rstrip(",")
        lines.append("},")
    lines[-1] = "}"
    return "\n".join([*lines, "}"]) + "\n"


def read_knowledge(path: Path) -> Knowledge:
    """The file's content; ConfigError when it is missing or not what to_text writes."""
    try:
        return from_text(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no file `{path}`", hint=MAKE) from None
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        raise ConfigError(
            f"`{path}` is not what `learn` writes", why=[f"{type(err).__name__}: {err}"], hint=MAKE
        ) from err


def from_text(text: str) -> Knowledge:
    """The reverse of to_text; ValueError and its like for another text."""
    data = json.loads(text)
    if data["schema"] != 1:
        raise ValueError(f"schema {data['schema']}")
    releases = tuple(Version(release) for release in data["releases"])
    facts: dict[Fact, tuple[Version, ...]] = {}
    for table in (*_ONE_EACH, *_SEVERAL):
        for name, held in data[table].items():
            by_range = {held: ""} if isinstance(held, str) else held
            for text_range, values in by_range.items():
                versions = tuple(_versions(text_range, releases))
                for value in [values] if isinstance(values, str) else values:
                    facts[(table, name, value)] = (*facts.get((table, name, value), ()), *versions)
    return Knowledge(releases, facts)


def _facts(names: Names) -> Iterator[Fact]:
    for variable in names.variables.values():
        yield ("variables", variable.name, "")
        yield from (("values", variable.name, word) for word in variable.words)
        yield from (("open", variable.name, why) for why in [variable.open] if why)
        yield from (("instead", variable.name, text) for text in [variable.instead] if text)
    for flag in names.flags.values():
        yield ("flags", flag.name, flag.takes.value)
        yield from (("aliases", alias, flag.name) for alias in flag.aliases)
        yield from (("values", flag.name, word) for word in flag.words)
        yield from (("open", flag.name, why) for why in [flag.open] if why)


def _names(facts: Iterable[Fact]) -> Names:
    tables: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for table, name, value in facts:
        tables[table][name].append(value)
    words, reasons, instead = tables["values"], tables["open"], tables["instead"]
    aliases: defaultdict[str, list[str]] = defaultdict(list)
    for alias, (name,) in tables["aliases"].items():
        aliases[name].append(alias)

    def first(table: Mapping[str, list[str]], name: str) -> str:
        return next(iter(table.get(name, ())), "")

    return Names(
        variables={
            name: Variable(
                name=name, words=tuple(words.get(name, ())), open=first(reasons, name), instead=first(instead, name)
            )
            for name in tables["variables"]
        },
        flags={
            name: Flag(
                name=name,
                aliases=tuple(aliases.get(name, ())),
                takes=Takes(takes),
                words=tuple(words.get(name, ())),
                open=first(reasons, name),
            )
            for name, (takes,) in tables["flags"].items()
        },
    )


def _range(versions: Iterable[Version], releases: tuple[Version, ...]) -> str:
    runs = ranges(versions, releases).split(", ")
    ends = [(first, last or first) for first, _, last in (run.partition(" to ") for run in runs)]
    newest = str(releases[-1])
    return ",".join(f"{first}-{'' if last == newest else last}" for first, last in ends)


def _versions(text: str, releases: tuple[Version, ...]) -> Iterator[Version]:
    for run in text.split(","):
        if not (ends := re.fullmatch(r"([0-9.a-z]+)-([0-9.a-z]*)", run)):
            raise ValueError(f"`{run}` is no range of releases")
        first, last = Version(ends[1]), Version(ends[2]) if ends[2] else releases[-1]
        if first not in releases or last not in releases:
            raise ValueError(f"`{run}` names a release that is not in `releases`")
        yield from (release for release in releases if first <= release <= last)

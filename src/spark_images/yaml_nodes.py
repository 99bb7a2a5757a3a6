"""YAML text as nodes that know their lines; scalars are the text that was written.

What the project does not write is refused: anchors, aliases, tags, keys given twice, keys that are no scalars, a second
document, a byte order mark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from spark_images.errors import ConfigError

MOST_SHOWN = 20  # mistakes of one file that are listed; beyond that one more line says how many there are
_DEEPEST = 12  # levels of nesting; the project's files have five
_NOT_TEXT = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # YAML 1.2, 5.1


class Scalar(NamedTuple):
    """One value, as it was written, without its quotes."""

    text: str
    line: int


class List(NamedTuple):
    """A sequence."""

    nodes: list[Node]
    line: int


class Map(NamedTuple):
    """A mapping, in the file's order."""

    entries: dict[str, Node]
    line: int
    key_lines: dict[str, int]


Node: TypeAlias = Scalar | List | Map


class Mistakes:
    """What is wrong in one file, collected so that it is reported at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, where: str, text: str) -> None:
        """where: the key, with its parents, as `vllm.routes[1].sdist`; empty for the file as a whole."""
        place = f"{self.path}:{line}"
        self._found.append((line, f"{place}: {where}: {text}" if where else f"{place}: {text}"))

    def raise_any(self) -> None:
        """Raise ConfigError if there are mistakes: a single one as it is, several in the order of their lines."""
        lines = [text for _, text in sorted(self._found, key=lambda mistake: mistake[0])]
        if len(lines) == 1:
            raise ConfigError(lines[0])
        if lines:
            rest = len(lines) - MOST_SHOWN
            more = [f"and {rest} more"] if rest > 0 else []
            raise ConfigError(f"{len(lines)} mistakes in `{self.path}`", why=[*lines[:MOST_SHOWN], *more])


def read_nodes(path: Path, text: str, mistakes: Mistakes) -> Node:
    """The document in a file's text. Raises ConfigError when it is no YAML."""
    events = yaml.parse(text, Loader=yaml.CBaseLoader)
    try:
        next(events)  # the start of the stream
        if isinstance(next(events), yaml.StreamEndEvent):
            raise ConfigError(f"{path}:1: the file is empty")
        root = _node(next(events), events, mistakes, "", 0)
        next(events)  # the end of the document
        if not isinstance(second := next(events), yaml.StreamEndEvent):
            mistakes.add(_line(second), "", "a second YAML document; a file holds one")
    except yaml.MarkedYAMLError as err:
        raise ConfigError(_syntax(text, path, err)) from None
    mistakes.raise_any()
    return root


def shown(text: str, most: int = 60) -> str:
    """A value as it may stand in a message: one line, cut where it is long, nothing that a terminal would obey."""
    cut = text if len(text) <= most else f"{text[:most]}…"
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in cut)


def kind_of(node: Node) -> str:
    """What a node is, for "expected …, got …"."""
    match node:
        case List():
            return "a list"
        case Map():
            return "a mapping"
        case Scalar():
            return f"`{shown(node.text)}`" if node.text else "nothing"


def below(where: str, key: str) -> str:
    """The place of a key in a mapping: `vllm.sha256`."""
    return f"{where}.{key}" if where else key


def read_text(path: Path, *, if_missing: str = "") -> str:
    """The text of a file. Raises ConfigError when it cannot be read; if_missing: hint for a missing file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"there is no file `{path}`", hint=if_missing) from None
    except OSError as err:
        raise ConfigError(f"`{path}` cannot be read") from err
    if data.startswith(b"\xef\xbb\xbf"):
        raise ConfigError(f"{path}:1: the file starts with a byte order mark", hint="save it as UTF-8 without one")
    try:
        text = data.decode()
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte 0x{data[err.start]:02x} is not UTF-8", hint="save the file as UTF-8"
        ) from None
    if strange := _NOT_TEXT.search(text):
        line = text.count("\n", 0, strange.start()) + 1
        raise ConfigError(f"{path}:{line}: the character U+{ord(strange.group()):04X} must not stand in YAML")
    return text


def _syntax(text: str, path: Path, err: yaml.MarkedYAMLError) -> str:
    mark = err.problem_mark or err.context_mark
    if mark is None:
        return f"{path}: not YAML: {err.problem}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    context = f" {err.context}" if err.context else ""
    tab = "; it is a tab, and YAML wants blanks" if line[mark.column : mark.column + 1] == "\t" else ""
    return f"{path}:{mark.line + 1}:{mark.column + 1}: not YAML: {err.problem}{context}{tab}"


def _line(event: yaml.Event) -> int:
    assert event.start_mark is not None
    return event.start_mark.line + 1


def _node(event: yaml.Event, events: Iterator[yaml.Event], mistakes: Mistakes, where: str, depth: int) -> Node:
    line = _line(event)
    if isinstance(event, yaml.AliasEvent):
        mistakes.add(line, where, f"an alias, `*{shown(str(event.anchor))}`; write the value itself")
        return Scalar("", line)
    assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
    if event.anchor is not None:
        mistakes.add(line, where, f"an anchor, `&{shown(event.anchor)}`; write values where they are used")
    if event.tag is not None:
        mistakes.add(line, where, f"a tag, `{shown(event.tag)}`; every value is read as text")
    if isinstance(event, yaml.ScalarEvent):
        return Scalar(event.value, line)
    if depth == _DEEPEST:
        raise ConfigError(f"{mistakes.path}:{line}: nested deeper than {_DEEPEST} levels")
    if isinstance(event, yaml.SequenceStartEvent):
        nodes: list[Node] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            nodes.append(_node(event, events, mistakes, f"{where}[{len(nodes)}]", depth + 1))
        return List(nodes, line)
    entries: dict[str, Node] = {}
    key_lines: dict[str, int] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _node(event, events, mistakes, where, depth + 1)
        name = key.text if isinstance(key, Scalar) else ""
        place = below(where, shown(name))
        value = _node(next(events), events, mistakes, place, depth + 1)
        if not name:
            mistakes.add(key.line, where, f"expected a name as key, got {kind_of(key)}")
        elif name in entries:
            mistakes.add(key.line, place, f"given twice, first in line {key_lines[name]}")
        else:
            entries[name] = value
            key_lines[name] = key.line
    return Map(entries, line, key_lines)

"""A YAML file as its reader asks for it: every value has a Form, and every mistake names file, line and key.

All mistakes of a file are reported at once. A key that no reader asked for is unknown, so none can be overlooked.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from spark_images.errors import ConfigError, did_you_mean
from spark_images.forms import Form
from spark_images.yaml_nodes import List, Map, Mistakes, Node, Scalar, below, kind_of, read_nodes, read_text, shown

T = TypeVar("T")
D = TypeVar("D")


@contextmanager
def reading(path: Path, *, if_missing: str = "", text: str | None = None) -> Iterator[Section]:
    """The file's top mapping; when the block ends, whatever is wrong in the file is raised as one ConfigError.

    Until then a wrong value reads as its Form's blank, so that one run finds every mistake. What is made of the values
    must therefore leave the function through the end of the block, by `return`. if_missing: hint for a missing file.
    text: the file's, where the caller has read it.
    """
    mistakes = Mistakes(str(path))
    root = read_nodes(path, read_text(path, if_missing=if_missing) if text is None else text, mistakes)
    if not isinstance(root, Map):
        raise ConfigError(f"{path}:{root.line}: expected a mapping, got {kind_of(root)}")
    top = Section(mistakes, root, "", root.line)
    yield top
    top.finish()
    mistakes.raise_any()


class Section:
    """A mapping of the file."""

    def __init__(self, mistakes: Mistakes, node: Map | None, where: str, line: int) -> None:
        self.given = node is not None  # False: there is no such mapping; it reads as empty
        self.empty = not node or not node.entries
        self.line = line  # of its key
        self._mistakes = mistakes
        self._entries = node.entries if node else {}
        self._key_lines = node.key_lines if node else {}
        self._where = where
        self._asked: set[str] = set()
        self._missing: dict[str, str] = {}
        self._sections: list[Section] = []

    def has(self, key: str) -> bool:
        """Whether the key is given."""
        return self._ask(key) is not None

    def value(self, key: str, form: Form[T]) -> T:
        """The scalar of a compulsory key."""
        node = self._ask(key)
        if node is None:
            self._missing[key] = form.expected
            return form.blank
        return _scalar(self._mistakes, node, self._where, key, form)

    def optional(self, key: str, form: Form[T], default: D) -> T | D:
        """The scalar of a key, or the default where the key is not given."""
        node = self._ask(key)
        return default if node is None else _scalar(self._mistakes, node, self._where, key, form)

    def values(self, key: str, form: Form[T], *, optional: bool = False, distinct: bool = True) -> tuple[T, ...]:
        """The scalars of a list: at least one; any number, or no key at all, where it is optional."""
        node = self._ask(key)
        if node is None:
            if not optional:
                self._missing[key] = f"a list, each {form.expected}"
            return ()
        if not isinstance(node, List) or not (node.nodes or optional):
            got = "an empty one" if isinstance(node, List) else kind_of(node)
            self.refuse(key, f"expected a list, each {form.expected}, got {got}")
            return ()
        seen: set[str] = set()
        for index, entry in enumerate(node.nodes):
            if distinct and isinstance(entry, Scalar):
                if entry.text in seen:
                    place = below(self._where, f"{key}[{index}]")
                    self._mistakes.add(entry.line, place, f"`{shown(entry.text)}` stands in the list twice")
                seen.add(entry.text)
        return tuple(
            _scalar(self._mistakes, entry, self._where, f"{key}[{index}]", form)
            for index, entry in enumerate(node.nodes)
        )

    def items(self, key: str, expected: str = "") -> tuple[Item, ...]:
        """The elements of a list that holds mappings. expected: what it holds, where the key is compulsory."""
        node = self._ask(key)
        if node is None:
            if expected:
                self._missing[key] = f"a list of {expected}"
            return ()
        if not isinstance(node, List):
            self.refuse(key, f"expected a list, got {kind_of(node)}")
            return ()
        return tuple(Item(self, entry, f"{key}[{index}]") for index, entry in enumerate(node.nodes))

    def section(self, key: str, *, optional: bool = False) -> Section:
        """The mapping of a key; where there is none, one that is not `given`."""
        node = self._ask(key)
        if node is None and not optional:
            self._missing[key] = "a mapping"
        return self._below(node, key, self._key_lines.get(key, self.line))

    def names(self, form: Form[str]) -> tuple[str, ...]:
        """The keys that were not asked for yet, in the file's order: for mappings whose keys are names."""
        found = []
        for key, line in self._key_lines.items():
            if key in self._asked:
                continue
            if form.read(key) is None:
                self._asked.add(key)
                text = f"expected {form.expected} as key{_nearest(key, form.choices)}"
                self._mistakes.add(line, below(self._where, shown(key)), text)
            else:
                found.append(key)
        return tuple(found)

    def refuse(self, key: str, text: str) -> None:
        """Report that a key's value is wrong for a reason that no Form knows."""
        self._mistakes.add(self._key_lines.get(key, self.line), below(self._where, key), text)

    def abandon(self) -> None:
        """Say nothing of further keys, as nobody can know what belongs here; a missing key may still be misspelt."""
        self._asked.update(key for key in self._entries if not difflib.get_close_matches(key, self._missing, n=1))

    def finish(self) -> None:
        """Report unknown and missing keys, here and below; a misspelt compulsory key is one mistake, not two."""
        for key, line in self._key_lines.items():
            if key not in self._asked:
                self._mistakes.add(line, below(self._where, shown(key)), f"unknown key{self._advice(key)}")
        if self.given:
            for key, expected in self._missing.items():
                self._mistakes.add(self.line, below(self._where, key), f"missing; expected {expected}")
        for section in self._sections:
            section.finish()

    def _advice(self, key: str) -> str:
        for candidates in (self._asked.difference(self._entries), self._asked):
            if near := difflib.get_close_matches(key, sorted(candidates), n=1):
                self._missing.pop(near[0], None)
                return f"; did you mean `{near[0]}`?"
        return f"; known are {', '.join(f'`{name}`' for name in sorted(self._asked))}"

    def _ask(self, key: str) -> Node | None:
        self._asked.add(key)
        return self._entries.get(key)

    def _below(self, node: Node | None, key: str, line: int) -> Section:
        place = below(self._where, key)
        if node is not None and not isinstance(node, Map):
            self._mistakes.add(node.line, place, f"expected a mapping, got {kind_of(node)}")
            node = None
        section = Section(self._mistakes, node, place, line)
        self._sections.append(section)
        return section


class Item:
    """An element of a list: a scalar or a mapping."""

    def __init__(self, parent: Section, node: Node, key: str) -> None:
        self._parent = parent
        self._node = node
        self._key = key
        self.is_scalar = isinstance(node, Scalar)

    def value(self, form: Form[T]) -> T:
        """The element as a scalar."""
        return _scalar(self._parent._mistakes, self._node, self._parent._where, self._key, form)

    def section(self) -> Section:
        """The element as a mapping."""
        return self._parent._below(self._node, self._key, self._node.line)


def _scalar(mistakes: Mistakes, node: Node, where: str, key: str, form: Form[T]) -> T:
    text = node.text if isinstance(node, Scalar) else None
    value = None if text is None else form.read(text)
    if value is not None:
        return value
    advice = "" if text is None else _nearest(text, form.choices)
    mistakes.add(node.line, below(where, key), f"expected {form.expected}, got {kind_of(node)}{advice}")
    return form.blank


def _nearest(word: str, choices: tuple[str, ...]) -> str:
    meant = did_you_mean(word, choices)
    return f"; {meant}" if meant else ""

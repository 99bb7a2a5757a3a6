"""What CMake's variables can hold where a file is read without running it. Pure.

A text that is not known for certain is a set of all that it can be. A reference to something that no plain `set` gives
a value stays in the text as it is written, `${NAME}` or `$ENV{NAME}`: whoever needs the value sees that there is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from spark_images.cmake.text import Argument, Kind

Texts: TypeAlias = frozenset[str]

MOST_TEXTS = 16  # of one argument; with more of them nothing is known of it
_REFERENCE = re.compile(r"\$(?:ENV|CACHE)?\{")
_KNOWN_NAME = re.compile(r"[A-Za-z0-9_./+-]+")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
# An escaped `$` keeps its backslash, so that it is not taken for a reference; lists are split where a `;` has none.
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "$": r"\$", ";": r"\;"}
_PLAIN = re.compile(r".[^\\$}]*", re.DOTALL)
_UNKNOWN: Texts = frozenset({"${…}"})
_ONE_OPERAND = re.compile("EXISTS|IS_DIRECTORY|IS_SYMLINK|IS_ABSOLUTE|COMMAND|POLICY|TARGET|TEST|DEFINED")
_TWO_OPERANDS = re.compile(
    "MATCHES|IN_LIST|IS_NEWER_THAN|PATH_EQUAL|(?:STR|VERSION_)?(?:EQUAL|LESS|GREATER|LESS_EQUAL|GREATER_EQUAL)"
)
_TRUE = re.compile(r"on|yes|true|y|-?[0-9.]*[1-9][0-9.]*", re.IGNORECASE)
_FALSE = re.compile(r"0|off|no|false|n|ignore|notfound|.*-notfound|", re.IGNORECASE)


class Variables:
    """Values by name. What was never set, or changed by a command that is not followed, has itself as its value."""

    def __init__(self, values: Iterable[tuple[str, Texts]]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> Texts:
        return self._values.get(name) or frozenset({f"${{{name}}}"})

    def set(self, name: str, texts: Texts) -> None:
        """What `name` can be from here on."""
        self._values[name] = texts

    def forget(self, name: str) -> None:
        """`name` is unset, or nobody knows what it is from here on."""
        self._values.pop(name, None)

    def copy(self) -> Variables:
        """These, for a branch that may not be taken."""
        return Variables(self._values.items())

    @staticmethod
    def either(branches: Sequence[Variables]) -> Variables:
        """What holds after branches of which one was taken, and nobody knows which."""
        names = {name for branch in branches for name in branch._values}
        return Variables((name, frozenset(text for branch in branches for text in branch[name])) for name in names)

    def expand(self, argument: Argument) -> Texts:
        """All that an argument can be, as one text: a list has `;` between its elements."""
        if argument.kind is Kind.BRACKET:
            return frozenset({argument.text})
        return self._expand(argument.text, ending="")[0]

    def joined(self, arguments: Iterable[Argument]) -> Texts:
        """All that several arguments can be, as the one text that `set` makes of them."""
        return _product(map(self.expand, arguments), ";")

    def words(self, arguments: Iterable[Argument]) -> list[Texts]:
        """Arguments as a command sees them: an unquoted one that holds a list is one for each of its elements."""
        found: list[Texts] = []
        for argument in arguments:
            texts = self.expand(argument)
            if argument.kind is Kind.UNQUOTED and len(texts) == 1:
                (text,) = texts
                found += [frozenset({word}) for word in re.split(r"(?<!\\);", text) if word]
            else:
                found.append(texts)
        return found

    def _expand(self, text: str, *, ending: str) -> tuple[Texts, str]:
        """What `text` can be up to `ending`, and what stands from there on."""
        parts: list[Texts] = []
        while text and not (ending and text.startswith(ending)):
            if reference := _REFERENCE.match(text):
                names, rest = self._expand(text[reference.end() :], ending="}")
                parts.append(frozenset(value for name in names for value in self._value(reference[0], name)))
                if not rest:
                    return _UNKNOWN, ""  # it has no end
                text = rest[1:]
            elif escape := _ESCAPE.match(text):
                parts.append(frozenset({_ESCAPES.get(escape[1], escape[1])}))
                text = text[2:]
            else:
                plain = _PLAIN.match(text)
                assert plain is not None
                parts.append(frozenset({plain[0]}))
                text = text[plain.end() :]
        return _product(parts, ""), text

    def _value(self, opening: str, name: str) -> Texts:
        if opening == "${" and _KNOWN_NAME.fullmatch(name):
            return self[name]
        return frozenset({f"{opening}{name}}}"})

    def truth(self, condition: Sequence[Argument]) -> bool | None:
        """Whether `if(condition)` holds; None where it depends on what is not known.

        A variable that was never set may be given on CMake's command line, so it is not false but unknown.
        """
        return _Condition(self, condition).truth()


def _product(parts: Iterable[Texts], between: str) -> Texts:
    parts = tuple(parts)
    return frozenset(map(between.join, product(*parts))) if prod(map(len, parts)) <= MOST_TEXTS else _UNKNOWN


def certain(texts: Texts) -> str | None:
    """The text, where there is only one and no reference without a value in it."""
    (text,) = texts if len(texts) == 1 else (None,)
    return None if text is None or re.search(r"(?<!\\)\$(?:ENV|CACHE)?\{", text) else text


class _Condition:
    """if()'s grammar: parentheses, tests of one operand, comparisons, NOT, AND, OR."""

    def __init__(self, variables: Variables, arguments: Sequence[Argument]) -> None:
        self._variables = variables
        self._left = list(arguments)

    def truth(self) -> bool | None:
        found = self._any()
        return None if self._left else found

    def _any(self) -> bool | None:
        found = self._all()
        while self._take("OR"):
            other = self._all()
            found = True if True in (found, other) else None if None in (found, other) else False
        return found

    def _all(self) -> bool | None:
        found = self._one()
        while self._take("AND"):
            other = self._one()
            found = False if False in (found, other) else None if None in (found, other) else True
        return found

    def _one(self) -> bool | None:
        if self._take("NOT"):
            found = self._one()
            return None if found is None else not found
        if self._take("("):
            found = self._any()
            return found if self._take(")") else None
        if not self._left:
            return None
        operand = self._left.pop(0)
        if operand.kind is Kind.UNQUOTED and _ONE_OPERAND.fullmatch(operand.text) and self._left:
            self._left.pop(0)
            return None  # of the machine's files and of CMake's state nothing is known
        if self._left and self._left[0].kind is Kind.UNQUOTED and _TWO_OPERANDS.fullmatch(self._left[0].text):
            operator, other = self._left.pop(0).text, self._left.pop(0) if self._left else operand
            if operator != "STREQUAL":
                return None
            one, two = certain(self._operand(operand)), certain(self._operand(other))
            return None if one is None or two is None else one == two
        text = certain(self._variables.expand(operand))
        if text is None:
            return None
        if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
            return _TRUE.fullmatch(text) is not None
        if operand.kind is not Kind.UNQUOTED:
            return False
        value = certain(self._variables[text])
        return None if value is None else _FALSE.fullmatch(value) is None

    def _operand(self, argument: Argument) -> Texts:
        """One side of a comparison: an unquoted word is a variable's name, also where a reference has made it."""
        texts = self._variables.expand(argument)
        text = certain(texts)
        return texts if text is None or argument.kind is not Kind.UNQUOTED else self._variables[text]

    def _take(self, word: str) -> bool:
        if self._left and self._left[0].kind is Kind.UNQUOTED and self._left[0].text == word:
            self._left.pop(0)
            return True
        return False

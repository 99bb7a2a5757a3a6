"""CMake's language as text: blocks of commands with arguments, by cmake-language(7). Nothing is evaluated. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from spark_images.errors import UpstreamError

_BLANK = re.compile(r"[ \t\r]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPENING = re.compile(r"\[(=*)\[")
_QUOTED = re.compile(r'"((?:[^\\"]|\\.)*)"', re.DOTALL)
# As CMake's own lexer has it (cmListFileLexer.in.l), with what it keeps for old files: -Dx="a b" and $(MAKEVAR).
_PLAIN = r'[^\0 \t\r\n()#"\[=\\]|\\[^\0\n]'
_UNQUOTED = re.compile(
    rf'(?:\$\(\w*\)|{_PLAIN}|=|\[=*(?:{_PLAIN}))(?:\$\(\w*\)|{_PLAIN}|"(?:[^\0\r\n\\"]|\\.)*"|[\[=])*|\['
)


class Kind(Enum):
    """How an argument is written, which decides what is evaluated in it."""

    BRACKET = "bracket"  # [[nothing is evaluated]]
    QUOTED = "quoted"  # "references and escapes are, and it stays one argument"
    UNQUOTED = "unquoted"  # a list becomes several arguments; a parenthesis stands as one of its own


@dataclass(frozen=True)
class Argument:
    """text: as it is written, without its delimiters; references and escapes stand in it as they are."""

    text: str
    kind: Kind
    line: int


@dataclass(frozen=True)
class Command:
    """One invocation. name: in lower case, as CMake does not tell them apart."""

    name: str
    arguments: tuple[Argument, ...]
    path: str
    line: int


@dataclass(frozen=True)
class Branch:
    """condition: of if() and elseif(), else the arguments of what opens the block; None for else()."""

    condition: tuple[Argument, ...] | None
    body: tuple[Part, ...]


@dataclass(frozen=True)
class Block:
    """The commands from one that opens a block to its end. Only an if() has more than one branch."""

    opening: Command
    branches: tuple[Branch, ...]


Part: TypeAlias = Command | Block

DEFINITIONS = frozenset(["function", "macro"])
BLOCKS = DEFINITIONS | {"if", "foreach", "while", "block"}


def parse_cmake(text: str, *, path: str, line: int = 1) -> tuple[Part, ...]:
    """What stands in a file, or in a piece of it that begins in `line`. UpstreamError for what is not CMake."""
    commands = _Reader(text, path, line).commands()
    return tuple(_part(command, commands) for command in commands)


def every_command(parts: Iterable[Part]) -> Iterator[Command]:
    """All commands, with those inside of blocks and those that open them."""
    for part in parts:
        if isinstance(part, Command):
            yield part
        else:
            yield part.opening
            for branch in part.branches:
                yield from every_command(branch.body)


def _part(command: Command, rest: Iterator[Command]) -> Part:
    """The command, or the block that it opens."""
    if command.name not in BLOCKS:
        return command
    if not command.arguments and command.name != "block":
        raise UpstreamError(f"{command.path}:{command.line}: `{command.name}()` lacks its arguments")
    branches: list[Branch] = []
    condition: tuple[Argument, ...] | None = command.arguments
    body: list[Part] = []
    for inner in rest:
        if inner.name == f"end{command.name}":
            return Block(command, (*branches, Branch(condition, tuple(body))))
        if command.name == "if" and inner.name in ("else", "elseif"):
            branches.append(Branch(condition, tuple(body)))
            condition, body = None if inner.name == "else" else inner.arguments, []
        else:
            body.append(_part(inner, rest))
    raise UpstreamError(f"{command.path}:{command.line}: `{command.name}(` has no `end{command.name}()`")


class _Reader:
    def __init__(self, text: str, path: str, line: int) -> None:
        self._text, self._path, self._line = text, path, line
        self._at = 0

    def commands(self) -> Iterator[Command]:
        """One after the other, up to the end."""
        while (command := self._command()) is not None:
            yield command

    def _command(self) -> Command | None:
        self._skip()
        if self._at == len(self._text):
            return None
        line = self._line
        name = self._take(_NAME, "a command's name")[0]
        self._take(_BLANK)
        if not self._text.startswith("(", self._at):
            raise self._error(f"expected `(` after `{name}`, got {self._shown()}")
        self._at += 1
        arguments = self._arguments(name)
        self._skip(to_line_end=True)
        if self._at < len(self._text) and self._text[self._at - 1] != "\n":
            raise self._error(f"expected a line end after `{name}(…)`, got {self._shown()}")
        return Command(name.lower(), arguments, self._path, line)

    def _arguments(self, name: str) -> tuple[Argument, ...]:
        found: list[Argument] = []
        depth, begun = 1, self._line
        apart = True  # whether a blank, a line end or a parenthesis stands before
        while True:
            apart = self._skip() or apart
            if self._at == len(self._text):
                raise UpstreamError(f"{self._path}:{begun}: `{name}(` has no `)`")
            line, char = self._line, self._text[self._at]
            if char in "()":
                self._at += 1
                depth += 1 if char == "(" else -1
                if depth == 0:
                    return tuple(found)
                found.append(Argument(char, Kind.UNQUOTED, line))
                apart = True
                continue
            if not apart:
                raise self._error(f"expected a blank before {self._shown()}")
            apart = False
            if char == '"':
                text = self._take(_QUOTED, 'an argument with its second `"`')[1]
                found.append(Argument(re.sub(r"(?<!\\)((?:\\\\)*)\\\r?\n", r"\1", text), Kind.QUOTED, line))
            elif _OPENING.match(self._text, self._at):
                found.append(Argument(self._bracket(), Kind.BRACKET, line))
            else:
                found.append(Argument(self._take(_UNQUOTED, "an argument")[0], Kind.UNQUOTED, line))

    def _skip(self, *, to_line_end: bool = False) -> bool:
        """Go over blanks, comments and line ends; whether there were any. to_line_end: over one of these at most."""
        begun = self._at
        while True:
            self._take(_BLANK)
            if self._text.startswith("\n", self._at):
                self._at += 1
                self._line += 1
                if to_line_end:
                    return True
            elif self._text.startswith("#", self._at):
                self._at += 1
                if _OPENING.match(self._text, self._at):
                    self._bracket()
                else:
                    end = self._text.find("\n", self._at)
                    self._at = len(self._text) if end < 0 else end
            else:
                return self._at > begun

    def _bracket(self) -> str:
        opening = self._take(_OPENING, "`[[`")
        end = self._text.find(f"]{opening[1]}]", self._at)
        if end < 0:
            raise self._error(f"`{opening[0]}` has no `]{opening[1]}]`")
        content = self._text[self._at : end]
        self._line += content.count("\n")
        self._at = end + len(opening[1]) + 2
        return content.removeprefix("\r\n") if content.startswith("\r\n") else content.removeprefix("\n")

    def _take(self, pattern: re.Pattern[str], expected: str = "") -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise self._error(f"expected {expected}, got {self._shown()}")
        self._at = match.end()
        self._line += match[0].count("\n")
        return match

    def _shown(self) -> str:
        return f"`{ascii(self._text[self._at : self._at + 20].partition(chr(10))[0])[1:-1]}`"

    def _error(self, text: str) -> UpstreamError:
        return UpstreamError(f"{self._path}:{self._line}: {text}")

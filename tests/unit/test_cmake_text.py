"""CMake's language: what stands in a file, without evaluating it."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.cmake.text import Argument, Block, Command, Kind, every_command, parse_cmake
from spark_images.errors import UpstreamError


def one(text: str) -> Command:
    (command,) = parse_cmake(text, path="a.cmake")
    assert isinstance(command, Command)
    return command


def words(text: str) -> list[tuple[str, Kind]]:
    return [(argument.text, argument.kind) for argument in one(text).arguments]


def test_a_command_has_a_name_in_lower_case_arguments_and_lines() -> None:
    command = one('\n  FetchContent_Declare (\n  name "a b"\n  [[c]])  # why\n')
    assert (command.name, command.path, command.line) == ("fetchcontent_declare", "a.cmake", 2)
    assert command.arguments == (
        Argument("name", Kind.UNQUOTED, 3),
        Argument("a b", Kind.QUOTED, 3),
        Argument("c", Kind.BRACKET, 4),
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('f("a \\" b" "" "two\nlines")', ['a \\" b', "", "two\nlines"]),
        ('f("one \\\n  line")', ["one   line"]),
        ("f([[a]b]] [=[ ]] ]=] [[\nfirst]])", ["a]b", " ]] ", "first"]),
        (
            'f(${A}/$ENV{B} a\\ b -Dx="y z" $(MAKE) a;b [x)',
            ["${A}/$ENV{B}", "a\\ b", '-Dx="y z"', "$(MAKE)", "a;b", "[x"],
        ),
        ("f(A AND (B OR C))", ["A", "AND", "(", "B", "OR", "C", ")"]),
        ("f(a # b\n#[[ c\n ) ]] d #[=[ ]] ]=]\n)", ["a", "d"]),
        ("f()", []),
    ],
)
def test_arguments_are_read_as_cmake_reads_them(text: str, expected: list[str]) -> None:
    assert [argument for argument, _ in words(text)] == expected


def test_lines_are_counted_through_all_that_spans_several() -> None:
    parts = parse_cmake('f("\n\n" [[\n\n]] #[[\n]]\n)\n# x\ng()\n', path="a.cmake", line=10)
    assert [command.line for command in every_command(parts)] == [10, 18]


def test_a_block_has_a_branch_for_every_condition() -> None:
    (block,) = parse_cmake("if(A)\n f()\nelseif(B)\nelse()\n foreach(x)\n g()\n endforeach()\nendif(A)", path="a.cmake")
    assert isinstance(block, Block)
    conditions = [branch.condition and branch.condition[0].text for branch in block.branches]
    assert conditions == ["A", "B", None]
    assert [command.name for command in every_command([block])] == ["if", "f", "foreach", "g"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f(\n\na", "a.cmake:1: `f(` has no `)`"),
        ('\nf("a)', 'a.cmake:2: expected an argument with its second `"`, got `"a)`'),
        ("f([==[a]=])", "a.cmake:1: `[==[` has no `]==]`"),
        ("#[[ x", "a.cmake:1: `[[` has no `]]`"),
        ("f", "a.cmake:1: expected `(` after `f`, got ``"),
        ("f() g()", "a.cmake:1: expected a line end after `f(…)`, got `g()`"),
        ('f("a"b)', "a.cmake:1: expected a blank before `b)`"),
        ("{", "a.cmake:1: expected a command's name, got `{`"),
        ("\n if(A)\nelse()\n", "a.cmake:2: `if(` has no `endif()`"),
        ("function()\nendfunction()", "a.cmake:1: `function()` lacks its arguments"),
    ],
)
def test_what_is_not_cmake_is_an_error_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        parse_cmake(text, path="a.cmake")
    assert str(caught.value) == message


# --- any file ---------------------------------------------------------------------------------------------------------

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name.lower() not in ("if", "foreach", "while", "function", "macro", "block")
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


def quoted(text: str) -> tuple[str, str, Kind]:
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}"', inside, Kind.QUOTED


def bracket(text: str) -> tuple[str, str, Kind]:
    bars = "=" * next(n for n in range(len(text) + 2) if f"]{'=' * n}]" not in f"{text}]")
    return f"[{bars}[\n{text}]{bars}]", text, Kind.BRACKET


ARGUMENTS = st.one_of(
    TEXTS.map(quoted),
    TEXTS.map(bracket),
    st.from_regex(r"[A-Za-z0-9_$@./:;+*-][A-Za-z0-9_${}@./:;+*=\[\]-]{0,12}", fullmatch=True).map(
        lambda text: (text, text, Kind.UNQUOTED)
    ),
)
GAPS = st.sampled_from([" ", "\n", "\t", " # a ) comment\n", "#[[ one\n)]] ", "#[=[ ]] ]=]\n"])


@given(st.lists(st.tuples(NAMES, st.lists(st.tuples(GAPS, ARGUMENTS), max_size=5), GAPS), max_size=5))
def test_what_is_written_is_what_is_read(file: list[tuple[str, list[tuple[str, tuple[str, str, Kind]]], str]]) -> None:
    text, lines = "", []
    for name, arguments, gap in file:
        lines.append(text.count("\n") + 1)
        text += f"{name}({''.join(before + written for before, (written, _, _) in arguments)}{gap})\n"
    read = list(every_command(parse_cmake(text, path="a.cmake")))
    assert [command.name for command in read] == [name.lower() for name, _, _ in file]
    assert [command.line for command in read] == lines
    for command, (_, arguments, _) in zip(read, file, strict=True):
        expected = [(meant, kind) for _, (_, meant, kind) in arguments]
        assert [(argument.text, argument.kind) for argument in command.arguments] == expected


@given(st.text(st.sampled_from('ab_(){}[]=#"\\$;\n\t ') | st.characters(), max_size=60))
def test_no_text_is_worse_than_an_error(text: str) -> None:
    with suppress(UpstreamError):
        parts = parse_cmake(text, path="a.cmake")
        assert all(1 <= command.line <= text.count("\n") + 1 for command in every_command(parts))

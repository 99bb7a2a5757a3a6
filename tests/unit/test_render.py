"""Rendering: quoting that nothing gets through, and errors that name the place."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import CONFIG, GB10, HELLO

from spark_images.errors import TemplateError
from spark_images.ingredients import Source
from spark_images.render import exec_form, quoted, render_dockerfile

SOURCE = Source(version="b12", epoch=0)

printable = st.text(st.characters(min_codepoint=0x20, exclude_characters="\x7f", exclude_categories=["Cs", "Cc"]))


def render(template: str) -> str:
    return render_dockerfile(
        image=HELLO, target=GB10, base="debian", source=SOURCE, config=CONFIG, templates={HELLO.template: template}
    )


def test_an_undefined_name_names_template_line_and_what_is_known() -> None:
    with pytest.raises(TemplateError) as caught:
        render("FROM scratch\n\nLABEL a={{ image.nmae }}\n")
    assert caught.value.what.startswith("templates/hello.Dockerfile.j2:3: ")
    assert "nmae" in caught.value.what
    assert "`image`" in caught.value.hint


def test_a_syntax_error_names_template_and_line() -> None:
    with pytest.raises(TemplateError, match=r"templates/hello\.Dockerfile\.j2:2: "):
        render("FROM scratch\n{% if %}\n")


def test_a_missing_template_says_who_names_it() -> None:
    with pytest.raises(TemplateError) as caught:
        render_dockerfile(image=HELLO, target=GB10, base="debian", source=SOURCE, config=CONFIG, templates={})
    assert caught.value.what == "templates/hello.Dockerfile.j2: no such template"
    assert HELLO.path in caught.value.hint


@given(printable)
def test_a_quoted_value_comes_back_from_a_shell_unchanged_and_expands_nothing(value: str) -> None:
    # Inside double quotes a Dockerfile's rules are the shell's, but for the backtick, which a Dockerfile leaves alone.
    word = quoted(value).replace("`", "\\`")
    said = subprocess.run(["/bin/sh", "-c", f"printf %s {word}"], capture_output=True, check=True, env={})
    assert said.stdout.decode() == value


@pytest.mark.parametrize("bad", ["a\nRUN evil", "a\rb", "a\x00b", "\x7f"])
def test_a_control_character_is_refused(bad: str) -> None:
    with pytest.raises(TemplateError, match="control character"):
        quoted(bad)


@given(st.lists(printable))
def test_exec_form_is_the_json_array_of_the_words(words: list[str]) -> None:
    assert json.loads(exec_form(words)) == words

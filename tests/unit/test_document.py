from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_images import forms
from spark_images.document import reading
from spark_images.errors import ConfigError

VERSION = forms.VERSION.expected


def read(path: Path, content: str | bytes) -> dict[str, object]:
    """A file with two texts, a list and a mapping below, as a reader of the project reads it."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with reading(path, if_missing="make it") as top:
        below = top.section("below", optional=True)
        return {
            "version": top.value("version", forms.VERSION),
            "answer": top.optional("answer", forms.WORD, ""),
            "names": top.values("names", forms.NAME, optional=True),
            "below": {name: below.value(name, forms.WORD) for name in below.names(forms.NAME)},
        }


def mistakes(path: Path, content: str | bytes) -> list[str]:
    """What is wrong, line by line, without the file's name."""
    with pytest.raises(ConfigError) as caught:
        read(path, content)
    return [line.removeprefix(f"{path}:") for line in caught.value.why or (caught.value.what,)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "some.yaml"


@pytest.mark.parametrize("written", ["1.10", "010", "0x1f", "1e3", "2026-11-01", "no", "null", "1_000", "12:30:45"])
def test_a_scalar_is_the_text_that_was_written(file: Path, written: str) -> None:
    assert read(file, f"version: 1\nbelow: {{a: {written}}}")["below"] == {"a": written}


def test_quotes_do_not_count(file: Path) -> None:
    assert read(file, "version: \"1.10\"\nanswer: 'no'") == {
        "version": "1.10",
        "answer": "no",
        "names": (),
        "below": {},
    }


def test_windows_line_ends_are_read(file: Path) -> None:
    assert read(file, "version: 1.0\r\nnames: [a, b]\r\n")["names"] == ("a", "b")


def test_a_wrong_value_names_line_key_form_and_value(file: Path) -> None:
    assert mistakes(file, "# why\n\nversion: $(reboot)") == [f"3: version: expected {VERSION}, got `$(reboot)`"]


@pytest.mark.parametrize(
    ("written", "got"),
    [
        ("", "nothing"),
        ('""', "nothing"),
        ("[a]", "a list"),
        ("{a: b}", "a mapping"),
        ('"a\\n\\e[31m"', "`a\\n\\x1b[31m`"),
    ],
)
def test_a_message_shows_what_was_there_on_one_line(file: Path, written: str, got: str) -> None:
    assert mistakes(file, f"version: {written}") == [f"1: version: expected {VERSION}, got {got}"]


def test_a_long_value_is_cut_in_the_message(file: Path) -> None:
    assert mistakes(file, f"version: {'x' * 999}") == [f"1: version: expected {VERSION}, got `{'x' * 60}…`"]


def test_an_element_of_a_list_is_named_by_its_number_from_0(file: Path) -> None:
    assert mistakes(file, "version: 1\nnames:\n- a\n- B") == [
        "4: names[1]: expected a name of lower-case letters, digits and hyphens, got `B`"
    ]


def test_a_name_given_twice_in_a_list_is_a_mistake(file: Path) -> None:
    assert mistakes(file, "version: 1\nnames: [a, b, a]") == ["2: names[2]: `a` stands in the list twice"]


def test_a_list_where_a_mapping_belongs_is_a_mistake(file: Path) -> None:
    assert mistakes(file, "version: 1\nbelow: [a]") == ["2: below: expected a mapping, got a list"]


def test_a_scalar_where_a_list_belongs_is_a_mistake(file: Path) -> None:
    assert mistakes(file, "version: 1\nnames: a") == [
        "2: names: expected a list, each a name of lower-case letters, digits and hyphens, got `a`"
    ]


def test_a_key_that_is_no_name_is_a_mistake(file: Path) -> None:
    assert mistakes(file, "version: 1\nbelow:\n  a b: c") == [
        "3: below.a b: expected a name of lower-case letters, digits and hyphens as key"
    ]


def test_a_missing_key_says_what_belongs_there(file: Path) -> None:
    assert mistakes(file, "answer: a") == [f"1: version: missing; expected {VERSION}"]


def test_an_unknown_key_offers_the_nearest_known_one(file: Path) -> None:
    assert mistakes(file, "version: 1\nanswr: a") == ["2: answr: unknown key; did you mean `answer`?"]


def test_a_misspelt_compulsory_key_is_one_mistake(file: Path) -> None:
    assert mistakes(file, "versoin: 1") == ["1: versoin: unknown key; did you mean `version`?"]


def test_an_unknown_key_like_no_other_lists_the_known_ones(file: Path) -> None:
    assert mistakes(file, "version: 1\nzzz: a") == [
        "2: zzz: unknown key; known are `answer`, `below`, `names`, `version`"
    ]


def test_a_key_given_twice_names_both_lines(file: Path) -> None:
    assert mistakes(file, "version: 1\nanswer: a\nversion: 2") == ["3: version: given twice, first in line 1"]


def test_a_key_given_twice_below_is_found_too(file: Path) -> None:
    assert mistakes(file, "version: 1\nbelow: {a: b, a: c}") == ["2: below.a: given twice, first in line 2"]


def test_all_mistakes_are_reported_in_the_order_of_their_lines(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, "zzz: 1\nversion: $\nnames: [A]\nbelow: {b: ' '}")
    assert caught.value.what == f"4 mistakes in `{file}`"
    assert [line.split(":")[1] for line in caught.value.why] == ["1", "2", "3", "4"]


def test_of_very_many_mistakes_twenty_are_listed(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(file, "version: 1\nnames:\n" + "".join(f"- N{number}\n" for number in range(50)))
    assert caught.value.what.startswith("50 mistakes")
    assert len(caught.value.why) == 21
    assert caught.value.why[-1] == "and 30 more"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "1: the file is empty"),
        ("# only a comment\n", "1: the file is empty"),
        ("- a\n- b", "1: expected a mapping, got a list"),
        ("word", "1: expected a mapping, got `word`"),
        ("version: 1\n---\nversion: 2", "2: a second YAML document; a file holds one"),
        ("version: &it 1", "1: version: an anchor, `&it`; write values where they are used"),
        ("version: *it", "1: version: an alias, `*it`; write the value itself"),
        ("version: !!str 1", "1: version: a tag, `tag:yaml.org,2002:str`; every value is read as text"),
        ("version: ! 1", "1: version: a tag, `!`; every value is read as text"),
        (
            "below: !python/object:os.system {}",
            "1: below: a tag, `!python/object:os.system`; every value is read as text",
        ),
        ("version: 1\n? [a, b]\n: c", "2: expected a name as key, got a list"),
        ('version: 1\n"": c', "2: expected a name as key, got nothing"),
        ("version: 1\nnames: " + "[" * 20 + "]" * 20, "2: nested deeper than 12 levels"),
        ("version: 1\nnames: [a, b", "3:1: not YAML: did not find expected ',' or ']' while parsing a flow sequence"),
        ("version: 1\n  answer: b", "2:9: not YAML: mapping values are not allowed in this context"),
        ("version: 'a", "1:12: not YAML: found unexpected end of stream while scanning a quoted scalar"),
        (
            "version: %a",
            "1:10: not YAML: found character that cannot start any token while scanning for the next token",
        ),
        (b"\xef\xbb\xbfversion: 1", "1: the file starts with a byte order mark"),
        (b"version: 1\nanswer: \xe4", "2: byte 0xe4 is not UTF-8"),
        (b"version: 1\nanswer: \x00", "2: the character U+0000 must not stand in YAML"),
        ("version: 1\nanswer: \u200e\ufffe", "2: the character U+FFFE must not stand in YAML"),
    ],
)
def test_what_the_project_does_not_write_is_refused_with_its_place(
    file: Path, content: str | bytes, message: str
) -> None:
    (mistake,) = mistakes(file, content)
    assert mistake.startswith(message)


def test_a_tab_is_named(file: Path) -> None:
    (mistake,) = mistakes(file, "version: 1\nbelow:\n\ta: b")
    assert mistake.startswith("3:1: not YAML: found character that cannot start any token")
    assert mistake.endswith("; it is a tab, and YAML wants blanks")


def test_a_missing_file_gives_the_readers_hint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught, reading(tmp_path / "none.yaml", if_missing="make it"):
        pass
    assert caught.value.what == f"there is no file `{tmp_path}/none.yaml`"
    assert caught.value.hint == "make it"


def test_a_folder_in_the_files_place_is_an_error_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught, reading(tmp_path):
        pass
    assert "Is a directory" in caught.value.render()


def read_abandoned(path: Path, content: str) -> None:
    path.write_text(content)
    with reading(path) as top:
        top.value("kind", forms.one_of("a"))
        top.abandon()


def test_nothing_is_said_of_what_an_abandoned_mapping_holds(file: Path) -> None:
    with pytest.raises(ConfigError, match=r":1: kind: expected one of `a`, got `b`$"):
        read_abandoned(file, "kind: b\nother: c")


def test_the_misspelt_key_for_which_a_mapping_is_abandoned_is_named(file: Path) -> None:
    with pytest.raises(ConfigError, match=r":1: knd: unknown key; did you mean `kind`\?$"):
        read_abandoned(file, "knd: b\nother: c")


def test_a_lock_of_400_lines_takes_less_than_50_ms_of_a_core(file: Path) -> None:
    lines = (
        f"- {{package: lib{number}, version: 1.2-{number}, arch: arm64, path: pool/main/l/lib{number}_1.2_arm64.deb, "
        f"sha256: {number:064x}, size: {number}, sets: [a, b]}}\n"
        for number in range(400)
    )
    file.write_text("debs:\n" + "".join(lines))
    times = []
    for _ in range(5):
        start = time.process_time()
        with reading(file) as top:
            for item in top.items("debs"):
                section = item.section()
                for key in ("package", "version", "arch", "path", "sha256", "size"):
                    section.value(key, forms.RELATIVE_PATH)
                section.values("sets", forms.NAME)
        times.append(time.process_time() - start)
    assert min(times) < 0.05

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import vllm_release
from packaging.version import Version

from spark_images.compat.file import read_facts
from spark_images.errors import ConfigError, UsageError
from spark_images.vllm.flags import Flag
from spark_images.vllm.history import Fact, Knowledge, from_text, merge, read_knowledge, to_text
from spark_images.vllm.names import read_names

IMAGES = Path(__file__).parents[2] / "images"
FILE = IMAGES / "vllm-knowledge.json"
KNOWN = read_knowledge(FILE)
A: Fact = ("variables", "VLLM_A", "")
B: Fact = ("variables", "VLLM_B", "")


def knowledge(**facts: set[Fact]) -> Knowledge:
    """From `v1` and so on."""
    return merge({Version(release): held for release, held in facts.items()})


def spelt(table: str, name: str, value: str | None = None) -> tuple[str, str]:
    """First and last release in which the committed file has it; "" for the newest."""
    held = KNOWN.held(table, name, value)
    return str(held[0]), "" if held[-1] == KNOWN.releases[-1] else str(held[-1])


def sorted_words(flag: Flag) -> Flag:
    """The order of words is not kept."""
    return replace(flag, words=tuple(sorted(flag.words)))


def test_what_is_written_is_what_is_read() -> None:
    known = Knowledge((), {}).with_release(Version("1.0"), read_names(vllm_release.FILES))

    assert from_text(to_text(known)) == known


def test_names_of_a_release_are_those_that_were_read() -> None:
    names = read_names(vllm_release.FILES)

    known = Knowledge((), {}).with_release(Version("1.0"), names).names("1.0")

    assert known.variables == names.variables
    assert {name: sorted_words(flag) for name, flag in known.flags.items()} == {
        name: sorted_words(flag) for name, flag in names.flags.items()
    }


def test_range_of_a_name_that_the_newest_release_has_stays_open() -> None:
    """So that a further release changes only the lines of what changed in it."""
    text = to_text(knowledge(v1={A, B}, v2={A}))

    assert '"VLLM_A": "1-"' in text
    assert '"VLLM_B": "1-1"' in text


def test_name_that_came_back_has_two_ranges() -> None:
    known = knowledge(v1={A}, v2={B}, v3={A, B})

    assert '"VLLM_A": "1-1,3-"' in to_text(known)
    assert from_text(to_text(known)) == known


def test_release_that_is_read_again_replaces_what_was_known_of_it() -> None:
    known = knowledge(v1={A}, v2={A, B}).with_release(Version("1"), read_names(vllm_release.FILES))

    assert known.held("variables", "VLLM_A") == (Version("2"),)
    assert known.held("variables", "VLLM_LATER") == (Version("1"),)


def test_release_that_was_not_read_is_refused_with_the_command() -> None:
    with pytest.raises(UsageError) as caught:
        KNOWN.names("0.15.1")

    assert caught.value.what == "nobody has read what vllm 0.15.1 knows"
    assert caught.value.why == (f"read are 0.16.0 to {KNOWN.releases[-1]}",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"schema": 2}', "ValueError: schema 2"),
        ('{"schema": 1, "releases": ["1"], "variables": {"A": "1"}}', "ValueError: `1` is no range of releases"),
        ('{"schema": 1, "releases": ["1"], "variables": {"A": "1-2"}}', "ValueError: `1-2` names a release that"),
        ('{"schema": 1, "releases": ["1"]}', "KeyError: 'variables'"),
    ],
)
def test_file_that_nobody_wrote_is_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "k.json").write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_knowledge(tmp_path / "k.json")

    assert caught.value.why[0].startswith(said)


def test_missing_file_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_knowledge(tmp_path / "k.json")

    assert caught.value.hint == "make it with `./noxw -s learn-vllm`"


def test_committed_file_is_as_it_is_written_and_small() -> None:
    text = FILE.read_text()

    assert to_text(from_text(text)) == text
    assert len(text) < 150_000
    json.loads(text)


def test_committed_file_has_the_releases_of_the_compatibility_file() -> None:
    assert read_facts(IMAGES / "compat.yaml").vllm.releases == KNOWN.releases


def test_release_has_a_few_hundred_names() -> None:
    for release in KNOWN.releases:
        names = KNOWN.names(str(release))
        assert (len(names.variables) > 200, len(names.flags) > 300) == (True, True), release


def test_variable_that_many_guides_set_exists_in_no_release() -> None:
    """vLLM warns and goes on with another backend."""
    assert KNOWN.held("variables", "VLLM_NVFP4_MOE_BACKEND") == ()


def test_parser_of_nemotron_came_in_the_middle_of_0_17() -> None:
    assert spelt("values", "--reasoning-parser", "nemotron_v3") == ("0.17.1", "")


def test_variable_that_became_a_flag_says_so() -> None:
    assert spelt("variables", "VLLM_NVFP4_GEMM_BACKEND") == ("0.16.0", "0.23.0")
    assert spelt("flags", "--linear-backend") == ("0.22.0", "")
    assert KNOWN.names("0.23.0").variables["VLLM_NVFP4_GEMM_BACKEND"].instead == "Use --linear-backend."

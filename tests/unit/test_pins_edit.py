from __future__ import annotations

import difflib

import pytest

from spark_images.pins_edit import edit_pin, pin_block, pin_names, replace_block

TEXT = """\
# what everything is made of
schema: 1

llama-cpp:
  kind: git
  version: b11312  # 0.20.2 is another pin's
  routes: [git, {sdist: llama-cpp-python==0.3.36, path: vendor/llama.cpp}]
  unverified: build number as quoted

# one line
vllm: {kind: sdist, name: vllm, version: "0.20.2", sha256: 5880, lock: images/vllm/sources.lock}
tools:
  kind: wheels
  packages:
    - cmake==4.4.4
    - ninja==1.13.2
"""


def changed(text: str) -> list[str]:
    """The lines that are new and those that are gone."""
    lines = difflib.ndiff(TEXT.splitlines(), text.splitlines())
    return [line for line in lines if line[0] in "+-"]


def test_only_the_value_is_changed_and_its_quotes_stay() -> None:
    text = edit_pin(TEXT, "vllm", {("version",): "0.20.3", ("sha256",): "1e55"})
    assert changed(text) == [
        '- vllm: {kind: sdist, name: vllm, version: "0.20.2", sha256: 5880, lock: images/vllm/sources.lock}',
        '+ vllm: {kind: sdist, name: vllm, version: "0.20.3", sha256: 1e55, lock: images/vllm/sources.lock}',
    ]


def test_a_comment_on_the_line_stays() -> None:
    assert changed(edit_pin(TEXT, "llama-cpp", {("version",): "b11313"})) == [
        "-   version: b11312  # 0.20.2 is another pin's",
        "+   version: b11313  # 0.20.2 is another pin's",
    ]


def test_a_value_inside_lists_is_changed() -> None:
    text = edit_pin(TEXT, "llama-cpp", {("routes", 1, "sdist"): "llama-cpp-python==0.3.37"})
    assert "routes: [git, {sdist: llama-cpp-python==0.3.37, path: vendor/llama.cpp}]\n" in text
    assert changed(edit_pin(TEXT, "tools", {("packages", 0): "cmake==4.5.0"})) == [
        "-     - cmake==4.4.4",
        "+     - cmake==4.5.0",
    ]


def test_a_whole_list_is_replaced_in_either_style() -> None:
    assert "  routes: [git]\n" in edit_pin(TEXT, "llama-cpp", {("routes",): "[git]"})
    assert "  packages:\n    [ninja==1]\n" in edit_pin(TEXT, "tools", {("packages",): "[ninja==1]"})


def test_a_new_key_comes_to_the_end_of_the_pin() -> None:
    assert "sources.lock, verified: 2026-11-21}\n" in edit_pin(TEXT, "vllm", {("verified",): "2026-11-21"})
    text = edit_pin(TEXT, "llama-cpp", {("verified",): "2026-11-21"})
    assert changed(text) == ["+   verified: 2026-11-21"]
    assert changed(edit_pin(TEXT, "tools", {("verified",): "2026-11-21"})) == ["+   verified: 2026-11-21"]


def test_a_key_is_taken_away_with_its_line_or_its_comma() -> None:
    gone = ["-   unverified: build number as quoted"]
    assert changed(edit_pin(TEXT, "llama-cpp", {("unverified",): None})) == gone
    assert changed(edit_pin(TEXT, "llama-cpp", {("no-such-key",): None})) == []
    assert "sha256: 5880}\n" in edit_pin(TEXT, "vllm", {("lock",): None})
    assert "vllm: {name: vllm" in edit_pin(TEXT, "vllm", {("kind",): None})


def test_a_block_is_taken_out_and_put_back() -> None:
    block = pin_block(TEXT, "llama-cpp")
    assert block.splitlines()[0] == "llama-cpp:"
    assert block.splitlines()[-1] == "  unverified: build number as quoted"
    other = block.replace("b11312", "b9")
    assert changed(replace_block(TEXT, "llama-cpp", other)) == [
        "-   version: b11312  # 0.20.2 is another pin's",
        "+   version: b9  # 0.20.2 is another pin's",
    ]
    assert replace_block(TEXT, "new", "new: {kind: git}\n") == TEXT + "new: {kind: git}\n"
    assert pin_names(TEXT) == ("llama-cpp", "vllm", "tools")


def test_a_pin_that_is_not_there_cannot_be_edited() -> None:
    with pytest.raises(KeyError):
        edit_pin(TEXT, "torch", {("version",): "1"})

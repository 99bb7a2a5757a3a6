from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader, GGUFValueType

from spark_images import tinygguf
from spark_images.tinygguf import CHAT_TEMPLATE, VOCABULARY, WORDS, greedy_answer, prompt_tokens, write_tiny_gguf

SHA256 = "33f455b8486774a37db888d7e5664c7e4eef2631a766cbb155c7b3c97f9ae340"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path)
    return path


def test_model_is_the_same_file_on_every_machine(model: Path) -> None:
    assert hashlib.sha256(model.read_bytes()).hexdigest() == SHA256


def test_gguf_reader_finds_what_llama_cpp_needs(model: Path) -> None:
    reader = GGUFReader(model)
    assert reader.get_field("general.architecture").contents() == "llama"  # type: ignore[union-attr]
    assert reader.get_field("tokenizer.chat_template").contents() == CHAT_TEMPLATE  # type: ignore[union-attr]
    tokens = reader.get_field("tokenizer.ggml.tokens")
    assert tokens is not None
    assert tokens.types == [GGUFValueType.ARRAY, GGUFValueType.STRING]
    assert len(set(tokens.contents())) == VOCABULARY
    shapes = {tensor.name: tuple(tensor.shape) for tensor in reader.tensors}
    assert len(shapes) == 21
    assert shapes["output.weight"] == (256, VOCABULARY)
    assert shapes["blk.1.ffn_down.weight"] == (512, 256)


def test_only_words_have_output_weights(model: Path) -> None:
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(model).tensors}
    rows = np.flatnonzero(np.abs(tensors["output.weight"]).sum(axis=1))
    assert (rows[0], rows[-1], len(rows)) == (260, 259 + len(WORDS), len(WORDS))


def test_no_two_weights_come_from_the_same_stream(model: Path) -> None:
    matrices = {tensor.name: tensor.data for tensor in GGUFReader(model).tensors if tensor.data.ndim == 2}
    rows = {name: matrix[260 if name == "output.weight" else 0] for name, matrix in matrices.items()}
    assert len({tuple(np.sign(row)) for row in rows.values()}) == len(matrices) == 16


def test_no_word_can_be_joined_from_letters_of_a_prompt() -> None:
    assert {len(word) for word in WORDS}.isdisjoint({0, 1})
    assert len(set(WORDS)) == len(WORDS)


def test_prompt_is_one_token_per_byte() -> None:
    assert prompt_tokens("a é") == (1, 259, 3 + 0x61, 259, 3 + 0xC3, 3 + 0xA9)


def test_answer_is_the_one_that_llama_cpp_b11312_gave() -> None:
    answer = greedy_answer(prompt_tokens("Fetch, then build with the network off."), 12)
    assert answer.text == " tree record size job core order unit record size word with record"
    assert answer.margin > 0.05


@pytest.mark.parametrize(("constant", "wrong"), [("ROPE_BASE", 20000.0), ("EPSILON", 0.1)])
def test_answer_changes_where_a_server_computes_wrongly(
    monkeypatch: pytest.MonkeyPatch, constant: str, wrong: float
) -> None:
    prompt = prompt_tokens("Fetch, then build with the network off.")
    right = greedy_answer(prompt, 12).text
    monkeypatch.setattr(tinygguf, constant, wrong)
    assert greedy_answer(prompt, 12).text != right


def test_answer_stays_where_a_server_rounds_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = prompt_tokens("Fetch, then build with the network off.")
    right = greedy_answer(prompt, 12).text
    monkeypatch.setattr(tinygguf, "EPSILON", 1e-4)
    assert greedy_answer(prompt, 12).text == right

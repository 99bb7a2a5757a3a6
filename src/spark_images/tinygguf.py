"""A language model of 3 MB that knows nothing: enough to load, tokenise and generate, and the same bytes always.

Weights are SHAKE-256 of the tensor's name, not a library's random generator, which may change between versions.
What the model must answer is known too: `greedy_answer` computes it in numpy, without llama.cpp.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SEED = "spark-images tiny model 1"
WIDTH = 256  # the block of the K-quants, so that the model can be quantised
HEADS, KV_HEADS, LAYERS, FEED_FORWARD = 4, 2, 2, 512
HEAD = WIDTH // HEADS
CONTEXT = 2048
EPSILON = 1e-5
ROPE_BASE = 10000.0
# None of one letter: llama.cpp's tokenizer joins neighbours only into tokens that exist, so text stays single bytes.
_WORDS = """
    an and any as at base build byte cache check core disk engine fetch file from good hash image in is it job key
    layer lock log machine memory model name new of on one open order path pin plan read record root run same set size
    source spark stage step store tag target test the time to tree true two unit verb was wheel with word work you zero
"""
WORDS = tuple(_WORDS.split())
BEGIN = 1  # the token <s>, which llama.cpp puts before a prompt of text
FIRST_BYTE = 3
SPACE = FIRST_BYTE + 256
FIRST_WORD = SPACE + 1
VOCABULARY = (FIRST_WORD + len(WORDS) + 31) // 32 * 32  # rows in whole blocks for every quantisation
# Jinja as llama.cpp's own engine reads it: a line per message, then who speaks next.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model says at temperature 0. margin: a chosen word's smallest lead over the second best, in logits."""

    text: str
    margin: float


def write_tiny_gguf(path: Path) -> None:
    """Write the model to `path`: F16, llama architecture, byte-fallback vocabulary.

    It never ends an answer by itself: only words have output weights, all other tokens have logit 0. So a completion is
    readable, has exactly the tokens that were asked for, and ends with finish_reason `length`.
    """
    from gguf import GGUFWriter, LlamaFileType, TokenType

    words = [f"\u2581{word}" for word in WORDS]
    pads = [f"<pad{index}>" for index in range(FIRST_WORD + len(WORDS), VOCABULARY)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *words, *pads]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    types += [TokenType.NORMAL] * (1 + len(words)) + [TokenType.CONTROL] * len(pads)

    writer = GGUFWriter(path, "llama")
    writer.add_name("spark-images tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0 if index < FIRST_WORD else -float(index) for index in range(VOCABULARY)])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in _tensors():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def prompt_tokens(text: str) -> tuple[int, ...]:
    """What llama.cpp's tokenizer makes of a prompt: <s>, a space, then one token per byte."""
    return (BEGIN, SPACE, *(SPACE if byte == 0x20 else FIRST_BYTE + byte for byte in text.encode()))


def greedy_answer(prompt: Sequence[int], count: int) -> Answer:
    """The `count` most likely next words, each after all before it, by a plain llama forward pass in numpy."""
    import numpy as np

    weights = {name: tensor.astype(np.float64) for name, tensor in _tensors()}
    tokens, margin = [*prompt], math.inf
    for _ in range(count):
        logits = _logits(weights, tokens)
        second, best = np.argsort(logits)[-2:]
        margin = min(margin, float(logits[best] - logits[second]))
        tokens.append(int(best))
    said = [WORDS[token - FIRST_WORD] for token in tokens[len(prompt) :]]
    return Answer(text="".join(f" {word}" for word in said), margin=margin)


def _tensors() -> Iterator[tuple[str, npt.NDArray[np.float16 | np.float32]]]:
    import numpy as np

    norm = np.ones(WIDTH, dtype=np.float32)
    output = _weights("output.weight", VOCABULARY, WIDTH, variance=1 / WIDTH)
    output[:FIRST_WORD] = 0
    output[FIRST_WORD + len(WORDS) :] = 0
    # Small embeddings and sharp attention: a wrong position, mask or head changes the answer within a few words.
    yield "token_embd.weight", _weights("token_embd.weight", VOCABULARY, WIDTH, variance=0.25)
    yield "output_norm.weight", norm
    yield "output.weight", output
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", norm
        yield f"blk.{layer}.ffn_norm.weight", norm
        for kind, rows, columns, gain in (
            ("attn_q", WIDTH, WIDTH, 4),
            ("attn_k", KV_HEADS * HEAD, WIDTH, 4),
            ("attn_v", KV_HEADS * HEAD, WIDTH, 1),
            ("attn_output", WIDTH, WIDTH, 1),
            ("ffn_gate", FEED_FORWARD, WIDTH, 1),
            ("ffn_up", FEED_FORWARD, WIDTH, 1),
            ("ffn_down", WIDTH, FEED_FORWARD, 1),
        ):
            name = f"blk.{layer}.{kind}.weight"
            yield name, _weights(name, rows, columns, variance=gain / columns)


def _weights(name: str, rows: int, columns: int, *, variance: float) -> npt.NDArray[np.float16]:
    """Uniform weights around 0; every step is exact but the scaling and the last rounding."""
    import numpy as np

    stream = hashlib.shake_256(f"{SEED}: {name}".encode()).digest(2 * rows * columns)
    uniform = np.frombuffer(stream, dtype="<u2").astype(np.float64) / 32768.0 - 1.0
    return (uniform * math.sqrt(3 * variance)).astype(np.float16).reshape(rows, columns)


def _logits(weights: dict[str, npt.NDArray[np.float64]], tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """The llama forward pass over all tokens; logits of what follows the last one."""
    import numpy as np

    def normed(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        scale: npt.NDArray[np.float64] = 1 / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)
        return x * scale

    positions = np.arange(len(tokens))
    angles = positions[:, None] * ROPE_BASE ** (-np.arange(0, HEAD, 2) / HEAD)
    turn = np.exp(1j * angles)[:, None, :]

    def heads(x: npt.NDArray[np.float64], *, rotated: bool = True) -> npt.NDArray[np.float64]:
        split = x.reshape(len(tokens), -1, HEAD)
        if rotated:  # neighbouring values are one complex number, as in ggml's "normal" RoPE
            pairs = (split[..., 0::2] + 1j * split[..., 1::2]) * turn
            split = np.stack([pairs.real, pairs.imag], axis=-1).reshape(split.shape)
        return np.repeat(split, HEADS // split.shape[1], axis=1).transpose(1, 0, 2)

    x = weights["token_embd.weight"][list(tokens)]
    future = positions[None, :] > positions[:, None]
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        part = {name.split(".")[2]: w.T for name, w in weights.items() if name.startswith(prefix)}
        h = normed(x)
        scores = heads(h @ part["attn_q"]) @ heads(h @ part["attn_k"]).transpose(0, 2, 1) / math.sqrt(HEAD)
        attention = np.exp(np.where(future, -np.inf, scores))
        attention /= attention.sum(axis=-1, keepdims=True)
        mixed = attention @ heads(h @ part["attn_v"], rotated=False)
        x = x + mixed.transpose(1, 0, 2).reshape(len(tokens), WIDTH) @ part["attn_output"]
        h = normed(x)
        gate = h @ part["ffn_gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ part["ffn_up"])) @ part["ffn_down"]
    logits: npt.NDArray[np.float64] = normed(x[-1]) @ weights["output.weight"].T
    return logits

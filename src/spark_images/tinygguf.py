"""A language model of 3 MB that knows nothing: what a server needs to load, tokenise and generate, the same bytes always.

Weights are SHAKE-256 of the tensor's name, not a library's random generator, which may change between versions.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

SEED = "spark-images tiny model 1"
WIDTH, HEADS, KV_HEADS, LAYERS, FEED_FORWARD = 256, 4, 2, 2, 512  # 256: the block of the K-quants, so it can be quantised
CONTEXT = 2048
WORDS = (
    "a an and any as at base build byte cache check core disk engine fetch file from good hash image in is it job key "
    "layer lock log machine memory model name new of on one open order path pin plan read record root run same set size "
    "source spark stage step store tag target test the time to tree true two unit verb was wheel with word work you zero"
).split()
# Jinja as llama.cpp's own engine reads it: a line per message, then who speaks next.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_tiny_gguf(path: Path) -> None:
    """Write the model to `path` (F16, llama architecture, byte-fallback vocabulary).

    It never ends an answer by itself: only words have output weights, all other tokens have logit 0. So a completion is
    readable, has exactly the tokens that were asked for, and ends with finish_reason `length`.
    """
    import numpy as np
    from gguf import GGUFWriter, LlamaFileType, TokenType

    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581"]
    types = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256, TokenType.NORMAL]
    first_word = len(tokens)
    tokens += [f"\u2581{word}" for word in WORDS]
    types += [TokenType.NORMAL] * len(WORDS)
    first_pad = len(tokens)
    while len(tokens) % 32:  # rows in whole blocks for every quantisation
        tokens.append(f"<pad{len(tokens)}>")
        types.append(TokenType.CONTROL)

    head = WIDTH // HEADS
    writer = GGUFWriter(path, "llama")
    writer.add_name("spark-images tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0 if index < first_word else -float(index) for index in range(len(tokens))])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    norm = np.ones(WIDTH, dtype=np.float32)
    output = _weights("output.weight", len(tokens), WIDTH)
    output[:first_word] = 0
    output[first_pad:] = 0
    writer.add_tensor("token_embd.weight", _weights("token_embd.weight", len(tokens), WIDTH))
    writer.add_tensor("output_norm.weight", norm)
    writer.add_tensor("output.weight", output)
    for layer in range(LAYERS):
        for kind in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{kind}.weight", norm)
        for kind, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", KV_HEADS * head, WIDTH),
            ("attn_v", KV_HEADS * head, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FEED_FORWARD, WIDTH),
            ("ffn_up", FEED_FORWARD, WIDTH),
            ("ffn_down", WIDTH, FEED_FORWARD),
        ):
            name = f"blk.{layer}.{kind}.weight"
            writer.add_tensor(name, _weights(name, rows, columns))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _weights(name: str, rows: int, columns: int) -> npt.NDArray[np.float16]:
    """Uniform in ±sqrt(3 / columns), so that each layer keeps its input's variance; every step exact, then one rounding."""
    import numpy as np

    stream = hashlib.shake_256(f"{SEED}: {name}".encode()).digest(2 * rows * columns)
    uniform = np.frombuffer(stream, dtype="<u2").astype(np.float64) / 32768.0 - 1.0
    return (uniform * math.sqrt(3 / columns)).astype(np.float16).reshape(rows, columns)

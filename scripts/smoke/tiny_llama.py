"""A llama of 3 MB with random weights, written as Hugging Face models are, and what it must answer by the CPU in fp32.

Prompts are looked for whose best token leads by so much, at every step, that bf16 cannot change the answer, and whose
answer varies, so that nonsense can be told from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import garbage

WIDTH, HEADS, KV_HEADS, LAYERS, FEED_FORWARD, VOCABULARY = 256, 4, 2, 2, 512, 512
PROMPT, TOKENS = 24, 16
MARGIN = 0.06  # of the logits' standard deviation, which is 1; bf16 moves them by about 0.01
FIRST_TOKEN = 3  # after <unk>, <s>, </s>
BATCH, MOST_BATCHES = 128, 16  # about one prompt in 30 is sure


@dataclass(frozen=True)
class Question:
    """A prompt and its greedy answer."""

    prompt: list[int]
    answer: list[int]
    margin: float


def write_tiny_llama(folder: Path) -> Any:
    """Write config, weights in bf16 and a tokenizer; returns the model in fp32 on the CPU, with the same weights."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=FEED_FORWARD,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    config.dtype = torch.bfloat16
    model = LlamaForCausalLM(config)
    generator = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            if weight.dim() == 1:
                weight.fill_(1)  # of the norms
                continue
            # Sharp attention: a wrong position, mask or head changes the answer within a few tokens.
            gain = 2.0 if "q_proj" in name or "k_proj" in name else 1.0
            spread = 0.5 if "embed_tokens" in name else gain / weight.shape[1] ** 0.5
            weight.copy_(torch.randn(weight.shape, generator=generator) * spread)
    model.to(torch.bfloat16).save_pretrained(folder)
    words = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"t{number}": number for number in range(FIRST_TOKEN, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return model.to(torch.float32).eval()


def questions(model: Any, count: int) -> list[Question]:
    """Prompts with answers that are sure and that vary."""
    import torch

    generator, found = torch.Generator().manual_seed(21), []
    for _ in range(MOST_BATCHES):
        prompts = torch.randint(FIRST_TOKEN, VOCABULARY, (BATCH, PROMPT), generator=generator)
        for question in sure(model, prompts):
            if not garbage.signs(question.answer, ""):
                found.append(question)
                if len(found) == count:
                    return found
    raise AssertionError(f"{len(found)} of {BATCH * MOST_BATCHES} prompts have sure answers")


def sure(model: Any, prompts: Any) -> list[Question]:
    """The greedy answers of those prompts whose every step is sure."""
    import torch

    tokens, margins = prompts, torch.full((len(prompts),), float("inf"))
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(tokens).logits[:, -1]
            best = torch.topk(logits, 2)
            margin = (best.values[:, 0] - best.values[:, 1]) / logits.std(dim=-1)
            kept = margin >= MARGIN
            tokens = torch.cat([tokens, best.indices[:, :1]], dim=1)[kept]
            margins = torch.minimum(margins, margin)[kept]
    return [
        Question(row[: prompts.shape[1]], row[prompts.shape[1] :], float(margin))
        for row, margin in zip(tokens.tolist(), margins, strict=True)
    ]

"""`vllm serve` of a tiny model made here: what it generates is what the CPU generates, with and without CUDA graphs.

Every answer is asked for thrice: alone, again, and beside others. The log has to name the attention backend that was
asked for, graphs that were captured where they are on, and no unknown variable; memory must stay under a stated bound.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import driver
import garbage
from check import Check, Red, module, run, spoil
from serving import Server, free_port, last_words, serving

MODEL_S, READY_S, ANSWER_S = 600, 900, 300
QUESTIONS = 4
KV_BYTES = 256 << 20
# Weights are 3 MB and the cache 0.25 GiB; the rest is CUDA's context, libraries and graphs. On unified memory the
# processes themselves count as well.
BOUND_GIB, BOUND_UNIFIED_GIB = 6.0, 14.0
# `Using CUTLASS backend for NvFp4 linear` is of another kind: where "attention" is not said, nothing may follow.
BACKEND = re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z0-9_]+)(?: attention backend| backend(?: \(|\.?$))", re.M)
# 0.20.2: gpu_model_runner.py:6134, the same words since 2023. Others say `Skipping CUDA graph capture` (:6053).
CAPTURED = re.compile(r"graphs? captur\w* (?:finished|complete).*|capturing cuda ?graphs?\b.*100%.*", re.I)
UNKNOWN = re.compile(r"[Uu]nknown vLLM environment variable detected: (\w+)")


def body(check: Check) -> None:
    """Make the model, then serve it with graphs and the backend that vLLM chooses, and without and a named backend."""
    vllm = module("vllm")
    gpu = check.gpu(8)
    program = [found] if (found := shutil.which("vllm")) else [sys.executable, "-m", "vllm.entrypoints.cli.main"]
    check.facts |= {"vllm": getattr(vllm, "__version__", ""), "servers": {}}
    with tempfile.TemporaryDirectory(dir=check.options.work, prefix="vllm-") as name:
        folder = Path(name)
        (folder / "model").mkdir()
        with check.stage("make the model and its answers on the CPU", MODEL_S):
            import tiny_llama

            asked = tiny_llama.questions(tiny_llama.write_tiny_llama(folder / "model"), QUESTIONS)
        backend = check.options.attention_backend
        for title, extra, expected in (
            ("with CUDA graphs", [], None),
            (f"eager, {backend}", ["--enforce-eager", "--attention-backend", backend], backend),
        ):
            log = folder / f"{len(check.facts['servers'])}.log"
            port = free_port()
            command = [*program, "serve", str(folder / "model"), *arguments(port), *extra]
            stage = f"vllm serve {title}"
            served = serving(check, command, address=port, log=log, ready_s=READY_S, stage=stage)
            with lowest_free(gpu) as memory, served as server, check.stage(f"{stage}: answer", ANSWER_S):
                hold(title, server, str(folder / "model"), asked)
            facts = {"backend": named_backend(server.said(), expected), "peak_gib": round(memory["peak"], 2)}
            facts["graphs"] = captured(title, server.said(), eager="--enforce-eager" in extra)
            check.facts["servers"][title] = facts
            if unknown := UNKNOWN.findall(server.said()):
                raise Red(f"{title}: vLLM does not know {', '.join(sorted(set(unknown)))}")
            bound = BOUND_UNIFIED_GIB if gpu.unified else BOUND_GIB
            if memory["peak"] > bound:
                raise Red(f"{title}: took {memory['peak']:.1f} GiB, {bound:g} is the bound")


def arguments(port: int) -> list[str]:
    """Small, and nothing left to what vLLM takes by itself: its default is nine tenths of the machine."""
    words = f"--host 127.0.0.1 --port {port} --dtype bfloat16 --max-model-len 512 --max-num-seqs 8 --seed 1"
    return [*words.split(), "--gpu-memory-utilization", "0.1", "--kv-cache-memory-bytes", str(KV_BYTES),
            "--fail-on-environ-validation"]  # fmt: skip


def hold(title: str, server: Server, model: str, asked: list[Any]) -> None:
    """Ask, and raise Red where an answer is not the one that the CPU gives."""
    complete(server, model, asked[0].prompt)  # warms up: what is compiled at the first request is compiled now
    alone = [complete(server, model, question.prompt) for question in asked]
    spoil(alone[0])
    again = [complete(server, model, question.prompt) for question in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        beside = list(pool.map(lambda question: complete(server, model, question.prompt), asked))
    signs = [sign for answer in alone for sign in garbage.signs(answer, "")]
    signs += filter(None, [garbage.independent_of_input(alone)])
    if signs:
        raise Red(f"{title}: {'; '.join(dict.fromkeys(signs))}")
    for way, answers in (("alone", alone), ("again", again), ("beside others", beside)):
        for question, answer in zip(asked, answers, strict=True):
            if answer != question.answer:
                raise Red(f"{title}: asked {way}, it answers {answer}, the CPU {question.answer}")


def complete(server: Server, model: str, prompt: list[int]) -> list[int]:
    """The tokens of one greedy answer."""
    chance = {"temperature": 0, "seed": 1, "ignore_eos": True, "max_tokens": 16, "logprobs": 5}
    answer = server.post("/v1/completions", {"model": model, "prompt": prompt, "return_token_ids": True, **chance})
    choice = answer["choices"][0]
    if sign := garbage.not_finite(choice["logprobs"]["token_logprobs"]):
        raise Red(f"log probabilities: {sign}")
    tokens: list[int] = choice["token_ids"]
    return tokens


def named_backend(log: str, expected: str | None) -> str:
    """The attention backend that the log names; Red where it is another than was asked for, or not it alone."""
    found = sorted(set(BACKEND.findall(log)))
    if not found:
        raise Red(f"the log names no attention backend: {last_words(log)}")
    if expected and found != [expected]:
        raise Red(f"`{expected}` was asked for, the log says {', '.join(found)}")
    return ", ".join(found)


def captured(title: str, log: str, *, eager: bool) -> str:
    """The log's words on the CUDA graphs; Red where there are none though they are on, or some in an eager server."""
    found = CAPTURED.findall(log)
    if eager and found:
        raise Red(f"{title}: CUDA graphs were captured though `--enforce-eager` was given: {found[-1].strip()}")
    if not eager and not found:
        raise Red(f"{title}: the log names no CUDA graphs that were captured")
    return found[-1].strip() if found else "none"


@contextmanager
def lowest_free(gpu: driver.Gpu) -> Iterator[dict[str, float]]:
    """Watches the GPU's free memory, five times a second; `peak` is how far it fell, in GiB."""
    seen, done = {"peak": 0.0}, threading.Event()
    with driver.context(gpu):  # held, or each look would make and destroy one
        before = driver.free_gib(gpu)

        def watch() -> None:
            while not done.wait(0.2):
                seen["peak"] = max(seen["peak"], before - driver.free_gib(gpu))

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()


if __name__ == "__main__":
    run(
        "vllm_generate",
        __doc__ or "",
        body,
        ("--attention-backend", {"default": "TRITON_ATTN", "metavar": "NAME", "help": "asked of the second server"}),
    )

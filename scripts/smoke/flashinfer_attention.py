"""FlashInfer's attention, prefill and decode over a paged cache, gives what float64 gives; what it compiles is kept.

Where an image has these kernels ahead of time, one that no image has so is compiled as well: ALiBi's, as FlashInfer's
own list of what to compile ahead (flashinfer/aot.py) has no position encoding.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from check import Check, Red, module, run
from compare import within

QUERY_HEADS, KV_HEADS, HEAD, PAGE = 8, 2, 128, 16
LENGTHS = (1, 17, 300)  # of the sequences in the cache: one token, across a page, many pages
COMPILE_LIMIT_S = 900  # nvcc at the first use: 22 s a unit on a fast core, some ten units
# A result is rounded to bf16 (half a step: 2**-8), the softmax's weights too; values are about 1.
BOUND_REL, BOUND_ABS = 2**-7, 2**-6
AGAIN = "SMOKE_FLASHINFER_AGAIN"


def body(check: Check) -> None:
    """Run both wrappers that vLLM uses, then once more in a new process, which must compile nothing."""
    if check.options.work:
        os.environ["FLASHINFER_WORKSPACE_BASE"] = str(check.options.work)
    cache = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home()) / ".cache/flashinfer"  # its own rule
    torch, flashinfer = module("torch"), module("flashinfer")
    check.gpu(3)
    check.facts |= {"flashinfer": flashinfer.__version__, "jit_cache": str(cache), "results": []}
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise Red(f"FlashInfer's cache folder `{cache}` cannot be made: {err.strerror}") from err
    if not os.access(cache, os.W_OK):
        raise Red(f"FlashInfer's cache folder `{cache}` is not writable")
    before = compiled(cache)
    with check.stage("FlashInfer batch prefill (compiles at its first use)", COMPILE_LIMIT_S):
        check.facts["results"].append(prefill(torch, flashinfer))
    with check.stage("FlashInfer batch decode (compiles at its first use)", COMPILE_LIMIT_S):
        check.facts["results"].append(decode(torch, flashinfer))
    ahead = Path(module("flashinfer.jit.env").FLASHINFER_AOT_DIR)  # of flashinfer-jit-cache, else flashinfer/data/aot
    check.facts["ahead_of_time"] = loaded(ahead)
    if not loaded(cache):
        if not loaded(ahead):
            raise Red(f"FlashInfer's kernels come neither from `{cache}` nor ahead of time from `{ahead}`")
        with check.stage("FlashInfer batch prefill with ALiBi (compiles at its first use)", COMPILE_LIMIT_S):
            check.facts["results"].append(prefill(torch, flashinfer, "ALIBI"))
        if not loaded(cache):
            raise Red(f"`{cache}` has nothing of a kernel that is not there ahead of time")
    after = compiled(cache)
    check.facts["compiled_now"], check.facts["in_cache"] = len(after.keys() - before.keys()), len(after)
    if os.environ.get(AGAIN):
        return
    with check.stage("FlashInfer once more, in a new process", COMPILE_LIMIT_S):
        command = [sys.executable, __file__]
        done = check.finished(command, env={**os.environ, AGAIN: "1"})
    if done.returncode:
        raise Red(f"a second process fails where the first did not: {done.stdout.strip()[-400:]}")
    if compiled(cache) != after:
        raise Red(f"a second process compiled again: `{cache}` does not keep what was compiled")


def compiled(cache: Path) -> dict[str, int]:
    """The libraries in the cache, with their times."""
    return {str(path): path.stat().st_mtime_ns for path in cache.rglob("*.so")}


def loaded(folder: Path) -> list[str]:
    """The libraries of this folder that this process runs from, whatever it was told of them."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {Path(fields[5]) for line in lines if len(fields := line.split(maxsplit=5)) == 6}
    return sorted(path.stem for path in paths if path.suffix == ".so" and path.is_relative_to(folder.resolve()))


def paged(torch: Any, lengths: tuple[int, ...]) -> tuple[Any, Any, Any, Any, Any]:
    """A cache with sequences of these lengths, its pages dealt out in no order: tensor, row pointers, page numbers,
    tokens on the last pages, and per sequence (keys, values) in float64."""
    generator = torch.Generator().manual_seed(5)
    pages = [-(-length // PAGE) for length in lengths]
    order = torch.randperm(sum(pages), generator=generator)
    cache = torch.randn(sum(pages), 2, PAGE, KV_HEADS, HEAD, generator=generator).to(torch.bfloat16)
    starts = torch.tensor([0, *torch.tensor(pages).cumsum(0).tolist()], dtype=torch.int32)
    last = torch.tensor([length - (count - 1) * PAGE for length, count in zip(lengths, pages, strict=True)])
    sequences = []
    for number, length in enumerate(lengths):
        mine = cache[order[starts[number] : starts[number + 1]]].double()
        sequences.append(tuple(mine[:, part].reshape(-1, KV_HEADS, HEAD)[:length] for part in (0, 1)))
    return cache.cuda(), starts.cuda(), order.int().cuda(), last.int().cuda(), sequences


def attention(torch: Any, q: Any, k: Any, v: Any, encoding: str = "NONE") -> Any:
    """Causal attention in float64; the last query sees all keys. q: tokens x heads x HEAD."""
    group = QUERY_HEADS // KV_HEADS
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.double(), k) / HEAD**0.5
    if encoding == "ALIBI":  # the key's place alone: what all keys of a query have in common, the softmax takes out
        slopes = 2.0 ** (-8 / QUERY_HEADS * torch.arange(1, QUERY_HEADS + 1, dtype=torch.float64))
        scores += slopes[:, None, None] * torch.arange(k.shape[0])
    row = torch.arange(q.shape[0])[:, None] + (k.shape[0] - q.shape[0])
    scores.masked_fill_(torch.arange(k.shape[0])[None, :] > row, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


def decode(torch: Any, flashinfer: Any) -> dict[str, Any]:
    cache, starts, order, last, sequences = paged(torch, LENGTHS)
    q = torch.randn(len(LENGTHS), QUERY_HEADS, HEAD, generator=torch.Generator().manual_seed(6)).to(torch.bfloat16)
    space = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD", use_tensor_cores=True)
    wrapper.plan(starts, order, last, QUERY_HEADS, KV_HEADS, HEAD, PAGE, q_data_type=q.dtype, kv_data_type=cache.dtype)
    got = wrapper.run(q.cuda(), cache)
    torch.cuda.synchronize()
    exact = torch.cat([attention(torch, q[at : at + 1], *sequence) for at, sequence in enumerate(sequences)])
    return within("decode", got, exact, exact.abs() * BOUND_REL + BOUND_ABS)


def prefill(torch: Any, flashinfer: Any, encoding: str = "NONE") -> dict[str, Any]:
    cache, starts, order, last, sequences = paged(torch, LENGTHS)
    tokens = [max(1, length // 2) for length in LENGTHS]  # the first half is in the cache already
    q = torch.randn(sum(tokens), QUERY_HEADS, HEAD, generator=torch.Generator().manual_seed(7)).to(torch.bfloat16)
    rows = torch.tensor([0, *torch.tensor(tokens).cumsum(0).tolist()], dtype=torch.int32)
    space = torch.zeros(128 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD", backend="fa2")
    wrapper.plan(
        rows.cuda(), starts, order, last, QUERY_HEADS, KV_HEADS, HEAD, PAGE,
        causal=True, pos_encoding_mode=encoding, q_data_type=q.dtype, kv_data_type=cache.dtype,
    )  # fmt: skip
    got = wrapper.run(q.cuda(), cache)
    torch.cuda.synchronize()
    parts = [attention(torch, q[rows[at] : rows[at + 1]], k, v, encoding) for at, (k, v) in enumerate(sequences)]
    exact = torch.cat(parts)
    return within(f"prefill, position encoding {encoding}", got, exact, exact.abs() * BOUND_REL + BOUND_ABS)


if __name__ == "__main__":
    run("flashinfer_attention", __doc__ or "", body)

"""vLLM's Marlin kernels: 4-bit weights times 16-bit activations is the product with the dequantised weights.

So is a layer of experts. What the weights are dequantised to is held against what they were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from check import Check, Red, Skip, module, run
from compare import product_bound, same, within

DEPTH, COLUMNS = 1024, 512
ROWS = (1, 16, 17, 200)  # decode, one tile, beyond a tile, prefill
GROUPS = (128, -1)  # values that share a scale; -1: a whole column
LIMIT_S = 120
# fp16 weights are scale times code, exact but for one rounding; sums in fp32 (`use_fp32_reduce`).
TOLERANCES = {"float16": (2**-10, 2**-11), "bfloat16": (2**-8, 2**-8)}
# So few tokens that each expert has one block of rows: with more, chance says which block takes a row, and how it sums.
EXPERTS, TOKENS, WIDTH, INNER = 8, 16, 256, 256


def body(check: Check) -> None:
    """Every number of rows, both types, both group sizes; and the same bits twice, as no atomics are used."""
    torch, vllm = module("torch"), module("vllm")
    gpu = check.gpu(2)
    if (gpu.major, gpu.minor) < (7, 5):
        raise Skip("other-gpu", f"not on this GPU: Marlin begins at 7.5, {gpu.name} is {gpu.major}.{gpu.minor}")
    check.facts |= {"vllm": vllm.__version__, "results": []}
    for name in TOLERANCES:
        for group in GROUPS:
            generator = torch.Generator().manual_seed(9)
            weights = torch.randn(DEPTH, COLUMNS, generator=generator).to(getattr(torch, name)).cuda()
            with check.stage(f"quantise for Marlin, {name}, group {group}", LIMIT_S):
                packed = quantised(weights, group)
            check.facts["results"].append(dequantised(f"{name} group {group}", weights, packed, group))
            for rows in ROWS:
                x = torch.randn(rows, DEPTH, generator=generator).to(weights.dtype).cuda()
                with check.stage(f"Marlin W4A16, {name}, group {group}, {rows} rows", LIMIT_S):
                    got, again = (product(x, packed) for _ in range(2))
                    torch.cuda.synchronize()
                a, b = x.double().cpu(), packed["exact"].double().cpu()
                rounding, accumulation = TOLERANCES[name]
                exact = a @ b
                bound = product_bound(a, b, exact, rounding=rounding, accumulation=accumulation)
                what = f"{name} group {group} {rows}x{COLUMNS}x{DEPTH}"
                check.facts["results"].append(within(what, got, exact, bound))
                same(f"{what}, once more", again, got)
    try:
        experts(check, torch)
    except Skip as skip:
        check.facts["experts"] = f"left out: {skip}"


def quantised(weights: Any, group: int) -> dict[str, Any]:
    """Codes and scales in Marlin's order, and the matrix that they stand for, by vLLM's own test code."""
    tests = module("vllm.model_executor.layers.quantization.utils.marlin_utils_test")
    kind = module("vllm.scalar_type").scalar_types.uint4b8
    order = {"act_order": False} if "act_order" in inspect.signature(tests.marlin_quantize).parameters else {}
    exact, codes, scales, *rest = tests.marlin_quantize(weights, kind, group, **order)
    return {"exact": exact, "codes": codes, "scales": scales, "indices": rest[:2], "kind": kind}


def dequantised(what: str, weights: Any, packed: dict[str, Any], group: int) -> dict[str, Any]:
    """Codes are -8 to 7: half a step off, and what 16 bits lose of the scale; a whole step is wrong."""
    weights = weights.double().cpu()
    groups = weights.view(-1, group if group > 0 else len(weights), weights.shape[1])
    step = groups.amax(1, keepdim=True).div(7).maximum(groups.amin(1, keepdim=True).div(-8))
    return within(f"{what}, dequantised", packed["exact"], weights, step.expand_as(groups).reshape(weights.shape))


def product(x: Any, packed: dict[str, Any]) -> Any:
    """x @ weights."""
    ops, utils = module("vllm._custom_ops"), module("vllm.model_executor.layers.quantization.utils.marlin_utils")
    indices = packed["indices"] or (None, None)
    known = {
        "a": x,
        "c": None,
        "b_q_weight": packed["codes"],
        "b_bias": None,
        "b_scales": packed["scales"],
        "a_scales": None,
        "global_scale": None,
        "b_zeros": None,
        "g_idx": indices[0],
        "perm": indices[1],
        "workspace": utils.marlin_make_workspace_new(x.device),
        "b_q_type": packed["kind"],
        "size_m": x.shape[0],
        "size_n": packed["exact"].shape[1],
        "size_k": x.shape[1],
        "is_k_full": True,
        "use_atomic_add": False,
        "use_fp32_reduce": True,
        "is_zp_float": False,
    }
    return call(getattr(ops, "marlin_gemm", None) or ops.gptq_marlin_gemm, known)  # renamed in 0.16


def experts(check: Check, torch: Any) -> None:
    """Two products with an activation between them, for each token by the experts that it chose; in fp16."""
    if not hasattr(torch.ops._moe_C, "moe_wna16_marlin_gemm"):
        raise Skip("missing", "this vLLM has no `_moe_C.moe_wna16_marlin_gemm`")
    fused = module("vllm.model_executor.layers.fused_moe.fused_marlin_moe").fused_marlin_moe
    generator = torch.Generator().manual_seed(10)
    layers = []
    with check.stage("quantise experts for Marlin", LIMIT_S):
        for depth, columns in ((WIDTH, 2 * INNER), (INNER, WIDTH)):
            weights = (torch.randn(EXPERTS, depth, columns, generator=generator) / depth**0.5).half().cuda()
            layers.append([quantised(one, 128) for one in weights])
    x = torch.randn(TOKENS, WIDTH, generator=generator).half()
    chosen = (torch.arange(TOKENS)[:, None] + torch.tensor([0, 3])) % EXPERTS
    shares = torch.rand(TOKENS, 2, generator=generator).softmax(-1)
    known = {"hidden_states": x.cuda(), "topk_weights": shares.cuda(), "topk_ids": chosen.int().cuda()}
    known |= {"bias1": None, "bias2": None, "gating_output": None, "quant_type_id": layers[0][0]["kind"].id}
    for at, layer in enumerate(layers, 1):
        known[f"w{at}"] = torch.stack([one["codes"] for one in layer])
        known[f"w{at}_scale"] = torch.stack([one["scales"] for one in layer])
    with check.stage("Marlin W4A16, experts", LIMIT_S):
        got, again = (call(fused, known) for _ in range(2))
        torch.cuda.synchronize()
    rounding, accumulation = TOLERANCES["float16"]
    a, exact, bound = x.double(), 0.0, 0.0
    for expert in range(EXPERTS):
        b, c = (layer[expert]["exact"].double().cpu() for layer in layers)
        gate, up = (a @ b).chunk(2, dim=-1)
        off = product_bound(a, b, a @ b, rounding=rounding, accumulation=accumulation)
        off_gate, off_up = off.chunk(2, dim=-1)
        inner = torch.nn.functional.silu(gate) * up
        # SiLU's slope is 1.1 at most, and it is itself less than its argument.
        off = 1.1 * off_gate * (up.abs() + off_up) + gate.abs() * off_up + inner.abs() * rounding
        out, share = inner @ c, (shares * (chosen == expert)).sum(-1, keepdim=True).double()
        exact += share * out
        # Rounded as a product, with its share, and as a sum.
        lost = product_bound(inner, c, out, rounding=3 * rounding, accumulation=accumulation)
        bound += share * (lost + off @ c.abs())
    what = f"float16, 2 of {EXPERTS} experts for {TOKENS} tokens"
    check.facts["results"].append(within(what, got, exact, bound))
    same(f"{what}, once more", again, got)


def call(function: Callable[..., Any], known: dict[str, Any]) -> Any:
    """Parameters came and went between releases: those of this one are given."""
    wanted = inspect.signature(function).parameters
    needed = {name for name, parameter in wanted.items() if parameter.default is parameter.empty}
    if unknown := needed - known.keys():
        raise Red(f"vLLM's {function.__name__} asks for {', '.join(sorted(unknown))}, which this check does not know")
    return function(**{name: value for name, value in known.items() if name in wanted})


if __name__ == "__main__":
    run("marlin", __doc__ or "", body)

"""vLLM's Marlin kernel: 4-bit weights times 16-bit activations is the product with the dequantised weights."""

from __future__ import annotations

import inspect
from typing import Any

from check import Check, Red, Skip, module, run
from compare import product_bound, within

DEPTH, COLUMNS = 1024, 512
ROWS = (1, 16, 17, 200)  # decode, one tile, beyond a tile, prefill
GROUPS = (128, -1)  # values that share a scale; -1: a whole column
LIMIT_S = 120
# fp16 weights are scale times code, exact but for one rounding; sums in fp32 (`use_fp32_reduce`).
TOLERANCES = {"float16": (2**-10, 2**-11), "bfloat16": (2**-8, 2**-8)}


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
                if not torch.equal(got, again):
                    raise Red(f"{what}: the same product twice gives different bits")


def quantised(weights: Any, group: int) -> dict[str, Any]:
    """Codes and scales in Marlin's order, and the matrix that they stand for, by vLLM's own test code."""
    tests = module("vllm.model_executor.layers.quantization.utils.marlin_utils_test")
    kind = module("vllm.scalar_type").scalar_types.uint4b8
    order = {"act_order": False} if "act_order" in inspect.signature(tests.marlin_quantize).parameters else {}
    exact, codes, scales, *rest = tests.marlin_quantize(weights, kind, group, **order)
    return {"exact": exact, "codes": codes, "scales": scales, "indices": rest[:2], "kind": kind}


def product(x: Any, packed: dict[str, Any]) -> Any:
    """x @ weights. Parameters came and went between releases: those of this one are given."""
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
    gemm = getattr(ops, "marlin_gemm", None) or ops.gptq_marlin_gemm  # renamed in 0.16
    wanted = inspect.signature(gemm).parameters
    if unknown := wanted.keys() - known.keys():
        raise Red(f"vLLM's marlin_gemm asks for {', '.join(sorted(unknown))}, which this check does not know")
    return gemm(**{name: value for name, value in known.items() if name in wanted})


if __name__ == "__main__":
    run("marlin", __doc__ or "", body)

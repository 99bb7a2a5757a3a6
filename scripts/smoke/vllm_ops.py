"""vLLM's own kernels (norm, activation, fp8 quantisation and product, expert routing) agree with float64 on the CPU."""

from __future__ import annotations

from typing import Any

from check import Check, module, run
from compare import product_bound, same, within

LIMIT_S = 120
TOKENS = (1, 7, 512)
WIDTH = 1024
EPSILON = 1e-6
# Half a step of bf16, and a few of fp32, in which the kernels compute.
BF16, FP32 = 2**-8, 2**-20
EXPERTS, CHOSEN = 64, 6
FP8_LARGEST = 448.0
# As torch_matmul has them: half a step of bf16, and what fp8's sums lose.
FP8_ROUNDING, FP8_ACCUMULATION = 2**-8, 2**-9


def body(check: Check) -> None:
    """Each kernel for one token, a few and many."""
    torch, vllm = module("torch"), module("vllm")
    ops = module("vllm._custom_ops")
    gpu = check.gpu(2)
    check.facts |= {"vllm": vllm.__version__, "results": []}
    for tokens in TOKENS:
        generator = torch.Generator().manual_seed(tokens)

        def normal(*shape: int, generator: Any = generator) -> Any:
            return torch.randn(*shape, generator=generator)

        norm(check, torch, ops, normal(tokens, WIDTH).bfloat16(), normal(WIDTH).bfloat16())
        activation(check, torch, normal(tokens, 2 * WIDTH).bfloat16())
        routing(check, torch, ops, normal(tokens, EXPERTS))
        if (gpu.major, gpu.minor) >= (8, 9):  # where fp8 begins
            fp8_product(check, torch, ops, normal(tokens, WIDTH).bfloat16(), normal(WIDTH, WIDTH // 2).bfloat16())


def norm(check: Check, torch: Any, ops: Any, x: Any, weight: Any) -> None:
    """RMS norm, in bf16."""
    got = torch.empty_like(x, device="cuda")
    with check.stage(f"rms_norm {x.shape[0]}x{WIDTH}", LIMIT_S):
        ops.rms_norm(got, x.cuda(), weight.cuda(), EPSILON)
        torch.cuda.synchronize()
    exact = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + EPSILON)
    # The kernel rounds to bf16 before it multiplies by the weight, and after.
    hold(check, f"rms_norm {x.shape[0]}x{WIDTH}", got, exact * weight.double(), 2.1 * BF16)


def activation(check: Check, torch: Any, x: Any) -> None:
    """SiLU of one half times the other, in bf16."""
    got = torch.empty(x.shape[0], WIDTH, dtype=x.dtype, device="cuda")
    with check.stage(f"silu_and_mul {x.shape[0]}x{WIDTH}", LIMIT_S):
        torch.ops._C.silu_and_mul(got, x.cuda())
        torch.cuda.synchronize()
    gate, up = x.double().chunk(2, dim=-1)
    hold(check, f"silu_and_mul {x.shape[0]}x{WIDTH}", got, torch.nn.functional.silu(gate) * up, 2.1 * BF16)


def routing(check: Check, torch: Any, ops: Any, logits: Any) -> None:
    """The experts with the largest softmax, and their weights; from `_moe_C`."""
    tokens = logits.shape[0]
    weights = torch.empty(tokens, CHOSEN, dtype=torch.float32, device="cuda")
    experts, rows = (torch.empty(tokens, CHOSEN, dtype=torch.int32, device="cuda") for _ in range(2))
    with check.stage(f"topk_softmax {tokens}x{EXPERTS}", LIMIT_S):
        ops.topk_softmax(weights, experts, rows, logits.cuda(), False)
        torch.cuda.synchronize()
    exact, best = logits.double().softmax(-1).topk(CHOSEN, dim=-1)
    same(f"topk_softmax {tokens}x{EXPERTS}, the experts with the largest weights", experts, best)
    hold(check, f"topk_softmax {tokens}x{EXPERTS}", weights, exact, FP32)


def fp8_product(check: Check, torch: Any, ops: Any, x: Any, weights: Any) -> None:
    """Quantised to fp8 with a scale per token and per column, multiplied by CUTLASS; from `_C_stable_libtorch`."""
    what = f"fp8 product {x.shape[0]}x{weights.shape[1]}x{WIDTH}"
    with check.stage(what, LIMIT_S):
        a, scale_a = ops.scaled_fp8_quant(x.cuda(), use_per_token_if_dynamic=True)
        b, scale_b = ops.scaled_fp8_quant(weights.t().contiguous().cuda(), use_per_token_if_dynamic=True)
        got = ops.cutlass_scaled_mm(a, b.t(), scale_a, scale_b.t(), torch.bfloat16)
        torch.cuda.synchronize()
    for side, given, codes, found in (("a", x, a, scale_a), ("b", weights.t(), b, scale_b)):
        given = given.double()
        scales = given.abs().amax(-1, keepdim=True) / FP8_LARGEST
        hold(check, f"{what}, scales of {side}", found, scales, FP32)
        # A step of e4m3 is an eighth of a power of two: what was quantised is off by a 16th, or half the least step.
        off = given.abs() / 16 + scales * 2**-10
        quantised = within(f"{what}, {side} quantised", codes.double() * found.double(), given, off * 1.01)
        check.facts["results"].append(quantised)
    exact_a, exact_b = a.double().cpu() * scale_a.double().cpu(), b.double().cpu() * scale_b.double().cpu()
    exact = exact_a @ exact_b.t()
    bound = product_bound(exact_a, exact_b.t(), exact, rounding=FP8_ROUNDING, accumulation=FP8_ACCUMULATION)
    check.facts["results"].append(within(what, got, exact, bound))


def hold(check: Check, what: str, got: Any, exact: Any, relative: float) -> None:
    check.facts["results"].append(within(what, got, exact, exact.abs() * relative + 1e-30))


if __name__ == "__main__":
    run("vllm_ops", __doc__ or "", body)

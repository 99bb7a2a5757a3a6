"""torch's matrix products in bf16, fp16 and fp8 are those of float64 on the CPU, within stated tolerances."""

from __future__ import annotations

from typing import Any

from check import Check, Red, Skip, module, run
from compare import product_bound, within

# Rows, columns, depth: square, one row (decode), odd sizes, and a depth beyond every tile.
SHAPES = ((512, 512, 512), (1, 4096, 1024), (129, 65, 1000), (64, 256, 8192))
FP8_SHAPES = ((512, 512, 512), (16, 4096, 1024), (64, 256, 8192))
# (rounding of the result, loss in the sums). Half a step of bf16, with 8 significant bits, is 2**-8 of a value, of fp16
# with 11 bits 2**-11. Sums are in fp32, in any order; fp8's are shorter: Hopper's tensor cores keep about 14 bits.
TOLERANCES = {
    "float32": (2**-22, 2**-18),
    "bfloat16": (2**-8, 2**-16),
    "float16": (2**-11, 2**-16),
    "fp8": (2**-8, 2**-9),
}
LIMIT_S = 120  # the first call loads cuBLAS


def body(check: Check) -> None:
    """Every type and shape, on two inputs each."""
    torch = module("torch")
    gpu = check.gpu(2)
    check.facts |= {"torch": torch.__version__, "torch_cuda": torch.version.cuda, "results": []}
    if not torch.cuda.is_available():
        raise Red(f"torch {torch.__version__} sees no GPU, though the driver shows {gpu.name}")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for name in ("float32", "bfloat16", "float16"):
        for rows, columns, depth in SHAPES:
            kind = getattr(torch, name)
            a, b = values(torch, rows, depth).to(kind), values(torch, depth, columns).to(kind)
            with check.stage(f"torch {name} matmul {rows}x{columns}x{depth}", LIMIT_S):
                got = a.cuda() @ b.cuda()
                torch.cuda.synchronize()
            hold(check, name, got, a.double(), b.double())
    if (gpu.major, gpu.minor) < (8, 9):
        check.facts["fp8"] = f"not on this GPU: its compute capability is {gpu.major}.{gpu.minor}, fp8 begins at 8.9"
        return
    if not hasattr(torch, "_scaled_mm"):
        raise Skip("missing", f"torch {torch.__version__} has no `_scaled_mm`")
    for rows, columns, depth in FP8_SHAPES:
        kind = torch.float8_e4m3fn
        a, b = values(torch, rows, depth).to(kind), values(torch, columns, depth).to(kind)
        scales = torch.tensor(0.5, device="cuda"), torch.tensor(0.25, device="cuda")
        with check.stage(f"torch fp8 _scaled_mm {rows}x{columns}x{depth}", LIMIT_S):
            scaled = {"scale_a": scales[0], "scale_b": scales[1], "out_dtype": torch.bfloat16}
            got = torch._scaled_mm(a.cuda(), b.cuda().t(), **scaled)
            torch.cuda.synchronize()
        hold(check, "fp8", got, a.double() * 0.5, b.double().t() * 0.25)


def values(torch: Any, rows: int, columns: int) -> Any:
    """Normally distributed, the same every time for one shape."""
    generator = torch.Generator().manual_seed(rows * 1_000_003 + columns)
    return torch.randn(rows, columns, generator=generator)


def hold(check: Check, name: str, got: Any, a: Any, b: Any) -> None:
    exact = a @ b
    rounding, accumulation = TOLERANCES[name]
    bound = product_bound(a, b, exact, rounding=rounding, accumulation=accumulation)
    what = f"{name} {a.shape[0]}x{b.shape[1]}x{a.shape[1]}"
    check.facts["results"].append(within(what, got, exact, bound))


if __name__ == "__main__":
    run("torch_matmul", __doc__ or "", body)

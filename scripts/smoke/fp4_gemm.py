"""NVFP4 matrix products, really run: by the tensor cores' own instruction, by torch and by vLLM, where they are here.

No predicate is asked whether the GPU has FP4: each way is tried, and only where the GPU is older than FP4 is its
refusal a skip.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_kernel
import driver
from check import Check, Skip, module, run
from compare import product_bound, same, within

FIRST_WITH_FP4 = (10, 0)  # PTX ISA, mma with .kind::mxf4nvf4 and tcgen05: sm_100 and later
ROWS, COLUMNS, DEPTH = 128, 256, 512
GROUP = 16  # values that share a scale
CODES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1 without its sign
LIMIT_S = 180
# bf16 result; products of e2m1 and e4m3 are exact in fp32, so only its sums lose anything.
ROUNDING, ACCUMULATION = 2**-8, 2**-16
# One product of 16x8x64 by one warp, sm_120 and later of that family. Equal operands make it independent of which
# thread holds which element: 64 * 1.5 * 2 * (scales 2 * 0.5).
WARP = """
extern "C" __global__ void fp4(float *out) {
  unsigned a = 0x33333333u, b = 0x44444444u, sa = 0x40404040u, sb = 0x30303030u;
  float d0 = 0, d1 = 0, d2 = 0, d3 = 0;
  asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
               "{%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%5}, {%0,%1,%2,%3}, {%6}, {0,0}, {%7}, {0,0};"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "r"(a), "r"(b), "r"(sa), "r"(sb));
  out += threadIdx.x * 4;
  out[0] = d0; out[1] = d1; out[2] = d2; out[3] = d3;
}
"""
WARP_RESULT = 64 * 1.5 * 2.0 * 2.0 * 0.5


def body(check: Check) -> None:
    """Try every way; one that is not in the image is left out, one that fails is red."""
    gpu = check.gpu(2)
    has_fp4 = (gpu.major, gpu.minor) >= FIRST_WITH_FP4
    ran, refused, absent = [], [], []
    ways: tuple[tuple[str, Callable[[Check, driver.Gpu], Any]], ...] = (
        ("mma", by_mma),
        ("torch", by_torch),
        ("vllm", by_vllm),
    )
    for name, way in ways:
        try:
            with check.stage(f"FP4 product by {name}", LIMIT_S):
                facts = way(check, gpu)
        except Skip as skip:
            absent.append(f"{name}: {skip}")
        except Exception as err:
            if has_fp4:
                raise
            refused.append(f"{name} ({said(err)})")
        else:
            ran.append({"by": name, **facts})
    check.facts |= {"ran": ran, "refused": refused, "absent": absent}
    if not ran and refused:
        reason = f"FP4 begins at {FIRST_WITH_FP4[0]}.{FIRST_WITH_FP4[1]}, {gpu.name} is {gpu.major}.{gpu.minor}"
        raise Skip("other-gpu", f"not on this GPU: {reason}; tried, and refused by {' and by '.join(refused)}")
    if not ran:
        raise Skip("missing", "; ".join(absent))


def said(err: Exception) -> str:
    """What of a refusal is worth reading: ptxas' own words, or the first line to its first call."""
    words = str(err).strip().splitlines()[0]
    return words.partition("error   : ")[2] or words.partition(" when calling")[0][:120]


def by_mma(check: Check, gpu: driver.Gpu) -> dict[str, Any]:
    """The warp's instruction, compiled at run time. Data-centre Blackwell (10.x) has tcgen05 instead."""
    if gpu.major in (10, 11):
        raise Skip("other-gpu", "10.x and 11.x have no FP4 in `mma.sync`")
    arch = check.architecture(gpu)
    nvcc, nvrtc = cuda_kernel.find("nvcc"), cuda_kernel.find_nvrtc()
    if not nvcc and not nvrtc:
        raise Skip("missing", "neither nvcc nor NVRTC is here")
    with tempfile.TemporaryDirectory(dir=check.options.work) as folder:
        if nvcc:
            code = cuda_kernel.by_nvcc(nvcc, arch, Path(folder), source=WARP)
        else:
            code = cuda_kernel.by_nvrtc(nvrtc, f"sm_{arch}", cubin=True, source=WARP)
    got = launch(gpu, code)
    same("mma", got, [WARP_RESULT] * len(got))
    return {"what": f"one warp, m16n8k64, sm_{arch}", "of_bound": 0.0}


def launch(gpu: driver.Gpu, code: bytes) -> list[float]:
    """What the 32 threads wrote."""
    with driver.context(gpu) as cuda:
        loaded, kernel, out = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
        driver.call(cuda, "cuModuleLoadData", ctypes.byref(loaded), code)
        driver.call(cuda, "cuModuleGetFunction", ctypes.byref(kernel), loaded, b"fp4")
        driver.call(cuda, "cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(512))
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(out))
        driver.call(cuda, "cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, arguments, None)
        driver.call(cuda, "cuCtxSynchronize")
        numbers = (ctypes.c_float * 128)()
        driver.call(cuda, "cuMemcpyDtoH_v2", numbers, out, ctypes.c_size_t(512))
        driver.call(cuda, "cuMemFree_v2", out)
        driver.call(cuda, "cuModuleUnload", loaded)
    return list(numbers)


def by_torch(check: Check, gpu: driver.Gpu) -> dict[str, Any]:
    """cuBLASLt's, through torch."""
    torch = module("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        raise Skip("missing", f"torch {torch.__version__} has no FP4 type")
    (a, a_scales, a_exact), (b, b_scales, b_exact) = operand(torch, ROWS, 11), operand(torch, COLUMNS, 12)
    kind = torch.float4_e2m1fn_x2
    got = torch._scaled_mm(
        a.cuda().view(kind),
        b.cuda().view(kind).t(),
        scale_a=swizzled(torch, a_scales).cuda(),
        scale_b=swizzled(torch, b_scales).cuda(),
        out_dtype=torch.bfloat16,
    )
    torch.cuda.synchronize()
    return hold("torch._scaled_mm", got, a_exact, b_exact)


def by_vllm(check: Check, gpu: driver.Gpu) -> dict[str, Any]:
    """vLLM's CUTLASS kernel, the one that NVFP4 models run through."""
    torch = module("torch")
    module("vllm")
    ops = module("vllm._custom_ops")
    (a, a_scales, a_exact), (b, b_scales, b_exact) = operand(torch, ROWS, 11), operand(torch, COLUMNS, 12)
    got = ops.cutlass_scaled_fp4_mm(
        a.cuda(),
        b.cuda(),
        swizzled(torch, a_scales).cuda().view(ROWS, DEPTH // GROUP),
        swizzled(torch, b_scales).cuda().view(COLUMNS, DEPTH // GROUP),
        torch.ones((), device="cuda"),
        torch.bfloat16,
    )
    torch.cuda.synchronize()
    return hold("cutlass_scaled_fp4_mm", got, a_exact, b_exact)


def operand(torch: Any, rows: int, seed: int) -> tuple[Any, Any, Any]:
    """Packed codes (two to a byte, the even column in the low half), scales in e4m3, and the exact matrix."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 16, (rows, DEPTH), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(rows, DEPTH // GROUP, generator=generator) + 0.25).to(torch.float8_e4m3fn)
    exact = torch.tensor([*CODES, *(-code for code in CODES)], dtype=torch.float64)[codes.long()]
    packed = codes[:, 0::2] | codes[:, 1::2] << 4
    return packed.contiguous(), scales, exact * scales.double().repeat_interleave(GROUP, dim=1)


def swizzled(torch: Any, scales: Any) -> Any:
    """Scales in the order in which the tensor cores take them: blocks of 128 rows by 4, in it 32 by 4 rows by 4.

    From NVIDIA's cuBLAS documentation, 1D block scaling factors layout.
    """
    rows, columns = scales.shape
    assert rows % 128 == 0, rows
    assert columns % 4 == 0, columns
    blocks = scales.view(torch.uint8).view(rows // 128, 4, 32, columns // 4, 4)
    return blocks.permute(0, 3, 2, 1, 4).contiguous().view(-1).view(torch.float8_e4m3fn)


def hold(what: str, got: Any, a: Any, b: Any) -> dict[str, Any]:
    exact = a @ b.T
    bound = product_bound(a, b.T, exact, rounding=ROUNDING, accumulation=ACCUMULATION)
    return within(f"{what} {ROWS}x{COLUMNS}x{DEPTH}", got, exact, bound)


if __name__ == "__main__":
    run("fp4_gemm", __doc__ or "", body)

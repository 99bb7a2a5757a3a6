"""CUDA code that the image's own compilers make at run time for this GPU computes the right answer."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import driver
from check import Check, Red, Skip, run
from compare import same

COUNT, BLOCK = 1 << 16, 256
MASK = 2**32 - 1
# Integers, so that there is one right answer: a mix per element; shared memory, shuffles and an atomic for the sum.
SOURCE = """
extern "C" __global__ void mix(unsigned *out, unsigned long long *sum, unsigned count, unsigned seed) {
  __shared__ unsigned long long part[8];
  unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned x = at < count ? at * 2654435761u + seed : 0u;
  if (at < count) { x ^= x >> 16; x *= 0x85ebca6bu; x ^= x >> 13; out[at] = x; }
  unsigned long long s = x;
  for (int step = 16; step; step >>= 1) s += __shfl_down_sync(0xffffffffu, s, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = s;
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long all = 0;
    for (int warp = 0; warp < 8; ++warp) all += part[warp];
    atomicAdd(sum, all);
  }
}
"""
COMPILE_LIMIT_S, RUN_LIMIT_S = 120, 30


def body(check: Check) -> None:
    """Compile by every way that the image has, run each, compare."""
    gpu = check.gpu(0.5)
    arch = check.architecture(gpu)
    check.facts["architecture"] = f"sm_{arch}"
    codes: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory(dir=check.options.work) as folder:
        if nvcc := find("nvcc"):
            with check.stage(f"compile with {nvcc}", COMPILE_LIMIT_S):
                codes["nvcc"] = by_nvcc(nvcc, arch, Path(folder))
        if nvrtc := find_nvrtc():
            with check.stage(f"compile with {nvrtc._name}", COMPILE_LIMIT_S):
                codes["nvrtc"] = by_nvrtc(nvrtc, f"sm_{arch}", cubin=True)
                ptx = by_nvrtc(nvrtc, f"compute_{arch}", cubin=False)
            if ptxas := find("ptxas"):
                with check.stage(f"assemble with {ptxas}", COMPILE_LIMIT_S):
                    codes["ptxas"] = by_ptxas(ptxas, ptx, arch, Path(folder))
            codes["driver"] = ptx + b"\0"  # the driver compiles PTX itself
    check.facts["compilers"] = sorted(codes)
    if not codes:
        raise Skip("missing", "neither nvcc nor NVRTC is here")
    for compiler, code in codes.items():
        for seed in (1, 77):
            with check.stage(f"run kernel `mix` as {compiler} made it", RUN_LIMIT_S):
                got, total = launch(gpu, code, seed)
            expected = [mixed(at, seed) for at in range(COUNT)]
            same(f"kernel `mix` as {compiler} made it", got, expected)
            same(f"the sum of `mix` as {compiler} made it", [total], [sum(expected)])


def mixed(at: int, seed: int) -> int:
    """What the kernel computes for one element."""
    x = (at * 2654435761 + seed) & MASK
    x = ((x ^ x >> 16) * 0x85EBCA6B) & MASK
    return x ^ x >> 13


def find(program: str) -> str | None:
    """A program of the toolkit: TRITON_PTXAS_PATH's, CUDA_HOME's, PATH's, or where toolkits are installed."""
    homes = (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda")
    places = [os.environ.get("TRITON_PTXAS_PATH")] if program == "ptxas" else []
    places += [f"{home}/bin/{program}" for home in homes if home]
    return next((place for place in places if place and os.access(place, os.X_OK)), shutil.which(program))


def find_nvrtc() -> Any:
    """NVRTC as a library, from the loader's paths, the toolkit or NVIDIA's wheels; None where there is none."""
    names = [f"libnvrtc.so.{major}" for major in (13, 12)]
    folders = ["/usr/local/cuda/lib64"]
    folders += [f"{path}/nvidia/{part}/lib" for path in sys.path for part in ("cu13", "cuda_nvrtc")]
    for name in [*(f"{folder}/{name}" for folder in folders for name in names), *names]:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        for part in Path(name).parent.glob("libnvrtc-builtins.so.*"):  # which it looks for in the loader's paths only
            ctypes.CDLL(str(part))
        return library
    return None


def by_nvcc(nvcc: str, arch: str, folder: Path, source: str = SOURCE) -> bytes:
    """A cubin; nvcc wants a host compiler beside it."""
    text, cubin = folder / "source.cu", folder / "nvcc.cubin"
    text.write_text(source)
    tool(nvcc, "-cubin", f"-gencode=arch=compute_{arch},code=sm_{arch}", "-o", str(cubin), str(text))
    return cubin.read_bytes()


def by_ptxas(ptxas: str, ptx: bytes, arch: str, folder: Path) -> bytes:
    """A cubin from PTX."""
    source, cubin = folder / "mix.ptx", folder / "ptxas.cubin"
    source.write_bytes(ptx)
    tool(ptxas, f"-arch=sm_{arch}", "-o", str(cubin), str(source))
    return cubin.read_bytes()


def tool(*command: str) -> None:
    """Run a compiler; Red with what it says where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise Red(f"{command[0]} ends with {done.returncode}: {(done.stderr or done.stdout).strip()[:600]}")


def by_nvrtc(nvrtc: Any, arch: str, *, cubin: bool, source: str = SOURCE) -> bytes:
    """A cubin for `sm_…` or PTX for `compute_…`."""
    program = ctypes.c_void_p()

    def do(function: str, *arguments: Any) -> None:
        if status := getattr(nvrtc, function)(*arguments):
            raise Red(f"{function} for {arch} gives error {status}")

    do("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"source.cu", 0, None, None)
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={arch}".encode())
    do("nvrtcCompileProgram", program, 1, options)
    what, size = ("CUBIN" if cubin else "PTX"), ctypes.c_size_t()
    do(f"nvrtcGet{what}Size", program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    do(f"nvrtcGet{what}", program, code)
    return code.raw if cubin else code.value


def launch(gpu: driver.Gpu, code: bytes, seed: int) -> tuple[list[int], int]:
    """The kernel's output and sum."""
    with driver.context(gpu) as cuda:
        module, kernel = ctypes.c_void_p(), ctypes.c_void_p()
        out, total = ctypes.c_uint64(), ctypes.c_uint64()
        driver.call(cuda, "cuModuleLoadData", ctypes.byref(module), code)
        try:
            driver.call(cuda, "cuModuleGetFunction", ctypes.byref(kernel), module, b"mix")
            driver.call(cuda, "cuMemAlloc_v2", ctypes.byref(out), ctypes.c_size_t(4 * COUNT))
            driver.call(cuda, "cuMemAlloc_v2", ctypes.byref(total), ctypes.c_size_t(8))
            driver.call(cuda, "cuMemsetD8_v2", total, ctypes.c_ubyte(0), ctypes.c_size_t(8))
            values = (out, total, ctypes.c_uint(COUNT), ctypes.c_uint(seed))
            pointers = (ctypes.c_void_p * 4)(*(ctypes.addressof(value) for value in values))
            driver.call(cuda, "cuLaunchKernel", kernel, COUNT // BLOCK, 1, 1, BLOCK, 1, 1, 0, None, pointers, None)
            driver.call(cuda, "cuCtxSynchronize")
            numbers, summed = (ctypes.c_uint32 * COUNT)(), ctypes.c_uint64()
            driver.call(cuda, "cuMemcpyDtoH_v2", numbers, out, ctypes.c_size_t(4 * COUNT))
            driver.call(cuda, "cuMemcpyDtoH_v2", ctypes.byref(summed), total, ctypes.c_size_t(8))
            for memory in (out, total):
                driver.call(cuda, "cuMemFree_v2", memory)
        finally:
            driver.call(cuda, "cuModuleUnload", module)
    return list(numbers), summed.value


if __name__ == "__main__":
    run("cuda_kernel", __doc__ or "", body)

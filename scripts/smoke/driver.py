"""The GPU as the driver's own library tells of it, without torch or nvidia-smi: libcuda.so.1 through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30
MEMINFO = Path("/proc/meminfo")
# CUdevice_attribute of cuda.h
_INTEGRATED, _MAJOR, _MINOR = 18, 75, 76


class NoGpu(Exception):
    """There is no GPU that CUDA could use; the text says how that showed."""


class CudaError(Exception):
    """A call of the driver failed; the text names call and error."""


@dataclass(frozen=True)
class Gpu:
    """The first GPU that the driver shows."""

    index: int
    name: str
    major: int
    minor: int
    total_gib: float
    unified: bool  # it takes its memory from the host's
    driver: str  # of the kernel module: "580.159.04"; "" where that cannot be read
    cuda: str  # newest CUDA that the driver runs: "13.0"


def library() -> Any:
    """libcuda.so.1, initialised. Raises NoGpu."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as err:
        raise NoGpu("no NVIDIA driver here: libcuda.so.1 cannot be loaded") from err
    status = cuda.cuInit(0)
    if status:
        raise NoGpu(f"the NVIDIA driver finds no GPU: cuInit gives {_error(cuda, status)}")
    return cuda


def call(cuda: Any, function: str, *arguments: Any) -> None:
    """Call the driver; raises CudaError."""
    if status := getattr(cuda, function)(*arguments):
        raise CudaError(f"{function}: {_error(cuda, status)}")


def first_gpu() -> Gpu:
    """The GPU that checks run on. Raises NoGpu."""
    cuda = library()
    count, device, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call(cuda, "cuDeviceGetCount", ctypes.byref(count))
    if not count.value:
        raise NoGpu("the NVIDIA driver shows no GPU")
    call(cuda, "cuDeviceGet", ctypes.byref(device), 0)
    call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    name, total = ctypes.create_string_buffer(256), ctypes.c_size_t()
    call(cuda, "cuDeviceGetName", name, 256, device)
    call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(total), device)
    attributes = []
    for number in (_MAJOR, _MINOR, _INTEGRATED):
        value = ctypes.c_int()
        call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
        attributes.append(value.value)
    return Gpu(
        index=0,
        name=name.value.decode(),
        major=attributes[0],
        minor=attributes[1],
        total_gib=total.value / GIB,
        unified=bool(attributes[2]),
        driver=_kernel_module(),
        cuda=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


@contextlib.contextmanager
def context(gpu: Gpu) -> Iterator[Any]:
    """The device's primary context, current on this thread; yields the library."""
    cuda = library()
    device, handle = ctypes.c_int(gpu.index), ctypes.c_void_p()
    call(cuda, "cuDevicePrimaryCtxRetain", ctypes.byref(handle), device)
    try:
        call(cuda, "cuCtxSetCurrent", handle)
        yield cuda
    finally:
        call(cuda, "cuDevicePrimaryCtxRelease_v2", device)


def free_gib(gpu: Gpu) -> float:
    """What a new process could take. With unified memory the host's MemAvailable: the driver counts the page cache as
    taken, though it gives way (knowledge of GB10 owners; cudaMemGetInfo there reports too little)."""
    if gpu.unified:
        return available_gib(MEMINFO.read_text())
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    with context(gpu) as cuda:
        call(cuda, "cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value / GIB


def available_gib(meminfo: str) -> float:
    """MemAvailable of /proc/meminfo's text."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", meminfo, re.MULTILINE)
    return int(found[1]) / 2**20 if found else 0.0


def _error(cuda: Any, status: int) -> str:
    text = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(text))
    return text.value.decode() if text.value else str(status)


def _kernel_module() -> str:
    """The driver's version through NVML, which containers have beside libcuda; "" where they have not."""
    with contextlib.suppress(OSError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, 96) == 0:
            return text.value.decode()
    return ""

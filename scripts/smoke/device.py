"""The GPU is the one that the target names, its driver is new enough, and enough of its memory is free."""

from __future__ import annotations

import os
import re
from pathlib import Path

import driver
from check import Check, Red, Skip, run

DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def body(check: Check) -> None:
    """Compare what the driver says with what was asked for."""
    options = check.options
    with check.stage("ask the driver for the GPU", 60):
        gpu = check.gpu(0)
    check.facts |= {"total_gib": round(gpu.total_gib, 1), "unified_memory": gpu.unified, "cuda_of_driver": gpu.cuda}
    wanted = re.match(r"\d+\.\d+", options.compute_capability)
    if wanted and wanted[0] != f"{gpu.major}.{gpu.minor}":
        has = f"{gpu.name} has compute capability {gpu.major}.{gpu.minor}"
        raise Skip("other-gpu", f"{has}, the target {options.compute_capability}")
    if options.gpu_name and not any(name in gpu.name for name in options.gpu_name):
        raise Skip("other-gpu", f"this is {gpu.name}, the target names {' or '.join(options.gpu_name)}")
    if options.unified_memory is not None and options.unified_memory != ("yes" if gpu.unified else "no"):
        raise Red(f"{gpu.name}: unified memory: {'yes' if gpu.unified else 'no'}, the target: {options.unified_memory}")
    if options.driver and not gpu.driver:
        raise Red("the driver does not tell its version: libnvidia-ml.so.1 is not here")
    if options.driver and _numbers(gpu.driver) < _numbers(options.driver):
        raise Red(f"driver {gpu.driver} is older than {options.driver}, which the target's CUDA needs")
    with check.stage("make room", 120):
        if gpu.unified and os.access(DROP_CACHES, os.W_OK):  # there the page cache counts against the GPU
            os.sync()
            DROP_CACHES.write_text("3\n")
            check.facts["caches_dropped"] = True
    free = driver.free_gib(gpu)
    check.facts["free_gib"] = round(free, 1)
    if free < options.free_gib:
        raise Skip("memory", f"{free:.1f} GiB are free on {gpu.name}, the checks need {options.free_gib:g}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


if __name__ == "__main__":
    run(
        "device",
        __doc__ or "",
        body,
        ("--unified-memory", {"choices": ("yes", "no"), "default": None, "help": "of the target"}),
        (
            "--gpu-name",
            {"action": "append", "metavar": "GB10", "help": "part of the name that will do; may be repeated"},
        ),
        ("--driver", {"default": "", "metavar": "580", "help": "oldest driver that will do"}),
        ("--free-gib", {"type": float, "default": 4.0, "metavar": "GIB", "help": "what has to be free"}),
    )

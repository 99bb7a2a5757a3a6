"""Triton kernels compile for this GPU with the ptxas that Triton takes for it, and compute the right answer."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from check import Check, Red, module, run
from compare import product_bound, same, within

LIMIT_S = 180
# What Triton reads, and what it brings where nothing is set. Which of the two it takes depends on its version and the
# GPU: since 3.6 there is a ptxas for Blackwell, and TRITON_PTXAS_PATH is not read for that.
PROGRAMS = {"TRITON_PTXAS_PATH": "ptxas", "TRITON_PTXAS_BLACKWELL_PATH": "ptxas-blackwell"}
# A ptxas that notes who was called for what, then does it.
NOTED = """#!/bin/sh
echo '{ptxas}' "$*" >>'{log}'
exec '{ptxas}' "$@"
"""


def body(check: Check) -> None:
    """Compile anew, in an empty cache, then run."""
    torch, triton = module("torch"), module("triton")
    check.gpu(2)
    check.facts["triton"] = triton.__version__
    programs = programs_of(Path(triton.__file__).parent)
    with tempfile.TemporaryDirectory(dir=check.options.work) as folder:
        log = Path(folder) / "ptxas.log"
        for variable, program in programs.items():
            noting = Path(folder) / PROGRAMS[variable]
            noting.write_text(NOTED.format(log=log, ptxas=program))
            noting.chmod(noting.stat().st_mode | stat.S_IXUSR)
            os.environ[variable] = str(noting)
        os.environ["TRITON_CACHE_DIR"] = f"{folder}/cache"
        import kernels_in_triton

        with check.stage("Triton kernel `add`", LIMIT_S):
            x, y = torch.arange(10_007, device="cuda", dtype=torch.float32), torch.full((10_007,), 0.5, device="cuda")
            got = kernels_in_triton.add(x, y)
            torch.cuda.synchronize()
        same("Triton kernel `add`", got, x.cpu() + 0.5)
        generator = torch.Generator().manual_seed(1)
        a = torch.randn(200, 320, generator=generator).to(torch.bfloat16)
        b = torch.randn(320, 144, generator=generator).to(torch.bfloat16)
        with check.stage("Triton kernel `product` (bf16, tensor cores)", LIMIT_S):
            got = kernels_in_triton.product(a.cuda(), b.cuda())
            torch.cuda.synchronize()
        exact = a.double() @ b.double()
        bound = product_bound(a.double(), b.double(), exact, rounding=2**-22, accumulation=2**-18)
        check.facts["results"] = [within("Triton bf16 product", got, exact, bound)]
        calls = [line for line in log.read_text().splitlines() if "--gpu-name" in line] if log.exists() else []
        names = {word for line in calls for word in line.split() if word.startswith(("--gpu-name=", "sm_"))}
        check.facts["ptxas"] = sorted({line.split()[0] for line in calls})
        check.facts["ptxas_calls"], check.facts["ptxas_architectures"] = len(calls), sorted(names)
    if not calls:
        raise Red(f"Triton has called none of the ptxas that it may take: {', '.join(programs.values()) or 'none'}")


def programs_of(triton: Path) -> dict[str, str]:
    """Variable -> the program that stands behind it: the one that it names, or else the one in Triton's own folder."""
    found = {}
    for variable, name in PROGRAMS.items():
        named, own = os.environ.get(variable, ""), triton / "backends/nvidia/bin" / name
        if named and not os.access(named, os.X_OK):
            raise Red(f"{variable} names `{named}`, which is no program here")
        if named or own.is_file():
            found[variable] = named or str(own)
    return found


if __name__ == "__main__":
    run("triton_kernel", __doc__ or "", body)

"""Triton kernels compile for this GPU with the ptxas that TRITON_PTXAS_PATH names, and compute the right answer."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from check import Check, Red, module, run
from compare import product_bound, same, within

LIMIT_S = 180
# Which variable Triton reads depends on its version and the GPU: since 3.5 Blackwell has a ptxas of its own.
VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
# A ptxas that notes that it was called, then does what it was called for.
NOTED = """#!/bin/sh
echo "$*" >>'{log}'
exec '{ptxas}' "$@"
"""


def body(check: Check) -> None:
    """Compile anew, in an empty cache, then run."""
    torch, triton = module("torch"), module("triton")
    check.gpu(2)
    check.facts["triton"] = triton.__version__
    asked = os.environ.get("TRITON_PTXAS_PATH", "")
    check.facts["ptxas"] = asked or "Triton's own: TRITON_PTXAS_PATH is not set"
    if asked and not os.access(asked, os.X_OK):
        raise Red(f"TRITON_PTXAS_PATH names `{asked}`, which is no program here")
    with tempfile.TemporaryDirectory(dir=check.options.work) as folder:
        log = Path(folder) / "ptxas.log"
        if asked:
            noting = Path(folder) / "ptxas"
            noting.write_text(NOTED.format(log=log, ptxas=os.environ.get(VARIABLES[1]) or asked))
            noting.chmod(noting.stat().st_mode | stat.S_IXUSR)
            os.environ |= dict.fromkeys(VARIABLES, str(noting))
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
        check.facts["ptxas_calls"], check.facts["ptxas_architectures"] = len(calls), sorted(names)
    if asked and not calls:
        raise Red(f"Triton compiled without the ptxas that TRITON_PTXAS_PATH names, `{asked}`")


if __name__ == "__main__":
    run("triton_kernel", __doc__ or "", body)

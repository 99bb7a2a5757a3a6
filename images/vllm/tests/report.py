"""Runs inside the image under test: what vLLM is when Python has loaded it. Prints one JSON object as the last line."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import torch
import vllm
import vllm._C
import vllm._moe_C
import vllm.envs
from vllm.entrypoints.openai.cli_args import make_arg_parser
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

PACKAGES = str(Path(torch.__file__).parents[1])  # setuptools has others within it and puts them on the path

print(
    json.dumps(
        {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "platform": current_platform.device_name,
            "operators": {
                name: torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
                for name in (
                    "_C::cutlass_scaled_mm",
                    "_C::cutlass_scaled_fp4_mm",
                    "_C::gptq_marlin_gemm",
                    "_C::marlin_gemm",
                    "_C::rms_norm",
                    "_moe_C::moe_align_block_size",
                    "_moe_C::topk_softmax",
                    "_C_cache_ops::reshape_and_cache_flash",
                )
                if torch._C._jit_get_schemas_for_operator(name)
            },
            "flags": sorted(make_arg_parser(FlexibleArgumentParser())._option_string_actions),
            "variables": sorted(vllm.envs.environment_variables),
            "distributions": {
                found.name.lower().replace("_", "-").replace(".", "-"): found.version
                for found in importlib.metadata.distributions(path=[PACKAGES])
            },
        }
    )
)

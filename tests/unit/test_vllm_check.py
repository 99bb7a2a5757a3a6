"""What a recipe or an image may name, against the committed knowledge of vLLM's real releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge

CHECKER = Checker(read_knowledge(Path(__file__).parents[2] / "images" / "vllm-knowledge.json"))
NEWEST = CHECKER.knowledge.releases[-1]


@pytest.mark.parametrize(
    ("release", "name", "value", "said"),
    [
        ("0.17.1", "--reasoning-parser", "nemotron_v3", ""),
        (
            "0.17.0",
            "--reasoning-parser",
            "nemotron_v3",
            f"vllm 0.17.0 does not know `nemotron_v3`, which exists in 0.17.1 to {NEWEST}",
        ),
        ("0.20.2", "--linear-backend", "marlin", f"vllm 0.20.2 has no such flag, which exists in 0.22.0 to {NEWEST}"),
        ("0.20.2", "--mxfp4-backend", "CUTLASS", f"no release of vllm from 0.16.0 to {NEWEST} has such a flag"),
        ("0.20.2", "--quantization", "fp4", f"does not know `fp4`, and no other release from 0.16.0 to {NEWEST} does"),
        ("0.20.2", "--max-model-length", "1", "did you mean `--max-model-len`?"),
        ("0.20.2", "--moe-backend", "marline", "did you mean `marlin`?"),
        ("0.20.2", "--attention-backend", "flashinfer", ""),  # vLLM takes the names of members in any case
        ("0.20.2", "-q", "fp8", "`-q` is another name of `--quantization`: use that"),
        ("0.20.2", "--enable-prefix-caching", "yes", "expected `true` or `false`, got `yes`"),
        ("0.20.2", "--headless", "false", "it takes no value: expected `true`, got `false`"),
        ("0.20.2", "--trust-remote-code", "false", ""),
        ("0.20.2", "--speculative-config.method", "mtp", ""),
        ("0.20.2", "--max-num-seqs", "8", ""),
    ],
)
def test_flag_is_looked_up_in_its_release(release: str, name: str, value: str, said: str) -> None:
    found = CHECKER.flag(release, name, value)

    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("release", "name", "value", "said"),
    [
        ("0.23.0", "VLLM_NVFP4_GEMM_BACKEND", "marlin", ""),
        ("0.23.0", "VLLM_NVFP4_GEMM_BACKEND", "marline", "did you mean `marlin`?"),
        ("0.24.0", "VLLM_NVFP4_GEMM_BACKEND", "marlin", "0.16.0 (or before) to 0.23.0"),
        ("0.24.0", "VLLM_NVFP4_GEMM_BACKEND", "marlin", "the last of them says: Use --linear-backend."),
        (
            "0.20.2",
            "VLLM_NVFP4_MOE_BACKEND",
            "marlin",
            f"no release of vllm from 0.16.0 to {NEWEST} has such a variable",
        ),
        ("0.20.2", "VLLM_LOGGING_LVL", "INFO", "did you mean `VLLM_LOGGING_LEVEL`?"),
        ("0.20.2", "VLMM_LOGGING_LEVEL", "INFO", "no variable of vllm is called `VLMM_LOGGING_LEVEL`"),
        ("0.20.2", "NCCL_DEBUG", "INFO", ""),
        ("0.20.2", "PATH", "/usr/bin", ""),
    ],
)
def test_variable_is_looked_up_in_its_release(release: str, name: str, value: str, said: str) -> None:
    found = CHECKER.variable(release, name, value)

    assert said in found
    assert bool(said) == bool(found)


def test_all_refusals_of_an_environment_come_together() -> None:
    env = {"VLLM_ATTENTION_BACKEND": "FLASHINFER", "HF_HOME": "/models", "VLLM_NVFP4_MOE_BACKEND": "marlin"}

    assert len(CHECKER.variables("0.20.2", env)) == 2

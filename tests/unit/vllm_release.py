"""The source of a release of vLLM, cut down to what is read of it; written as vLLM writes it."""

from __future__ import annotations

SERVE = """\
from vllm.entrypoints.openai.cli_args import make_arg_parser
"""
CLI_ARGS = """\
import argparse
from vllm.engine.arg_utils import EngineArgs, optional_type
from vllm.config import config


@config
class FrontendArgs:
    api_key: list[str] | None = None
    tool_call_parser: str | None = None

    @classmethod
    def _customize_cli_kwargs(cls, frontend_kwargs):
        frontend_kwargs["tool_call_parser"]["choices"] = list(registered())
        frontend_kwargs["api_key"]["flags"] = ["-k"]
        return frontend_kwargs

    @classmethod
    def add_cli_args(cls, parser):
        from vllm.engine.arg_utils import get_kwargs
        frontend_kwargs = get_kwargs(cls)
        frontend_kwargs = cls._customize_cli_kwargs(frontend_kwargs)
        group = parser.add_argument_group(title="Frontend")
        for key, value in frontend_kwargs.items():
            group.add_argument(*value.pop("flags", []), f"--{key.replace('_', '-')}", **value)
        return parser


def make_arg_parser(parser):
    parser.add_argument("model_tag", type=str, nargs="?", help="the model")
    parser.add_argument("--headless", action="store_true", default=False)
    parser.add_argument("--grpc", action="store_true")
    parser = FrontendArgs.add_cli_args(parser)
    parser = EngineArgs.add_cli_args(parser)
    return parser
"""
ENGINE = """\
from dataclasses import dataclass
from vllm.config import CacheConfig, CompilationConfig, Filler, ModelConfig, VllmConfig


def get_kwargs(cls):
    return _compute_kwargs(cls)


@dataclass
class EngineArgs:
    model: str = "default"

    @staticmethod
    def add_cli_args(parser):
        model_kwargs = get_kwargs(ModelConfig)
        group = parser.add_argument_group(title="ModelConfig")
        group.add_argument("--quantization", "-q", **model_kwargs["quantization"])
        group.add_argument("--load-format", **model_kwargs["load_format"])
        group.add_argument("--reasoning-parser", **model_kwargs["reasoning_parser"])
        group.add_argument("--max-model-len", **model_kwargs["max_model_len"])
        cache_kwargs = get_kwargs(CacheConfig)
        group.add_argument("--gpu-memory-utilization", **cache_kwargs["gpu_memory_utilization"])
        group.add_argument("--kv-cache-dtype", **cache_kwargs["cache_dtype"])
        group.add_argument("--enable-prefix-caching", **{**cache_kwargs["enable_prefix_caching"], "default": None})
        group.add_argument("--attention-backend", **cache_kwargs["attention_backend"])
        vllm_kwargs = get_kwargs(VllmConfig)
        group.add_argument("--compilation-config", "-cc", **vllm_kwargs["compilation_config"])
        group.add_argument("--fail-on-environ-validation", action="store_true")
        filler_kwargs = get_kwargs(Filler)
        for key, value in filler_kwargs.items():
            group.add_argument(f"--{key.replace('_', '-')}", **value)
        return parser
"""
CONFIG = """\
from enum import Enum
from typing import Any, Literal
from vllm.config.utils import config

CacheDType = Literal["auto", "fp8"]


class AttentionBackendEnum(Enum):
    FLASHINFER = "vllm.flashinfer"
    FLASH_ATTN = "vllm.flash_attn"


@config
class PassConfig:
    fuse: bool = False


@config
class CompilationConfig:
    mode: Literal["eager", "inductor"] = "inductor"
    passes: PassConfig = field(default_factory=PassConfig)
    within: "CompilationConfig" = None
    seen: int = field(init=False)


@config
class VllmConfig:
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)


@config
class ModelConfig:
    quantization: str | None = None
    load_format: str = "auto"
    reasoning_parser: str = ""
    max_model_len: int = None


@config
class CacheConfig:
    gpu_memory_utilization: float = 0.9
    cache_dtype: CacheDType = "auto"
    enable_prefix_caching: bool | None = None
    attention_backend: AttentionBackendEnum | None = None

    @field_validator("attention_backend", mode="before")
    @classmethod
    def _parse(cls, value):
        if value.lower() == "auto":
            return None
        return AttentionBackendEnum[value.upper()]


@config
class Filler:
""" + "\n".join(f"    filler_{number}: int = 0" for number in range(200))  # vLLM has more than 200 flags
ENVS = """\
import os

environment_variables = {
    "VLLM_LOGGING_LEVEL": lambda: os.getenv("VLLM_LOGGING_LEVEL", "INFO"),
    "VLLM_ALLREDUCE": env_with_choices("VLLM_ALLREDUCE", "auto", ["auto", "ring"], case_sensitive=False),
    "VLLM_LATER": env_with_choices("VLLM_LATER", None, lambda: names()),
    "VLLM_OLD": deprecated_env("VLLM_OLD", "v9.9", "Use --new.", env_with_choices("VLLM_OLD", None, ["a"])),
    "CUDA_HOME": lambda: os.environ.get("CUDA_HOME"),
}
"""
FILES = {
    "vllm/__init__.py": "",
    "vllm/envs.py": ENVS,
    "vllm/config/__init__.py": CONFIG,
    "vllm/config/utils.py": "def config(cls):\n    return cls\n",
    "vllm/engine/arg_utils.py": ENGINE,
    "vllm/entrypoints/cli/serve.py": SERVE,
    "vllm/entrypoints/openai/cli_args.py": CLI_ARGS,
    "vllm/utils/argparse_utils.py": "class FlexibleArgumentParser:\n    pass\n",
    "vllm/reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"qwen3": ("a", "B"), "nemotron_v3": ("c", "D")}\n',
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "B")}\n',
    "vllm/model_executor/layers/quantization/__init__.py": 'QuantizationMethods = Literal["awq", "fp8"]\n',
    "vllm/model_executor/model_loader/__init__.py": 'LoadFormats = Literal["auto", "fastsafetensors"]\n',
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """The release with one text in one file replaced."""
    assert FILES[path].count(old) == 1, old
    return FILES | {path: FILES[path].replace(old, new)}

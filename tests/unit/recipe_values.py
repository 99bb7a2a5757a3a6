"""A recipe of one model and one with two lanes, planned for a release; not the committed ones."""

from __future__ import annotations

from pathlib import Path

from packaging.specifiers import SpecifierSet

from spark_images.recipes.read import Lane, LanesRecipe, ModelRecipe, Note, Setting
from spark_images.recipes.server import Place, Serving, plan_servers
from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge

CHECKER = Checker(read_knowledge(Path(__file__).parents[2] / "images" / "vllm-knowledge.json"))
IMAGE = "registry.example/vllm@sha256:" + "1f" * 32
DOCKER = Place(image=IMAGE)
PODMAN = Place(image=IMAGE, engine="podman", listen="0.0.0.0", models="/srv/models")
SETTING = Setting(
    releases=SpecifierSet(">=0.20"),
    memory_share=0.5,
    max_model_len=65536,
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
    flags=(
        ("--kv-cache-dtype", "fp8"),
        ("--enable-prefix-caching", "false"),
        ("--trust-remote-code", "true"),
        ("--hf-overrides", '{"a":["50%",1]}'),
        ("--cpu-offload-params", "-1"),
    ),
    env=(("NCCL_DEBUG", "INFO"), ("ODD", "50%{a}")),
    seen_on_gb10="",
    notes=(Note("a remark", "a page"),),
)
LARGE = ModelRecipe(name="large", about="one model", model="owner/large", weights_gib=20, settings=(SETTING,))
BOTH = LanesRecipe(
    name="both",
    about="two lanes",
    lanes=(
        Lane(name="one", recipe=LARGE, memory_share=0.4, max_model_len=32768),
        Lane(name="two", recipe=LARGE, memory_share=0.3, max_model_len=16384),
    ),
    notes=(Note("of both", "another page"),),
)


def single(release: str = "0.20.2") -> Serving:
    return plan_servers(LARGE, release, CHECKER)


def lanes(release: str = "0.20.2") -> Serving:
    return plan_servers(BOTH, release, CHECKER)

from __future__ import annotations

from dataclasses import replace

import pytest
from packaging.specifiers import SpecifierSet
from recipe_values import BOTH, CHECKER, LARGE, SETTING, lanes, single

from spark_images.errors import UsageError
from spark_images.recipes.read import Setting
from spark_images.recipes.server import plan_servers


def command(setting: Setting, release: str) -> str:
    (server,) = plan_servers(replace(LARGE, settings=(setting,)), release, CHECKER).servers
    return " ".join(server.command)


def test_command_has_everything_that_the_recipe_says() -> None:
    (server,) = single().servers

    assert " ".join(server.command) == (
        "vllm serve owner/large --served-model-name large --host 0.0.0.0 --port 8000 --gpu-memory-utilization 0.5 "
        "--max-model-len 65536 --reasoning-parser qwen3 --enable-auto-tool-choice --tool-call-parser hermes "
        '--kv-cache-dtype fp8 --no-enable-prefix-caching --trust-remote-code --hf-overrides {"a":["50%",1]} '
        "--cpu-offload-params=-1 --fail-on-environ-validation"
    )


def test_every_flag_of_a_command_is_known_to_its_release() -> None:
    for release in ("0.20.2", "0.33.0"):
        for server in lanes(release).servers:
            names = [word.partition("=")[0] for word in server.command if word.startswith("--")]
            assert [name for name in names if CHECKER.names(release).flag(name) is None] == []


def test_release_without_a_check_of_its_environment_is_not_asked_for_one() -> None:
    old = replace(SETTING, releases=SpecifierSet(">=0.16"), flags=(), env=())

    assert "--fail-on-environ-validation" not in command(old, "0.16.0")
    assert "--fail-on-environ-validation" in command(old, "0.17.0")


def test_parsers_that_are_not_named_are_not_set() -> None:
    text = command(replace(SETTING, reasoning_parser="", tool_call_parser=""), "0.20.2")

    assert "parser" not in text
    assert "--enable-auto-tool-choice" not in text


def test_models_and_compiled_kernels_outlive_the_container() -> None:
    (server,) = single().servers

    env = dict(server.env)
    assert env["HF_HOME"] == "/models"
    assert env["CUDA_CACHE_PATH"] == "/cache/cuda"
    assert env["NCCL_DEBUG"] == "INFO"


def test_lanes_start_in_their_order_each_with_its_own_share_and_port() -> None:
    one, two = lanes().servers

    assert (one.name, one.after, one.published) == ("both-one", "", 8000)
    assert (two.name, two.after, two.published) == ("both-two", "both-one", 8001)
    assert [server.command[server.command.index("--gpu-memory-utilization") + 1] for server in (one, two)] == [
        "0.4",
        "0.3",
    ]
    assert two.command[4:6] == ("both-two", "both")  # its own name, and that of whichever lane answers


def test_engine_that_comes_up_does_not_start_lanes_at_once() -> None:
    assert (single().restart, lanes().restart) == ("unless-stopped", "on-failure")


def test_what_nobody_has_seen_is_told_with_the_notes() -> None:
    serving = lanes()

    assert serving.unverified == ("owner/large", "owner/large")
    assert [note.text for note in serving.notes] == ["of both", "a remark", "a remark"]


@pytest.mark.parametrize("recipe", [LARGE, BOTH])
def test_recipe_that_does_not_hold_is_refused_with_its_range(recipe: object) -> None:
    assert recipe in (LARGE, BOTH)
    with pytest.raises(UsageError) as caught:
        plan_servers(LARGE if recipe is LARGE else BOTH, "0.19.0", CHECKER)

    assert "does not hold for vllm 0.19.0" in caught.value.what
    assert caught.value.why[0].startswith("it holds for 0.20.0 to ")

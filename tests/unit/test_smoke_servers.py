"""The checks that start servers, against stand-ins that answer rightly and wrongly."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import check
import pytest
import vllm_generate
from check import Red

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with llama-server, llama-bench and, below `driver`, a GPU that only says that it is there."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("programs")
    for name in ("llama-server", "llama-bench"):
        program = folder / name
        program.write_text(f"#!{sys.executable}\n{(HERE / 'llama_stand_in.py').read_text()}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    (folder / "driver").mkdir()
    made = folder / "driver/libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(HERE / "stub_driver.c")], check=True)
    (folder / "any.gguf").touch()
    return folder


def llamacpp(programs: Path, fault: str = "", *words: str) -> dict[str, Any]:
    """The result of the check with this fault in the programs."""
    command = [sys.executable, str(ROOT / "scripts/smoke/llamacpp.py"), "--bin", str(programs)]
    command += ["--model", str(programs / "any.gguf"), *words]
    env = {**os.environ, "LD_LIBRARY_PATH": str(programs / "driver"), "FAULT": fault}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_llamacpp_that_answers_alike_on_both_is_green(programs: Path) -> None:
    said = llamacpp(programs)
    assert (said["verdict"], said["sentence"]) == ("green", "")
    assert said["facts"]["offloaded"] == "3/3"
    assert said["facts"]["tokens_per_second"] == {"prompt 64": 1000}


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("tokens", "on the GPU `"),
        ("logits", "log probabilities differ by 0.500"),
        ("layers", "only 2 of 3 layers are on the GPU"),
        ("nan", "not finite"),
        ("repeats", "one token 12 times in a row"),
        ("exclamations", "20 exclamation marks in a row"),
        ("one-answer", "2 different inputs give one answer"),
        ("second-request", "ggml_cuda_mul_mat_q: invalid argument"),
        ("dies", "no kernel image is available"),
        ("bench", "llama-bench ran on CPU, not on CUDA"),
    ],
)
def test_llamacpp_that_goes_wrong_is_red_and_says_how(programs: Path, fault: str, sentence: str) -> None:
    said = llamacpp(programs, fault)
    assert (said["verdict"], sentence in said["sentence"]) == ("red", True), said["sentence"]


def test_spoiled_llamacpp_is_red_with_the_tokens(programs: Path) -> None:
    said = llamacpp(programs, "", "--spoil")
    assert (said["verdict"], said["why"]) == ("red", "wrong")
    right, wrong = re.findall(r"on the [CG]PU `[^`]*` \[(\d+),", said["sentence"])
    assert int(wrong) == int(right) + 1


def test_llamacpp_is_held_against_what_the_model_must_say(programs: Path, tmp_path: Path) -> None:
    (tmp_path / "expect.json").write_text(json.dumps({"a prompt": "what it must say", "another": "and this"}))
    said = llamacpp(programs, "", "--expect", str(tmp_path / "expect.json"))
    assert said["verdict"] == "red"
    assert "the model must say `what it must say`" in said["sentence"]


def test_llamacpp_is_started_by_the_words_that_start_a_container(programs: Path) -> None:
    assert llamacpp(programs, "", "--launch", "env STARTED=yes {program}")["verdict"] == "green"
    assert "ended with 3" in llamacpp(programs, "", "--launch", "sh -c 'exit 3' {program}")["sentence"]


# --- vLLM -------------------------------------------------------------------------------------------------------------


@dataclass
class Question:
    prompt: list[int]
    answer: list[int]


class Vllm:
    """Answers from a table; a fault changes the answers from the n-th request on."""

    def __init__(self, answers: dict[int, list[int]], *, wrong_from: int = 1000, logprob: float | None = -0.5) -> None:
        self.answers, self.wrong_from, self.logprob, self.asked = answers, wrong_from, logprob, 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        tokens = list(self.answers[body["prompt"][0]])
        if self.asked >= self.wrong_from:
            tokens[-1] += 1
        return {"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": [self.logprob] * len(tokens)}}]}


ANSWERS = {1: [5, 6, 7, 8, 9], 2: [3, 1, 4, 1, 5]}
ASKED = [Question([first], answer) for first, answer in ANSWERS.items()]


def hold(server: Vllm) -> None:
    vllm_generate.hold("eager", server, "model", ASKED)  # type: ignore[arg-type]  # all that it asks of a server


def test_vllm_that_answers_as_the_cpu_does_passes() -> None:
    hold(server := Vllm(ANSWERS))
    assert server.asked == 1 + 3 * len(ASKED)


@pytest.mark.parametrize(("wrong_from", "way"), [(2, "alone"), (4, "again"), (6, "beside others")])
def test_vllm_that_answers_otherwise_is_red_and_says_when(wrong_from: int, way: str) -> None:
    with pytest.raises(Red, match=f"eager: asked {way}, it answers"):
        hold(Vllm(ANSWERS, wrong_from=wrong_from))


def test_spoiled_vllm_is_red_at_its_first_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "spoiling", True)
    with pytest.raises(Red, match=r"eager: asked alone, it answers \[6, 6, 7, 8, 9\], the CPU \[5, 6, 7, 8, 9\]"):
        hold(Vllm(ANSWERS))


def test_vllm_whose_answers_do_not_depend_on_the_question_is_red() -> None:
    with pytest.raises(Red, match="2 different inputs give one answer"):
        hold(Vllm({first: [1, 2, 3, 4, 5] for first in ANSWERS}))


def test_vllm_whose_probabilities_are_not_numbers_is_red() -> None:
    with pytest.raises(Red, match="not finite"):
        hold(Vllm(ANSWERS, logprob=None))


@pytest.mark.parametrize(
    "line",
    [  # as 0.14 to 0.33 write it: vllm/platforms/cuda.py
        "(EngineCore pid=7) INFO cuda.py:308] Using AttentionBackendEnum.TRITON_ATTN backend.",
        "INFO cuda.py:369] Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].",
        "INFO cuda.py:448] Using TRITON_ATTN backend.",
    ],
)
def test_backend_is_read_from_the_log(line: str) -> None:
    assert vllm_generate.named_backend(line, "TRITON_ATTN") == "TRITON_ATTN"
    with pytest.raises(Red, match="`FLASHINFER` was asked for, the log says TRITON_ATTN"):
        vllm_generate.named_backend(line, "FLASHINFER")


def test_backend_of_another_kind_does_not_count() -> None:
    others = (
        "INFO nvfp4.py:36] Using CUTLASS backend for NvFp4 linear\n"
        "INFO selector.py:137] Using HND KV cache layout for FLASHINFER backend.\n"
        "INFO nvfp4.py:181] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN']\n"
    )
    with pytest.raises(Red, match="names no attention backend"):
        vllm_generate.named_backend(others, None)
    log = f"INFO cuda.py:308] Using AttentionBackendEnum.TRITON_ATTN backend.\n{others}"
    assert vllm_generate.named_backend(log, "TRITON_ATTN") == "TRITON_ATTN"


def test_a_second_backend_beside_the_one_asked_for_is_red() -> None:
    log = "Using TRITON_ATTN backend.\nUsing FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].\n"
    with pytest.raises(Red, match="the log says FLASH_ATTN, TRITON_ATTN"):
        vllm_generate.named_backend(log, "TRITON_ATTN")


SKIPPED = (  # 0.20.2: vllm/v1/worker/gpu_model_runner.py:6053
    "WARNING gpu_model_runner.py:6053] Skipping CUDA graph capture. To turn on CUDA graph capture, "
    "ensure `cudagraph_mode` was not manually set to `NONE`"
)
STARTED = "Capturing CUDA graphs (decode, FULL):   0%|          | 0/4 [00:00<?, ?it/s]"


@pytest.mark.parametrize(
    "line",
    [
        "INFO gpu_model_runner.py:6134] Graph capturing finished in 3 secs, took 0.05 GiB",
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%|##########| 5/5 [00:01<00:00,  3.5it/s]",
    ],
)
def test_graphs_are_read_from_the_log_and_must_not_be_in_an_eager_ones(line: str) -> None:
    assert vllm_generate.captured("with", f"{STARTED}\n{line}\n", eager=False) in line
    with pytest.raises(Red, match="eager: CUDA graphs were captured though `--enforce-eager`"):
        vllm_generate.captured("eager", f"{STARTED}\n{line}\n", eager=True)


def test_server_that_fell_back_to_eager_is_red() -> None:
    with pytest.raises(Red, match="with: the log names no CUDA graphs that were captured"):
        vllm_generate.captured("with", f"{STARTED}\n{SKIPPED}\n", eager=False)
    assert vllm_generate.captured("eager", SKIPPED, eager=True) == "none"


def test_log_that_names_no_backend_is_red() -> None:
    with pytest.raises(Red, match="names no attention backend: nothing of the kind"):
        vllm_generate.named_backend("starting\nnothing of the kind\n", None)


def test_unknown_variables_are_found_in_the_log() -> None:
    log = "WARNING envs.py:1830] Unknown vLLM environment variable detected: VLLM_NVFP4_MOE_BACKEND"
    assert vllm_generate.UNKNOWN.findall(log) == ["VLLM_NVFP4_MOE_BACKEND"]

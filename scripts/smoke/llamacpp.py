"""llama.cpp answers on the GPU as on the CPU: same tokens, close logits, all layers offloaded, and llama-bench runs.

It drives programs, so it stays outside of an image that has no Python: `--launch` says how they are started in one.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import garbage
from check import Check, Red, Skip, run, spoil
from serving import Server, last_words, serving

PROMPTS = ("Fetch, then build with the network off.", "user: Who are you?\nassistant:")  # where --expect has no others
TOKENS = 12
CANDIDATES = 10  # per token, whose log probabilities are compared
LOGPROB_BOUND = 0.05  # F16 weights, sums in another order: 0.010 on an H200. The tiny model's next best is further off
ROUNDS = 3  # llama.cpp with CUDA 13 on RTX 50 answered once and failed then
READY_S, ANSWER_S, BENCH_S = 300, 120, 300


def body(check: Check) -> None:
    """First the CPU, which says what is right, then the GPU."""
    if check.options.devices == "gpu":
        check.gpu(1)
    if not check.options.launch and not (Path(check.options.bin) / "llama-server").exists():
        raise Skip("missing", f"no llama-server in `{check.options.bin}`")
    expected = json.loads(check.options.expect.read_text()) if check.options.expect else {}
    prompts = tuple(expected) or PROMPTS
    check.facts |= {"devices": check.options.devices, "answers": {}}
    with tempfile.TemporaryDirectory(dir=check.options.work, prefix="llamacpp-") as name:
        folder = Path(name)
        folder.chmod(0o777)  # the image's user puts its socket here
        with serve(check, folder, "cpu") as server, check.stage("llama-server on the CPU: answer", ANSWER_S):
            right = [complete(server, prompt) for prompt in prompts]
        for prompt, answer in zip(prompts, right, strict=True):
            if prompt in expected and answer["content"] != expected[prompt]:
                raise Red(f"on the CPU `{answer['content']}`, the model must say `{expected[prompt]}`")
        judge("the CPU", right)
        if check.options.devices == "cpu":
            return
        with serve(check, folder, "gpu") as server:
            check.facts["offloaded"] = offloaded(server.said())
            for turn in range(ROUNDS):
                with check.stage(f"llama-server on the GPU: answer, round {turn + 1} of {ROUNDS}", ANSWER_S):
                    answers = [complete(server, prompt) for prompt in prompts]
                spoil(answers[0]["tokens"])
                judge("the GPU", answers)
                check.facts["largest_logprob_difference"] = same(right, answers)
            stage = check.stage("llama-server on the GPU: answer at once", ANSWER_S)
            with stage, ThreadPoolExecutor(len(prompts)) as pool:
                same(right, list(pool.map(lambda prompt: complete(server, prompt), prompts)))
        check.facts["answers"] = {prompt: answer["content"] for prompt, answer in zip(prompts, right, strict=True)}
        bench(check, folder)


def started(check: Check, folder: Path, program: str, *arguments: str) -> list[str]:
    """The command that runs a program of llama.cpp in this folder."""
    path = str(Path(check.options.bin, program).absolute())
    words = shlex.split(check.options.launch) if check.options.launch else [path]
    return [*(word.replace("{program}", path).replace("{folder}", str(folder)) for word in words), *arguments]


def serve(check: Check, folder: Path, device: str) -> Any:
    """llama-server with the model, on the CPU alone or with every layer on the GPU."""
    address = folder / f"{device}.sock"
    arguments = ["--model", str(check.options.model.absolute()), "--host", address.name]
    arguments += ["-c", "2048", "--parallel", "1", "-lv", "4"]  # 4: the log names the layers that are offloaded
    arguments += ["--device", "none"] if device == "cpu" else ["--n-gpu-layers", "99"]
    command = started(check, folder, "llama-server", *arguments)
    stage = f"llama-server on the {device.upper()}"
    log = folder / f"{device}.log"
    return serving(check, command, address=address, log=log, ready_s=READY_S, stage=stage, cwd=folder)


def complete(server: Server, prompt: str) -> dict[str, Any]:
    """One greedy answer with the candidates for each token."""
    chance = {"temperature": 0, "seed": 1, "cache_prompt": False}
    asked = {"prompt": prompt, "n_predict": TOKENS, "n_probs": CANDIDATES, "return_tokens": True, **chance}
    answer: dict[str, Any] = server.post("/completion", asked)
    return answer


def logprobs(answer: dict[str, Any]) -> list[dict[int, float]]:
    """Per token, the log probability of each candidate."""
    return [
        {candidate["id"]: candidate["logprob"] for candidate in token["top_logprobs"]}
        for token in answer["completion_probabilities"]
    ]


def judge(where: str, answers: list[dict[str, Any]]) -> None:
    """Raise Red where answers look like nonsense."""
    found = [sign for answer in answers for sign in garbage.signs(answer["tokens"], answer["content"])]
    for answer in answers:
        for candidates in logprobs(answer):
            numbers = [*candidates.values()]
            found += filter(None, [garbage.not_finite(numbers) or garbage.flat(numbers)])
    found += filter(None, [garbage.independent_of_input([answer["content"] for answer in answers])])
    if found:
        raise Red(f"on {where}: {'; '.join(dict.fromkeys(found))}")


def same(right: list[dict[str, Any]], answers: list[dict[str, Any]]) -> float:
    """Raise Red where tokens differ or log probabilities are far apart; returns the largest difference."""
    largest = 0.0
    for one, other in zip(right, answers, strict=True):
        prompt = one["prompt"]
        if one["tokens"] != other["tokens"]:
            said = [f"`{answer['content']}` {answer['tokens']}" for answer in (one, other)]
            raise Red(f"`{prompt}`: on the CPU {said[0]}, on the GPU {said[1]}")
        for on_cpu, on_gpu in zip(logprobs(one), logprobs(other), strict=True):
            shared = on_cpu.keys() & on_gpu.keys()
            if len(shared) < len(on_cpu) - 2:  # the last of them may change places with what comes after
                raise Red(f"`{prompt}`: the GPU has other candidates than the CPU")
            largest = max([largest, *(abs(on_cpu[token] - on_gpu[token]) for token in shared)])
    if largest > LOGPROB_BOUND:
        raise Red(f"log probabilities differ by {largest:.3f} between CPU and GPU; {LOGPROB_BOUND} is allowed")
    return round(largest, 5)


def offloaded(log: str) -> str:
    """What the log says of layers on the GPU; Red unless it is all of them."""
    found = re.search(r"offloaded (\d+)/(\d+) layers to GPU", log)
    if found is None:
        raise Red(f"the server's log names no layers on the GPU: {last_words(log)}")
    if found[1] != found[2]:
        raise Red(f"only {found[1]} of {found[2]} layers are on the GPU")
    return f"{found[1]}/{found[2]}"


def bench(check: Check, folder: Path) -> None:
    """llama-bench on the GPU."""
    arguments = ["-m", str(check.options.model.absolute()), "-ngl", "99", "-o", "json"]
    arguments += ["-p", "64", "-n", "16", "-r", "2"]
    with check.stage("llama-bench on the GPU", BENCH_S):
        done = check.finished(started(check, folder, "llama-bench", *arguments))
    if done.returncode:
        raise Red(f"llama-bench ends with {done.returncode}: {last_words(done.stderr)}")
    runs = json.loads(done.stdout)
    if "CUDA" not in {part for entry in runs for part in entry["backends"].split(",")}:
        raise Red(f"llama-bench ran on {', '.join(sorted({entry['backends'] for entry in runs}))}, not on CUDA")
    check.facts["tokens_per_second"] = {
        f"prompt {entry['n_prompt']}" if entry["n_prompt"] else f"generate {entry['n_gen']}": round(entry["avg_ts"])
        for entry in runs
    }


if __name__ == "__main__":
    run(
        "llamacpp",
        __doc__ or "",
        body,
        ("--model", {"type": Path, "required": True, "metavar": "GGUF", "help": "small enough for the CPU as well"}),
        ("--expect", {"type": Path, "metavar": "JSON", "help": "prompt -> what the model must say"}),
        ("--bin", {"default": "/opt/llama.cpp/bin", "metavar": "FOLDER", "help": "with the programs"}),
        ("--launch", {"default": "", "metavar": "COMMAND", "help": "what starts {program} of an image in {folder}"}),
        ("--devices", {"choices": ("gpu", "cpu"), "default": "gpu", "help": "cpu: only the part that needs no GPU"}),
    )

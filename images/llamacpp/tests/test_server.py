"""llama-server for real: it loads a model and answers as the model must, refuses what is no model, and ends in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from docker import DockerClient
from docker.models.containers import Container

from spark_images.engine.containers import running
from spark_images.imagetest import ImageUnderTest
from spark_images.ingredients import source_of
from spark_images.tinygguf import greedy_answer, prompt_tokens, write_tiny_gguf

MODELS = "/models"
# Prompts whose best words lead by so much that no order of floating-point sums can change them.
QUESTION = "Who are you?"
PROMPTS = (
    "Fetch, then build with the network off.",
    "ARM64 (10 + 10 Kerne) \u2013 größtenteils",
    f"user: {QUESTION}\nassistant:",
)
TOKENS = 12
MARGIN = 0.05  # logits
READY_TIMEOUT_S = 120  # 0.7 s under emulation on a quiet machine
REQUEST_TIMEOUT_S = 120  # 1 s under emulation on a quiet machine
EXIT_TIMEOUT_S = 60  # 0.3 s under emulation on a quiet machine
STOP_TIMEOUT_S = 10  # Docker kills what has not ended 10 s after SIGTERM
Start = Callable[..., AbstractContextManager[Container]]


@dataclass(frozen=True)
class Server:
    """A llama-server that answers on the loopback."""

    container: Container
    url: str
    http: requests.Session

    def get(self, path: str) -> requests.Response:
        return self.http.get(self.url + path, timeout=REQUEST_TIMEOUT_S)

    def post(self, path: str, **body: Any) -> requests.Response:
        return self.http.post(self.url + path, json=body, timeout=REQUEST_TIMEOUT_S)

    def complete(self, prompt: str, tokens: int = TOKENS) -> dict[str, Any]:
        """A completion without chance: temperature 0, fixed seed, nothing kept from earlier requests."""
        chance = {"temperature": 0, "seed": 1, "cache_prompt": False}
        answer = self.post("/v1/completions", prompt=prompt, max_tokens=tokens, **chance)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body


@pytest.fixture(scope="module")
def models(shared_folder: Path) -> Path:
    """tiny.gguf, and three files that are no models."""
    tiny = shared_folder / "tiny.gguf"
    write_tiny_gguf(tiny)
    content = tiny.read_bytes()
    (shared_folder / "truncated.gguf").write_bytes(content[: len(content) // 2])
    (shared_folder / "garbage.gguf").write_bytes(b"not a model\n" * 1000)
    (shared_folder / "empty.gguf").write_bytes(b"")
    for path in shared_folder.iterdir():
        path.chmod(0o644)
    return shared_folder


@pytest.fixture(scope="module")
def start(client: DockerClient, under_test: ImageUnderTest, models: Path) -> Start:
    """Start the image as users do, with further arguments; the models are mounted read-only."""

    def with_arguments(*arguments: str, network: str = "none") -> AbstractContextManager[Container]:
        return running(
            client,
            under_test.reference,
            command=list(arguments),
            network=network,
            mounts={models: MODELS},
            read_only=True,
        )

    return with_arguments


@contextmanager
def serving(start: Start, port: int) -> Iterator[Server]:
    """A server with the tiny model that has become healthy."""
    # An address of our own: the image listens on all of them, and here the network is the host's.
    arguments = ("--model", f"{MODELS}/tiny.gguf", "--host", "127.0.0.1", "--port", str(port))
    options = ("-c", "2048", "-t", "2", "--no-warmup")
    with start(*arguments, *options, network="host") as container, requests.Session() as http:
        http.trust_env = False  # no proxy for the loopback
        server = Server(container, f"http://127.0.0.1:{port}", http)
        wait_until(lambda: is_healthy(server), container)
        yield server


def is_healthy(server: Server) -> bool:
    try:
        return server.http.get(f"{server.url}/health", timeout=5).status_code == 200
    except requests.RequestException:
        return False


def wait_until(is_so: Callable[[], bool], container: Container) -> None:
    """Poll; fail with the container's log when it ends or time runs out."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not is_so():
        container.reload()
        if container.status == "exited" or time.monotonic() > deadline:
            pytest.fail(f"llama-server does not get ready ({container.status}):\n{log_of(container)}")
        time.sleep(0.2)


def log_of(container: Container) -> str:
    """All that the container has printed."""
    printed: bytes = container.logs(stdout=True, stderr=True)
    return printed.decode(errors="replace")


@pytest.fixture(scope="module")
def server(start: Start, free_port: Callable[[], int]) -> Iterator[Server]:
    """One server for all tests that leave it as it was."""
    with serving(start, free_port()) as found:
        yield found


def test_health_says_ok(server: Server) -> None:
    answer = server.get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("prompt", PROMPTS, ids=["ascii", "utf8", "chat"])
def test_completion_is_the_one_that_the_model_must_give(server: Server, prompt: str) -> None:
    expected = greedy_answer(prompt_tokens(prompt), TOKENS)
    assert expected.margin > MARGIN
    assert server.complete(prompt)["choices"][0]["text"] == expected.text


def test_completion_counts_its_tokens(server: Server) -> None:
    answer = server.complete(PROMPTS[0], tokens=5)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["prompt_tokens"] == len(prompt_tokens(PROMPTS[0]))
    assert answer["usage"]["completion_tokens"] == 5


def test_same_request_gives_the_same_answer_and_another_gives_another(server: Server) -> None:
    first, again, other = (server.complete(prompt)["choices"] for prompt in (PROMPTS[0], PROMPTS[0], PROMPTS[1]))
    assert first == again
    assert first != other


def test_requests_at_once_get_the_answers_that_they_get_alone(server: Server) -> None:
    prompts = PROMPTS + PROMPTS[:1]
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(server.complete, prompts))
    expected = [greedy_answer(prompt_tokens(prompt), TOKENS).text for prompt in prompts]
    assert [answer["choices"][0]["text"] for answer in answers] == expected


def test_chat_completion_answers_through_the_models_template(server: Server) -> None:
    question = {"role": "user", "content": QUESTION}
    answer = server.post("/v1/chat/completions", messages=[question], max_tokens=TOKENS, temperature=0, seed=1)
    assert answer.status_code == 200, answer.text
    choice = answer.json()["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].strip() == greedy_answer(prompt_tokens(PROMPTS[2]), TOKENS).text.strip()


def test_streamed_completion_is_the_same_in_pieces(server: Server) -> None:
    answer = server.post("/v1/completions", prompt=PROMPTS[0], max_tokens=TOKENS, temperature=0, seed=1, stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    pieces = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert len(pieces) >= TOKENS
    assert "".join(pieces) == greedy_answer(prompt_tokens(PROMPTS[0]), TOKENS).text


def test_bad_request_is_refused_and_the_server_goes_on(server: Server) -> None:
    answer = server.http.post(f"{server.url}/v1/completions", data="{", timeout=30)
    assert answer.status_code >= 400
    assert "error" in answer.json()
    assert server.get("/health").status_code == 200


def test_server_names_the_pinned_build(server: Server, under_test: ImageUnderTest) -> None:
    pin = source_of(under_test.image, under_test.project.pins)
    number, dash, commit = server.complete(PROMPTS[0], tokens=1)["system_fingerprint"].partition("-")
    assert (number, dash) == (pin.version, "-")
    assert len(commit) >= 7
    assert pin.commit.startswith(commit)


def test_version_prints_the_pinned_build(start: Start, under_test: ImageUnderTest) -> None:
    pin = source_of(under_test.image, under_test.project.pins)
    with start("--version") as container:
        status = container.wait(timeout=EXIT_TIMEOUT_S)["StatusCode"]
        printed = log_of(container)
    assert status == 0, printed
    assert f"(build {pin.version.removeprefix('b')}, commit {pin.commit[:7]}" in printed


def test_server_listens_on_all_addresses_unless_told_otherwise(start: Start) -> None:
    with start("--model", f"{MODELS}/tiny.gguf", "-c", "512", "--no-warmup", network="none") as container:
        wait_until(lambda: "listening on http://0.0.0.0:8080" in log_of(container), container)


@pytest.mark.parametrize("name", ["truncated.gguf", "garbage.gguf", "empty.gguf", "missing.gguf"])
def test_file_that_is_no_model_makes_the_server_exit_with_an_error(start: Start, name: str) -> None:
    with start("--model", f"{MODELS}/{name}", "-c", "512", "-t", "2", "--no-warmup") as container:
        status = container.wait(timeout=EXIT_TIMEOUT_S)["StatusCode"]
        printed = log_of(container)
    assert status == 1, printed
    assert f"failed to load model, '{MODELS}/{name}'" in printed


def test_flag_that_the_server_does_not_know_ends_it_with_an_error(start: Start) -> None:
    with start("--no-such-flag") as container:
        status = container.wait(timeout=EXIT_TIMEOUT_S)["StatusCode"]
        printed = log_of(container)
    assert status == 1, printed
    assert "invalid argument: --no-such-flag" in printed


@pytest.mark.parametrize("signal", ["SIGTERM", "SIGINT"])
def test_signal_ends_the_server_in_time(start: Start, free_port: Callable[[], int], signal: str) -> None:
    with serving(start, free_port()) as server:
        server.complete(PROMPTS[0], tokens=1)  # only now it is certain that the server handles signals
        server.container.kill(signal)
        status = server.container.wait(timeout=STOP_TIMEOUT_S)["StatusCode"]
        printed = log_of(server.container)
    assert status == 0, printed
    assert "cleaning up before exit" in printed

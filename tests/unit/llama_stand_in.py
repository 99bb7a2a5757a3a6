"""A stand-in for llama.cpp's programs: answers as the checks expect, and wrongly where FAULT says how.

Run as `llama-server` it serves HTTP on a UNIX socket, as `llama-bench` it prints JSON.
"""

from __future__ import annotations

import json
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAULT", "")
WORDS = sys.argv[1:]
ON_GPU = "--n-gpu-layers" in WORDS


def option(name: str) -> str:
    return WORDS[WORDS.index(name) + 1]


class Handler(BaseHTTPRequestHandler):
    answered = 0

    def do_GET(self) -> None:
        self._send(200, {"status": "ok"})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Handler.answered += 1
        if FAULT == "second-request" and ON_GPU and Handler.answered > 1:
            return self._send(500, {"error": "ggml_cuda_mul_mat_q: invalid argument"})
        tokens = [(len(asked["prompt"]) * (at + 3)) % 97 for at in range(asked["n_predict"])]
        shift = 0.0
        if ON_GPU and FAULT == "tokens":
            tokens[5] += 1
        if ON_GPU and FAULT == "logits":
            shift = 0.5
        if FAULT == "repeats":
            tokens = [7] * len(tokens)
        if FAULT == "one-answer":
            tokens = list(range(len(tokens)))
        text = "!" * 20 if FAULT == "exclamations" else " ".join(map(str, tokens))
        nothing = FAULT == "nan" and ON_GPU
        candidates = [
            [{"id": token + more, "logprob": None if nothing else -0.1 - more - shift} for more in range(10)]
            for token in tokens
        ]
        answer: dict[str, Any] = {"prompt": asked["prompt"], "tokens": tokens, "content": text}
        self._send(200, {**answer, "completion_probabilities": [{"top_logprobs": one} for one in candidates]})

    def address_string(self) -> str:
        return "a socket"

    def _send(self, status: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def serve() -> None:
    if FAULT == "dies" and ON_GPU:
        sys.exit("error: no kernel image is available for execution on the device")
    if ON_GPU:
        print(f"load_tensors: offloaded {'2' if FAULT == 'layers' else '3'}/3 layers to GPU", flush=True)
    with socketserver.ThreadingUnixStreamServer(option("--host"), Handler) as server:
        server.serve_forever()


def bench() -> None:
    backend = "CPU" if FAULT == "bench" else "CUDA"
    print(json.dumps([{"backends": backend, "n_prompt": 64, "n_gen": 0, "avg_ts": 1000.4}]))


if __name__ == "__main__":
    bench() if Path(sys.argv[0]).name == "llama-bench" else serve()

"""A server under test: started with its log in a file, asked over HTTP on the loopback or a UNIX socket, stopped."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from check import Check, Red

STOP_S = 60


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a UNIX socket: a container without a network can be asked through a folder that both have."""

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY)  # a socket's path may have 107 bytes at most
        try:
            self.sock.connect(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)


class Server:
    """A server that answers. address: a port of the loopback, or the path of a UNIX socket."""

    def __init__(self, process: subprocess.Popen[bytes], address: int | Path, log: Path) -> None:
        self.process, self.address, self.log = process, address, log

    def ask(self, method: str, path: str, body: object = None, timeout_s: float = 120) -> tuple[int, bytes]:
        """Status and body of one request."""
        if isinstance(self.address, int):
            connection = http.client.HTTPConnection("127.0.0.1", self.address, timeout=timeout_s)
        else:
            connection = _UnixConnection(self.address, timeout_s)
        with contextlib.closing(connection):
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()

    def post(self, path: str, body: object) -> Any:
        """The JSON answer to a request that must succeed."""
        status, text = self.ask("POST", path, body)
        if status != 200:
            raise Red(f"{path} answers {status}: {text.decode(errors='replace')[:400]}")
        return json.loads(text)

    def said(self) -> str:
        """All that the server has printed."""
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def serving(
    check: Check,
    command: Sequence[str],
    *,
    address: int | Path,
    log: Path,
    ready_s: float,
    stage: str,
    cwd: Path | None = None,
) -> Iterator[Server]:
    """Start the command, wait until /health says 200, yield; SIGTERM at the end, which must do within a minute."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=cwd
        )
    check.groups.append(process.pid)
    server = Server(process, address, log)
    try:
        with check.stage(f"{stage}: start", ready_s):
            while not _healthy(server):
                if process.poll() is not None:
                    words = last_words(server.said())
                    raise Red(f"{stage}: ended with {process.returncode} before it answered: {words}")
                time.sleep(0.2)
        yield server
        with check.stage(f"{stage}: stop", STOP_S):
            process.send_signal(signal.SIGTERM)
            process.wait()
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        check.groups.remove(process.pid)


def free_port() -> int:
    """A TCP port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def last_words(log: str) -> str:
    """The line of the log that says most: the last one with an error, else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it printed nothing"])[-1][:400]


def _healthy(server: Server) -> bool:
    try:
        return server.ask("GET", "/health", timeout_s=5)[0] == 200
    except (OSError, http.client.HTTPException):
        return False

"""An HTTP proxy on loopback before a real registry, that does to requests what the way to a registry does to them."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

BLOCK = 1 << 16


@dataclass
class Fault:
    """What happens to requests of a method and a path, `times` in a row after the first `after` of them.

    act: gets the exchange in place of the registry. times: None for ever.
    """

    method: str
    path: str  # a regular expression that is searched for
    act: Callable[[Exchange], None]
    times: int | None = 1
    after: int = 0
    happened: int = 0
    seen: int = 0


@dataclass
class Proxy:
    """host: what clients talk to. requests: `METHOD /path`, in order. body_bytes: of all bodies that came."""

    host: str
    upstream: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    body_bytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    guard: Guard | None = None

    def add(self, method: str, path: str, act: Callable[[Exchange], None], **options: int | None) -> Fault:
        fault = Fault(method, path, act, **options)  # type: ignore[arg-type]
        self.faults.append(fault)
        return fault

    def count(self, method: str, path: str) -> int:
        pattern = re.compile(f"{method} .*{path}")
        return sum(1 for request in self.requests if pattern.match(request))


@dataclass
class Guard:
    """Token authentication before a registry that has none. A token is good for so many seconds."""

    user: str
    password: str
    token_s: float = 600
    issued: list[str] = field(default_factory=list)
    until: dict[str, float] = field(default_factory=dict)
    scopes: list[list[str]] = field(default_factory=list)


class Exchange:
    """One request under way."""

    def __init__(self, handler: BaseHTTPRequestHandler, proxy: Proxy) -> None:
        self.handler, self.proxy = handler, proxy
        self.left = int(handler.headers.get("Content-Length") or 0)

    def read(self, size: int) -> bytes:
        """Some of the request's body."""
        data = self.handler.rfile.read(min(size, self.left))
        self.left -= len(data)
        with self.proxy.lock:
            self.proxy.body_bytes += len(data)
        return data

    def drain(self) -> None:
        while self.left and self.read(BLOCK):
            pass

    def reset(self) -> None:
        """Cut the client's connection with an RST."""
        connection = self.handler.connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.handler.close_connection = True
        connection.close()

    def answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.handler.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.handler.send_header(name, value)
        self.handler.end_headers()
        if self.handler.command != "HEAD":
            self.handler.wfile.write(body)

    def forward(
        self,
        *,
        change: Callable[[list[tuple[str, str]]], list[tuple[str, str]]] = lambda headers: headers,
        break_after: int | None = None,
        bytes_per_s: int | None = None,
        answer: bool = True,
    ) -> int:
        """Let the registry answer; its status. break_after: bytes of the body after which it is left in the lurch.

        change: of the answer's headers. answer: False keeps the answer from the client.
        """
        upstream = http.client.HTTPConnection(self.proxy.upstream, timeout=60)
        try:
            upstream.putrequest(self.handler.command, self.handler.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.handler.headers.items():
                if name.lower() not in ("connection",) and not (self.proxy.guard and name.lower() == "authorization"):
                    upstream.putheader(name, value)
            upstream.endheaders()
            done = 0
            while self.left:
                block = self.read(BLOCK if break_after is None else min(BLOCK, break_after - done) or 1)
                if not block:
                    return 0
                upstream.send(block)
                done += len(block)
                if bytes_per_s:
                    time.sleep(len(block) / bytes_per_s)
                if break_after is not None and done >= break_after:
                    return 0
            response = upstream.getresponse()
            if not answer:
                response.read()
                return response.status
            self.handler.send_response(response.status, response.reason)
            for name, value in change(response.getheaders()):
                if name.lower() not in ("connection", "date", "server"):
                    self.handler.send_header(name, value)
            self.handler.end_headers()
            while block := response.read(BLOCK):
                self.handler.wfile.write(block)
            return response.status
        finally:
            upstream.close()


def reset_in_body(after: int, *, registry_gets_it: bool) -> Callable[[Exchange], None]:
    """The connection breaks in the middle of a body. registry_gets_it: what came until then, or nothing of it."""

    def act(exchange: Exchange) -> None:
        if registry_gets_it:
            exchange.forward(break_after=after)
            time.sleep(0.2)  # so that the registry has noticed
        else:
            taken = 0
            while taken < after and exchange.left:
                taken += len(exchange.read(min(BLOCK, after - taken)))
        exchange.reset()

    return act


def lose_answer(exchange: Exchange) -> None:
    """The registry does it, and nobody hears."""
    exchange.forward(answer=False)
    exchange.reset()


def status(code: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Exchange], None]:
    """An answer that the registry did not give."""

    def act(exchange: Exchange) -> None:
        exchange.drain()
        exchange.answer(code, headers, body)

    return act


def limit_body(most: int) -> Callable[[Exchange], None]:
    """413 at once for a larger body, as nginx does it."""

    def act(exchange: Exchange) -> None:
        if exchange.left > most:
            exchange.answer(413, {"Content-Type": "text/html", "Connection": "close"}, b"<html>413</html>")
            exchange.handler.close_connection = True
            exchange.drain()
        else:
            exchange.forward()

    return act


def lose_blob(exchange: Exchange) -> None:
    """The registry accepts a blob and has it no more."""
    exchange.forward(answer=False)
    name, digest = re.findall(r"/v2/(.+)/blobs/uploads/.*digest=(sha256:[0-9a-f]+)", exchange.handler.path)[0]
    upstream = http.client.HTTPConnection(exchange.proxy.upstream, timeout=60)
    upstream.request("DELETE", f"/v2/{name}/blobs/{digest}")
    assert upstream.getresponse().status == 202
    upstream.close()
    exchange.answer(201, {"Docker-Content-Digest": digest})


def wrong_digest(exchange: Exchange) -> None:
    """The answer names another digest than what was stored or served has."""

    def change(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        kept = [(name, value) for name, value in headers if name.lower() != "docker-content-digest"]
        return [*kept, ("Docker-Content-Digest", f"sha256:{'0' * 64}")]

    exchange.forward(change=change)


def slow(bytes_per_s: int) -> Callable[[Exchange], None]:
    """A narrow line."""

    def act(exchange: Exchange) -> None:
        exchange.forward(bytes_per_s=bytes_per_s)

    return act


@contextmanager
def fault_proxy(upstream: str, guard: Guard | None = None) -> Iterator[Proxy]:
    """A proxy before the registry at `upstream`."""
    proxy = Proxy("", upstream, guard=guard)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (OSError, http.client.HTTPException):
                self.close_connection = True

        def exchange(self) -> None:
            exchange = Exchange(self, proxy)
            if proxy.guard and not let_in(exchange, proxy.guard, proxy.host):
                return
            act: Callable[[Exchange], object] = Exchange.forward
            with proxy.lock:
                proxy.requests.append(f"{self.command} {self.path}")
                for fault in proxy.faults:
                    if fault.method == self.command and re.search(fault.path, self.path):
                        fault.seen += 1
                        if fault.seen > fault.after and (fault.times is None or fault.happened < fault.times):
                            fault.happened += 1
                            act = fault.act
                            break
            act(exchange)

        do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = exchange

        def log_message(self, *words: object) -> None:
            """Nothing on the test's terminal."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def let_in(exchange: Exchange, guard: Guard, host: str) -> bool:
    """Answer what is no request to the registry, or comes without a good token."""
    import base64
    from urllib.parse import parse_qs, urlsplit

    handler = exchange.handler
    given = handler.headers.get("Authorization", "")
    if handler.path.startswith("/token"):
        pair = base64.b64encode(f"{guard.user}:{guard.password}".encode()).decode()
        if given != f"Basic {pair}":
            exchange.answer(401)
            return False
        with exchange.proxy.lock:
            guard.issued.append(token := f"tok-{secrets.token_hex(16)}")
            guard.until[token] = time.monotonic() + guard.token_s
            guard.scopes.append(parse_qs(urlsplit(handler.path).query).get("scope", []))
        body = {
            "token": token,
            "expires_in": 1,
            "issued_at": "2001-01-01T00:00:00Z",
        }  # a clock that is wrong by decades
        exchange.answer(200, {"Content-Type": "application/json"}, json.dumps(body).encode())
        return False
    token = given.removeprefix("Bearer ")
    if guard.until.get(token, 0) > time.monotonic():
        return True
    exchange.drain()
    name = "/".join(urlsplit(handler.path).path.split("/")[2:4])
    rights = "pull" if handler.command in ("GET", "HEAD") else "pull,push"
    challenge = f'Bearer realm="http://{host}/token",service="test",scope="repository:{name}:{rights}"'
    refusal = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
    exchange.answer(401, {"WWW-Authenticate": challenge, "Content-Type": "application/json"}, refusal)
    return False

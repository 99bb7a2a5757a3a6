"""A real HTTP server on loopback that serves what a test gives it, as badly as the test asks."""

from __future__ import annotations

import base64
import hashlib
import ssl
import threading
import time
from collections import defaultdict, deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from spark_images.pins import FileContent, FileRoute


class FileServer:
    """files: path -> bytes. ills: path -> what goes wrong with the next requests, one after another.

    An ill is a status ("503"), "hang" (headers, then nothing), "trickle" (a byte now and then), "cut" (half of the
    body, then the connection ends), or "plain" (all of it, whatever range was asked).
    asked: (path, Range header or "") of every request.
    """

    def __init__(self, *, certificate: tuple[Path, Path] | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.types: dict[str, str] = {}
        self.redirects: dict[str, str] = {}
        self.logins: dict[str, tuple[str, str]] = {}
        self.ills: dict[str, deque[str]] = defaultdict(deque)
        self.asked: list[tuple[str, str]] = []
        self.most_at_once = 0
        self.pause_s = 0.0  # between pieces of a body
        self._at_once = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.scheme = "http"
        if certificate is not None:
            self.scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def url(self, path: str) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}{path}"

    def ranges(self, path: str) -> list[str]:
        """The Range headers of the requests for a path."""
        return [span for asked, span in self.asked if asked == path]

    def _handler(outer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                with outer._lock:
                    outer._at_once += 1
                    outer.most_at_once = max(outer.most_at_once, outer._at_once)
                try:
                    self.answer()
                finally:
                    with outer._lock:
                        outer._at_once -= 1

            do_HEAD = do_GET

            def answer(self) -> None:
                span = self.headers.get("Range", "")
                outer.asked.append((self.path, span))
                ill = outer.ills[self.path].popleft() if outer.ills[self.path] else ""
                login = outer.logins.get(self.path)
                if login and self.headers.get("Authorization") != "Basic " + base64.b64encode(
                    ":".join(login).encode()
                ).decode("ascii"):
                    return self.empty(401)
                if ill.isdecimal():
                    return self.empty(int(ill))
                if self.path in outer.redirects:
                    return self.empty(302, outer.redirects[self.path])
                if self.path not in outer.files:
                    return self.empty(404)
                body = outer.files[self.path]
                begin = int(span.removeprefix("bytes=").rstrip("-")) if span and ill != "plain" else 0
                if span and begin >= len(body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(body)}")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return None
                self.send_response(206 if begin else 200)
                if begin:
                    self.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
                self.send_header("Content-Length", str(len(body) - begin))
                self.send_header("Content-Type", outer.types.get(self.path, "application/octet-stream"))
                self.end_headers()
                if self.command != "HEAD":
                    self.send_body(body[begin:], ill)
                return None

            def send_body(self, body: bytes, ill: str) -> None:
                if ill == "hang":
                    outer._over.wait(30)
                elif ill == "trickle":
                    for byte in body:
                        self.wfile.write(bytes([byte]))
                        if outer._over.wait(0.05):
                            break
                elif ill == "cut":
                    self.wfile.write(body[: len(body) // 2])
                else:
                    for begin in range(0, len(body), 1 << 16):
                        self.wfile.write(body[begin : begin + (1 << 16)])
                        time.sleep(outer.pause_s)
                self.close_connection = self.close_connection or bool(ill)

            def empty(self, status: int, location: str = "") -> None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            def handle(self) -> None:
                try:
                    super().handle()
                except ConnectionError:
                    return  # the client went away, as some tests want it to

            def log_message(self, format: str, *arguments: object) -> None:
                return

        return Handler


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def file_content(data: bytes, *routes: FileRoute, label: str = "thing.bin", size_bytes: int | None = -1) -> FileContent:
    """The content of a pin `thing`; size_bytes=None leaves the size open."""
    size = len(data) if size_bytes == -1 else size_bytes
    return FileContent(pin="thing", label=label, digest=digest(data), size_bytes=size, routes=routes)

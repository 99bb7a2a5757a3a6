"""An HTTP server that takes GET and PUT below a folder, as a WebDAV server or a bucket does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class FileStore:
    """The server while it runs."""

    url: str
    folder: Path
    server: ThreadingHTTPServer

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serve_files(folder: Path, address: str = "127.0.0.1") -> Iterator[FileStore]:
    """A server on a free port. folder: made if need be."""
    folder.mkdir(parents=True, exist_ok=True)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            file = folder / self.path.lstrip("/")
            self._answer(200, file.read_bytes()) if file.is_file() else self._answer(404)

        def do_PUT(self) -> None:
            file = folder / self.path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(201)

        def _answer(self, status: int, data: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the test says what it looks at."""

    server = ThreadingHTTPServer((address, 0), Handler)
    store = FileStore(f"http://{address}:{server.server_port}", folder, server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.stop()
        thread.join()

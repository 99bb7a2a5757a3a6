"""One blob into a registry: only if it is not there, in chunks, and after a break on from where the registry is.

A chunk shrinks where a proxy on the way refuses it for its size (413) or gives up on it (5xx, a cut connection), and
grows while it takes little time, so that no request lasts long. distribution, as it is, cannot go on with an upload
whose chunk arrived in part, nor can Gitea: such a blob begins anew, and all that is complete stays.
"""

from __future__ import annotations

import enum
import hashlib
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from spark_images.download import LEAST_READ_BYTES, Transfer, TransferError, without_credentials
from spark_images.exclusive import alone
from spark_images.files import read_json, write_text
from spark_images.registry.answers import Missing, said_by
from spark_images.registry.client import Client

if TYPE_CHECKING:
    import requests

MIB = 1 << 20
FIRST_CHUNK = 16 * MIB
LEAST_CHUNK = 1 * MIB  # nginx, as it comes, takes that much in a body
MOST_CHUNK = 128 * MIB
QUICK_S, LONG_S = 3.0, 20.0  # proxies end requests after 60 s
RESTARTS = 5  # of one blob in one run
GIVEN_UP = 3  # a broken chunk and a 5xx for the next, as Gitea has it for ever after, or that many 5xx in a row


class Sent(enum.Enum):
    """How a blob came to be there."""

    PRESENT = "there already"
    MOUNTED = "taken over from another repository"
    UPLOADED = "uploaded"


class _Chunk(io.RawIOBase):
    """A part of a file as a request's body. on_bytes: told of what was handed on."""

    def __init__(self, path: Path, start: int, size: int, on_bytes: Callable[[int], None]) -> None:
        self._file = path.open("rb")
        self._start, self._size, self._on_bytes = start, size, on_bytes
        self.seek(0)

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell() - self._start

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        return self._file.seek(self._start + base + offset) - self._start

    def read(self, size: int = -1) -> bytes:
        left = self._size - self.tell()
        data = self._file.read(left if size < 0 else min(size, left))
        self._on_bytes(self.tell())
        return data

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class BlobUpload:
    """A blob on its way. states: a folder that remembers uploads over the end of the process; secrets may be in it."""

    def __init__(
        self,
        client: Client,
        blob: Path,
        *,
        digest: str,
        transfer: Transfer,
        states: Path,
        mount_from: str = "",
    ) -> None:
        self.client, self.blob, self.digest = client, blob, digest
        self.size = blob.stat().st_size
        self.transfer = transfer
        self.mount_from = mount_from
        self.sent_bytes = 0  # over the wire, breaks included
        self._key = hashlib.sha256(f"{client.repository} {digest}".encode()).hexdigest()[:32]
        self._states = states
        self._location = ""
        self._offset = 0
        self._chunk = FIRST_CHUNK
        self._restarts = 0
        self._doubt = 0  # how much speaks for it that the registry can no longer go on with this upload
        self._failed = False
        self._mounted = False

    def run(self) -> Sent:
        """Make sure that the blob is there. RegistryError where that cannot be done."""
        self._states.mkdir(parents=True, exist_ok=True)
        self._states.chmod(0o700)
        with alone(self._states / f"{self._key}.lock", on_wait=lambda: None):  # another push here sends the same blob
            if self._there():
                return Sent.PRESENT
            self._recall()
            self.client.persist(self._attempt)
            self._forget()
        return Sent.MOUNTED if self._mounted else Sent.UPLOADED

    def _there(self) -> bool:
        there = self.client.has_blob(self.digest, self.size)
        if there:
            self.transfer.done_bytes = self.size
        return there

    def _attempt(self) -> None:
        before = self._offset
        try:
            if self._failed and self._there():
                return  # only the answer was lost
            if self._location:
                self._look()
            if not self._location:
                self._begin()
            while not self._mounted and self._offset < self.size:
                self._send()
            if not self._mounted:
                self._finish()
            if not self._there():
                self._restart()
                raise TransferError(f"the registry took {self.digest} and does not have it", passing=True)
        except TransferError as err:
            self._failed = True
            err.progress = err.progress or self._offset - before >= LEAST_READ_BYTES
            if self._restarts > RESTARTS:
                err.progress = err.passing = False
            raise

    def _begin(self) -> None:
        self._offset = 0
        url = "blobs/uploads/"
        response = None
        if self.mount_from:
            mount, self.mount_from = self.mount_from, ""  # once: it works or it does not
            response = self.client.once("POST", f"{url}?mount={self.digest}&from={mount}")
            if response.status_code == 201:
                self._mounted = True
                return
        if response is None or response.status_code != 202:  # it may be that the other repository is not ours to read
            response = self.client.once("POST", url)
        try:
            self.client.check(response, (202,))
        except Missing as missing:
            asked = without_credentials(response.url)
            raise self.client.error(f"POST {asked}: 404 {missing.code}; is the name right?") from None
        least = response.headers.get("OCI-Chunk-Min-Length", "")
        self._chunk = max(self._chunk, int(least) if least.isdecimal() else 0)
        self._take_location(response)

    def _look(self) -> None:
        """Where the registry is, after a break or in a new process; an upload that it does not know begins anew."""
        response = self.client.once("GET", self._location)
        if response.status_code == 204:
            self._offset = _received(response)
            self._take_location(response)
        elif response.status_code >= 500 or response.status_code == 429:
            self._doubt += 1
            if self._doubt >= GIVEN_UP:
                self._restart()
            self.client.check(response, (204,))
        else:
            self._restart()
        self.transfer.done_bytes = self._offset

    def _send(self) -> None:
        """One chunk. Nothing is tried again here: `_attempt` looks first where the registry is."""
        size = min(self._chunk, self.size - self._offset)
        began = time.monotonic()
        with _Chunk(self.blob, self._offset, size, self._on_bytes) as body:
            headers = {
                "Content-Type": "application/octet-stream",
                "Content-Range": f"{self._offset}-{self._offset + size - 1}",
            }
            try:
                response = self.client.once("PATCH", self._location, headers=headers, data=body)
            except TransferError:
                self._shrink()
                self._doubt += 2
                raise
        status = response.status_code
        if status == 413 and size > LEAST_CHUNK:
            self._shrink()
            raise TransferError(f"a body of {size} bytes is too large for a proxy on the way", passing=True)
        if status >= 500:
            self._shrink()
            self._doubt += 1
            if self._doubt >= GIVEN_UP:
                self._restart()
        if status in (404, 416):
            if status == 404:
                self._restart()
            raise TransferError(f"PATCH: {status} {said_by(response)[1]}", passing=True)
        self.client.check(response, (202, 201, 204))
        self._offset += size
        self._doubt = 0
        if "Range" in response.headers and _received(response) != self._offset:
            self._restart()
            raise TransferError(f"the registry counts {response.headers['Range']}", passing=True)
        self._take_location(response)
        took = time.monotonic() - began
        if took > LONG_S:
            self._shrink()
        elif took < QUICK_S and size == self._chunk:
            self._chunk = min(self._chunk * 2, MOST_CHUNK)

    def _finish(self) -> None:
        joint = "&" if "?" in self._location else "?"
        url = f"{self._location}{joint}digest={self.digest}"
        response = self.client.once("PUT", url, headers={"Content-Type": "application/octet-stream"}, data=b"")
        if response.status_code in (400, 404, 416):
            self._restart()
            raise TransferError(f"PUT: {response.status_code} {said_by(response)[1]}", passing=True)
        self.client.check(response, (201, 204))
        stated = response.headers.get("Docker-Content-Digest", self.digest)
        if stated != self.digest:
            self._restart()
            raise TransferError(f"the registry says that it stored {stated} instead of {self.digest}", passing=True)

    def _on_bytes(self, position: int) -> None:
        moved = max(0, self._offset + position - self.transfer.done_bytes)
        self.sent_bytes += moved
        self.transfer.done_bytes = self._offset + position
        self.transfer.moved_at = time.monotonic()
        if self.client.stop.is_set():
            raise OSError("stopped")

    def _shrink(self) -> None:
        self._chunk = max(self._chunk // 2, LEAST_CHUNK)

    def _restart(self) -> None:
        self._location, self._offset, self._mounted = "", 0, False
        self._restarts += 1
        self._doubt = 0
        self._forget()

    # What outlives the process: where the upload is.

    def _take_location(self, response: requests.Response) -> None:
        location = response.headers.get("Location", "")
        if not location:
            raise self.client.error(f"{without_credentials(response.url)}: the answer has no Location")
        self._location = urljoin(response.url, location)
        if self.size > FIRST_CHUNK:
            write_text(self._state, json.dumps({"location": self._location, "chunk": self._chunk}), mode=0o600)

    def _recall(self) -> None:
        if state := read_json(self._state):
            self._location = str(state.get("location", ""))
            self._chunk = min(max(int(state.get("chunk", FIRST_CHUNK)), LEAST_CHUNK), MOST_CHUNK)

    def _forget(self) -> None:
        self._state.unlink(missing_ok=True)

    @property
    def _state(self) -> Path:
        return self._states / f"{self._key}.json"


def _received(response: requests.Response) -> int:
    """Bytes that the registry has. distribution says `0-0` for none; one byte alone is then sent again."""
    last = response.headers.get("Range", "0-0").removeprefix("bytes=").rpartition("-")[2]
    return int(last) + 1 if last.isdecimal() and int(last) > 0 else 0

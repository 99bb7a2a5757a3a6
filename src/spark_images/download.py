"""One file over HTTP: resumed after a break, tried again while that may help, never waiting for ever."""

from __future__ import annotations

import os
import random
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from spark_images.errors import UsageError
from spark_images.store import CHUNK_BYTES, Incoming

if TYPE_CHECKING:
    import requests

PASSING = (408, 425, 429)  # and all of 5xx: the same request may succeed later
LEAST_READ_BYTES = 1 << 14
READ_S = 0.2  # a read should not take longer, so that progress and Ctrl-C are seen

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to put up with a route. attempts: in a row that brought hardly a byte; the wait between them doubles."""

    timeout_s: float = 60.0
    attempts: int = 5
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Patience:
        """The default, with the time-out that SPARK_IMAGES_TIMEOUT_S states; UsageError if it states no number."""
        stated = env.get("SPARK_IMAGES_TIMEOUT_S")
        if not stated:
            return cls()
        if not re.fullmatch(r"\d{1,6}(\.\d+)?", stated) or not float(stated):
            raise UsageError(f"`SPARK_IMAGES_TIMEOUT_S`: expected a number of seconds, got `{stated}`")
        return cls(timeout_s=float(stated))

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """How long to wait after so many failures, or as long as the server asked, within reason."""
        wait = asked_s if asked_s is not None else self.backoff_s * 2 ** (failures - 1) * random.uniform(0.75, 1.25)
        return min(wait, self.longest_wait_s)


class TransferError(Exception):
    """An attempt failed. passing: trying again may help. after_s: when the server asked to be tried again.

    progress: the attempt brought something worth having, so it does not count against patience.
    """

    def __init__(self, reason: str, *, passing: bool, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.passing = passing
        self.after_s = after_s
        self.progress = False


class OtherSizeError(Exception):
    """The server has a file of another size than the pin says."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(f"{size_bytes} bytes")
        self.size_bytes = size_bytes


@dataclass(eq=False)
class Transfer:
    """What is known of a running download: for the display, and for whoever wants to cut it off.

    size_bytes: None until somebody says. resumed: bytes of an earlier attempt were kept; a wrong digest may be theirs.
    """

    label: str
    size_bytes: int | None
    done_bytes: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    resumed: bool = False
    stalled: bool = False
    _response: requests.Response | None = None

    def cut(self) -> None:
        """Make a read that blocks in another thread return."""
        response = self._response
        if response is not None:
            try:
                response.raw.shutdown()
            except (OSError, RuntimeError, ValueError):
                return  # it ended by itself meanwhile

    def cut_if_stalled(self, timeout_s: float) -> None:
        """The socket's own time-out starts anew with every byte that trickles in; this one does not."""
        if self._response is not None and time.monotonic() - self.moved_at > 1.5 * timeout_s:
            self.stalled = True
            self.cut()


def new_session() -> requests.Session:
    """A session that honours the environment's proxies, certificates and netrc. For one thread."""
    import requests

    session = requests.Session()
    session.headers["User-Agent"] = "spark-images"
    return session


class Sessions:
    """A session for each thread that asks."""

    def __init__(self, make: Callable[[], requests.Session] = new_session) -> None:
        self._make, self._own = make, threading.local()

    def __call__(self) -> requests.Session:
        if not hasattr(self._own, "session"):
            self._own.session = self._make()
        session: requests.Session = self._own.session
        return session


def download(
    session: requests.Session,
    url: str,
    incoming: Incoming,
    *,
    size_bytes: int | None,
    transfer: Transfer,
    patience: Patience,
    stop: threading.Event,
) -> None:
    """Append to `incoming`, which is open, until all of the file is here. The digest is the caller's to check.

    size_bytes: what the file must have, where that is known. Raises TransferError when the route has nothing or
    patience ends, OtherSizeError as soon as it shows.
    """

    def attempt() -> None:
        before = incoming.size
        try:
            if urlsplit(url).scheme == "file":
                _copy(url, incoming, size_bytes, transfer, stop)
            else:
                _get(session, url, incoming, size_bytes, transfer, patience.timeout_s, stop)
        except TransferError as err:
            err.progress = incoming.size - before >= LEAST_READ_BYTES
            raise

    persist(attempt, patience=patience, stop=stop)


def persist(attempt: Callable[[], Result], *, patience: Patience, stop: threading.Event) -> Result:
    """Call `attempt` until it returns, fails for good, or failed so often without progress that patience ends."""
    failures = 0
    while True:
        try:
            return attempt()
        except TransferError as err:
            failures = 1 if err.progress else failures + 1
            if not err.passing or failures >= patience.attempts or stop.is_set():
                if err.passing and failures > 1:
                    raise TransferError(f"{err}, {failures} times", passing=True) from err
                raise
            if stop.wait(patience.wait_s(failures, err.after_s)):
                raise


def _get(
    session: requests.Session,
    url: str,
    incoming: Incoming,
    size: int | None,
    transfer: Transfer,
    timeout_s: float,
    stop: threading.Event,
) -> None:
    import requests
    import urllib3

    if size is not None and incoming.size > size:
        incoming.open(resume=False)
    if size is not None and incoming.size == size > 0:
        transfer.resumed = True
        return
    headers = {"Accept-Encoding": "identity"}
    if incoming.size:
        headers["Range"] = f"bytes={incoming.size}-"
    try:
        with session.get(url, headers=headers, stream=True, timeout=timeout_s) as response:
            total = _begin(response, incoming)
            if total is not None and size is not None and total != size:
                raise OtherSizeError(total)
            transfer.resumed |= incoming.size > 0
            transfer.done_bytes, transfer.size_bytes = incoming.size, total if size is None else size
            transfer.moved_at, transfer.stalled = time.monotonic(), False
            transfer._response = response
            _receive(response, incoming, transfer, stop)
    except (requests.RequestException, urllib3.exceptions.HTTPError) as err:
        if transfer.stalled:
            raise TransferError(f"hardly anything arrived for {timeout_s:g} s", passing=True) from err
        raise explain(err, timeout_s=timeout_s) from err
    finally:
        transfer._response = None
    if size is not None and incoming.size < size:
        raise TransferError(f"the connection broke after {incoming.size} of {size} bytes", passing=True)


def _begin(response: requests.Response, incoming: Incoming) -> int | None:
    """Bring `incoming` to where the response's body begins; returns the whole file's size where the server says it."""
    content_range = response.headers.get("Content-Range", "")
    span, _, whole = content_range.removeprefix("bytes ").partition("/")
    total = int(whole) if whole.isdecimal() else None
    if response.status_code == 206:
        if span.partition("-")[0] != str(incoming.size):
            incoming.open(resume=False)
            raise TransferError(f"the server answered with another part of the file: {content_range}", passing=True)
        return total
    if response.status_code == 416:
        if total != incoming.size:
            incoming.open(resume=False)
            raise TransferError("the server has less of the file than is here", passing=True)
        return total
    check_status(response)
    if incoming.size:
        incoming.open(resume=False)  # no ranges here: all of it comes again
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _receive(response: requests.Response, incoming: Incoming, transfer: Transfer, stop: threading.Event) -> None:
    amount = 1 << 16
    while response.status_code != 416:
        began = time.monotonic()
        chunk = response.raw.read(amount)
        if stop.is_set():
            raise TransferError("stopped", passing=False)
        if not chunk:
            return
        incoming.write(chunk)
        transfer.done_bytes = incoming.size
        transfer.moved_at = time.monotonic()
        took = transfer.moved_at - began
        amount = min(amount * 2, CHUNK_BYTES) if took < READ_S / 2 else amount
        amount = max(amount // 2, LEAST_READ_BYTES) if took > READ_S else amount


def _copy(url: str, incoming: Incoming, size: int | None, transfer: Transfer, stop: threading.Event) -> None:
    path = Path(unquote(urlsplit(url).path))
    try:
        with path.open("rb") as stream:
            total = os.fstat(stream.fileno()).st_size
            if size is not None and total != size:
                raise OtherSizeError(total)
            transfer.resumed |= incoming.size > 0
            stream.seek(incoming.size)
            while not stop.is_set() and (chunk := stream.read(CHUNK_BYTES)):
                incoming.write(chunk)
                transfer.done_bytes = incoming.size
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as err:
        raise TransferError(f"{(err.strerror or '').lower()}", passing=False) from err


def check_status(response: requests.Response) -> None:
    """TransferError for every status but 2xx."""
    status = response.status_code
    if not 200 <= status < 300:
        asked = response.headers.get("Retry-After", "")
        passing = status in PASSING or status >= 500
        after_s = float(asked) if asked.isdecimal() else None
        raise TransferError(f"{status} {response.reason or ''}".strip(), passing=passing, after_s=after_s)


def explain(err: BaseException, *, timeout_s: float) -> TransferError:
    """What an exception of requests or urllib3 means for the route."""
    import requests
    import urllib3

    chain = _causes(err)

    def first(*kinds: type[BaseException]) -> BaseException | None:
        return next((cause for cause in chain if isinstance(cause, kinds)), None)

    if first(urllib3.exceptions.NameResolutionError, socket.gaierror):
        return TransferError("the host's name cannot be resolved", passing=False)
    if tls := first(ssl.SSLError, urllib3.exceptions.SSLError, requests.exceptions.SSLError):
        return TransferError(f"TLS: {tls}", passing="CERTIFICATE_VERIFY_FAILED" not in str(tls))
    if first(ConnectionRefusedError):
        return TransferError("connection refused", passing=True)
    if first(ConnectionResetError, urllib3.exceptions.IncompleteRead):
        return TransferError("the connection broke", passing=True)
    if first(TimeoutError, urllib3.exceptions.ReadTimeoutError, requests.Timeout):
        return TransferError(f"nothing arrived for {timeout_s:g} s", passing=True)
    if first(requests.TooManyRedirects):
        return TransferError("too many redirects", passing=False)
    if isinstance(err, ValueError):  # requests: InvalidURL, InvalidSchema, MissingSchema
        return TransferError(f"not an address that can be fetched: {err}", passing=False)
    system = next((cause.strerror for cause in chain if isinstance(cause, OSError) and cause.strerror), None)
    return TransferError(system or str(err) or type(err).__name__, passing=True)


def _causes(err: BaseException) -> list[BaseException]:
    """The exception and all that it wraps: as cause, as context, as argument, or as urllib3's `reason`."""
    found: list[BaseException] = []
    ahead: list[object] = [err]
    while ahead:
        item = ahead.pop(0)
        if isinstance(item, BaseException) and item not in found:
            found.append(item)
            ahead += [item.__cause__, item.__context__, getattr(item, "reason", None), *item.args]
    return found


def without_credentials(url: str) -> str:
    """The address as it may be shown: no user, no password, no query (signed addresses carry secrets there)."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

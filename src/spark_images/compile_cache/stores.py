"""Stores of ccache's entries: Redis and HTTP, under the names that ccache itself would use there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from spark_images.compile_cache.index import LARGEST_ENTRY_BYTES
from spark_images.download import Sessions
from spark_images.errors import UsageError

REMOTE = "SPARK_IMAGES_CCACHE_REMOTE"
CONNECT_S, ANSWER_S = 5.0, 30.0
_FORMS = "redis://HOST:PORT, redis+unix:SOCKET, http://HOST/FOLDER or https://HOST/FOLDER, with `|read-only` or without"


class StoreError(Exception):
    """The store does not answer or refuses; the text says which and how. A build goes on without it."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """Where a store is. read_only: entries are taken from it and never brought."""

    url: str
    read_only: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Remote | None:
        """What SPARK_IMAGES_CCACHE_REMOTE names, written as ccache's own `remote_storage`; None where it is not set."""
        stated = env.get(REMOTE, "").strip()
        if not stated:
            return None
        url, *attributes = stated.split("|")
        try:
            parts = urlsplit(url)
            known = bool(parts.hostname) if parts.scheme != "redis+unix" else bool(parts.path)
            _ = parts.port  # ValueError where it is no number
        except ValueError:
            known = False
        if not known or parts.scheme not in ("redis", "redis+unix", "http", "https") or " " in stated:
            raise UsageError(f"`{REMOTE}`: expected one address of a store", hint=f"write it as {_FORMS}")
        for attribute in attributes:
            if attribute != "read-only":
                raise UsageError(f"`{REMOTE}`: unknown attribute `{attribute}`", hint=f"write it as {_FORMS}")
        return cls(url=url, read_only=bool(attributes))

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return self.url.replace(f"{parts.netloc}", parts.netloc.rpartition("@")[2], 1) if parts.netloc else self.url


class Store(Protocol):
    """Bytes by name. Safe to use from several threads. Both methods raise StoreError."""

    def entry(self, key: str) -> str:
        """The name of an entry of ccache's."""

    def index(self, name: str) -> str:
        """The name of an index of ours."""

    def get(self, name: str) -> bytes | None:
        """What is there, None where nothing is."""

    def put(self, name: str, data: bytes) -> None:
        """Put it there, in place of what there was."""


def open_store(remote: Remote) -> Store:
    """The store at an address; nothing is asked yet."""
    return RedisStore(remote) if remote.url.startswith("redis") else HttpStore(remote)


class HttpStore:
    """A web server that takes GET and PUT: nginx with WebDAV, bazel-remote, a bucket's gateway."""

    def __init__(self, remote: Remote) -> None:
        self._root = remote.url.rstrip("/")
        self._shown = str(remote)
        self._session = Sessions()

    def entry(self, key: str) -> str:
        """See Store: ccache's layout `subdirs`."""
        return f"{key[:2]}/{key[2:]}"

    def index(self, name: str) -> str:
        """See Store."""
        return f"spark-images/{name}.json"

    def get(self, name: str) -> bytes | None:
        """See Store."""
        status, data = self._ask("GET", name)
        if status == 404:
            return None
        if status != 200:
            raise StoreError(f"{self._shown} answers {status} to GET")
        if len(data) > LARGEST_ENTRY_BYTES:
            raise StoreError(f"{self._shown} sends more than an entry can be")
        return data

    def put(self, name: str, data: bytes) -> None:
        """See Store."""
        status, _ = self._ask("PUT", name, data)
        if status not in (200, 201, 204):
            raise StoreError(f"{self._shown} answers {status} to PUT")

    def _ask(self, method: str, name: str, data: bytes | None = None) -> tuple[int, bytes]:
        """Status and body, of which no more is read than an entry can be."""
        import requests
        import urllib3

        url, limits = f"{self._root}/{name}", (CONNECT_S, ANSWER_S)
        try:
            with self._session().request(method, url, data=data, stream=True, timeout=limits) as answer:
                return answer.status_code, answer.raw.read(LARGEST_ENTRY_BYTES + 1, decode_content=True)
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as err:
            raise StoreError(f"{self._shown} does not answer: {type(err).__name__}") from err


class RedisStore:
    """A Redis server, or what speaks its protocol. Three commands are used, so no client library is."""

    def __init__(self, remote: Remote) -> None:
        self._url = urlsplit(remote.url)
        self._shown = str(remote)
        self._own = threading.local()

    def entry(self, key: str) -> str:
        """See Store: ccache's name."""
        return f"ccache:{key}"

    def index(self, name: str) -> str:
        """See Store."""
        return f"spark-images:{name}"

    def get(self, name: str) -> bytes | None:
        """See Store."""
        return self._ask(b"GET", name.encode())

    def put(self, name: str, data: bytes) -> None:
        """See Store."""
        self._ask(b"SET", name.encode(), data)

    def _ask(self, *words: bytes) -> bytes | None:
        try:
            if not hasattr(self._own, "connection"):
                self._own.connection = self._connect()
            return _command(self._own.connection, *words)
        except (OSError, ValueError) as err:
            self._own.__dict__.pop("connection", None)
            raise StoreError(f"{self._shown} does not answer: {err}") from err
        except StoreError as err:
            raise StoreError(f"{self._shown} refuses: {err}") from None

    def _connect(self) -> _Connection:
        if self._url.scheme == "redis+unix":
            connection = socket.socket(socket.AF_UNIX)
            connection.settimeout(CONNECT_S)
            connection.connect(self._url.path)
            database = self._url.query.removeprefix("db=")
        else:
            address = (self._url.hostname or "", self._url.port or 6379)
            connection = socket.create_connection(address, timeout=CONNECT_S)
            database = self._url.path.strip("/")
        connection.settimeout(ANSWER_S)
        opened = _Connection(connection)
        user, password = self._url.username, self._url.password
        if user or password:  # ccache's short form has the password alone, where the user's name stands in others
            login = [user, password] if password else [user]
            _command(opened, b"AUTH", *(unquote(word or "").encode() for word in login))
        if database:
            _command(opened, b"SELECT", database.encode())
        return opened


class _Connection:
    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.answers = connection.makefile("rb")


def _command(connection: _Connection, *words: bytes) -> bytes | None:
    """One command of RESP 2 and its answer; ValueError for what is none, StoreError for an error of the server's."""
    head = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    connection.socket.sendall(b"*%d\r\n%s" % (len(words), head))
    line = connection.answers.readline(1 << 16)
    kind, said = line[:1], line[1:].strip()
    if kind == b"-":
        raise StoreError(said.decode(errors="replace"))
    if kind == b"$":
        size = int(said)
        if size == -1:
            return None
        if not 0 <= size <= LARGEST_ENTRY_BYTES:
            raise ValueError(f"a value of {size} bytes")
        data = connection.answers.read(size + 2)
        if len(data) != size + 2:
            raise ValueError("it hung up")
        return data[:-2]
    if kind not in (b"+", b":"):
        raise ValueError(f"not the Redis protocol: {line[:40]!r}" if line else "it hung up")
    return said

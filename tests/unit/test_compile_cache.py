"""The compile cache that runners share: what is noted of it, its stores, and what a build takes from it and gives."""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from file_store import serve_files
from hypothesis import given
from hypothesis import strategies as st
from values import toy_plan

from spark_images.attest.signing import Signer, find_signer
from spark_images.cache import Cache
from spark_images.compile_cache.index import Entry, joined, read_index, seal, unseal, write_index
from spark_images.compile_cache.mount import entry_file
from spark_images.compile_cache.share import SharedCompileCache
from spark_images.compile_cache.stores import HttpStore, RedisStore, Remote, Store, StoreError
from spark_images.errors import UsageError

KEYS = [f"{number:02x}" + "9gktp3524n6qqg77drrljfm0hg9c" for number in range(40)]


def entry(number: int, size_bytes: int = 10) -> Entry:
    return Entry(key=KEYS[number], digest=f"sha256:{number:064x}", size_bytes=size_bytes)


# --- index ------------------------------------------------------------------------------------------------------------


def test_an_index_is_read_as_it_was_written() -> None:
    entries = (entry(1), entry(0))
    assert read_index("x", unseal(seal(write_index("x", entries), b"signed"))[0]) == entries


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"of": "x"}',
        b'{"of": "y", "entries": []}',
        b'{"of": "x", "entries": [["../../etc/passwd0000000", "sha256:%064d", 1]]}' % 0,
        b'{"of": "x", "entries": [["009gktp3524n6qqg77drrljfm0hg9c", "sha256:1", 1]]}',
        b'{"of": "x", "entries": [["009gktp3524n6qqg77drrljfm0hg9c", "sha256:%064d", -1]]}' % 0,
        b'{"of": "x", "entries": [["009gktp3524n6qqg77drrljfm0hg9c", "sha256:%064d", true]]}' % 0,
    ],
)
def test_what_is_no_index_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is no index|it is the index of|is no (key|digest|size)"):
        read_index("x", text)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"{}", b'{"index": 1, "signature": ""}', b'{"index": "", "signature": "!"}']
)
def test_what_is_no_sealed_index_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="it is no index"):
        unseal(text)


def test_a_key_that_came_again_counts_as_it_came_last() -> None:
    newer = Entry(key=KEYS[0], digest=f"sha256:{9:064x}", size_bytes=3)
    assert joined([entry(0), entry(1)], [newer]) == (entry(1), newer)


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(0, 50))), st.integers(0, 400))
def test_the_newest_entries_are_kept_as_far_as_there_is_room(said: list[tuple[int, int]], room: int) -> None:
    entries = [entry(number, size) for number, size in said]
    kept = joined((), entries, largest_bytes=room)
    whole = joined((), entries)
    assert sum(one.size_bytes for one in kept) <= room
    assert whole[len(whole) - len(kept) :] == kept
    left = whole[: len(whole) - len(kept)]
    assert not left or left[-1].size_bytes + sum(one.size_bytes for one in kept) > room


def test_the_store_may_lie_on_a_volume_of_its_own() -> None:
    env = {"SPARK_IMAGES_CACHE": "/here"}
    assert Cache.from_env(env).store == Path("/here/store")
    assert Cache.from_env({**env, "SPARK_IMAGES_STORE": "/volume"}).store == Path("/volume")
    assert Cache.from_env({**env, "SPARK_IMAGES_STORE": "/volume"}).images == Path("/here/images")


# --- where it is ------------------------------------------------------------------------------------------------------


def test_no_variable_means_no_shared_cache() -> None:
    assert Remote.from_env({}) is None
    assert Remote.from_env({"SPARK_IMAGES_CCACHE_REMOTE": " "}) is None


@pytest.mark.parametrize(
    ("stated", "url", "read_only"),
    [
        ("redis://cache:6379/1", "redis://cache:6379/1", False),
        ("https://cache.example.org/ccache|read-only", "https://cache.example.org/ccache", True),
        ("redis+unix:/run/redis.sock?db=2", "redis+unix:/run/redis.sock?db=2", False),
    ],
)
def test_an_address_is_written_as_ccache_has_it(stated: str, url: str, read_only: bool) -> None:
    assert Remote.from_env({"SPARK_IMAGES_CCACHE_REMOTE": stated}) == Remote(url=url, read_only=read_only)


@pytest.mark.parametrize(
    "stated", ["cache", "ftp://cache/x", "redis://", "http://cache:x/", "redis://a|readonly", "redis://a redis://b"]
)
def test_an_address_that_cannot_be_meant_is_an_error_with_the_forms_there_are(stated: str) -> None:
    with pytest.raises(UsageError, match="SPARK_IMAGES_CCACHE_REMOTE") as raised:
        Remote.from_env({"SPARK_IMAGES_CCACHE_REMOTE": stated})
    assert "redis://HOST:PORT" in str(raised.value.hint)


def test_a_password_is_never_shown() -> None:
    assert str(Remote(url="redis://spark:secret@cache:6379/1")) == "redis://cache:6379/1"


# --- stores -----------------------------------------------------------------------------------------------------------


@contextmanager
def redis(folder: Path, *settings: str) -> Iterator[Path]:
    """A real Redis on a socket in the folder."""
    folder.mkdir(exist_ok=True)
    path = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder), *settings]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        last = time.monotonic() + 60
        while not path.exists():
            assert server.poll() is None
            assert time.monotonic() < last
            time.sleep(0.02)
        yield path
    finally:
        server.terminate()
        server.wait(20)


needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server on this host")


@needs_redis
def test_redis_gives_what_was_put_and_nothing_for_another_name(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000 + b"\r\n"
    with redis(tmp_path) as path:
        store = RedisStore(Remote(url=f"redis+unix:{path}?db=2"))
        store.put(store.entry(KEYS[0]), data)
        assert RedisStore(Remote(url=f"redis+unix:{path}?db=2")).get(f"ccache:{KEYS[0]}") == data
        assert store.get(store.entry(KEYS[1])) is None
        assert RedisStore(Remote(url=f"redis+unix:{path}")).get(f"ccache:{KEYS[0]}") is None, "another database"


@needs_redis
@pytest.mark.skipif(shutil.which("ccache") is None or shutil.which("gcc") is None, reason="no ccache and gcc here")
def test_entries_are_named_as_ccache_names_them(tmp_path: Path) -> None:
    (tmp_path / "x.c").write_text("int x;\n")
    with redis(tmp_path / "redis") as path:
        env = {"PATH": "/usr/bin:/bin", "CCACHE_DIR": str(tmp_path / "cache")}
        remotes = f"redis+unix:{path} file:{tmp_path / 'files'}"
        compiling = ["ccache", "gcc", "-c", "x.c", "-o", "x.o"]
        subprocess.run(compiling, cwd=tmp_path, env={**env, "CCACHE_REMOTE_STORAGE": remotes}, check=True)
        keys = [file.parent.name + file.name for file in (tmp_path / "files").glob("??/*")]
        assert keys
        store = RedisStore(Remote(url=f"redis+unix:{path}"))
        for key in keys:
            assert store.get(store.entry(key)) == entry_file(tmp_path / "files", key).read_bytes()


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """The address of a server that says these, one for each thing it is asked, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                for answer in answers:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://spark:secret@127.0.0.1:{listener.getsockname()[1]}"
        thread.join(60)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((b"-WRONGPASS no\r\n",), "WRONGPASS"),
        ((b"+OK\r\n", b"HTTP/1.1 400 Bad Request\r\n"), "not the Redis protocol"),
        ((b"+OK\r\n", b"$10\r\nhalf"), "hung up"),
        ((b"+OK\r\n", b"$99999999999\r\n"), "99999999999 bytes"),
    ],
)
def test_what_is_no_answer_of_a_redis_is_an_error_without_the_password(answers: tuple[bytes, ...], said: str) -> None:
    with answering(*answers) as url, pytest.raises(StoreError, match=said) as raised:
        RedisStore(Remote(url=url)).get("x")
    assert "secret" not in str(raised.value)


def test_a_web_server_gives_what_was_put_and_nothing_for_another_name(tmp_path: Path) -> None:
    with serve_files(tmp_path / "served") as served:
        store = HttpStore(Remote(url=served.url))
        store.put(store.entry(KEYS[0]), b"\0 data")
        assert (tmp_path / "served" / KEYS[0][:2] / KEYS[0][2:]).read_bytes() == b"\0 data"
        assert store.get(store.entry(KEYS[0])) == b"\0 data"
        assert store.get(store.entry(KEYS[1])) is None


def test_a_web_server_that_is_not_there_is_an_error_without_the_password() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(StoreError, match="does not answer") as raised:
        HttpStore(Remote(url=f"http://spark:secret@127.0.0.1:{port}/x")).get("y")
    assert "secret" not in str(raised.value)


# --- one build --------------------------------------------------------------------------------------------------------


class Dictionary:
    """A store in memory."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def entry(self, key: str) -> str:
        return f"entry {key}"

    def index(self, name: str) -> str:
        return "index"

    def get(self, name: str) -> bytes | None:
        return self.held.get(name)

    def put(self, name: str, data: bytes) -> None:
        self.held[name] = data


class Folder:
    """The cache mount of an engine as a folder: what ccache holds, what it was filled with, what compiles added."""

    def __init__(self, work: Path) -> None:
        work.mkdir()
        self.work = work
        self.held: set[str] = set()
        self.filled: dict[str, bytes] = {}
        self.added: dict[str, bytes] = {}

    def begin(self) -> frozenset[str]:
        return frozenset(self.held)

    def fill(self, entries: Path) -> None:
        self.filled = {file.parent.name + file.name: file.read_bytes() for file in entries.glob("??/*")}

    def take(self) -> Iterator[tuple[str, bytes]]:
        yield from self.added.items()


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Folder]:
    numbers = iter(range(100))
    return lambda: Folder(tmp_path / f"work{next(numbers)}")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log.txt"
    path.write_text("no counters\n")
    return path


@pytest.fixture
def said() -> list[str]:
    return []


def shared(
    store: Store,
    *,
    read_only: bool = False,
    cold: bool = False,
    signer: Signer | None = None,
    asks: Signer | None = None,
) -> SharedCompileCache:
    remote = Remote(url="redis://cache", read_only=read_only)
    return SharedCompileCache(
        remote, toy_plan(), cold=cold, signer=signer, verify=asks.public if asks else None, store=store
    )


@pytest.fixture(scope="module")
def signers() -> tuple[Signer, Signer]:
    def made() -> Signer:
        key = ec.generate_private_key(ec.SECP256R1())
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, *form).decode()
        signer = find_signer(None, {"SPARK_IMAGES_SIGNING_KEY": pem})
        assert signer
        return signer

    return made(), made()


def give(cache: SharedCompileCache, folder: Folder, log: Path, said: list[str], **added: bytes) -> None:
    folder.added = {KEYS[int(name[1:])]: data for name, data in added.items()}
    cache.give(folder, log, said.append)  # type: ignore[arg-type] # a folder is what a test has for a mount


def fill(cache: SharedCompileCache, folder: Folder, said: list[str]) -> dict[str, bytes]:
    cache.fill(folder, said.append)  # type: ignore[arg-type]
    return folder.filled


def test_what_one_build_gives_another_takes(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"first", k1=b"second")
    assert fill(shared(store), folder(), said) == {KEYS[0]: b"first", KEYS[1]: b"second"}


def test_what_the_engine_has_is_not_brought_again(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"first", k1=b"second")
    other = folder()
    other.held = {KEYS[0]}
    assert fill(shared(store), other, said) == {KEYS[1]: b"second"}


def test_later_builds_add_to_what_is_noted(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"first")
    give(shared(store), folder(), log, said, k1=b"second")
    assert set(fill(shared(store), folder(), said)) == {KEYS[0], KEYS[1]}


def test_an_entry_that_is_not_what_was_noted_is_not_used(
    folder: Callable[[], Folder], log: Path, said: list[str]
) -> None:
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"first", k1=b"second", k2=b"third")
    store.held[f"entry {KEYS[0]}"] = b"poison"
    del store.held[f"entry {KEYS[1]}"]
    cache = shared(store)
    assert fill(cache, folder(), said) == {KEYS[2]: b"third"}
    assert any("2 are missing there or not what was noted" in line for line in said)
    assert cache.document()["refused"] == [KEYS[0], KEYS[1]]


def test_a_cold_build_takes_nothing_and_its_results_replace_what_was_there(
    folder: Callable[[], Folder], log: Path, said: list[str]
) -> None:
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"poison")
    cold = shared(store, cold=True)
    assert fill(cold, folder(), said) == {}
    assert "shared" not in cold.settings["CCACHE_REMOTE_STORAGE"]
    give(cold, folder(), log, said, k0=b"right")
    assert fill(shared(store), folder(), said) == {KEYS[0]: b"right"}


def test_a_reader_never_writes(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    store = Dictionary()
    reader = shared(store, read_only=True)
    give(reader, folder(), log, said, k0=b"first")
    assert store.held == {}
    assert reader.settings == {"CCACHE_REMOTE_STORAGE": "file:/spark/cache/shared|read-only"}


def test_an_index_that_another_key_signed_or_nobody_is_not_used(
    folder: Callable[[], Folder], log: Path, said: list[str], signers: tuple[Signer, Signer]
) -> None:
    ours, theirs = signers
    for signer in (theirs, None):
        store = Dictionary()
        give(shared(store, signer=signer), folder(), log, said, k0=b"poison")
        assert fill(shared(store, asks=ours), folder(), said) == {}
        assert "not signed by the key" in said[-1]
        give(shared(store, signer=ours, asks=ours), folder(), log, said, k1=b"right")
        assert fill(shared(store, asks=ours), folder(), said) == {KEYS[1]: b"right"}, "what is not ours is left out"


def test_whoever_asks_for_a_signature_and_cannot_sign_does_not_write(
    folder: Callable[[], Folder], log: Path, said: list[str], signers: tuple[Signer, Signer]
) -> None:
    store = Dictionary()
    give(shared(store, asks=signers[0]), folder(), log, said, k0=b"first")
    assert store.held == {}


def test_a_compile_of_hits_alone_has_nothing_to_give(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    log.write_text("#10 12.01 ccache cache_miss 0\n#10 12.01 ccache direct_cache_hit 3\n")
    store = Dictionary()
    give(shared(store), folder(), log, said, k0=b"of another build")
    assert store.held == {}


@pytest.mark.parametrize("held", [b"garbage", seal(b'{"of": "another", "entries": []}', None)])
def test_garbage_in_place_of_the_index_is_said_and_written_over(
    folder: Callable[[], Folder], log: Path, said: list[str], held: bytes
) -> None:
    store = Dictionary()
    store.held["index"] = held
    assert fill(shared(store), folder(), said) == {}
    assert "is not used" in said[-1]
    give(shared(store), folder(), log, said, k0=b"first")
    assert fill(shared(store), folder(), said) == {KEYS[0]: b"first"}


def test_a_store_that_refuses_is_said_and_ends_nothing(
    folder: Callable[[], Folder], log: Path, said: list[str]
) -> None:
    class Refusing(Dictionary):
        def put(self, name: str, data: bytes) -> None:
            raise StoreError("redis://cache refuses: OOM command not allowed")

    give(shared(Refusing()), folder(), log, said, k0=b"first")
    assert said == [
        "shared compile cache: redis://cache refuses: OOM command not allowed; what was compiled stays on this machine"
    ]


def test_a_store_that_does_not_answer_is_said_and_nothing_is_taken(
    folder: Callable[[], Folder], said: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store = RedisStore(Remote(url=f"redis://127.0.0.1:{port}"))
    assert fill(shared(store), folder(), said) == {}
    assert "does not answer" in said[-1]
    assert "compiling without it" in said[-1]


def test_many_entries_come_as_they_are(folder: Callable[[], Folder], log: Path, said: list[str]) -> None:
    store = Dictionary()
    data = {f"k{number}": hashlib.sha256(b"%d" % number).digest() * 100 for number in range(40)}
    give(shared(store), folder(), log, said, **data)
    assert fill(shared(store), folder(), said) == {KEYS[int(name[1:])]: one for name, one in data.items()}

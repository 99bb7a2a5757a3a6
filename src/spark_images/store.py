"""The content-addressed store: files by sha256, shared by all clones and by processes that run at once.

    <root>/sha256/<2 hex>/<64 hex>    an object: complete, verified, read-only
    <root>/partial/<64 hex>           what has arrived of an object; the next attempt goes on from there
    <root>/partial/<64 hex>.lock      flock: one process at a time brings an object, the others wait for it
    <root>/partial/<64 hex>.d/        a folder to work in, under the same lock

Locks are the kernel's, so a killed process holds none. Only `Incoming.commit` makes an object visible.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import ContentError, InterruptedByUser
from spark_images.exclusive import try_alone
from spark_images.files import room_on, sync

CHUNK_BYTES = 1 << 20
LOCK_POLL_S = 0.1
HEX = re.compile(r"[0-9a-f]{64}")
NO_HARD_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)  # other file system, or one without links


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What `prune` removed. size_bytes: what the file system got back; a file with other links frees nothing."""

    count: int
    size_bytes: int


class Store:
    """Objects below `root`, which is made when the first one comes. Digests are written "sha256:<64 hex digits>"."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, digest: str) -> Path:
        """Where the object lies, or would lie."""
        name = _hex(digest)
        return self.root / "sha256" / name[:2] / name

    def has(self, digest: str) -> bool:
        """Whether the object is here; what is here was verified when it came."""
        return self.path(digest).exists()

    def arrived_bytes(self, digest: str) -> int:
        """How much of an object that is not here yet lies ready to be resumed."""
        partial = self._partial(_hex(digest))
        return partial.stat().st_size if partial.exists() else 0

    def verify(self, digest: str) -> bool:
        """Whether the object is here and its bytes, read again, still have the digest."""
        try:
            return digest_of(self.path(digest)) == digest
        except FileNotFoundError:
            return False

    def link(self, digest: str, dest: Path) -> None:
        """Make `dest` the object: a hard link, or a copy where that cannot be. FileExistsError if dest exists."""
        try:
            os.link(self.path(digest), dest)
        except OSError as err:
            if err.errno not in NO_HARD_LINK:
                raise
            with room_on(dest.parent, self.path(digest).stat().st_size), dest.open("xb") as out:
                with self.path(digest).open("rb") as stream:
                    shutil.copyfileobj(stream, out, CHUNK_BYTES)
                os.fchmod(out.fileno(), 0o444)

    def add_file(self, file: Path, digest: str) -> Path:
        """Verify a file and move it into the store; returns the object's path. ContentError if the digest is another.

        `file` is gone afterwards, also where the object was here before.
        """
        with self.incoming(digest) as incoming:
            if not incoming.present:
                if (found := digest_of(file)) != digest:
                    raise ContentError(f"`{file}` is not what it should be", why=(f"expected {digest}", f"got {found}"))
                try:
                    file.replace(incoming.path)
                except OSError as err:
                    if err.errno != errno.EXDEV:
                        raise
                    with room_on(self.root, file.stat().st_size):
                        shutil.copyfile(file, incoming.path)
                incoming.commit_file(found)
            file.unlink(missing_ok=True)
        return self.path(digest)

    @contextmanager
    def incoming(self, digest: str, *, stop: threading.Event | None = None) -> Iterator[Incoming]:
        """The right to bring an object, held until the block ends; waits while another process has it.

        Look at `present` first: another process may have brought it. What is not committed stays as a partial.
        stop: gives up waiting, with InterruptedByUser.
        """
        name = _hex(digest)
        with self._lock(name, stop=stop):
            incoming = Incoming(self, digest, self._partial(name))
            try:
                yield incoming
            finally:
                incoming.close()

    def prune(self, keep: Set[str], *, dry_run: bool = False) -> Pruned:
        """Remove the objects and partials that `keep` does not name, but nothing that is being brought right now.

        dry_run: only count them.
        """
        kept = {_hex(digest) for digest in keep}
        files = [*self.root.glob("sha256/??/*"), *self.root.glob("partial/*")]
        count = size = 0
        for name in sorted({file.name[:64] for file in files if HEX.match(file.name)} - kept):
            with try_alone(self._lock_file(name)) as locked:
                if not locked:
                    continue
                if not dry_run:
                    shutil.rmtree(self._partial(name).with_suffix(".d"), ignore_errors=True)
                for file in (self.path(f"sha256:{name}"), self._partial(name)):
                    with suppress(FileNotFoundError):
                        status = file.stat()
                        if not dry_run:
                            file.unlink()
                        count += 1
                        size += status.st_size if status.st_nlink == 1 else 0
        return Pruned(count=count, size_bytes=size)

    def _partial(self, name: str) -> Path:
        return self.root / "partial" / name

    def _lock_file(self, name: str) -> Path:
        return self._partial(name).with_suffix(".lock")

    @contextmanager
    def _lock(self, name: str, *, stop: threading.Event | None) -> Iterator[None]:
        while True:
            with try_alone(self._lock_file(name)) as locked:
                if locked:
                    yield
                    return
            if stop is None:
                threading.Event().wait(LOCK_POLL_S)
            elif stop.wait(LOCK_POLL_S):
                raise InterruptedByUser("stopped while another process was fetching the same file")


class Incoming:
    """An object on its way into the store, under its lock.

    path: the partial file. present: the object is in the store already, there is nothing to bring.
    """

    def __init__(self, store: Store, digest: str, path: Path) -> None:
        self._store = store
        self.digest = digest
        self.path = path
        self.present = store.has(digest)
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._descriptor: int | None = None

    def open(self, *, resume: bool = True) -> int:
        """Open the partial for writing and return how many bytes of it are here; resume=False empties it."""
        self.close()
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not resume:
            os.ftruncate(self._descriptor, 0)
        self.size, self._sha256 = 0, hashlib.sha256()
        while chunk := os.read(self._descriptor, CHUNK_BYTES):
            self._sha256.update(chunk)
            self.size += len(chunk)
        return self.size

    def write(self, data: bytes) -> int:
        """Append, hashing on the way; DiskFullError where there is no room."""
        assert self._descriptor is not None
        view = memoryview(data)
        with room_on(self._store.root, len(data)):
            while view:
                view = view[os.write(self._descriptor, view) :]
        self._sha256.update(data)
        self.size += len(data)
        return len(data)

    def found(self) -> str:
        """The digest of what has been written."""
        return f"sha256:{self._sha256.hexdigest()}"

    def commit(self) -> None:
        """Make the object visible. ContentError if what was written is something else."""
        self.commit_file(self.found())

    def commit_file(self, found: str) -> None:
        """As `commit`, for a partial that was put in place as a whole and whose digest the caller computed."""
        if found != self.digest:
            why = (f"expected {self.digest}", f"got {found}")
            raise ContentError("a file for the store is not what it should be", why=why)
        self.close()
        self.path.chmod(0o444)
        with room_on(self._store.root, self.path.stat().st_size):
            sync(self.path)
        target = self._store.path(self.digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(target)
        sync(target.parent)
        self.present = True

    def discard(self) -> None:
        """Forget what has arrived."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the partial; it stays for the next attempt."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder beside the partial to work in; removed at the end, as is what a killed process left of it."""
        path = self.path.with_suffix(".d")
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)


def digest_of(file: Path) -> str:
    """The "sha256:…" of a file's bytes."""
    with file.open("rb") as stream:
        return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"


def _hex(digest: str) -> str:
    name = digest.removeprefix("sha256:")
    if name == digest or not HEX.fullmatch(name):
        raise ValueError(f"not a digest: {digest!r}")
    return name

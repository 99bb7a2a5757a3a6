"""Source trees: one canonical tar for a tree, whether it came by git, in an archive or in an sdist.

A tree is what git would keep of it: regular files with or without the owner's execute bit, symbolic links, and names.
Folders exist only as parts of names; times, owners, umask and `.git` do not count. Equal trees give equal bytes.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import posixpath
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, Self, cast

from spark_images.errors import ContentError
from spark_images.tarform import canonical_info, open_canonical

CHUNK_BYTES = 1 << 20
MOST_LINKS = 40  # what Linux follows in one name (path_resolution(7))
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, NotImplementedError)


@dataclass(frozen=True, slots=True)
class _Entry:
    executable: bool = False
    link: str | None = None  # what a symbolic link says
    offset: int = 0  # where a file's content begins in the spool
    size: int = 0
    unusable: str = ""  # why this entry cannot be in a tree; an error only where it counts


class SourceTree:
    """The entries of one tree, with the files' contents in an unnamed temporary file. Nothing is ever unpacked by name.

    source: where it came from, for messages. work: a folder with room for the contents, on disk rather than in /tmp.
    """

    def __init__(self, *, source: str, work: Path) -> None:
        self.source = source
        self._entries: dict[str, _Entry] = {}
        self._spool: BinaryIO = tempfile.TemporaryFile(dir=work)  # noqa: SIM115  closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spool.close()

    def add_file(self, name: str, content: IO[bytes], *, executable: bool) -> None:
        """Take a file's content from where `content` stands to its end."""
        offset = self._spool.tell()
        shutil.copyfileobj(content, self._spool, CHUNK_BYTES)
        self._add(name, _Entry(executable=executable, offset=offset, size=self._spool.tell() - offset))

    def add_same(self, name: str, other: str) -> None:
        """A hard link: the same file as the one that was added as `other`."""
        first = self._entries.get(other)
        if first is None or first.link is not None:
            self._add(name, _Entry(unusable=f"is a hard link to `{other}`, which is no file before it in the tree"))
        else:
            self._add(name, first)

    def add_link(self, name: str, target: str) -> None:
        """A symbolic link."""
        self._add(name, _Entry(link=target))

    def add_unusable(self, name: str, why: str) -> None:
        """Something that a tree cannot hold: a device, a submodule. An error only if `write` has to write it."""
        self._add(name, _Entry(unusable=why))

    def _add(self, name: str, entry: _Entry) -> None:
        if name in self._entries:
            raise ContentError(f"{self.source} holds `{name}` twice")
        self._entries[name] = entry

    def write(self, out: BinaryIO, *, paths: tuple[str, ...] = (), without: tuple[str, ...] = ()) -> str:
        """Write the canonical tar of the tree, or of the stated files and folders in it; returns its "sha256:…".

        without: files and folders that are left out, whether or not the tree has them: submodules that are pinned by
        themselves.
        Raises ContentError for a stated path that is missing, an empty tree, an entry that a tree cannot hold, and a
        symbolic link that leads out of what is written.
        """
        kept = self._select(paths, without)
        for name, entry in kept.items():
            if entry.unusable:
                raise ContentError(f"{self.source}: `{name}` {entry.unusable}")
            folder = posixpath.dirname(name)
            while folder:
                if folder in kept:
                    raise ContentError(f"{self.source} holds `{folder}` as a file and as a folder of `{name}`")
                folder = posixpath.dirname(folder)
            if entry.link is not None and _leaves(kept, name):
                raise ContentError(f"{self.source}: the link `{name}` leads out of the tree, to `{entry.link}`")
        hashing = _HashingWriter(out)
        with open_canonical(cast("BinaryIO", hashing)) as tar:
            for name in sorted(kept, key=lambda text: text.encode("utf-8", "surrogateescape")):
                entry = kept[name]
                info = tarfile.TarInfo(name)
                info.type = tarfile.REGTYPE if entry.link is None else tarfile.SYMTYPE
                info.mode = 0o755 if entry.executable else 0o644
                info.size = entry.size
                info.linkname = entry.link or ""
                self._spool.seek(entry.offset)
                tar.addfile(canonical_info(info, epoch=0), self._spool)
        return f"sha256:{hashing.sha256.hexdigest()}"

    def _select(self, paths: tuple[str, ...], without: tuple[str, ...]) -> dict[str, _Entry]:
        kept = self._entries
        if paths:
            kept = {}
            for path in paths:
                wanted = path.strip("/")
                below = {n: e for n, e in self._entries.items() if f"{n}/".startswith(f"{wanted}/")}
                if not below:
                    raise ContentError(f"{self.source} has no `{path}`, which the pin's `paths` name")
                kept |= below
        kept = {n: e for n, e in kept.items() if not f"{n}/".startswith(tuple(f"{path}/" for path in without))}
        if not kept:
            raise ContentError(f"{self.source} holds no files")
        return kept


def write_tree(folder: Path, *, paths: tuple[str, ...] = (), out: BinaryIO) -> str:
    """Write the canonical tar of a folder as it lies on disk; returns its "sha256:…". Errors as SourceTree.write."""
    with tree_from_folder(folder, work=Path(tempfile.gettempdir())) as tree:
        return tree.write(out, paths=paths)


def tree_from_folder(folder: Path, *, work: Path) -> SourceTree:
    """The tree below a folder. What is neither file, link nor folder is unusable."""

    def walk(inside: Path, prefix: str) -> None:
        for path in sorted(inside.iterdir()):
            mode = path.lstat().st_mode
            name = prefix + path.name
            if path.name == ".git":
                continue
            if stat.S_ISDIR(mode):
                walk(path, f"{name}/")
            elif stat.S_ISLNK(mode):
                tree.add_link(name, str(path.readlink()))
            elif stat.S_ISREG(mode):
                with path.open("rb") as content:
                    tree.add_file(name, content, executable=bool(mode & stat.S_IXUSR))
            else:
                tree.add_unusable(name, "is neither a file, a link nor a folder")

    with ExitStack() as unless_done:
        tree = unless_done.enter_context(SourceTree(source=f"`{folder}`", work=work))
        walk(folder, "")
        unless_done.pop_all()
    return tree


def tree_from_archive(archive: Path, path: str = "", *, work: Path, source: str = "") -> SourceTree:
    """The tree in a tar (plain, gz, xz, bz2, zst) or zip: its one top folder, or what lies below `path` in that.

    source: what messages call the archive. Raises ContentError for a broken archive, for names that lead out of it, for
    more than one top folder, and where nothing lies below `path`.
    """
    with ExitStack() as unless_done:
        tree = unless_done.enter_context(SourceTree(source=source or f"`{archive.name}`", work=work))
        names = _ArchiveNames(tree.source, path.strip("/"))
        with archive.open("rb") as stream:
            magic = stream.read(6)
        try:
            if magic.startswith(b"PK\x03\x04"):
                _read_zip(archive, names, tree)
            else:
                _read_tar(archive, magic, names, tree)
        except UNREADABLE as err:
            raise ContentError(f"{tree.source} cannot be read as an archive") from err
        except OSError as err:
            if err.errno is not None:  # the disk's trouble; gzip's and bz2's own complaints have no number
                raise
            raise ContentError(f"{tree.source} cannot be read as an archive") from err
        if path and not names.matched:
            raise ContentError(f"{tree.source} has nothing below `{path}`")
        unless_done.pop_all()
    return tree


class _ArchiveNames:
    """Turns an archive's names into names of the tree, and sees that there is one top folder."""

    def __init__(self, source: str, path: str) -> None:
        self.source = source
        self.path = path
        self.top: str | None = None
        self.matched = False

    def within(self, name: str) -> str | None:
        """The name in the tree; None for what is not part of it."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise ContentError(f"{self.source} holds `{name!r}`, a name that leads out of it")
        if not parts:
            return None
        self.top = self.top or parts[0]
        if parts[0] != self.top:
            raise ContentError(f"{self.source} has more than one top folder: `{self.top}` and `{parts[0]}`")
        inner = "/".join(parts[1:])
        if self.path:
            if not inner.startswith(f"{self.path}/"):
                return None
            inner = inner[len(self.path) + 1 :]
        self.matched = True
        return None if not inner or ".git" in inner.split("/") else inner


def _read_tar(archive: Path, magic: bytes, names: _ArchiveNames, tree: SourceTree) -> None:
    with _plain(archive, magic) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES) as tar:
        for member in tar:
            name = names.within(member.name)
            if name is None or member.isdir():
                continue
            if member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                tree.add_file(name, content, executable=bool(member.mode & stat.S_IXUSR))
            elif member.issym():
                tree.add_link(name, member.linkname)
            elif member.islnk():
                tree.add_same(name, names.within(member.linkname) or member.linkname)
            else:
                tree.add_unusable(name, "is a device or a pipe")


@contextmanager
def _plain(archive: Path, magic: bytes) -> Iterator[IO[bytes]]:
    """The archive's bytes without their compression, told by its first bytes, not by the file's name."""
    if magic.startswith(b"\x1f\x8b"):
        with gzip.open(archive) as stream:
            yield cast("IO[bytes]", stream)
    elif magic.startswith(b"BZh"):
        with bz2.open(archive) as stream:
            yield stream
    elif magic == b"\xfd7zXZ\0":
        with lzma.open(archive) as stream:
            yield stream
    elif magic.startswith(b"\x28\xb5\x2f\xfd"):
        import zstandard

        try:
            with zstandard.open(archive) as stream:
                yield cast("IO[bytes]", stream)
        except zstandard.ZstdError as err:
            raise tarfile.ReadError(str(err)) from err
    else:
        with archive.open("rb") as stream:
            yield stream


def _read_zip(archive: Path, names: _ArchiveNames, tree: SourceTree) -> None:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            name = names.within(member.filename)
            if name is None or member.is_dir():
                continue
            mode = member.external_attr >> 16
            with packed.open(member) as content:
                if stat.S_ISLNK(mode):
                    tree.add_link(name, content.read().decode("utf-8", "surrogateescape"))
                elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                    tree.add_file(name, content, executable=bool(mode & stat.S_IXUSR))
                else:
                    tree.add_unusable(name, "is a device or a pipe")


def _leaves(entries: dict[str, _Entry], name: str) -> bool:
    """Whether following the link `name`, and the links on its way, leads out of the tree."""
    here: list[str] = []
    ahead = name.split("/")[::-1]
    followed = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            if not here:
                return True
            here.pop()
        elif part not in ("", "."):
            here.append(part)
            entry = entries.get("/".join(here))
            if entry is not None and entry.link is not None:
                if entry.link.startswith("/"):
                    return True
                followed += 1
                if followed > MOST_LINKS:
                    return False  # a loop leads nowhere
                here.pop()
                ahead += entry.link.split("/")[::-1]
    return False


class _HashingWriter:
    """Passes bytes on and keeps their sha256."""

    def __init__(self, out: BinaryIO) -> None:
        self.out = out
        self.sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.out.write(data)
        return len(data)

"""The files of a Debian root: read from .debs, put where merged /usr has them, made into one tree."""

from __future__ import annotations

import copy
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol, TypeAlias

from spark_images.errors import ConfigError, ContentError
from spark_images.locks import LockedDeb
from spark_images.tarform import canonical_info

MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")  # links to usr/… at the root's top

# What a slim root does without: documentation and translations,
_UNNEEDED = tuple(
    f"usr/share/{name}/" for name in ("bug", "doc", "doc-base", "info", "lintian", "locale", "man", "menu")
)
# and 20 MB of character sets, but for those that Debian 13 leaves in libc6. UTF-8 needs none of them.
_GCONV = re.compile(r"usr/lib/[^/]+/gconv/(.+)")
_CHARACTER_SETS = re.compile(r"gconv-modules|(ANSI_X3\.110|CP1252|ISO8859-15?|UNICODE|UTF-16|UTF-32|UTF-7)\.so")

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Slice:
    """Where a file's bytes lie. Entries that share one are hard links of one another."""

    path: Path
    offset: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file, folder or link of the root. info: in canonical form; source: the package it is from."""

    info: tarfile.TarInfo
    source: str
    content: Slice | bytes | None = None  # None: not a regular file

    def read(self) -> bytes:
        """The content of a regular file."""
        match self.content:
            case Slice(path, offset, size_bytes):
                with path.open("rb") as file:
                    file.seek(offset)
                    return file.read(size_bytes)
            case bytes(data):
                return data
            case _:
                raise ValueError(f"{self.info.name} has no content")


Tree: TypeAlias = dict[str, Entry]  # by path, without a leading slash


@dataclass(frozen=True, kw_only=True)
class Package:
    """A .deb that was taken apart. control, md5sums: the files of that name, empty where it has none."""

    deb: LockedDeb
    control: bytes
    md5sums: bytes
    entries: tuple[Entry, ...]


def unpack(deb: LockedDeb, file: Path, *, epoch: int, scratch: Path) -> Package:
    """Take one .deb apart. Its data go, uncompressed, into a file below scratch that the entries point into."""
    import zstandard
    from debian.arfile import ArError, ArFile

    data_path = scratch / f"{deb.sha256}.tar"
    try:
        members = ArFile(str(file)).getmembers()
        control_tar = io.BytesIO()
        _decompress(_member(members, "control.tar"), control_tar)
        with data_path.open("wb") as out:
            _decompress(_member(members, "data.tar"), out)
        control_tar.seek(0)
        with tarfile.open(fileobj=control_tar, mode="r:") as tar:
            records = {_path(info.name): _extract(tar, info) for info in tar if info.isreg()}
        control, md5sums = records["control"], records.get("md5sums", b"")
        entries = tuple(_index(data_path, deb.package, epoch))
    except (
        *(ArError, EOFError, KeyError, OSError, ValueError),
        *(lzma.LZMAError, tarfile.TarError, zlib.error, zstandard.ZstdError),
    ) as err:
        if isinstance(err, OSError) and err.errno is not None:
            raise  # the disk's trouble, not the package's
        raise ContentError(f"`{file}` is not a Debian package of `{deb.package}` that can be read") from err
    return Package(deb=deb, control=control, md5sums=md5sums, entries=entries)


def merge(packages: Iterable[Package], *, slim: bool) -> Tree:
    """All files of all packages. A folder is as base-files has it, else as the first package by name.

    slim: without documentation (copyright files stay), translations and rare character sets.
    Raises ConfigError where two packages hold different things at one path.
    """
    tree: Tree = {}
    for package in sorted(packages, key=lambda one: (one.deb.package != "base-files", one.deb.package)):
        for entry in package.entries:
            name = entry.info.name
            if slim and not _needed(entry.info):
                continue
            there = tree.setdefault(name, entry)
            if there is entry or (there.info.isdir() and entry.info.isdir()) or _same(there, entry):
                continue
            raise ConfigError(
                f"packages `{there.source}` and `{entry.source}` hold different things at `/{name}`",
                why=("which of them would win depends on what their maintainer scripts do, and none is run",),
                hint="take one of the two out of the set in pins.yaml, then run `./noxw -s lock`",
            )
    return tree


def complete(tree: Tree, *, epoch: int) -> None:
    """Add the folders that no package names; raises ConfigError for a file below something that is no folder."""
    for name in list(tree):
        for parent in PurePosixPath(name).parents[:-1]:
            above = tree.setdefault(str(parent), folder(str(parent), epoch=epoch))
            if not above.info.isdir():
                raise ConfigError(
                    f"package `{tree[name].source}` holds `/{name}`, but `/{parent}` of `{above.source}` is no folder",
                    hint="take one of the two out of the set in pins.yaml, then run `./noxw -s lock`",
                )


def placed(name: str) -> str:
    """Where a package's path lies in the root: below usr/ where / has only links to it."""
    path = _path(name)
    return f"usr/{path}" if path.split("/", 1)[0] in MERGED else path


def folder(name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0), *, epoch: int) -> Entry:
    """A folder that no package ships."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode, epoch
    info.uid, info.gid = owner
    return Entry(info=info, source="spark-images")


def link(name: str, target: str, *, epoch: int) -> Entry:
    """A symbolic link that no package ships."""
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname = tarfile.SYMTYPE, 0o777, epoch, target
    return Entry(info=info, source="spark-images")


def text(name: str, data: bytes, *, epoch: int) -> Entry:
    """A file that no package ships: root's, readable by all."""
    info = tarfile.TarInfo(name)
    info.mode, info.mtime, info.size = 0o644, epoch, len(data)
    return Entry(info=info, source="spark-images", content=data)


class _Member(Protocol):
    name: str
    size: int

    def read(self, size: int = ...) -> bytes: ...
    def close(self) -> None: ...


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes) -> bytes: ...


class _Plain:
    eof = True

    def decompress(self, data: bytes) -> bytes:
        return data


def _member(members: Iterable[_Member], stem: str) -> _Member:
    for member in members:
        if member.name == stem or member.name.startswith(f"{stem}."):
            return member
    raise ValueError(f"it holds no {stem}")


def _decompress(member: _Member, out: BinaryIO) -> None:
    decompressor: _Decompressor
    match member.name.rpartition(".")[2]:
        case "xz":
            decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ)
        case "gz":
            decompressor = zlib.decompressobj(wbits=31)
        case "zst":
            import zstandard

            decompressor = zstandard.ZstdDecompressor().decompressobj()
        case "tar":
            decompressor = _Plain()
        case other:
            raise ValueError(f"`{other}` is no compression that Debian packages have")
    missing = member.size
    while chunk := member.read(_CHUNK_BYTES):
        out.write(decompressor.decompress(chunk))
        missing -= len(chunk)
    member.close()
    if missing or not decompressor.eof:
        raise EOFError(f"{member.name} ends too early")


def _index(data: Path, package: str, epoch: int) -> Iterator[Entry]:
    """Every entry of a data member, at its place in the root; hard links share their target's slice."""
    regular: dict[str, Entry] = {}
    with tarfile.open(data, mode="r:", encoding="utf-8", errors="surrogateescape") as tar:
        for member in tar:
            name = placed(member.name)
            if name == "." or (member.issym() and _path(member.name) in MERGED):
                continue  # the root itself, and links such as /bin -> usr/bin that every root gets
            if member.islnk():
                target = regular[placed(member.linkname)]
                entry = Entry(info=copy.copy(target.info), source=package, content=target.content)
            elif member.isreg():
                where = Slice(data, member.offset_data, member.size)
                entry = Entry(info=canonical_info(member, epoch=epoch), source=package, content=where)
            elif member.isdir() or member.issym():
                entry = Entry(info=canonical_info(member, epoch=epoch), source=package)
            else:
                raise ValueError(f"{member.name} is neither file, folder nor link")
            entry.info.name = name
            if entry.content is not None:
                regular[name] = entry
            yield entry


def _path(name: str) -> str:
    path = PurePosixPath(name.lstrip("/"))
    if ".." in path.parts:
        raise ValueError(f"{name} leads out of the root")
    return str(path)


def _extract(tar: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(info)
    assert file is not None  # of regular files only
    return file.read()


def _needed(info: tarfile.TarInfo) -> bool:
    if conversion := _GCONV.fullmatch(info.name):
        return _CHARACTER_SETS.fullmatch(conversion[1]) is not None
    if not f"{info.name}/".startswith(_UNNEEDED):
        return True
    # Licences stay, and so do the links by which packages of one source share a folder of documentation.
    in_doc = info.name.startswith("usr/share/doc/")
    return in_doc and (info.name.endswith("/copyright") or (info.issym() and info.name.count("/") == 3))


def _same(one: Entry, other: Entry) -> bool:
    def facts(entry: Entry) -> tuple[object, ...]:
        info = entry.info
        return info.type, info.mode, info.uid, info.gid, info.size, info.linkname

    return facts(one) == facts(other) and (one.content is None or one.read() == other.read())

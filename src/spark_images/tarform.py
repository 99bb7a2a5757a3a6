"""The canonical tar: one way to write a tar file, so that equal trees give equal bytes on every machine."""

from __future__ import annotations

import tarfile
from typing import BinaryIO, Protocol, cast

# Of every file in an image: 1980-01-01, the first moment that zip archives and so wheels can say. A source's own time
# would give the layers below it new digests with each release.
FILE_TIME = 315532800


class Writable(Protocol):
    """What a tar is written to."""

    def write(self, data: bytes, /) -> object:
        """Take the next bytes."""


def open_canonical(stream: Writable) -> tarfile.TarFile:
    """A tar writer onto a stream that need not seek: POSIX (PAX) format, extended headers only where needed."""
    return tarfile.TarFile(
        fileobj=cast(BinaryIO, _Onward(stream)),
        mode="w",
        format=tarfile.PAX_FORMAT,
        encoding="utf-8",
        errors="surrogateescape",
        copybufsize=1 << 20,
    )


def canonical_info(info: tarfile.TarInfo, *, epoch: int) -> tarfile.TarInfo:
    """The same entry without what differs between machines and engines.

    The mtime is the epoch; owner names, file-type bits in the mode, atime and ctime are gone; extended attributes stay;
    symbolic links are 0777; the name has no leading `./` or `/` and no trailing `/`. The size and a hard link's target
    stay.
    """
    clean = tarfile.TarInfo(info.name.removeprefix("./").strip("/"))
    clean.type = tarfile.REGTYPE if info.isreg() else info.type
    clean.mode = 0o777 if info.issym() else info.mode & 0o7777
    clean.uid, clean.gid = info.uid, info.gid
    clean.size = info.size if info.isreg() else 0
    clean.mtime = epoch
    clean.linkname = info.linkname.removeprefix("./").lstrip("/") if info.islnk() else info.linkname
    clean.devmajor, clean.devminor = info.devmajor, info.devminor
    attributes = (item for item in sorted(info.pax_headers.items()) if item[0].startswith("SCHILY.xattr."))
    clean.pax_headers = dict(attributes)
    return clean


class _Onward:
    """A stream as tarfile's mode `w` wants it; its mode `w|` copies all data into pieces of 10 KiB."""

    def __init__(self, stream: Writable) -> None:
        self.write = stream.write

    def tell(self) -> int:
        return 0

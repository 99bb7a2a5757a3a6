"""The canonical tar: one way to write a tar file, so that equal trees give equal bytes on every machine."""

from __future__ import annotations

import tarfile
from typing import BinaryIO


def open_canonical(stream: BinaryIO) -> tarfile.TarFile:
    """A tar writer onto a stream that need not seek: POSIX (PAX) format, extended headers only where a name needs them."""
    return tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape")


def canonical_info(info: tarfile.TarInfo, *, epoch: int) -> tarfile.TarInfo:
    """The same entry without what differs between machines and engines.

    The mtime is the epoch; owner names, file-type bits in the mode, atime and ctime are gone; extended attributes stay;
    symbolic links are 0777; the name has no leading `./` or `/` and no trailing `/`. What hard links and data need is kept.
    """
    clean = tarfile.TarInfo(info.name.removeprefix("./").strip("/"))
    clean.type = tarfile.REGTYPE if info.isreg() else info.type
    clean.mode = 0o777 if info.issym() else info.mode & 0o7777
    clean.uid, clean.gid = info.uid, info.gid
    clean.size = info.size if info.isreg() else 0
    clean.mtime = epoch
    clean.linkname = info.linkname.removeprefix("./").lstrip("/") if info.islnk() else info.linkname
    clean.devmajor, clean.devminor = info.devmajor, info.devminor
    clean.pax_headers = {key: value for key, value in sorted(info.pax_headers.items()) if key.startswith("SCHILY.xattr.")}
    return clean

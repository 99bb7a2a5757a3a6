"""Makes small .debs byte by byte, so that the tests need no dpkg."""

from __future__ import annotations

import hashlib
import io
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import zstandard

from spark_images.locks import LockedDeb


def gzip(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    return compressor.compress(data) + compressor.flush()


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    ".xz": lzma.compress,
    ".gz": gzip,
    ".zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "": lambda data: data,
}


def file(
    name: str, content: str = "", mode: int = 0o644, owner: tuple[int, int] = (0, 0)
) -> tuple[tarfile.TarInfo, bytes]:
    """A member of a data tar; the modes, times and names are as dpkg-deb writes them."""
    return member(name, mode=mode, owner=owner), content.encode()


def folder(name: str, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> tuple[tarfile.TarInfo, bytes]:
    return member(f"{name}/", kind=tarfile.DIRTYPE, mode=mode, owner=owner), b""


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.SYMTYPE, mode=0o777, target=target), b""


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.LNKTYPE, target=f"./{target}"), b""


def member(
    name: str, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, owner: tuple[int, int] = (0, 0), target: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(f"./{name}")
    info.type, info.mode, info.linkname = kind, mode, target
    info.uid, info.gid = owner
    info.uname, info.gname, info.mtime = "someone", "somegroup", 1_234_567
    return info


def make_deb(
    where: Path,
    package: str,
    members: Iterable[tuple[tarfile.TarInfo, bytes]],
    *,
    version: str = "1.0-1",
    arch: str = "arm64",
    control: Mapping[str, str] = {},
    compression: str = ".xz",
) -> tuple[LockedDeb, Path]:
    """Write <package>.deb and return it with the entry that a lock would have for it. control: further files."""
    stanza = f"Package: {package}\nVersion: {version}\nArchitecture: {arch}\nDescription: made by a test\n"
    records = [file("control", stanza), *(file(name, text) for name, text in control.items())]
    compress = COMPRESSIONS[compression]
    data = b"!<arch>\n"
    for name, content in (
        ("debian-binary", b"2.0\n"),
        (f"control.tar{compression}", compress(_tar(records))),
        (f"data.tar{compression}", compress(_tar(members))),
    ):
        data += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )
    path = where / f"{package}_{version}_{arch}.deb"
    path.write_bytes(data)
    return locked(package, version=version, arch=arch, sha256=hashlib.sha256(data).hexdigest()), path


def locked(package: str, *, version: str = "1.0-1", arch: str = "arm64", sha256: str = "0" * 64) -> LockedDeb:
    """A lock's entry."""
    return LockedDeb(
        package=package,
        version=version,
        arch=arch,
        archive="debian",
        path=f"pool/main/{package[0]}/{package}/{package}_{version.partition(':')[2] or version}_{arch}.deb",
        sha256=sha256,
        size_bytes=1,
        sets=("runtime/arm64",),
    )


def _tar(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()

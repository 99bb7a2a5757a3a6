"""One file of the subject: all that the checks want to know of it, from one reading."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from spark_images.audit.contents import SECRET_FILES, secret_in
from spark_images.cuda_arch import Module
from spark_images.cuobjdump import read_modules
from spark_images.elf import BrokenElfError, ElfFacts, is_elf, read_elf
from spark_images.errors import CheckError, ConfigError
from spark_images.fatbin import MAGIC, has_gpu_code
from spark_images.layers import CHUNK

SMALL_BYTES = 4 << 20  # what is held in memory; larger ELF files go to a temporary file, others are only hashed
TEXT_BYTES = 1 << 20  # the largest file that is searched for secrets
# What checks read themselves: a few files of an image, some MB at most.
KEPT = re.compile(
    r".*\.dist-info/(?:METADATA|RECORD|entry_points\.txt)|/etc/passwd"
    r"|.*/cutlass/cute/nvgpu/(?:warp/mma|tcgen05/\w+)\.py"
)
PTXAS = re.compile(r".*/ptxas(?:-\w+)?")
_KNOWN = re.compile(rb"\bsm_(\d{2,3}[af]?)\b")


@dataclass(frozen=True, kw_only=True)
class Examined:
    """What one file holds."""

    sha256: str  # hex
    elf: ElfFacts | None = None
    broken: str = ""  # why a file that begins like ELF could not be read
    modules: tuple[Module, ...] | None = None  # None: no GPU code
    problem: str = ""  # why its GPU code could not be read
    secret: str = ""  # what kind of secret is in it
    text: str = ""  # of a file that checks read
    loader_cache: bytes = b""
    stale: bool = False  # bytecode that compares the time of its source
    knows: frozenset[str] | None = None  # of a ptxas: "sm_121a"


Content = bytes | Path | str  # a small file; a large ELF file, spooled; the digest of any other


def take(stream: BinaryIO, size: int, spool: Path) -> Content:
    """Read a file once, as far as it has to be kept to be examined. spool: a folder for temporary files."""
    if size <= SMALL_BYTES:
        return stream.read()
    head = stream.read(4)
    if is_elf(head) or head == MAGIC:
        with tempfile.NamedTemporaryFile(dir=spool, delete=False) as kept:
            kept.write(head)
            shutil.copyfileobj(stream, kept, CHUNK)
        return Path(kept.name)
    digest = hashlib.sha256(head)
    while chunk := stream.read(CHUNK):
        digest.update(chunk)
    return digest.hexdigest()


def examine(path: str, content: Content, *, cuobjdump: Path | None, spool: Path, visible: bool = True) -> Examined:
    """What the file at `path` holds; a spooled one is gone afterwards.

    cuobjdump: None, and GPU code is found but not read. visible: False for a file that no container sees, of which only
    a secret matters.
    """
    if isinstance(content, str):
        return Examined(sha256=content)
    try:
        if isinstance(content, Path):
            with content.open("rb") as stream:
                return _elf(path, stream, content, cuobjdump, spool)
        if visible and (is_elf(content[:4]) or content[:4] == MAGIC):
            return _elf(path, io.BytesIO(content), content, cuobjdump, spool)
        return _data(path, content)
    finally:
        if isinstance(content, Path):
            content.unlink()


def _elf(path: str, stream: BinaryIO, content: bytes | Path, cuobjdump: Path | None, spool: Path) -> Examined:
    digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    elf, broken, problem = None, "", ""
    modules: tuple[Module, ...] | None = None
    stream.seek(0)
    try:
        elf = read_elf(stream) if is_elf(stream.read(4)) else None
    except BrokenElfError as err:
        broken = str(err)
    try:
        if not broken and has_gpu_code(stream):
            if cuobjdump is None:
                raise CheckError("there is no `cuobjdump` to read it with")
            modules = _modules(path, content, cuobjdump, spool)
    except (BrokenElfError, CheckError, ConfigError) as err:
        modules, problem = (), _words(err)
    return Examined(sha256=digest, elf=elf, broken=broken, modules=modules, problem=problem, knows=_knows(path, stream))


def _modules(path: str, content: bytes | Path, cuobjdump: Path, spool: Path) -> tuple[Module, ...]:
    if isinstance(content, Path):
        return read_modules(cuobjdump, content)
    with tempfile.NamedTemporaryFile(dir=spool, suffix=Path(path).suffix) as kept:
        kept.write(content)
        kept.flush()
        return read_modules(cuobjdump, Path(kept.name))


def _words(err: Exception) -> str:
    """The error in one line, without the name of the temporary file."""
    why = getattr(err, "why", ())[-1:] or ([str(err.__cause__)] if err.__cause__ else [])
    return re.sub(r"`tmp\w+(?:\.\w+)?`|'/\S*/tmp\w+(?:\.\w+)?'", "it", ": ".join([str(err), *why]))


def _knows(path: str, stream: BinaryIO) -> frozenset[str] | None:
    if not PTXAS.fullmatch(path):
        return None
    found, rest = set(), b""
    stream.seek(0)
    while chunk := stream.read(CHUNK):
        found |= {f"sm_{name.decode()}" for name in _KNOWN.findall(rest + chunk)}
        rest = chunk[-16:]
    return frozenset(found)


def _data(path: str, content: bytes) -> Examined:
    secret, text = "", ""
    if len(content) <= TEXT_BYTES and b"\0" not in content[:4096]:
        text = content.decode(errors="replace")
        secret = "a login" if content.strip() and SECRET_FILES.search(path) else secret_in(text)
    return Examined(
        sha256=hashlib.sha256(content).hexdigest(),
        secret=secret,
        text=content.decode(errors="replace") if KEPT.fullmatch(path) else "",
        loader_cache=content if path == "/etc/ld.so.cache" else b"",
        stale=path.endswith(".pyc") and content[4:8] == bytes(4),  # PEP 552: no flag means a time
    )

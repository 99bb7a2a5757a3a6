"""gzip with the same bytes on every machine: pieces of one size, each a gzip member that one libdeflate compressed.

zlib will not do: every distribution builds another one, and its bytes are nowhere promised. libdeflate's follow from
its version, the level and the data alone, whatever the processor: its wheels for x86-64 and for arm64 (under qemu) gave
equal bytes for layers of both images here. A reader of gzip takes members one after the other for one stream (RFC 1952,
section 2.2).
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from spark_images.errors import CanonicalError

DEFLATE_VERSION = "0.9.0"  # of the wheel, which brings its libdeflate; another one writes other bytes
LEVEL = 6  # 4 % less than 1 of llama.cpp's programs, 1 % less of CUDA's libraries, at two thirds of the speed
PIECE = 4 << 20  # bytes of the tar; deflate looks back 32 KiB, so larger ones make nothing smaller

_MOST_THREADS = 8


class GzipPieces:
    """A compressor as zlib's and zstandard's are used: what compress() and flush() return is the stream, in order."""

    def __init__(self) -> None:
        import deflate

        if deflate.__version__ != DEFLATE_VERSION:
            raise CanonicalError(
                f"this environment has deflate {deflate.__version__}; gzip layers are written with {DEFLATE_VERSION}",
                why=("another version writes other bytes, so the same image would get another digest",),
                hint="run through `./noxw`: it makes an environment with the locked versions",
            )
        self._threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
        self._pool = ThreadPoolExecutor(self._threads)
        self._waiting = bytearray()
        self._pieces: deque[Future[bytearray]] = deque()

    def compress(self, data: bytes | bytearray) -> bytes:
        """Take the next bytes; what is compressed by now."""
        self._waiting += data
        while len(self._waiting) >= PIECE:
            self._begin(bytes(self._waiting[:PIECE]))
            del self._waiting[:PIECE]
        return self._done(at_most=self._threads)

    def flush(self) -> bytes:
        """The end of the stream."""
        self._begin(bytes(self._waiting))  # also of nothing, which needs a member as well
        rest = self._done(at_most=0)
        self._pool.shutdown()
        return rest

    def _begin(self, piece: bytes) -> None:
        from deflate import gzip_compress

        self._pieces.append(self._pool.submit(gzip_compress, piece, LEVEL))

    def _done(self, *, at_most: int) -> bytes:
        found = bytearray()
        while len(self._pieces) > at_most:
            found += self._pieces.popleft().result()
        return bytes(found)

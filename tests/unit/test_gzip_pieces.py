"""gzip layers: readable by every gzip, and the same bytes on every machine."""

from __future__ import annotations

import gzip
import hashlib
import random
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_images import gzip_pieces
from spark_images.errors import CanonicalError
from spark_images.gzip_pieces import PIECE, GzipPieces
from spark_images.layers import TAR_GZIP
from spark_images.layout_writer import new_layout

WORDS = [b"manifest", b"digest", b"layer", b"cubin", b"cgroup", b"sdist", b"\0" * 40]


@cache
def text() -> bytes:
    """About as compressible as programs, and the same in every Python."""
    chosen = random.Random(7)
    found = bytearray()
    while len(found) < 2 * PIECE + 1000:
        found += WORDS[int(chosen.random() * len(WORDS))] + chosen.randbytes(3)
    return bytes(found)


def text_of(size: int) -> bytes:
    return text()[:size]


def compressed(data: bytes, step: int) -> bytes:
    pieces = GzipPieces()
    return b"".join(pieces.compress(data[i : i + step]) for i in range(0, len(data), step)) + pieces.flush()


def test_the_bytes_are_those_that_were_written_down_on_x86_and_arm() -> None:
    """If this fails, libdeflate writes other bytes here: the same image would get another digest."""
    made = compressed(text_of(2 * PIECE + 1000), 1 << 20)
    assert hashlib.sha256(made).hexdigest() == "a739cc5802351a57d5e1c74162b8dad63a8143386a51bec03eb1ebe5b74dc298"


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE])
def test_any_gzip_reads_it_and_sees_the_end(size: int) -> None:
    data = text_of(size)
    assert gzip.decompress(compressed(data, 1 << 20)) == data


@settings(max_examples=20, deadline=None)
@given(st.integers(1000, 3000), st.integers(1, 3000))
def test_how_it_is_handed_over_does_not_show(size: int, step: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gzip_pieces, "PIECE", 512)
        assert compressed(text_of(size), step) == compressed(text_of(size), size)


def test_the_number_of_threads_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gzip_pieces, "PIECE", 1 << 16)
    many = compressed(text_of(PIECE), 1 << 20)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0})
    assert compressed(text_of(PIECE), 1 << 20) == many


def test_another_libdeflate_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("deflate.__version__", "0.9.1")
    with (
        pytest.raises(CanonicalError, match=r"deflate 0\.9\.1"),
        new_layout(tmp_path / "layout") as writer,
        writer.layer(media_type=TAR_GZIP),
    ):
        pass
    assert not (tmp_path / "layout").exists()

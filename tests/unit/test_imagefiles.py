"""The merged view of an image's layers."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from raw_layouts import TAR, file, folder, hardlink, item, symlink, write_raw

from spark_images.errors import CanonicalError, CheckError
from spark_images.imagefiles import extract_file, layer_files, walk_files, walk_layers
from spark_images.oci import Layout, read_layout


def layout_of(path: Path, *layers: list[tuple[tarfile.TarInfo, bytes]], media_type: str = f"{TAR}+zstd") -> Layout:
    return read_layout(write_raw(path / "raw", layers, media_type=media_type))


def paths(layout: Layout) -> list[str]:
    return sorted(entry.path for entry in walk_files(layout))


@pytest.mark.parametrize("media_type", [TAR, f"{TAR}+gzip", f"{TAR}+zstd"])
def test_contents_are_read_while_walking(tmp_path: Path, media_type: str) -> None:
    big = bytes(range(256)) * 50_000  # more than is kept in memory
    layout = layout_of(
        tmp_path,
        [folder("./d/", mode=0o40750, uid=3), file("./d/a", b"one"), file("./d/b", big)],
        media_type=media_type,
    )

    found = {entry.path: entry.open().read() for entry in walk_files(layout) if entry.type == "file"}

    assert found == {"d/a": b"one", "d/b": big}


@pytest.mark.parametrize("media_type", [TAR, f"{TAR}+gzip", f"{TAR}+zstd"])
def test_contents_pass_by_once_without_being_kept(tmp_path: Path, media_type: str) -> None:
    big = bytes(range(256)) * 50_000
    layout = layout_of(tmp_path, [file("a", b"one"), file("b", big), file("c")], media_type=media_type)

    found = {}
    for entry in walk_files(layout):
        with entry.stream() as content:
            found[entry.path] = content.read()

    assert found == {"a": b"one", "b": big, "c": b""}


def test_what_no_container_sees_is_walked_too_and_marked(tmp_path: Path) -> None:
    layers = [file("a", b"old"), file("b")], [file("a", b"new"), file(".wh.b")]

    found = [(entry.path, visible) for entry, visible in walk_layers(layout_of(tmp_path, *map(list, layers)))]

    assert found == [("a", True), ("a", False), ("b", False)]


def test_a_content_can_be_sought_and_read_again_after_the_walk(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [file("a", b"0123456789"), file("b", b"x" * 5_000_000)])

    first, second = walk_files(layout)

    with second.open() as content, first.open() as other:
        assert content.seek(-3, 2) == 4_999_997
        assert content.read() == b"xxx"
        other.seek(4)
        assert other.read(3) == b"456"
        other.seek(0)
        assert other.read(2) == b"01"


def test_metadata_are_those_of_the_entry(tmp_path: Path) -> None:
    (found,) = walk_files(layout_of(tmp_path, [file("./a", b"abc", mode=0o104755, uid=5, gid=6)]))

    assert (found.path, found.type, found.mode, found.uid, found.gid, found.size) == ("a", "file", 0o4755, 5, 6, 3)


def test_a_later_layer_wins(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [file("a", b"old"), file("b", b"kept")], [file("a", b"new")])

    extract_file(layout, "/a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"new"
    assert paths(layout) == ["a", "b"]


def test_a_whiteout_hides_a_folder_and_what_is_in_it(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [folder("d"), file("d/x"), file("e")], [file(".wh.d")])

    assert paths(layout) == ["e"]


def test_an_opaque_folder_hides_what_is_in_it_below_and_not_its_own(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [folder("d"), file("d/x")], [folder("d"), file("d/.wh..wh..opq"), file("d/y")])

    assert paths(layout) == ["d", "d/y"]


def test_a_file_in_place_of_a_folder_hides_what_was_in_it_even_when_it_is_replaced_again(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [folder("d"), file("d/x")], [file("d")], [folder("d"), file("d/y")])

    assert paths(layout) == ["d", "d/y"]


def test_a_hard_link_has_the_content_of_its_target_even_when_that_is_deleted_above(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [file("a", b"shared"), hardlink("b", "a")], [file(".wh.a")])

    (found,) = walk_files(layout)

    assert (found.path, found.type, found.size, found.link) == ("b", "file", 6, "a")
    assert found.open().read() == b"shared"


def test_links_and_devices_have_their_types(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [symlink("l", "/a"), item("null", tarfile.CHRTYPE), item("pipe", tarfile.FIFOTYPE)])

    found = {entry.path: (entry.type, entry.link) for entry in walk_files(layout)}

    assert found == {"l": ("symlink", "/a"), "null": ("other", ""), "pipe": ("other", "")}


def test_one_layer_alone_shows_its_whiteouts(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [file("a")], [file(".wh.a"), file("b")])

    assert [entry.path for entry in layer_files(layout, layout.layers[1])] == [".wh.a", "b"]


def test_a_file_is_copied_out(tmp_path: Path) -> None:
    extract_file(layout_of(tmp_path, [file("usr/a", b"abc")]), "/usr/a", tmp_path / "copy")

    assert (tmp_path / "copy").read_bytes() == b"abc"


@pytest.mark.parametrize(("path", "message"), [("b", "the image has no file `b`"), ("l", "is no file: symlink a")])
def test_what_is_no_file_cannot_be_read(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(CheckError, match=message):
        extract_file(layout_of(tmp_path, [file("a"), symlink("l", "a")]), path, tmp_path / "copy")


def test_a_damaged_compressed_layer_is_an_error(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, [file("a", b"abc" * 10_000)], media_type=f"{TAR}+gzip")
    blob = layout.blob(layout.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[len(data) // 2] ^= 0xFF
    blob.write_bytes(data)

    with pytest.raises(CanonicalError, match="is damaged"):
        [entry.open().read() for entry in walk_files(layout)]

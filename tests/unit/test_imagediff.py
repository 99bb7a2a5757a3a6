"""Two images of one plan that differ: the message names the file, the byte or the section."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from elf_files import object_file, shared_library
from raw_layouts import SETTINGS, TAR, Item, file, folder, hardlink, symlink, write_raw

from spark_images.imagediff import MOST_FILES, layout_differences
from spark_images.oci import Layout, read_layout

BASE = [folder("usr"), file("usr/base", b"the base")]
TREE = [
    folder("opt"),
    file("opt/a", b"a" * 100),
    file("opt/b", b"b"),
    symlink("opt/c", "a"),
    hardlink("opt/d", "opt/b"),
]


def layout(path: Path, *layers: Iterable[Item], **options: Any) -> Layout:
    return read_layout(write_raw(path, [BASE, *layers], **options))


def compare(tmp_path: Path, old: Iterable[Item], new: Iterable[Item], **options: Any) -> tuple[str, ...]:
    """The differences of two images whose second layers have these entries."""
    return layout_differences(layout(tmp_path / "old", old, **options), layout(tmp_path / "new", new, **options))


def changed(old: Item, *new: Item) -> list[Item]:
    """TREE with other entries in the place of one."""
    return [entry for item in TREE for entry in (new if item[0].name == old[0].name else (item,))]


def test_equal_images_have_no_differences(tmp_path: Path) -> None:
    assert compare(tmp_path, TREE, TREE) == ()


@pytest.mark.parametrize("media_type", [TAR, f"{TAR}+zstd"])
@pytest.mark.parametrize(
    ("content", "how"),
    [
        (b"a" * 42 + b"X" + b"a" * 57, "differs from byte 42 on (100 and 100 bytes)"),
        (b"a" * 90, "differs from byte 90 on (100 and 90 bytes)"),
        (b"", "differs from byte 0 on (100 and 0 bytes)"),
    ],
)
def test_a_changed_file_is_named_with_its_layer_and_first_byte(
    tmp_path: Path, content: bytes, how: str, media_type: str
) -> None:
    new = changed(TREE[1], file("opt/a", content))
    assert compare(tmp_path, TREE, new, media_type=media_type) == (f"layer 2: opt/a: {how}",)


def test_every_name_of_a_changed_file_is_named(tmp_path: Path) -> None:
    found = compare(tmp_path, TREE, changed(TREE[2], file("opt/b", b"B")))
    assert [line.split(": ")[1] for line in found] == ["opt/b", "opt/d"]


def test_elf_files_differ_by_section(tmp_path: Path) -> None:
    old = object_file({".text": b"code", ".rodata": b"/build/one", ".data": b"1"})
    new = object_file({".text": b"code", ".rodata": b"/build/two", ".data": b"2"})
    found = compare(tmp_path, [file("lib.so", old)], [file("lib.so", new)])
    assert found == ("layer 2: lib.so: sections .data, .rodata differ",)


@pytest.mark.parametrize("kind", ["-c", "-shared"])
def test_elf_files_differ_by_symbol(tmp_path: Path, kind: str) -> None:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")

    def compiled(planted: int) -> bytes:
        (tmp_path / "a.c").write_text(
            f"const int stamp = {planted};\nint same(void) {{ return 3; }}\nint planted(void) {{ return {planted}; }}\n"
        )
        subprocess.run(["cc", "-O1", "-fPIC", kind, "-o", "a.out", "a.c"], cwd=tmp_path, check=True)
        return (tmp_path / "a.out").read_bytes()

    (found,) = compare(tmp_path, [file("lib.so", compiled(1))], [file("lib.so", compiled(2))])
    assert "symbols planted, stamp" in found
    assert "same" not in found


def test_a_section_that_only_one_has_is_named(tmp_path: Path) -> None:
    old, new = object_file({".text": b"code"}), object_file({".text": b"code", ".comment": b"GCC"})
    (found,) = compare(tmp_path, [file("lib.so", old)], [file("lib.so", new)])
    assert ".comment" in found
    assert ".text" not in found


@pytest.mark.parametrize(
    ("old", "new", "byte"),
    [
        (shared_library(soname="a"), shared_library(soname="b"), "from byte"),
        (object_file({".text": b"a"}), object_file({".text": b"a"}, machine=62), "from byte 18 on"),
        (object_file({".text": b"a"}), object_file({".text": b"a"})[:70], "from byte 70 on"),
        (b"\x7fELF", b"\x7fELF?", "from byte 4 on"),
    ],
    ids=["no sections", "only headers", "truncated", "no ELF in truth"],
)
def test_elf_files_whose_sections_do_not_tell_differ_by_byte(tmp_path: Path, old: bytes, new: bytes, byte: str) -> None:
    (found,) = compare(tmp_path, [file("lib.so", old)], [file("lib.so", new)])
    assert byte in found


@pytest.mark.parametrize(
    "entry",
    [
        file("opt/a", b"a" * 100, mode=0o755),
        file("opt/a", b"a" * 100, uid=10001),
        file("opt/a", b"a" * 100, gid=10001),
        symlink("opt/a", "b"),
    ],
    ids=["mode", "uid", "gid", "type"],
)
def test_a_changed_entry_is_named_though_the_content_is_the_same(tmp_path: Path, entry: Item) -> None:
    found = compare(tmp_path, TREE, changed(TREE[1], entry))
    assert found == ("layer 2: opt/a: mode, owner or link differ",)


def test_a_link_that_leads_elsewhere_is_named(tmp_path: Path) -> None:
    found = compare(tmp_path, TREE, changed(TREE[3], symlink("opt/c", "b")))
    assert found == ("layer 2: opt/c: mode, owner or link differ",)


def test_files_that_only_one_image_has_are_named(tmp_path: Path) -> None:
    found = compare(tmp_path, TREE, changed(TREE[1], file("opt/aa", b"")))
    assert found == ("layer 2: opt/a: only in the old image", "layer 2: opt/aa: only in the new image")


def test_a_changed_config_is_named_by_its_key(tmp_path: Path) -> None:
    old = layout(tmp_path / "old", TREE)
    new = layout(tmp_path / "new", TREE, settings={**SETTINGS, "User": "0:0"})
    assert layout_differences(old, new) == ("the image configs differ in config",)


def test_a_missing_layer_is_counted(tmp_path: Path) -> None:
    found = layout_differences(layout(tmp_path / "old", TREE), layout(tmp_path / "new"))
    assert "3 layers, then 2" not in found
    assert "2 layers, then 1" in found


def test_of_many_files_the_rest_is_counted(tmp_path: Path) -> None:
    count = MOST_FILES + 5
    old, new = ([file(f"f{i:02}", content) for i in range(count)] for content in (b"old", b"new"))
    found = compare(tmp_path, old, new)
    assert len(found) == MOST_FILES + 1
    assert found[-1] == "and 5 more"

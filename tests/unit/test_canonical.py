"""One image from however an engine says it: what must not change the digest, and what must."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_layouts import CONFIG, EPOCH, SETTINGS, TAR, Item, file, folder, hardlink, item, symlink, tar_of, write_raw

from spark_images import layout_writer
from spark_images.canonical import compare_config, write_canonical
from spark_images.errors import CanonicalError, DiskFullError
from spark_images.imageconfig import ImageConfig
from spark_images.layers import open_layer
from spark_images.oci import Layout, read_layout, verify_blobs, write_root_layout
from spark_images.tarform import FILE_TIME

CAPABILITY = "SCHILY.xattr.security.capability"
BASE = [
    folder("etc"),
    file("etc/passwd", b"root\n", mode=0o644),
    folder("usr"),
    file("usr/tool", b"tool", mode=0o755),
    hardlink("usr/alias", "usr/tool"),
    symlink("lib", "usr/lib"),
    folder("usr/share"),
    file("usr/share/one", b"1"),
    file("usr/share/two", b"2"),
]


@pytest.fixture
def base(tmp_path: Path) -> Layout:
    (tmp_path / "base.tar").write_bytes(tar_of(BASE))
    return write_root_layout(tmp_path / "base.tar", architecture="arm64", env=(), epoch=EPOCH, output=tmp_path / "base")


class Canonical:
    """Writes canonical layouts of hand-made exports, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.count = 0

    def __call__(
        self,
        *layers: Sequence[Item] | bytes,
        base: Layout | None = None,
        config: ImageConfig = CONFIG,
        created_by: tuple[str, ...] = ("COPY",),
        media_type: str = TAR,
    ) -> Layout:
        self.count += 1
        below = [tar_of(BASE)] if base else []
        raw = write_raw(self.folder / f"raw-{self.count}", [*below, *layers], media_type=media_type)
        output = self.folder / f"out-{self.count}"
        return write_canonical(raw=raw, base=base, config=config, created_by=created_by, output=output)


@pytest.fixture
def canonical(tmp_path: Path) -> Canonical:
    return Canonical(tmp_path)


def entries(layout: Layout, number: int = -1) -> list[tarfile.TarInfo]:
    layer = layout.layers[number]
    with open_layer(layout.blob(layer.digest), layer.media_type) as stream, tarfile.open(fileobj=stream) as tar:
        return tar.getmembers()


def names(layout: Layout, number: int = -1) -> list[str]:
    return [entry.name for entry in entries(layout, number)]


def test_entries_are_sorted_dated_and_without_the_engines_marks(canonical: Canonical) -> None:
    layout = canonical(
        [
            folder("./", mode=0o40755),
            file("./b", b"b", mode=0o100600, mtime=12, uname="root", pax_headers={"atime": "3.5"}),
            folder("./a/", mode=0o40750, mtime=99.75),
            symlink("./a/z", "../b", mode=0o644),
            file("./a.txt", b"t"),
        ]
    )

    found = [(e.name, e.mode, e.mtime, e.uname, e.pax_headers) for e in entries(layout)]
    assert found == [
        ("a", 0o750, FILE_TIME, "", {}),
        ("a/z", 0o777, FILE_TIME, "", {}),
        ("a.txt", 0o644, FILE_TIME, "", {}),
        ("b", 0o600, FILE_TIME, "", {}),
    ]
    verify_blobs(layout)


def test_the_canonical_form_of_a_small_image_is_this_digest(canonical: Canonical, base: Layout) -> None:
    layout = canonical(
        [folder("opt"), file("opt/x", b"x" * 2000, pax_headers={CAPABILITY: "\x01\udcff"}), file("usr/share/.wh.one")],
        base=base,
    )

    # When this changes, CANONICAL_FORM has to: the same plan must not name two images.
    assert layout.manifest_digest == "sha256:218d3b9ee94ae2250e1600e79f63f62f02d3ea3b24f285cd1172f9d16b7df444"


@pytest.mark.parametrize("media_type", [f"{TAR}+gzip", f"{TAR}+zstd"])
def test_the_exports_compression_does_not_matter(canonical: Canonical, media_type: str) -> None:
    layers = [folder("a"), file("a/b", b"b" * 100_000)]

    assert canonical(layers, media_type=media_type).manifest_digest == canonical(layers).manifest_digest


def test_the_canonical_form_of_a_canonical_image_is_itself(canonical: Canonical, base: Layout, tmp_path: Path) -> None:
    first = canonical([folder("a"), file("a/b", b"b"), hardlink("a/c", "a/b"), file("usr/.wh.share")], base=base)

    again = write_canonical(raw=first.path, base=base, config=CONFIG, created_by=("COPY",), output=tmp_path / "again")

    assert again.manifest_digest == first.manifest_digest


def test_the_bases_layer_stays_as_it_is_and_takes_no_further_room(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("new", b"n")], base=base)

    assert layout.layers[0] == base.layers[0]
    assert layout.blob(base.layers[0].digest).samefile(base.blob(base.layers[0].digest))
    assert layout.config["history"] == [
        {"created": "2023-11-14T22:13:20Z", "created_by": "root file system"},
        {"created": "2023-11-14T22:13:20Z", "created_by": "COPY"},
    ]


def test_an_export_that_does_not_stand_on_the_base_is_an_error(tmp_path: Path, base: Layout) -> None:
    raw = write_raw(tmp_path / "raw", [[file("other")], [file("new")]])

    with pytest.raises(CanonicalError, match="does not stand on the base") as caught:
        write_canonical(raw=raw, base=base, config=CONFIG, created_by=(), output=tmp_path / "out")

    assert base.layers[0].diff_id in caught.value.why[0]


def test_a_base_for_another_architecture_is_an_error(canonical: Canonical, base: Layout) -> None:
    with pytest.raises(CanonicalError, match="the base is for `arm64`, the plan for `amd64`"):
        canonical([file("new")], base=base, config=replace(CONFIG, architecture="amd64"))


def test_what_is_there_already_is_left_out(canonical: Canonical, base: Layout) -> None:
    layout = canonical(
        [
            folder("etc", mode=0o40755, mtime=77),
            file("etc/passwd", b"root\n", mtime=78),
            symlink("lib", "usr/lib", mode=0o644),
            file("new", b"n"),
        ],
        base=base,
    )

    assert names(layout) == ["new"]


@pytest.mark.parametrize(
    "changed",
    [
        file("etc/passwd", b"user\n"),
        file("etc/passwd", b"root\nuser\n"),
        file("etc/passwd", b"root\n", mode=0o600),
        file("etc/passwd", b"root\n", uid=1),
        file("etc/passwd", b"root\n", gid=1),
        file("etc/passwd", b"root\n", pax_headers={"SCHILY.xattr.user.x": "y"}),
        symlink("etc/passwd", "shadow"),
        folder("etc/passwd"),
        folder("etc", mode=0o700),
        symlink("lib", "/usr/lib"),
    ],
)
def test_what_differs_from_what_is_there_is_kept(canonical: Canonical, base: Layout, changed: Item) -> None:
    assert names(canonical([changed], base=base)) == [changed[0].name]


def test_a_layer_that_changes_nothing_is_dropped(canonical: Canonical, base: Layout) -> None:
    layout = canonical([folder("usr")], [file("new")], [file("usr/.wh.nothing")], base=base, created_by=("COPY new",))

    assert [layer.created_by for layer in layout.layers] == ["root file system", "COPY new"]


def test_when_layers_are_dropped_the_history_has_neutral_texts(canonical: Canonical, base: Layout) -> None:
    layout = canonical([folder("usr")], [file("new")], base=base, created_by=("COPY a", "COPY b"))

    assert [layer.created_by for layer in layout.layers] == ["root file system", "layer 1"]


def test_a_file_written_twice_with_the_same_content_is_in_the_first_layer_only(canonical: Canonical) -> None:
    layout = canonical([file("a", b"same")], [file("a", b"same"), file("b")])

    assert (names(layout, 0), names(layout, 1)) == (["a"], ["b"])


def test_of_two_entries_with_one_path_the_later_counts(canonical: Canonical) -> None:
    twice = canonical([folder("d", mode=0o700), file("d/a", b"1"), folder("d"), file("d/a", b"22")])

    assert twice.manifest_digest == canonical([folder("d"), file("d/a", b"22")]).manifest_digest


def test_the_first_name_of_a_file_holds_its_content_whichever_the_engine_chose(canonical: Canonical) -> None:
    one = canonical([file("b", b"x", mode=0o755, uid=7), hardlink("a", "b"), hardlink("c", "b")])
    other = canonical([file("./c", b"x", mode=0o755, uid=7), hardlink("./b", "./c"), hardlink("./a", "./b")])

    assert one.manifest_digest == other.manifest_digest
    assert [(e.name, e.linkname, e.size, e.mode, e.uid) for e in entries(one)] == [
        ("a", "", 1, 0o755, 7),
        ("b", "a", 0, 0o755, 7),
        ("c", "a", 0, 0o755, 7),
    ]


def test_hard_links_that_are_there_already_are_left_out(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("usr/tool", b"tool", mode=0o755), hardlink("usr/alias", "usr/tool"), file("n")], base=base)

    assert names(layout) == ["n"]


def test_a_name_that_was_written_without_a_change_is_still_the_same_file(canonical: Canonical, base: Layout) -> None:
    tool = file("usr/tool", b"tool", mode=0o755)

    layout = canonical([tool], [tool, hardlink("usr/alias", "usr/tool"), file("n")], base=base)

    assert names(layout) == ["n"]


def test_extended_attributes_of_a_file_are_on_all_its_names(canonical: Canonical) -> None:
    layout = canonical([file("b", b"x", pax_headers={"SCHILY.xattr.user.x": "y"}), hardlink("a", "b")])

    assert [(e.name, e.pax_headers) for e in entries(layout)] == [(name, {"SCHILY.xattr.user.x": "y"}) for name in "ab"]


def test_the_order_in_which_attributes_come_does_not_count(canonical: Canonical) -> None:
    names = ("SCHILY.xattr.user.a", "SCHILY.xattr.user.b")
    orders = (names, names[::-1])
    made = [canonical([file("a", b"x", pax_headers=dict.fromkeys(order, "y"))]) for order in orders]
    assert made[0].manifest_digest == made[1].manifest_digest
    assert list(entries(made[0])[0].pax_headers) == list(names)


def test_two_files_that_become_one_are_kept(canonical: Canonical, base: Layout) -> None:
    links = [file("usr/share/one", b"1"), hardlink("usr/share/two", "usr/share/one")]

    assert names(canonical(links, base=base)) == ["usr/share/one", "usr/share/two"]


def test_a_further_name_for_a_file_below_brings_the_file_with_it(canonical: Canonical, base: Layout) -> None:
    links = [file("usr/tool", b"tool", mode=0o755), hardlink("usr/a", "usr/tool"), hardlink("usr/alias", "usr/tool")]

    assert names(canonical(links, base=base)) == ["usr/a", "usr/alias", "usr/tool"]


def test_a_hard_link_out_of_its_layer_is_an_error(canonical: Canonical, base: Layout) -> None:
    with pytest.raises(CanonicalError, match="hard link to 'usr/tool', which is not in it"):
        canonical([hardlink("a", "usr/tool")], base=base)


def test_whiteouts_stay_and_come_before_their_siblings(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("usr/+new", b"n"), file("usr/.wh.share", mode=0), file("usr/.wh.tool")], base=base)

    assert names(layout) == ["usr/.wh.share", "usr/.wh.tool", "usr/+new"]


def test_a_whiteout_of_nothing_is_dropped(canonical: Canonical, base: Layout) -> None:
    assert names(canonical([file("usr/.wh.none"), file(".wh.none"), file("n")], base=base)) == ["n"]


def test_a_file_that_is_deleted_and_written_again_is_new(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("etc/.wh.passwd")], [file("etc/passwd", b"root\n")], base=base)

    assert (names(layout, 1), names(layout, 2)) == (["etc/.wh.passwd"], ["etc/passwd"])


def test_an_opaque_folder_is_the_same_as_whiteouts_of_all_that_is_gone(canonical: Canonical, base: Layout) -> None:
    opaque = [
        folder("usr"),
        file("usr/.wh..wh..opq"),
        folder("usr/share"),
        file("usr/share/one", b"1"),
        file("usr/new", b"n"),
    ]
    single = [file("usr/.wh.tool"), file("usr/.wh.alias"), file("usr/share/.wh.two"), file("usr/new", b"n")]
    replaced = [file(".wh.usr"), *(entry for entry in opaque if ".opq" not in entry[0].name)]

    layout = canonical(opaque, base=base)

    assert names(layout) == ["usr/.wh.alias", "usr/.wh.tool", "usr/new", "usr/share/.wh.two"]
    assert canonical(single, base=base).manifest_digest == layout.manifest_digest
    assert canonical(replaced, base=base).manifest_digest == layout.manifest_digest


def test_a_folder_made_anew_may_have_no_entry_of_its_own(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("usr/.wh.share"), file("usr/share/new", b"n")], base=base)

    assert names(layout) == ["usr/share/.wh.one", "usr/share/.wh.two", "usr/share/new"]


def test_a_folder_that_a_file_replaces_needs_no_whiteouts(canonical: Canonical, base: Layout) -> None:
    layout = canonical([file("usr/share", b"")], [folder("usr/share"), file("usr/share/one", b"1")], base=base)

    assert (names(layout, 1), names(layout, 2)) == (["usr/share"], ["usr/share", "usr/share/one"])


def test_what_an_engine_made_to_mount_on_is_left_out_and_a_file_of_that_name_stays(canonical: Canonical) -> None:
    stubs = [file("etc/hostname", mode=0o755), file("etc/resolv.conf"), folder("spark"), folder("spark/scripts")]

    assert names(canonical([folder("etc"), *stubs, file("etc/hosts", b"127.0.0.1 x\n")])) == ["etc", "etc/hosts"]


def test_extended_attributes_stay_byte_for_byte(canonical: Canonical) -> None:
    value = b"\x01\x00\x00\x02\x00\x04\xff\xfe\x00\x0a=\x00".decode("utf-8", "surrogateescape")

    (found,) = entries(canonical([file("ping", b"p", pax_headers={CAPABILITY: value, "comment": "dropped"})]))

    assert {k: v for k, v in found.pax_headers.items() if k != "hdrcharset"} == {CAPABILITY: value}


def test_devices_and_pipes_keep_their_numbers(canonical: Canonical) -> None:
    layout = canonical([item("null", tarfile.CHRTYPE, devmajor=1, devminor=3), item("pipe", tarfile.FIFOTYPE)])

    assert [(e.name, e.type, e.devmajor, e.devminor) for e in entries(layout)] == [
        ("null", tarfile.CHRTYPE, 1, 3),
        ("pipe", tarfile.FIFOTYPE, 0, 0),
    ]


def test_long_names_and_names_that_are_no_text_stay(canonical: Canonical) -> None:
    odd = ["long/" + "n" * 300, "caf\udce9", "ünïcode"]

    assert sorted(names(canonical([file(name) for name in odd]))) == sorted(odd)


@pytest.mark.parametrize("path", ["../up", "a/../b", "a//b"])
def test_a_path_that_leads_out_or_is_no_path_is_an_error(canonical: Canonical, path: str) -> None:
    with pytest.raises(CanonicalError, match="has an entry with the path"):
        canonical([file(path)])


def test_an_unknown_compression_is_an_error_that_names_it(canonical: Canonical) -> None:
    with pytest.raises(CanonicalError, match=r"unknown media type `.*tar\+xz`"):
        canonical([file("a")], media_type=f"{TAR}+xz")


@pytest.mark.parametrize(
    "tar",
    [
        b"not a tar" * 200,
        tar_of([file("a", b"x" * 5000)])[:3072],  # in the middle of a content
        tar_of([file("a", b"x"), file("b", b"y")])[:1024],  # between two entries
        tar_of([file("a", b"x")])[:1024] + b"damaged!" * 64 + tar_of([file("b", b"y")]),
        b"",
    ],
)
def test_a_tar_that_is_not_complete_is_an_error(canonical: Canonical, tar: bytes, tmp_path: Path) -> None:
    with pytest.raises(CanonicalError, match="is damaged: it is no complete tar archive"):
        canonical(tar)

    assert not (tmp_path / "out-1").exists()


def test_a_compressed_layer_with_another_content_than_its_diff_id_is_an_error(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [[file("a", b"1")]], media_type=f"{TAR}+gzip")
    layer = read_layout(raw).layers[0]
    config = read_layout(raw).blob(read_layout(raw).config_digest)
    text = config.read_text().replace(layer.diff_id, f"sha256:{'0' * 64}")
    write_again(raw, config, text.encode())

    with pytest.raises(CanonicalError, match="is damaged"):
        write_canonical(raw=raw, base=None, config=CONFIG, created_by=(), output=tmp_path / "out")


def write_again(raw: Path, old: Path, data: bytes) -> None:
    """Put another config in place of the old one, with digests that fit."""
    index = json.loads((raw / "index.json").read_text())
    blobs = old.parent
    manifest = json.loads((blobs / index["manifests"][0]["digest"][7:]).read_text())
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    manifest["config"].update(digest=f"sha256:{digest}", size=len(data))
    text = json.dumps(manifest).encode()
    digest = hashlib.sha256(text).hexdigest()
    (blobs / digest).write_bytes(text)
    index["manifests"][0].update(digest=f"sha256:{digest}", size=len(text))
    (raw / "index.json").write_text(json.dumps(index))


def test_a_full_disk_in_a_thread_leaves_nothing(
    canonical: Canonical, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: layout_writer.LayerSink, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(layout_writer.LayerSink, "_store", full)

    with pytest.raises(DiskFullError, match="no room left to write"):
        canonical([file("a", b"1")], [file("b", b"2")])

    assert [path.name for path in tmp_path.iterdir()] == ["raw-1"]


def test_an_interrupt_ends_all_threads_and_leaves_nothing(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [[file(f"{name}", os.urandom(9_000_000))] for name in "abc"])

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_canonical(
            raw=raw, base=None, config=CONFIG, created_by=(), output=tmp_path / "out", on_progress=interrupt
        )

    assert [path.name for path in tmp_path.iterdir()] == ["raw"]


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [[file("a", b"x" * 3_000_000)], [file("b", b"y" * 1_000_000)]])
    seen: list[tuple[int, int]] = []

    write_canonical(
        raw=raw,
        base=None,
        config=CONFIG,
        created_by=(),
        output=tmp_path / "out",
        on_progress=lambda done, total: seen.append((done, total)),
    )

    assert seen == sorted(seen)
    assert {total for _, total in seen} == {seen[-1][0]}
    assert len(seen) > 3


def test_the_config_is_the_plans(canonical: Canonical) -> None:
    layout = canonical([file("a")], config=replace(CONFIG, workdir="/srv"))

    assert layout.config["architecture"] == "arm64"
    assert layout.config["created"] == "2023-11-14T22:13:20Z"
    assert layout.config["config"] == {
        "Entrypoint": ["/bin/serve", "--all"],
        "Env": ["MODE=serve"],
        "ExposedPorts": {"8080/tcp": {}},
        "Labels": {"org.opencontainers.image.title": "hello"},
        "StopSignal": "SIGTERM",
        "User": "10001:10001",
        "WorkingDir": "/srv",
    }


def test_an_engine_that_says_what_the_plan_says_differs_in_nothing() -> None:
    assert compare_config({"config": SETTINGS}, CONFIG) == ()
    assert compare_config({"config": {**SETTINGS, "WorkingDir": "/"}}, CONFIG) == ()


@pytest.mark.parametrize(
    ("setting", "value", "sentence"),
    [
        ("User", "0:0", "User: the engine wrote `0:0`, the plan says `10001:10001`"),
        ("User", None, "User: the engine wrote nothing, the plan says `10001:10001`"),
        ("Env", ["MODE=test"], "Env MODE: the engine wrote `test`, the plan says `serve`"),
        ("Env", ["MODE=serve", "JOBS=4"], "Env JOBS: the engine wrote `4`, the plan says nothing"),
        ("Entrypoint", ["/bin/sh"], "Entrypoint: the engine wrote `/bin/sh`, the plan says `/bin/serve --all`"),
        ("Cmd", ["sh"], "Cmd: the engine wrote `sh`, the plan says nothing"),
        ("ExposedPorts", {}, "ExposedPorts: the engine wrote nothing, the plan says `8080/tcp`"),
        ("StopSignal", "SIGKILL", "StopSignal: the engine wrote `SIGKILL`, the plan says `SIGTERM`"),
        ("WorkingDir", "/srv", "WorkingDir: the engine wrote `/srv`, the plan says nothing"),
        ("Labels", {}, "Label org.opencontainers.image.title: the engine wrote nothing, the plan says `hello`"),
    ],
)
def test_every_setting_that_differs_is_a_sentence(setting: str, value: object, sentence: str) -> None:
    assert compare_config({"config": {**SETTINGS, setting: value}}, CONFIG) == (sentence,)


def test_an_image_that_says_something_else_than_the_plan_is_an_error(canonical: Canonical) -> None:
    with pytest.raises(CanonicalError, match="says something else than the plan") as caught:
        canonical([file("a")], config=replace(CONFIG, user="0:0"))

    assert caught.value.why == ("User: the engine wrote `10001:10001`, the plan says `0:0`",)


# --- properties: random trees -----------------------------------------------------------------------------------------

PARTS = st.sampled_from(["a", "b", "a.b", "a-b", "c", "é"])
METADATA = {"mode": st.sampled_from([0o644, 0o755, 0o4755]), "uid": st.integers(0, 3), "gid": st.integers(0, 3)}
ATTRIBUTES = st.dictionaries(st.just("SCHILY.xattr.user.x"), st.sampled_from(["1", "2"]), max_size=1)


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Item]:
    """Paths with entries; every parent is a folder with an entry."""
    tree: dict[str, Item] = {}
    for parts in draw(st.lists(st.lists(PARTS, min_size=1, max_size=3), min_size=1, max_size=8)):
        path = "/".join(parts)
        parents = ["/".join(parts[:count]) for count in range(1, len(parts))]
        if path in tree or any(parent in tree and not tree[parent][0].isdir() for parent in parents):
            continue
        for parent in parents:
            tree.setdefault(parent, folder(parent))
        fields = {name: draw(value) for name, value in METADATA.items()}
        match draw(st.sampled_from(["file", "folder", "symlink"])):
            case "file":
                content = draw(st.sampled_from([b"", b"1", b"2", b"x" * 600]))
                tree[path] = file(path, content, pax_headers=draw(ATTRIBUTES), **fields)
            case "folder":
                tree[path] = folder(path, **fields)
            case "symlink":
                tree[path] = symlink(path, draw(st.sampled_from(["a", "/b"])), uid=fields["uid"])
    return tree


def noisy(draw: st.DrawFn, tree: dict[str, Item]) -> list[Item]:
    """The tree as some engine might write it: other order, times, owner names, mode bits, folders twice."""
    result: list[Item] = []
    for path in draw(st.permutations(sorted(tree))):
        info, content = tree[path]
        copies = draw(st.integers(1, 2)) if info.isdir() else 1
        for _ in range(copies):
            other = tarfile.TarInfo(draw(st.sampled_from(["", "./"])) + path)
            other.type, other.size, other.linkname = info.type, info.size, info.linkname
            type_bits = draw(st.sampled_from([0, 0o100000]))
            other.mode = draw(st.integers(0, 0o777)) if info.issym() else info.mode | type_bits
            other.uid, other.gid = info.uid, info.gid
            other.mtime = draw(st.integers(0, 2**33))
            other.uname = other.gname = draw(st.sampled_from(["", "root"]))
            other.pax_headers = {**info.pax_headers, **draw(st.dictionaries(st.just("ctime"), st.just("1.5")))}
            result.append((other, content))
    return result


PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@given(data=st.data())
def test_how_an_engine_writes_a_tree_does_not_change_the_digest(canonical: Canonical, data: st.DataObject) -> None:
    tree = data.draw(trees())
    writings = st.composite(noisy)(tree)

    first, second = canonical(data.draw(writings)), canonical(data.draw(writings))

    assert first.manifest_digest == second.manifest_digest


def what_counts(tree: dict[str, Item]) -> dict[str, object]:
    return {
        path: (i.type, 0 if i.issym() else i.mode, i.uid, i.gid, i.linkname, i.pax_headers, content)
        for path, (i, content) in tree.items()
    }


@PROPERTY
@given(one=trees(), other=trees())
def test_two_trees_have_one_digest_only_if_they_are_equal(
    canonical: Canonical, one: dict[str, Item], other: dict[str, Item]
) -> None:
    digests = {canonical(list(tree.values())).manifest_digest for tree in (one, other)}

    assert (len(digests) == 1) == (what_counts(one) == what_counts(other))


def merged(layout: Layout) -> dict[str, object]:
    """What a container sees, by a naive reading of the OCI image spec that shares no code with the product."""
    tree: dict[str, object] = {}
    for number in range(len(layout.layers)):
        layer = layout.layers[number]
        with open_layer(layout.blob(layer.digest), layer.media_type) as stream, tarfile.open(fileobj=stream) as tar:
            members = tar.getmembers()
            files = {m.name: tar.extractfile(m) if m.isreg() else None for m in members}
            contents = {name: file.read() if file else b"" for name, file in files.items()}
        for member in members:
            parent, _, name = member.name.rpartition("/")
            if name == ".wh..wh..opq":
                for path in [path for path in tree if path.startswith(f"{parent}/")]:
                    del tree[path]
            elif name.startswith(".wh."):
                gone = f"{parent}/{name[4:]}".lstrip("/")
                for path in [path for path in tree if path == gone or path.startswith(f"{gone}/")]:
                    del tree[path]
        for m in members:
            if not m.name.rpartition("/")[2].startswith(".wh."):
                if not m.isdir():
                    for path in [path for path in tree if path.startswith(f"{m.name}/")]:
                        del tree[path]
                mode = 0 if m.issym() else m.mode & 0o7777
                attributes = {k: v for k, v in m.pax_headers.items() if k.startswith("SCHILY")}
                tree[m.name.removeprefix("./")] = (m.type, mode, m.uid, m.gid, m.linkname, attributes, contents[m.name])
    return tree


@st.composite
def layered(draw: st.DrawFn) -> list[list[Item]]:
    """Three layers as an engine's diffs of one state after another, with whiteouts for what is gone."""
    states = [draw(trees()) for _ in range(3)]
    layers: list[list[Item]] = []
    before: dict[str, Item] = {}
    for state in states:
        there, wanted = what_counts(before), what_counts(state)
        kept = {path for path in there if path in wanted and there[path] == wanted[path]}
        listed = [state[path] for path in sorted(state) if path not in kept or draw(st.booleans())]
        whiteouts = []
        for path in sorted(before):
            parent, _, name = path.rpartition("/")
            if path not in state and (not parent or (parent in state and state[parent][0].isdir())):
                whiteouts.append(file(f"{parent}/.wh.{name}".lstrip("/")))
        layers.append([*whiteouts, *listed])
        before = state
    return layers


@PROPERTY
@given(layers=layered())
def test_a_container_sees_the_same_before_and_after(
    tmp_path: Path, canonical: Canonical, layers: list[list[Item]]
) -> None:
    layout = canonical(*layers)

    assert merged(layout) == merged(read_layout(tmp_path / f"raw-{canonical.count}"))


@PROPERTY
@given(layers=layered())
def test_layers_of_a_base_count_as_layers_of_the_image_do(
    tmp_path: Path, canonical: Canonical, layers: list[list[Item]]
) -> None:
    whole = canonical(*layers)
    base = canonical(*layers[:2])
    tars = []
    for layer in base.layers:
        with open_layer(base.blob(layer.digest), layer.media_type) as stream:
            tars.append(stream.read())
    raw = write_raw(tmp_path / f"on-base-{canonical.count}", [*tars, layers[2]])

    on_base = write_canonical(
        raw=raw, base=base, config=CONFIG, created_by=(), output=tmp_path / f"done-{canonical.count}"
    )

    assert [layer.digest for layer in on_base.layers] == [layer.digest for layer in whole.layers]

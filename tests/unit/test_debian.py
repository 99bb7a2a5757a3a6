from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from debs import COMPRESSIONS, file, folder, hard_link, link, locked, make_deb

from spark_images.cache import Cache
from spark_images.debian import assemble_root, cached_root, root_key
from spark_images.debian_setup import User
from spark_images.errors import ConfigError, ContentError
from spark_images.locks import LockedDeb

EPOCH = 1_700_000_000
SPARK = ("spark", 10001, 10001, "/home/spark")

Deb = tuple[LockedDeb, Path]


def assembled(
    debs: Sequence[Deb], *, slim: bool = False, users: Sequence[User] = (), scratch: Path | None = None
) -> bytes:
    output = io.BytesIO()
    assemble_root(debs, arch="arm64", epoch=EPOCH, output_tar=output, slim=slim, users=users, scratch=scratch)
    return output.getvalue()


class Root:
    """The assembled root, to be asked about its entries."""

    def __init__(self, debs: Sequence[Deb], *, slim: bool = False, users: Sequence[User] = ()) -> None:
        self.tar = tarfile.open(fileobj=io.BytesIO(assembled(debs, slim=slim, users=users)))  # noqa: SIM115
        self.members = self.tar.getmembers()
        self.names = [member.name for member in self.members]

    def __getitem__(self, name: str) -> tarfile.TarInfo:
        return self.tar.getmember(name)

    def read(self, name: str) -> str:
        content = self.tar.extractfile(name)
        assert content is not None
        return content.read().decode()


def test_files_of_bin_and_lib_lie_below_usr_and_the_old_names_are_links(tmp_path: Path) -> None:
    deb = make_deb(
        tmp_path, "dash", [folder("bin"), file("bin/dash", "ELF", 0o755), file("lib/aarch64-linux-gnu/a.so", "a")]
    )
    root = Root([deb])
    assert root.read("usr/bin/dash") == "ELF"
    assert root["usr/bin/dash"].mode == 0o755
    assert root.read("usr/lib/aarch64-linux-gnu/a.so") == "a"
    for name in ("bin", "lib", "sbin"):
        assert (root[name].type, root[name].linkname) == (tarfile.SYMTYPE, f"usr/{name}")
    assert "bin/dash" not in root.names


def test_lib64_is_a_link_only_where_something_lies_in_it(tmp_path: Path) -> None:
    without = make_deb(tmp_path, "a", [file("lib/a")])
    within = make_deb(tmp_path, "b", [link("lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")])
    assert "lib64" not in Root([without]).names
    root = Root([within])
    assert root["lib64"].linkname == "usr/lib64"
    assert root["usr/lib64/ld-linux-x86-64.so.2"].linkname == "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"


def test_usr_merge_links_that_a_package_ships_are_accepted(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "base-files", [folder("usr/bin"), link("bin", "usr/bin")])
    root = Root([deb])
    assert root["bin"].linkname == "usr/bin"
    assert root["usr/bin"].isdir()


def test_entries_are_sorted_and_their_times_and_owner_names_are_the_same_everywhere(tmp_path: Path) -> None:
    debs = [
        make_deb(tmp_path, "b", [file("usr/share/b", "b"), file("usr/share/a", "a")]),
        make_deb(tmp_path, "a", [file("usr/share/c", "c", 0o4755, (0, 50))]),
    ]
    root = Root(debs)
    assert root.names == sorted(root.names)
    assert {member.mtime for member in root.members} == {EPOCH}
    assert {(member.uname, member.gname) for member in root.members} == {("", "")}
    assert (root["usr/share/c"].mode, root["usr/share/c"].uid, root["usr/share/c"].gid) == (0o4755, 0, 50)


def test_the_same_debs_give_the_same_bytes_in_any_order_and_any_folder(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    members = [file("usr/bin/x", "x" * 5000), hard_link("usr/bin/y", "usr/bin/x"), link("usr/bin/z", "x")]

    def made_in(where: Path) -> list[Deb]:
        where.mkdir()
        return [make_deb(where, "a", members), make_deb(where, "b", [folder("usr/bin", 0o700), file("etc/b", "b")])]

    first = assembled(made_in(one), users=[SPARK], scratch=one)
    second = assembled([*reversed(made_in(two)), *made_in(tmp_path / "three")], users=[SPARK], scratch=two)
    assert first == second
    assert not list(one.glob("debs-*")), "the unpacked data must not be left behind"


def test_of_hard_links_the_first_by_name_holds_the_content(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "perl", [file("bin/z", "content", 0o755), hard_link("usr/bin/a", "bin/z")])
    root = Root([deb])
    assert root["usr/bin/a"].isreg()
    assert (root["usr/bin/z"].type, root["usr/bin/z"].linkname) == (tarfile.LNKTYPE, "usr/bin/a")
    assert root.read("usr/bin/z") == "content"


def test_different_files_at_one_path_are_refused_with_both_packages_named(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "one", [file("usr/bin/x", "1")]), make_deb(tmp_path, "two", [file("bin/x", "2")])]
    with pytest.raises(ConfigError, match="packages `one` and `two` hold different things at `/usr/bin/x`"):
        assembled(debs)


def test_equal_files_at_one_path_are_accepted(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "one", [file("usr/bin/x", "1")]), make_deb(tmp_path, "two", [file("bin/x", "1")])]
    assert Root(debs).read("usr/bin/x") == "1"


def test_equal_contents_with_different_modes_are_refused(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "one", [file("x", "1", 0o644)]), make_deb(tmp_path, "two", [file("x", "1", 0o600)])]
    with pytest.raises(ConfigError, match="hold different things at `/x`"):
        assembled(debs)


def test_a_file_below_another_packages_link_is_refused(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "one", [link("usr/x", "y")]), make_deb(tmp_path, "two", [file("usr/x/file")])]
    with pytest.raises(ConfigError, match="`two` holds `/usr/x/file`, but `/usr/x` of `one` is no folder"):
        assembled(debs)


def test_a_folder_is_as_base_files_has_it(tmp_path: Path) -> None:
    debs = [
        make_deb(tmp_path, "apt", [folder("var/cache", 0o700, (1, 1))]),
        make_deb(tmp_path, "base-files", [folder("var/cache", 0o755)]),
    ]
    assert (Root(debs)["var/cache"].mode, Root(debs)["var/cache"].uid) == (0o755, 0)


def test_folders_that_no_package_names_are_added(tmp_path: Path) -> None:
    root = Root([make_deb(tmp_path, "a", [file("opt/x/y/z")])])
    assert root["opt/x/y"].isdir()
    assert root["opt/x/y"].mode == 0o755
    for name, mode in (("tmp", 0o1777), ("var/tmp", 0o1777), ("root", 0o700), ("proc", 0o755), ("run", 0o755)):
        assert (root[name].isdir(), root[name].mode) == (True, mode), name


def test_var_run_is_a_link_unless_a_package_has_files_in_it(tmp_path: Path) -> None:
    empty = make_deb(tmp_path, "base-files", [folder("var/run"), folder("var/lock", 0o1777)])
    used = make_deb(tmp_path, "daemon", [file("var/run/socket")])
    assert Root([empty])["var/run"].linkname == "/run"
    assert Root([empty])["var/lock"].linkname == "/run/lock"
    assert Root([empty, used])["var/run"].isdir()


def test_accounts_come_from_base_passwd_and_users_are_added(tmp_path: Path) -> None:
    masters = [
        file(
            "usr/share/base-passwd/passwd.master",
            "root:*:0:0:root:/root:/bin/bash\nmail:*:8:8:mail:/var/mail:/bin/false\n",
        ),
        file("usr/share/base-passwd/group.master", "root:*:0:\nmail:*:8:\n"),
    ]
    root = Root([make_deb(tmp_path, "base-passwd", masters)], users=[SPARK])
    assert root.read("etc/passwd").splitlines() == [
        "root:*:0:0:root:/root:/bin/sh",  # bash is not in this root
        "mail:*:8:8:mail:/var/mail:/bin/false",
        "spark:*:10001:10001::/home/spark:/bin/sh",
    ]
    assert root.read("etc/group").splitlines() == ["root:*:0:", "mail:*:8:", "spark:*:10001:"]
    home = root["home/spark"]
    assert (home.isdir(), home.uid, home.gid, home.mode) == (True, 10001, 10001, 0o755)


def test_without_base_passwd_there_are_root_and_nobody(tmp_path: Path) -> None:
    root = Root([make_deb(tmp_path, "a", [])])
    assert [line.split(":")[0] for line in root.read("etc/passwd").splitlines()] == ["root", "nobody"]


@pytest.mark.parametrize("user", [("nobody", 10001, 10001, "/home/x"), ("x", 65534, 10001, "/home/x")])
def test_a_user_whose_name_or_number_is_taken_is_refused(tmp_path: Path, user: User) -> None:
    with pytest.raises(ConfigError, match="is in the root already: `nobody:"):
        assembled([make_deb(tmp_path, "a", [])], users=[user])


def test_alternatives_are_links_to_the_program_of_highest_priority(tmp_path: Path) -> None:
    mawk = make_deb(tmp_path, "mawk", [file("usr/bin/mawk", "mawk", 0o755)])
    gawk = make_deb(tmp_path, "gawk", [file("usr/bin/gawk", "gawk", 0o755)])
    gcc = make_deb(tmp_path, "gcc", [file("usr/bin/gcc"), file("usr/bin/g++")])
    assert Root([mawk])["usr/bin/awk"].linkname == "mawk"
    assert Root([mawk, gawk])["usr/bin/awk"].linkname == "gawk"
    assert [Root([gcc])[f"usr/bin/{name}"].linkname for name in ("cc", "c++")] == ["gcc", "g++"]
    assert "usr/bin/cc" not in Root([mawk]).names


def test_a_link_that_a_package_ships_is_not_replaced_by_an_alternative(tmp_path: Path) -> None:
    dash = make_deb(tmp_path, "dash", [file("bin/dash", "dash"), link("bin/sh", "dash")])
    bash = make_deb(tmp_path, "bash", [file("bin/bash", "bash")])
    assert Root([dash, bash])["usr/bin/sh"].linkname == "dash"
    assert Root([bash])["usr/bin/sh"].linkname == "bash"


def test_the_certificate_bundle_is_made_of_the_certificates_in_order_of_their_names(tmp_path: Path) -> None:
    certificates = [
        file("usr/share/ca-certificates/mozilla/B.crt", "b\n"),
        file("usr/share/ca-certificates/mozilla/A.crt", "a\n"),
    ]
    assert (
        Root([make_deb(tmp_path, "ca-certificates", certificates)]).read("etc/ssl/certs/ca-certificates.crt")
        == "a\nb\n"
    )


def test_nsswitch_is_put_in_place(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "libc-bin", [file("usr/share/libc-bin/nsswitch.conf", "hosts: files dns\n")])
    assert Root([deb]).read("etc/nsswitch.conf") == "hosts: files dns\n"


DOCUMENTED = [
    file("usr/bin/x", "x"),
    file("usr/share/doc/x/copyright", "GPL"),
    file("usr/share/doc/x/changelog.gz", "long"),
    link("usr/share/doc/libx", "x"),
    folder("usr/share/man/man1"),
    file("usr/share/man/man1/x.1.gz", "manual"),
    file("usr/share/locale/de/LC_MESSAGES/x.mo", "deutsch"),
    file("usr/share/lintian/overrides/x", "x"),
    file("usr/lib/aarch64-linux-gnu/gconv/BIG5.so", "big5"),
    file("usr/lib/aarch64-linux-gnu/gconv/UTF-16.so", "utf16"),
    file("usr/lib/aarch64-linux-gnu/gconv/gconv-modules", "list"),
]


def test_a_slim_root_keeps_licences_and_nothing_else_of_documentation_and_translations(tmp_path: Path) -> None:
    root = Root([make_deb(tmp_path, "x", DOCUMENTED)], slim=True)
    kept = [name for name in root.names if name.startswith(("usr/share/", "usr/lib/aarch64-linux-gnu/gconv/"))]
    assert kept == [
        "usr/lib/aarch64-linux-gnu/gconv/UTF-16.so",
        "usr/lib/aarch64-linux-gnu/gconv/gconv-modules",
        "usr/share/doc",
        "usr/share/doc/libx",
        "usr/share/doc/x",
        "usr/share/doc/x/copyright",
    ]
    assert root.read("usr/bin/x") == "x"


def test_a_root_that_is_not_slim_has_all_files(tmp_path: Path) -> None:
    names = Root([make_deb(tmp_path, "x", DOCUMENTED)]).names
    for info, _ in DOCUMENTED:
        assert info.name.removeprefix("./").rstrip("/") in names


def test_every_package_has_its_record_where_scanners_look_for_it(tmp_path: Path) -> None:
    sums = f"{'1' * 32}  bin/x\n{'2' * 32}  usr/share/man/x.1.gz\n"
    members = [file("bin/x", "x"), file("usr/share/man/x.1.gz", "manual")]
    root = Root([make_deb(tmp_path, "x", members, version="2:1.5+b1", control={"md5sums": sums})], slim=True)
    record = root.read("var/lib/dpkg/status.d/x").splitlines()
    assert record[:3] == ["Package: x", "Version: 2:1.5+b1", "Architecture: arm64"]
    assert root.read("var/lib/dpkg/status.d/x.md5sums") == f"{'1' * 32}  usr/bin/x\n"


def test_the_root_says_by_which_key_it_was_made(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "x", [])
    key = root_key([deb[0]], arch="arm64", epoch=EPOCH, slim=False, users=[])
    assert Root([deb]).read("etc/spark-images/root") == f"{key}\n"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_compression_of_debs_is_read(tmp_path: Path, compression: str) -> None:
    deb = make_deb(tmp_path, "x", [file("usr/bin/x", "x" * 3_000_000)], compression=compression)
    assert Root([deb]).read("usr/bin/x") == "x" * 3_000_000


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_deb_that_ends_too_early_is_refused(tmp_path: Path, compression: str) -> None:
    deb, path = make_deb(tmp_path, "x", [file("usr/bin/x", "".join(map(str, range(9999))))], compression=compression)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ContentError, match="is not a Debian package of `x` that can be read"):
        assembled([(deb, path)])


def test_a_file_that_is_no_deb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.deb"
    path.write_text("<html>not found</html>")
    with pytest.raises(ContentError, match="is not a Debian package of `x`"):
        assembled([(locked("x"), path)])


def test_a_member_that_leads_out_of_the_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContentError) as caught:
        assembled([make_deb(tmp_path, "x", [file("usr/../../etc/shadow", "x")])])
    assert "leads out of the root" in caught.value.render()


def test_a_package_of_another_architecture_is_refused_but_not_one_for_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`x` is for `amd64`, but the root is for `arm64`"):
        assembled([make_deb(tmp_path, "x", [], arch="amd64")])
    assert "etc/y" in Root([make_deb(tmp_path, "y", [file("etc/y")], arch="all")]).names


def test_two_versions_of_a_package_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="two versions of `x`: 1 and 2"):
        assembled([make_deb(tmp_path, "x", [], version="1"), make_deb(tmp_path, "x", [], version="2")])


def test_the_key_does_not_depend_on_the_order_of_the_debs() -> None:
    debs = [locked("a", sha256="a" * 64), locked("b", sha256="b" * 64)]
    keys = {root_key(order, arch="arm64", epoch=EPOCH, slim=True, users=[SPARK]) for order in (debs, debs[::-1])}
    assert len(keys) == 1


def test_the_key_depends_on_everything_else() -> None:
    deb = locked("a", sha256="a" * 64)
    keys = [
        root_key([deb], arch="arm64", epoch=EPOCH, slim=True, users=[SPARK]),
        root_key([deb], arch="amd64", epoch=EPOCH, slim=True, users=[SPARK]),
        root_key([deb], arch="arm64", epoch=EPOCH + 1, slim=True, users=[SPARK]),
        root_key([deb], arch="arm64", epoch=EPOCH, slim=False, users=[SPARK]),
        root_key([deb], arch="arm64", epoch=EPOCH, slim=True, users=[]),
        root_key([locked("a", sha256="b" * 64)], arch="arm64", epoch=EPOCH, slim=True, users=[SPARK]),
        root_key([], arch="arm64", epoch=EPOCH, slim=True, users=[SPARK]),
    ]
    assert len(set(keys)) == len(keys)


def cached(debs: Sequence[Deb], cache: Cache) -> Path:
    return cached_root("build-root", debs, arch="arm64", epoch=EPOCH, slim=False, users=(), cache=cache)


def test_a_cached_root_is_a_layout_with_the_roots_architecture_and_path(tmp_path: Path) -> None:
    layout = cached([make_deb(tmp_path, "x", [file("bin/x")])], Cache(tmp_path / "cache"))

    def blob(descriptor: dict[str, str]) -> dict[str, object]:
        return json.loads((layout / "blobs" / descriptor["digest"].replace(":", "/")).read_bytes())  # type: ignore[no-any-return]

    manifest = blob(json.loads((layout / "index.json").read_text())["manifests"][0])
    config = blob(manifest["config"])  # type: ignore[arg-type]
    assert config["architecture"] == "arm64"
    assert config["config"]["Env"] == ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]  # type: ignore[index]


def test_a_cached_root_is_made_once_and_leaves_no_work_behind(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    deb, path = make_deb(tmp_path, "x", [file("bin/x")])
    first = cached([(deb, path)], cache)
    path.unlink()  # so that a second assembly could not succeed
    assert cached([(deb, path)], cache) == first
    assert list(cache.work.iterdir()) == []


def test_two_at_once_make_one_root(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    debs = [make_deb(tmp_path, "x", [file("bin/x", "x" * 100_000)])]
    with ThreadPoolExecutor(4) as pool:
        made = set(pool.map(lambda _: cached(debs, cache), range(4)))
    assert [entry for entry in cache.roots.iterdir() if not entry.name.startswith(".")] == list(made)
    assert (made.pop() / "index.json").exists()

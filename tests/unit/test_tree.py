from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from file_server import digest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_images.errors import ContentError, RouteError
from spark_images.git_tree import tree_from_git
from spark_images.tree import tree_from_archive, tree_from_folder, write_tree

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "core.autocrlf=false")


def git(repository: Path, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    ended = subprocess.run((*GIT, *arguments), cwd=repository, env=env, check=True, capture_output=True, text=True)
    return ended.stdout.strip()


def commit_all(repository: Path) -> str:
    if not (repository / ".git").exists():
        git(repository, "init", "--quiet")
    git(repository, "add", "--all", "--force")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "state")
    return git(repository, "rev-parse", "HEAD")


def by_folder(folder: Path, *, paths: tuple[str, ...] = ()) -> str:
    with io.BytesIO() as out:
        found = write_tree(folder, paths=paths, out=out)
        assert found == digest(out.getvalue())
        return found


def by_git(url: Path | str, commit: str, work: Path, *, paths: tuple[str, ...] = ()) -> str:
    work.mkdir()
    with tree_from_git(str(url), commit, work=work, stall_s=20, stop=threading.Event()) as tree:
        return tree.write(io.BytesIO(), paths=paths)


def by_archive(archive: Path, path: str = "", *, paths: tuple[str, ...] = ()) -> str:
    with tree_from_archive(archive, path, work=archive.parent) as tree:
        return tree.write(io.BytesIO(), paths=paths)


def test_what_is_left_out_does_not_count_whatever_stands_there(tmp_path: Path) -> None:
    tree = small_tree(tmp_path / "tree")
    alone = by_folder(tree)
    (tree / "vendor/fmt").mkdir(parents=True)
    (tree / "vendor/fmt/fmt.h").write_text("")
    with tree_from_folder(tree, work=tmp_path) as found:
        found.add_unusable("theme", "is a submodule")
        assert found.write(io.BytesIO(), without=("vendor/fmt", "theme", "gone")) == alone
        with pytest.raises(ContentError, match="is a submodule"):
            found.write(io.BytesIO(), without=("vendor/fmt", "them"))


def small_tree(folder: Path) -> Path:
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("int main(void) { return 0; }\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("src/main.c")
    return folder


def tar_of(members: list[tuple[tarfile.TarInfo, bytes]], path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


# --- the canonical tar ------------------------------------------------------------------------------------------------


def test_tar_holds_sorted_files_and_links_without_times_owners_and_umask(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "tree")
    (folder / "src" / "main.c").chmod(0o660)
    with io.BytesIO() as out:
        write_tree(folder, out=out)
        out.seek(0)
        with tarfile.open(fileobj=out) as tar:
            found = [(m.name, m.mode, m.uid, m.gid, m.mtime, m.uname, m.linkname) for m in tar]
    assert found == [
        ("latest", 0o777, 0, 0, 0, "", "src/main.c"),
        ("run.sh", 0o755, 0, 0, 0, "", ""),
        ("src/main.c", 0o644, 0, 0, 0, "", ""),
    ]


def test_bytes_of_the_form_never_change(tmp_path: Path) -> None:
    """Pins hold this digest for good, so no version of Python or of ours may give another one."""
    folder = small_tree(tmp_path / "tree")
    (folder / ("long" * 30)).write_text("a name that needs an extended header")
    (folder / "näme").write_text("so does this one")

    assert by_folder(folder) == "sha256:21f46dd7c595356009a752d8e3e5e0b02f97813fa5f4dbb7349b1470af4c5082"


@pytest.mark.parametrize("change", ["content", "mode", "name", "link", "more"])
def test_what_git_would_keep_changes_the_digest(tmp_path: Path, change: str) -> None:
    folder = small_tree(tmp_path / "tree")
    before = by_folder(folder)
    match change:
        case "content":
            (folder / "run.sh").write_text("#!/bin/bash\n")
        case "mode":
            (folder / "run.sh").chmod(0o644)
        case "name":
            (folder / "run.sh").rename(folder / "run")
        case "link":
            (folder / "latest").unlink()
            (folder / "latest").symlink_to("run.sh")
        case "more":
            (folder / "empty").touch()
    assert by_folder(folder) != before


def test_what_git_would_not_keep_does_not(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "tree")
    before = by_folder(folder)
    (folder / "empty").mkdir()
    (folder / "run.sh").chmod(0o700)
    (folder / "src" / ".git").write_text("gitdir: elsewhere\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    os.utime(folder / "run.sh", (1, 1))
    assert by_folder(folder) == before


def test_paths_keep_only_what_they_state(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "tree")
    (tmp_path / "part" / "src").mkdir(parents=True)
    (tmp_path / "part" / "src" / "main.c").write_bytes((folder / "src" / "main.c").read_bytes())
    (folder / "src2").mkdir()
    (folder / "src2" / "other.c").touch()

    assert by_folder(folder, paths=("src/",)) == by_folder(tmp_path / "part")
    assert by_folder(folder, paths=("src/main.c", "src")) == by_folder(tmp_path / "part")


def test_stated_path_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="has no `doc`"):
        by_folder(small_tree(tmp_path / "tree"), paths=("src", "doc"))


def test_pipe_in_a_folder_is_an_error_only_where_it_counts(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "tree")
    os.mkfifo(folder / "pipe")
    with pytest.raises(ContentError, match="`pipe` is neither a file"):
        by_folder(folder)
    by_folder(folder, paths=("src",))


# --- the same by every route ------------------------------------------------------------------------------------------

PART = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]) | st.sampled_from("\n\\ .-é~"),
    min_size=1,
    max_size=12,
).filter(lambda name: name not in (".", "..") and name.lower().rstrip(". ") not in (".git", "git~1"))
NAME = st.lists(PART, min_size=1, max_size=3).map("/".join)
FILE = st.tuples(st.binary(max_size=40), st.sampled_from([0o644, 0o755, 0o600, 0o711, 0o664]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(NAME, FILE, min_size=1, max_size=5), umask=st.sampled_from([0o022, 0o077, 0o002]))
def test_git_tarball_and_folder_agree_on_every_tree(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, int]], umask: int
) -> None:
    base = tmp_path_factory.mktemp("agree")
    repository = base / "tree"
    repository.mkdir()
    before = os.umask(umask)
    try:
        for name, (data, mode) in files.items():
            path = repository / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as out:
                    out.write(data)
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # the names of this example need a file and a folder of one name
            path.chmod(mode)
            link = path.with_name(f"{path.name[:20]}.link")
            if not link.exists():
                link.symlink_to(path.name)
        commit = commit_all(repository)
    finally:
        os.umask(before)
    git(repository, "config", "tar.umask", "0077")
    git(repository, "archive", "--prefix=top/", "--output", str(base / "github.tar.gz"), commit)
    with tarfile.open(base / "sdist.tar.gz", "w:gz") as sdist:
        sdist.add(repository, "project-1.0/vendor/tree")

    found = by_folder(repository)

    assert by_git(repository, commit, base / "work") == found
    assert by_archive(base / "github.tar.gz") == found
    assert by_archive(base / "sdist.tar.gz", "vendor/tree") == found


def test_name_that_is_not_utf8_is_the_same_by_every_route(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    name = os.fsdecode(b"latin-\xe9")
    (folder / name).write_text("content")
    commit = commit_all(folder)
    git(folder, "archive", "--prefix=top/", "--output", str(tmp_path / "a.tar"), commit)
    with io.BytesIO() as out:
        found = write_tree(folder, out=out)
        out.seek(0)
        with tarfile.open(fileobj=out) as tar:
            assert tar.getnames() == [name]
    assert by_git(folder, commit, tmp_path / "work") == found
    assert by_archive(tmp_path / "a.tar") == found


def test_every_kind_of_archive_gives_the_same_tree(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "top")
    for suffix in ("gz", "bz2", "xz"):
        with tarfile.open(tmp_path / f"a.tar.{suffix}", f"w:{suffix}") as tar:  # type: ignore[call-overload]
            tar.add(folder, "top")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(folder, "./top")
    (tmp_path / "a.tar.zst").write_bytes(zstandard.compress((tmp_path / "a.tar").read_bytes()))
    commit = commit_all(folder)
    git(folder, "archive", "--format=zip", "--prefix=top/", "--output", str(tmp_path / "a.zip"), commit)

    found = {
        name: by_archive(tmp_path / name)
        for name in ("a.tar", "a.zip", "a.tar.zst", "a.tar.gz", "a.tar.bz2", "a.tar.xz")
    }

    assert set(found.values()) == {by_folder(folder)}


def test_archive_is_known_by_its_bytes_not_by_its_name(tmp_path: Path) -> None:
    folder = small_tree(tmp_path / "top")
    with tarfile.open(tmp_path / "download", "w:xz") as tar:
        tar.add(folder, "top")
    assert by_archive(tmp_path / "download") == by_folder(folder)


def test_hard_link_in_a_tarball_is_the_file_it_links_to(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in ("a", "b"):
        (tmp_path / "tree" / name).write_bytes(b"same")
    archive = tar_of(
        [(member("top/a"), b"same"), (member("top/b", tarfile.LNKTYPE, "top/a"), b"")], tmp_path / "hard.tar"
    )
    assert by_archive(archive) == by_folder(tmp_path / "tree")


# --- git --------------------------------------------------------------------------------------------------------------


def test_git_route_takes_the_stated_commit_not_the_newest(tmp_path: Path) -> None:
    repository = small_tree(tmp_path / "tree")
    first, before = commit_all(repository), by_folder(repository)
    (repository / "more").touch()
    commit_all(repository)
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "served.git")

    assert by_git(tmp_path / "served.git", first, tmp_path / "work") == before


def test_git_route_knows_no_attributes(tmp_path: Path) -> None:
    repository = small_tree(tmp_path / "tree")
    (repository / "ends.txt").write_bytes(b"one\ntwo\n")
    (repository / "stamp").write_text("$Format:%H$\n")
    (repository / ".gitattributes").write_text("run.sh export-ignore\nends.txt eol=crlf\nstamp export-subst\n")
    before = by_folder(repository)

    assert by_git(repository, commit_all(repository), tmp_path / "work") == before


def test_git_server_that_refuses_commits_is_asked_for_all_refs(tmp_path: Path) -> None:
    repository = small_tree(tmp_path / "tree")
    first, before = commit_all(repository), by_folder(repository)
    (repository / "more").touch()
    commit_all(repository)
    git(tmp_path, "clone", "--quiet", "--bare", str(repository), "served.git")
    git(tmp_path / "served.git", "update-server-info")
    with serve_folder(tmp_path) as url:  # dumb HTTP: it has no depth and takes no commit
        assert by_git(f"{url}/served.git", first, tmp_path / "work") == before


def test_git_repository_without_the_commit_is_a_missing_route(tmp_path: Path) -> None:
    repository = small_tree(tmp_path / "tree")
    commit_all(repository)
    with pytest.raises(RouteError, match=f"does not have the commit {'0' * 40}"):
        by_git(repository, "0" * 40, tmp_path / "work")


def test_git_repository_that_is_not_there_is_a_missing_route(tmp_path: Path) -> None:
    with pytest.raises(RouteError, match="does not appear to be a git repository"):
        by_git(tmp_path / "nothing", "0" * 40, tmp_path / "work")


def test_git_that_hangs_is_ended(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"git://127.0.0.1:{silent.getsockname()[1]}/repository"
        (tmp_path / "work").mkdir()
        with pytest.raises(RouteError, match="nothing arrived for 1 s"):
            tree_from_git(url, "0" * 40, work=tmp_path / "work", stall_s=1, stop=threading.Event())


def test_submodule_is_an_error_unless_outside_the_paths(tmp_path: Path) -> None:
    repository = small_tree(tmp_path / "tree")
    commit_all(repository)
    git(repository, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third-party/lib")
    git(repository, "commit", "--quiet", "--message", "with a submodule")
    commit = git(repository, "rev-parse", "HEAD")

    with pytest.raises(ContentError, match="`third-party/lib` is a submodule"):
        by_git(repository, commit, tmp_path / "work")
    assert by_git(repository, commit, tmp_path / "again", paths=("src",)) == by_folder(repository, paths=("src",))


# --- archives that mean harm or are broken ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([(member("top/../../etc/passwd"), b"x")], "leads out of it"),
        ([(member("/etc/passwd"), b"x")], "leads out of it"),
        ([(member("top/a"), b""), (member("other/b"), b"")], "more than one top folder"),
        ([(member("top/a", tarfile.CHRTYPE), b"")], "`a` is a device or a pipe"),
        ([(member("top/a", tarfile.FIFOTYPE), b"")], "`a` is a device or a pipe"),
        ([(member("top/a", tarfile.SYMTYPE, "/etc/passwd"), b"")], "leads out of the tree"),
        ([(member("top/a", tarfile.SYMTYPE, "../x"), b"")], "leads out of the tree"),
        ([(member("top/d/a", tarfile.SYMTYPE, "../../x"), b"")], "leads out of the tree"),
        (
            [
                (member("top/a/b/up", tarfile.SYMTYPE, "../.."), b""),
                (member("top/a/b/out", tarfile.SYMTYPE, "up/../x"), b""),
            ],
            "link `a/b/out` leads out",
        ),
        ([(member("top/a", tarfile.SYMTYPE, "b"), b""), (member("top/a/x"), b"")], "as a file and as a folder"),
        ([(member("top/a"), b"1"), (member("top/a"), b"2")], "holds `a` twice"),
        ([(member("top/a", tarfile.LNKTYPE, "top/later"), b"")], "is a hard link to `top/later`|`later`"),
        ([(member("top", tarfile.DIRTYPE), b"")], "holds no files"),
    ],
)
def test_archive_that_means_harm_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], complaint: str
) -> None:
    with pytest.raises(ContentError, match=complaint):
        by_archive(tar_of(members, tmp_path / "bad.tar"))


def test_links_that_stay_inside_are_kept_also_loops_and_dangling_ones(tmp_path: Path) -> None:
    members = [
        (member("top/d/up", tarfile.SYMTYPE, "../x"), b""),
        (member("top/loop", tarfile.SYMTYPE, "loop"), b""),
        (member("top/x"), b"data"),
        (member("top/gone", tarfile.SYMTYPE, "not/here"), b""),
    ]
    assert by_archive(tar_of(members, tmp_path / "good.tar")).startswith("sha256:")


def test_zip_that_climbs_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
        packed.writestr("top/../../evil", "x")
    with pytest.raises(ContentError, match="leads out of it"):
        by_archive(tmp_path / "bad.zip")


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _garble(data: bytes) -> bytes:
    return data[:8] + b"\xff" * 600 + data[608:]


@pytest.mark.parametrize("packed", [lambda data: data, gzip.compress, zstandard.compress], ids=["tar", "gz", "zst"])
@pytest.mark.parametrize("spoiled", [_cut, _garble])
def test_broken_archive_is_a_content_error(
    tmp_path: Path, packed: Callable[[bytes], bytes], spoiled: Callable[[bytes], bytes]
) -> None:
    whole = tar_of([(member("top/a"), os.urandom(50_000))], tmp_path / "whole.tar").read_bytes()
    (tmp_path / "broken").write_bytes(spoiled(packed(whole)))
    with pytest.raises(ContentError, match="cannot be read as an archive"):
        by_archive(tmp_path / "broken")


def test_page_in_place_of_an_archive_is_a_content_error(tmp_path: Path) -> None:
    (tmp_path / "page").write_text("<html>please log in</html>" * 100)
    with pytest.raises(ContentError, match="cannot be read as an archive"):
        by_archive(tmp_path / "page")


def test_archive_without_the_stated_folder_is_a_content_error(tmp_path: Path) -> None:
    archive = tar_of([(member("top/src/a"), b"")], tmp_path / "a.tar")
    with pytest.raises(ContentError, match="has nothing below `vendor`"):
        by_archive(archive, "vendor")


def serve_folder(folder: Path) -> _Served:
    return _Served(folder)


class _Served:
    """Plain files over HTTP, which is what git calls a dumb server."""

    def __init__(self, folder: Path) -> None:
        import functools
        import http.server

        class Quiet(http.server.SimpleHTTPRequestHandler):
            def log_message(self, format: str, *arguments: object) -> None:
                return

        handler = functools.partial(Quiet, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def __enter__(self) -> str:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

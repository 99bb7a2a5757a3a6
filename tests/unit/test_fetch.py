from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import FileServer, digest, file_content

from spark_images.download import Patience, without_credentials
from spark_images.errors import ContentError, DiskFullError, RouteError, UsageError
from spark_images.fetch import fetch
from spark_images.package_index import PackageIndex, PipConfig
from spark_images.pins import ArchiveRoute, GitRoute, IndexRoute, SdistRoute, TreeContent, TreeRoute, UrlRoute
from spark_images.store import Store
from spark_images.tree import write_tree

QUICK = Patience(timeout_s=0.5, attempts=3, backoff_s=0.01)
DATA = os.urandom(300_000)
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as served:
        served.files["/thing"] = DATA
        yield served


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def partials(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "partial").iterdir())


# --- files ------------------------------------------------------------------------------------------------------------


def test_what_is_missing_comes_and_what_is_there_does_not_come_again(server: FileServer, store: Store) -> None:
    server.files |= {f"/{n}": bytes([n]) * 1000 for n in range(20)}
    contents = [file_content(server.files[f"/{n}"], UrlRoute(url=server.url(f"/{n}"))) for n in range(20)]
    fetch(contents[:5], store=store, patience=QUICK)

    summary = fetch(contents, store=store, patience=QUICK)

    assert (summary.files, summary.bytes, summary.already) == (15, 15_000, 5)
    assert all(store.verify(content.digest) for content in contents)
    assert len(server.asked) == 20
    assert partials(store) == []


def test_files_come_several_at_a_time_but_not_more_than_jobs(server: FileServer, store: Store) -> None:
    server.pause_s = 0.1
    server.files |= {f"/{n}": bytes([n]) * 100_000 for n in range(9)}
    contents = [file_content(server.files[f"/{n}"], UrlRoute(url=server.url(f"/{n}"))) for n in range(9)]

    fetch(contents, store=store, jobs=3, patience=QUICK)

    assert server.most_at_once == 3


def test_one_content_named_twice_comes_once(server: FileServer, store: Store) -> None:
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))
    assert fetch([content, replace(content, label="again")], store=store, patience=QUICK).files == 1
    assert len(server.asked) == 1


@pytest.mark.parametrize("ill", ["500", "502", "503", "429", "cut", "hang"])
def test_trouble_that_passes_is_tried_again(server: FileServer, store: Store, ill: str) -> None:
    server.ills["/thing"].append(ill)
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))

    fetch([content], store=store, patience=QUICK)

    assert store.verify(content.digest)


def test_break_is_resumed_where_it_was(server: FileServer, store: Store) -> None:
    server.ills["/thing"].extend(["cut", "cut"])
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))

    fetch([content], store=store, patience=QUICK)

    assert server.ranges("/thing") == ["", "bytes=150000-", "bytes=225000-"]
    assert store.verify(content.digest)


def test_breaks_with_progress_do_not_use_up_patience(server: FileServer, store: Store) -> None:
    data = server.files["/large"] = DATA * 10
    server.ills["/large"].extend(["cut"] * 6)
    content = file_content(data, UrlRoute(url=server.url("/large")))
    fetch([content], store=store, patience=QUICK)
    assert len(server.asked) == 7


def test_server_without_ranges_sends_all_of_it_again(server: FileServer, store: Store) -> None:
    server.ills["/thing"].extend(["cut", "plain"])
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))
    fetch([content], store=store, patience=QUICK)
    assert store.verify(content.digest)


@pytest.mark.parametrize("size_bytes", [-1, None])
def test_partial_of_an_earlier_run_is_resumed(server: FileServer, store: Store, size_bytes: int | None) -> None:
    content = file_content(DATA, UrlRoute(url=server.url("/thing")), size_bytes=size_bytes)
    with store.incoming(content.digest) as incoming:
        incoming.open()
        incoming.write(DATA[:100_000])

    fetch([content], store=store, patience=QUICK)

    assert server.ranges("/thing") == ["bytes=100000-"]
    assert store.verify(content.digest)


@pytest.mark.parametrize("size_bytes", [-1, None])
@pytest.mark.parametrize(
    "left", [DATA, DATA + b"more", b"?" + DATA[1:], b"?" * 1000], ids=["all", "more", "bad", "begun"]
)
def test_whatever_an_earlier_run_left_the_file_comes_right(
    server: FileServer, store: Store, left: bytes, size_bytes: int | None
) -> None:
    content = file_content(DATA, UrlRoute(url=server.url("/thing")), size_bytes=size_bytes)
    with store.incoming(content.digest) as incoming:
        incoming.open()
        incoming.write(left)

    fetch([content], store=store, patience=QUICK)

    assert store.verify(content.digest)


def test_empty_file_comes(server: FileServer, store: Store) -> None:
    server.files["/empty"] = b""
    content = file_content(b"", UrlRoute(url=server.url("/empty")))
    fetch([content], store=store, patience=QUICK)
    assert store.verify(content.digest)


def test_redirect_is_followed(server: FileServer, store: Store) -> None:
    server.redirects["/moved"] = server.url("/thing")
    content = file_content(DATA, UrlRoute(url=server.url("/moved")))
    fetch([content], store=store, patience=QUICK)
    assert store.verify(content.digest)


def test_file_address_is_copied(store: Store, tmp_path: Path) -> None:
    (tmp_path / "with space").write_bytes(DATA)
    content = file_content(DATA, UrlRoute(url=(tmp_path / "with space").as_uri()))
    fetch([content], store=store, patience=QUICK)
    assert store.verify(content.digest)


def test_netrc_opens_a_route(server: FileServer, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.logins["/thing"] = ("me", "word")
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))
    fetch([content], store=store, patience=QUICK)
    assert store.verify(content.digest)


# --- missing routes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/gone", "404 Not Found"),
        ("http://no-such-host.invalid/thing", "the host's name cannot be resolved"),
        ("http://127.0.0.1:9/thing", "connection refused, 3 times"),
        ("file:///no/such/file", "no such file or directory"),
        ("gopher://example.org/thing", "not an address that can be fetched"),
    ],
)
def test_missing_route_says_so_and_names_the_next_one(
    server: FileServer, store: Store, capsys: pytest.CaptureFixture[str], url: str, reason: str
) -> None:
    first = server.url(url) if url.startswith("/") else url
    content = file_content(DATA, UrlRoute(url=first), UrlRoute(url=server.url("/thing")))

    fetch([content], store=store, patience=QUICK, quiet=True)

    said = capsys.readouterr().err
    assert f"`thing`: {first}: {reason}" in said
    assert f"trying route 2 of 2: {server.url('/thing')}" in said
    assert store.verify(content.digest)


@pytest.mark.parametrize(
    ("ill", "reason"), [("hang", "nothing arrived for 0.3 s"), ("trickle", "hardly anything arrived for 0.3 s")]
)
def test_route_that_hangs_ends_and_the_next_one_goes_on_from_there(
    server: FileServer, store: Store, ill: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files["/slow"] = DATA
    server.ills["/slow"].extend([ill] * 3)
    content = file_content(DATA, UrlRoute(url=server.url("/slow")), UrlRoute(url=server.url("/thing")))

    fetch([content], store=store, patience=replace(QUICK, timeout_s=0.3))

    assert f": {reason}, 3 times\n" in capsys.readouterr().err
    assert store.verify(content.digest)


def test_without_a_route_left_every_reason_is_listed(server: FileServer, store: Store) -> None:
    secret = server.url("/gone?token=secret").replace("http://", "http://me:secret@")
    content = file_content(DATA, UrlRoute(url=secret), UrlRoute(url="http://no-such-host.invalid/x"))

    with pytest.raises(RouteError) as caught:
        fetch([content], store=store, patience=QUICK)

    text = caught.value.render()
    assert "no route to `thing.bin` of pin `thing` is left" in text
    assert f"{server.url('/gone')}: 404 Not Found" in text
    assert "http://no-such-host.invalid/x: the host's name cannot be resolved" in text
    assert "secret" not in text
    assert "\nhint: " in text


def test_partial_stays_when_no_route_is_left(server: FileServer, store: Store) -> None:
    server.ills["/thing"].extend(["cut", "404"])
    content = file_content(DATA, UrlRoute(url=server.url("/thing")))
    with pytest.raises(RouteError):
        fetch([content], store=store, patience=QUICK)
    assert (store.root / "partial" / content.digest.removeprefix("sha256:")).stat().st_size == 150_000


# --- another content --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size_bytes", [-1, None])
@pytest.mark.parametrize("served", [DATA[:-1] + b"!", DATA + b"!", DATA[:-1]], ids=["same size", "longer", "shorter"])
def test_another_content_is_an_error_and_never_the_next_route(
    server: FileServer, store: Store, served: bytes, size_bytes: int | None
) -> None:
    server.files["/changed"] = served
    content = file_content(
        DATA, UrlRoute(url=server.url("/changed")), UrlRoute(url=server.url("/thing")), size_bytes=size_bytes
    )

    with pytest.raises(ContentError) as caught:
        fetch([content], store=store, patience=QUICK)

    text = caught.value.render()
    assert "`thing.bin` of pin `thing` is not what the pin names" in text
    assert f"expected {content.digest}" in text
    assert digest(served) in text or f"a file of {len(served)} bytes" in text
    assert f"from {server.url('/changed')}" in text
    assert server.ranges("/thing") == []
    assert not store.has(content.digest)
    assert partials(store) == []


def test_index_that_names_another_digest_is_believed_before_a_byte_comes(server: FileServer, store: Store) -> None:
    page = f'<a href="/thing#sha256={"b" * 64}">thing-1.0.tar.gz</a>'
    server.files["/simple/thing/"], server.types["/simple/thing/"] = page.encode(), "text/html"
    index = PackageIndex(PipConfig(indexes=(server.url("/simple/"),)), patience=QUICK)
    content = file_content(DATA, IndexRoute(project="thing", filename="thing-1.0.tar.gz"))

    with pytest.raises(ContentError, match="is not what the pin names"):
        fetch([content], store=store, patience=QUICK, index=index)

    assert server.ranges("/thing") == []


def test_error_of_one_stops_the_others_and_keeps_what_is_complete(server: FileServer, store: Store) -> None:
    server.pause_s = 0.2
    server.files |= {"/small": b"small", "/slow": DATA * 20, "/changed": b"x" * 200_000}
    slow = file_content(DATA * 20, UrlRoute(url=server.url("/slow")))
    small = file_content(b"small", UrlRoute(url=server.url("/small")))
    changed = file_content(b"y" * 200_000, UrlRoute(url=server.url("/changed")))

    with pytest.raises(ContentError):
        fetch([slow, small, changed], store=store, patience=QUICK)

    assert store.has(small.digest)
    assert partials(store) == [slow.digest.removeprefix("sha256:")]


def test_file_that_cannot_fit_is_refused_before_a_byte_comes(server: FileServer, store: Store) -> None:
    content = file_content(DATA, UrlRoute(url=server.url("/thing")), size_bytes=1 << 60)
    with pytest.raises(DiskFullError, match="no room left to write"):
        fetch([content], store=store, patience=QUICK)
    assert server.asked == []


# --- killed, interrupted, at once -------------------------------------------------------------------------------------

RUN = """
import sys
from pathlib import Path
from spark_images.errors import SparkImagesError
from spark_images.fetch import fetch
from spark_images.pins import FileContent, UrlRoute
from spark_images.store import Store
digest, url, root = sys.argv[1:]
content = FileContent(pin="thing", label="thing.bin", digest=digest, size_bytes=None, routes=(UrlRoute(url=url),))
try:
    print(fetch([content], store=Store(Path(root))).files)
except SparkImagesError as err:
    print(err.render()); sys.exit(err.exit_status)
"""


def start_fetch(url: str, name: str, store: Store) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", RUN, name, url, str(store.root)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_bytes(store: Store, name: str) -> None:
    partial = store.root / "partial" / name.removeprefix("sha256:")
    last = time.monotonic() + 20
    while not (partial.exists() and partial.stat().st_size > 100_000):
        assert time.monotonic() < last, "no bytes came"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_ended_fetch_goes_on_from_where_it_was(server: FileServer, store: Store, number: signal.Signals) -> None:
    data = server.files["/large"] = os.urandom(3_000_000)
    server.pause_s = 0.05
    process = start_fetch(server.url("/large"), digest(data), store)
    wait_for_bytes(store, digest(data))
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == (-9 if number == signal.SIGKILL else 130)
    assert ("the fetch was interrupted" in out) == (number == signal.SIGINT)
    assert "Traceback" not in err
    assert not store.has(digest(data))
    server.pause_s = 0.0

    again = start_fetch(server.url("/large"), digest(data), store)
    out, _ = again.communicate(timeout=20)

    assert out.strip() == "1"
    assert int(server.ranges("/large")[-1].removeprefix("bytes=").rstrip("-")) > 100_000
    assert store.verify(digest(data))


def test_two_processes_that_fetch_at_once_download_once(server: FileServer, store: Store) -> None:
    data = server.files["/large"] = os.urandom(1_000_000)
    server.pause_s = 0.05
    processes = [start_fetch(server.url("/large"), digest(data), store) for _ in range(3)]
    said = sorted(process.communicate(timeout=30)[0].strip() for process in processes)

    assert said == ["0", "0", "1"]
    assert len(server.ranges("/large")) == 1
    assert store.verify(digest(data))


# --- source trees -----------------------------------------------------------------------------------------------------


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository with a program, a link and a folder."""
    folder = tmp_path / "upstream"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("int main(void) { return 0; }\n")
    (folder / "configure").write_text("#!/bin/sh\n")
    (folder / "configure").chmod(0o755)
    (folder / "link").symlink_to("src/main.c")
    return folder


def commit_of(folder: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "state")):
        subprocess.run((*git, *arguments), cwd=folder, env=env, check=True)
    return subprocess.run(
        (*git, "rev-parse", "HEAD"), cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def tarball(folder: Path, inside: str) -> bytes:
    with io.BytesIO() as out:
        with tarfile.open(fileobj=out, mode="w:gz") as tar:
            tar.add(folder, inside)
        return out.getvalue()


def tree_content(folder: Path, *routes: TreeRoute, paths: tuple[str, ...] = ()) -> TreeContent:
    tree = write_tree(folder, paths=paths, out=io.BytesIO())
    return TreeContent(pin="upstream", label="upstream", digest=tree, paths=paths, routes=routes)


def serve_sdist(server: FileServer, data: bytes, *, sha256: str | None = None) -> PackageIndex:
    fragment = sha256 or digest(data).removeprefix("sha256:")
    server.files["/files/vendoring-1.0.tar.gz"] = data
    page = f'<a href="/files/vendoring-1.0.tar.gz#sha256={fragment}">vendoring-1.0.tar.gz</a>'
    server.files["/simple/vendoring/"], server.types["/simple/vendoring/"] = page.encode(), "text/html"
    return PackageIndex(PipConfig(indexes=(server.url("/simple/"),)), patience=QUICK)


SDIST = SdistRoute(project="vendoring", version="1.0", path="vendor/upstream")


def test_tree_comes_by_every_route_and_is_the_same(server: FileServer, tmp_path: Path, upstream: Path) -> None:
    index = serve_sdist(server, tarball(upstream, "vendoring-1.0/vendor/upstream"))
    server.files["/main.tar.gz"] = tarball(upstream, "upstream-main")
    routes: list[TreeRoute] = [
        GitRoute(url=str(upstream), commit=commit_of(upstream)),
        ArchiveRoute(url=server.url("/main.tar.gz")),
        SDIST,
    ]
    for number, route in enumerate(routes):
        store = Store(tmp_path / f"store{number}")
        content = tree_content(upstream, route, paths=("src", "configure"))
        fetch([content], store=store, patience=QUICK, index=index)
        with tarfile.open(store.path(content.digest)) as tar:
            assert tar.getnames() == ["configure", "src/main.c"]
        assert partials(store) == []  # the archives are not kept


def test_tree_falls_from_git_to_the_sdist_that_vendors_it(
    server: FileServer, store: Store, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = serve_sdist(server, tarball(upstream, "vendoring-1.0/vendor/upstream"))
    content = tree_content(upstream, GitRoute(url=server.url("/no/repository"), commit="0" * 40), SDIST)

    fetch([content], store=store, patience=QUICK, index=index)

    said = capsys.readouterr().err
    assert f"`upstream`: git {server.url('/no/repository')} at 000000000000: " in said
    assert "trying route 2 of 2: package index, sdist of `vendoring` 1.0" in said
    assert store.verify(content.digest)


def test_download_of_an_sdist_is_resumed_across_runs(server: FileServer, store: Store, upstream: Path) -> None:
    (upstream / "noise").write_bytes(os.urandom(100_000))
    data = tarball(upstream, "vendoring-1.0/vendor/upstream")
    index = serve_sdist(server, data)
    server.ills["/files/vendoring-1.0.tar.gz"].extend(["cut", "404"])
    content = tree_content(upstream, SDIST)
    with pytest.raises(RouteError):
        fetch([content], store=store, patience=QUICK, index=index)

    fetch([content], store=store, patience=QUICK, index=index)

    assert server.ranges("/files/vendoring-1.0.tar.gz")[-1] == f"bytes={len(data) // 2}-"
    assert store.verify(content.digest)


def test_another_tree_is_an_error_and_never_the_next_route(server: FileServer, store: Store, upstream: Path) -> None:
    content = tree_content(upstream, SDIST, GitRoute(url=str(upstream), commit=commit_of(upstream)))
    (upstream / "src" / "main.c").write_text("int main(void) { return 1; }\n")
    index = serve_sdist(server, tarball(upstream, "vendoring-1.0/vendor/upstream"))

    with pytest.raises(ContentError) as caught:
        fetch([content], store=store, patience=QUICK, index=index)

    text = caught.value.render()
    assert "`upstream` of pin `upstream` is not what the pin names" in text
    assert f"expected {content.digest}" in text
    assert f"got {write_tree(upstream, out=io.BytesIO())}" in text
    assert partials(store) == []


def test_sdist_that_is_not_what_its_index_says_is_an_error(server: FileServer, store: Store, upstream: Path) -> None:
    index = serve_sdist(server, tarball(upstream, "vendoring-1.0/vendor/upstream"), sha256="c" * 64)
    with pytest.raises(ContentError, match="is not what the pin names"):
        fetch([tree_content(upstream, SDIST)], store=store, patience=QUICK, index=index)


def test_tree_error_names_pin_and_route(server: FileServer, store: Store, upstream: Path) -> None:
    server.files["/a.tar.gz"] = b"<html>please log in</html>" * 10
    content = tree_content(upstream, ArchiveRoute(url=server.url("/a.tar.gz")))
    with pytest.raises(ContentError) as caught:
        fetch([content], store=store, patience=QUICK)
    text = caught.value.render()
    assert "pin `upstream`: " in text
    assert "cannot be read as an archive" in text
    assert f"from {server.url('/a.tar.gz')}" in text


# --- what a user sets and sees ----------------------------------------------------------------------------------------


def test_time_out_that_is_no_number_is_named() -> None:
    assert Patience.from_env({"SPARK_IMAGES_TIMEOUT_S": "7"}).timeout_s == 7
    with pytest.raises(UsageError, match="expected a number of seconds, got `soon`"):
        Patience.from_env({"SPARK_IMAGES_TIMEOUT_S": "soon"})


def test_addresses_are_shown_without_what_could_open_a_door() -> None:
    assert without_credentials("https://me:word@example.org:8443/a/b?token=1#x") == "https://example.org:8443/a/b"


def test_on_a_terminal_bars_are_drawn(server: FileServer, store: Store) -> None:
    import pty

    server.pause_s = 0.15
    parent, child = pty.openpty()
    command = [sys.executable, "-c", RUN, digest(DATA), server.url("/thing"), str(store.root)]
    env = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "120"}
    for name in ("NO_COLOR", "CI"):
        env.pop(name, None)
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=child) as process:
        os.close(child)
        shown = b""
        with os.fdopen(parent, "rb", buffering=0) as terminal:
            while True:
                try:
                    chunk = terminal.read(4096)
                except OSError:  # how Linux says that the last writer is gone
                    break
                if not chunk:
                    break
                shown += chunk
        assert process.wait(20) == 0
    assert b"thing.bin" in shown
    assert b"fetch: 0 of 1 files" in shown

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from values import TOOLS_PIN

from spark_images.download import Patience
from spark_images.errors import ContentError, RouteError
from spark_images.locks import LockedWheel, read_wheels_lock
from spark_images.package_index import PackageIndex, PipConfig
from spark_images.wheel_lock import resolve_wheels, write_wheels_lock

PIN = replace(TOOLS_PIN, packages=("tool==1.10", "data==2.0"))
WHEELS = {
    "tool-1.10-py3-none-manylinux_2_17_x86_64.whl": b"amd64 program",
    "tool-1.10-py3-none-manylinux_2_17_aarch64.whl": b"an arm64 program",
    "tool-1.10-py3-none-win_amd64.whl": b"no",
    "tool-1.9-py3-none-manylinux_2_17_x86_64.whl": b"old",
    "data-2.0-py3-none-any.whl": b"",
}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Tests print nothing."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a real index over HTTP: simple API in HTML, files with sha256 and without size."""
    root = tmp_path / "index"
    (root / "files").mkdir(parents=True)
    for name, content in WHEELS.items():
        (root / "files" / name).write_bytes(content)
        page = root / "simple" / name.partition("-")[0] / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a") as stream:
            stream.write(f'<a href="/files/{name}#sha256={hashlib.sha256(content).hexdigest()}">{name}</a><br>\n')
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(root))) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/simple/"
        http.shutdown()
        thread.join()


@pytest.fixture
def index(server: str) -> PackageIndex:
    return PackageIndex(PipConfig(indexes=(server,)), patience=Patience(timeout_s=5, attempts=2, backoff_s=0.01))


def locked(filename: str, platform: str) -> LockedWheel:
    project, version = filename.split("-")[:2]
    content = WHEELS[filename]
    digest = hashlib.sha256(content).hexdigest()
    return LockedWheel(
        project=project, version=version, filename=filename, platform=platform, sha256=digest, size_bytes=len(content)
    )


EXPECTED = (
    locked("tool-1.10-py3-none-manylinux_2_17_x86_64.whl", "linux/amd64"),
    locked("tool-1.10-py3-none-manylinux_2_17_aarch64.whl", "linux/arm64"),
    locked("data-2.0-py3-none-any.whl", "any"),
)


def test_every_package_is_locked_for_every_platform_and_one_for_all_once(index: PackageIndex) -> None:
    assert resolve_wheels(PIN, index=index) == EXPECTED


def test_a_version_without_a_wheel_for_a_platform_is_an_error(index: PackageIndex) -> None:
    with pytest.raises(ContentError, match=r"no wheel of `tool` 1\.9 is for linux/arm64"):
        resolve_wheels(replace(PIN, packages=("tool==1.9",)), index=index)


def test_an_index_without_digests_cannot_be_locked(index: PackageIndex, tmp_path: Path) -> None:
    page = tmp_path / "index" / "simple" / "data" / "index.html"
    page.write_text('<a href="/files/data-2.0-py3-none-any.whl">data-2.0-py3-none-any.whl</a>')
    with pytest.raises(ContentError, match=r"gives no sha256 for `data-2\.0-py3-none-any\.whl`"):
        resolve_wheels(PIN, index=index)


def test_a_file_that_the_index_lists_and_nobody_serves_is_an_error_with_its_address(
    index: PackageIndex, tmp_path: Path
) -> None:
    (tmp_path / "index" / "files" / "data-2.0-py3-none-any.whl").unlink()
    with pytest.raises(RouteError) as caught:
        resolve_wheels(PIN, index=index)
    assert caught.value.what == "the size of `data-2.0-py3-none-any.whl` cannot be asked"
    assert "/files/data-2.0-py3-none-any.whl: 404" in caught.value.why[0]


def test_a_written_lock_reads_as_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tools.lock"
    write_wheels_lock(PIN, EXPECTED, path)
    assert set(read_wheels_lock(path, PIN).wheels) == set(EXPECTED)


def test_a_lock_is_the_same_text_whatever_the_order_of_its_wheels(tmp_path: Path) -> None:
    write_wheels_lock(PIN, EXPECTED, tmp_path / "one")
    write_wheels_lock(PIN, EXPECTED[::-1], tmp_path / "other")
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "other").read_text()
    assert len(text.splitlines()) == 5 + len(EXPECTED)
    assert text.startswith("# The wheels behind the pin `tools` of pins.yaml. Remade by `nox -s lock`; do not edit.\n")

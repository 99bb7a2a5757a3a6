from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from file_server import FileServer

from spark_images.download import Patience
from spark_images.errors import ConfigError, ContentError, RouteError
from spark_images.package_index import (
    PYPI,
    IndexFile,
    PackageIndex,
    PipConfig,
    parse_pip_config,
    read_pip_config,
    select_wheel,
)

QUICK = Patience(timeout_s=1.0, attempts=3, backoff_s=0.01)
JSON_TYPE = "application/vnd.pypi.simple.v1+json"
SHA = "a" * 64
BOTH_TAGS = "manylinux2014_aarch64.manylinux_2_17_aarch64"


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as served:
        yield served


def index_of(*urls: str, **config: str) -> PackageIndex:
    return PackageIndex(PipConfig(indexes=urls, **config), patience=QUICK)  # type: ignore[arg-type]


def html_page(server: FileServer, path: str, *links: str) -> None:
    server.files[path] = ("<!DOCTYPE html><html><body>" + "".join(links) + "</body></html>").encode()
    server.types[path] = "text/html"


def wheel(filename: str, version: str = "1.0") -> IndexFile:
    return IndexFile(project="thing", version=version, filename=filename, url="", sha256=SHA, size_bytes=1)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_html_page_gives_address_and_hash_but_no_size(server: FileServer) -> None:
    html_page(server, "/simple/thing/", f'<a href="../../files/thing-1.0.tar.gz#sha256={SHA}">thing-1.0.tar.gz</a>')

    found = index_of(server.url("/simple/")).find_file("Thing", "thing-1.0.tar.gz")

    url = server.url("/files/thing-1.0.tar.gz")
    assert found == IndexFile(
        project="thing", version="1.0", filename="thing-1.0.tar.gz", url=url, sha256=SHA, size_bytes=None
    )


def test_json_page_gives_the_size_too(server: FileServer) -> None:
    file = {"filename": "thing-1.0.tar.gz", "url": "/files/thing-1.0.tar.gz", "hashes": {"sha256": SHA}, "size": 123}
    page = {"meta": {"api-version": "1.1"}, "name": "thing", "versions": ["1.0"], "files": [file]}
    server.files["/simple/thing/"] = json.dumps(page).encode()
    server.types["/simple/thing/"] = JSON_TYPE

    found = index_of(server.url("/simple/")).find_file("thing", "thing-1.0.tar.gz")

    assert (found.size_bytes, found.sha256) == (123, SHA)
    assert found.url == server.url("/files/thing-1.0.tar.gz")


def test_page_is_read_once(server: FileServer) -> None:
    html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>', '<a href="b">thing-2.0.tar.gz</a>')
    index = index_of(server.url("/simple/"))
    index.find_file("thing", "thing-1.0.tar.gz")
    index.find_file("thing", "thing-2.0.tar.gz")
    assert len(server.asked) == 1


def test_extra_index_is_asked_for_what_the_first_lacks(server: FileServer) -> None:
    html_page(server, "/extra/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    found = index_of(server.url("/simple/"), server.url("/extra/")).find_file("thing", "thing-1.0.tar.gz")
    assert found.url == server.url("/extra/thing/a")


def test_index_that_does_not_answer_does_not_hide_the_next_one(server: FileServer) -> None:
    html_page(server, "/extra/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    index = index_of("http://127.0.0.1:9/simple/", server.url("/extra/"))
    assert index.find_file("thing", "thing-1.0.tar.gz").url == server.url("/extra/thing/a")
    with pytest.raises(RouteError, match="does not answer"):
        index.find_files("thing")  # what is chosen from all files must see all of them


def test_unknown_file_names_the_index_and_the_nearest_names(server: FileServer) -> None:
    html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>', '<a href="b">other.zip</a>')

    with pytest.raises(RouteError) as caught:
        index_of(server.url("/simple/")).find_file("thing", "thing-1.1.tar.gz")

    text = caught.value.render()
    assert f"asked: {server.url('/simple/')}" in text
    assert "hint: nearest names: `thing-1.0.tar.gz`" in text


def test_unknown_project_names_the_index_without_its_password(server: FileServer) -> None:
    url = server.url("/simple/").replace("http://", "http://me:secret@")
    with pytest.raises(RouteError) as caught:
        index_of(url).find_files("thing")
    text = caught.value.render()
    assert server.url("/simple/") in text
    assert "secret" not in text


def test_error_of_the_server_passes_and_is_tried_again(server: FileServer) -> None:
    html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    server.ills["/simple/thing/"].extend(["503", "429"])
    assert index_of(server.url("/simple/")).find_file("thing", "thing-1.0.tar.gz")
    assert len(server.asked) == 3


def test_index_that_hangs_ends_in_an_error(server: FileServer) -> None:
    html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    server.ills["/simple/thing/"].extend(["hang"] * 9)
    index = PackageIndex(
        PipConfig(indexes=(server.url("/simple/"),)), patience=replace(QUICK, timeout_s=0.2, attempts=2)
    )
    with pytest.raises(RouteError, match="does not answer") as caught:
        index.find_files("thing")
    assert "nothing arrived for 0.2 s" in caught.value.render()


def test_page_that_is_no_simple_api_says_so(server: FileServer) -> None:
    server.files["/simple/thing/"] = b"%PDF"
    server.types["/simple/thing/"] = "application/pdf"
    with pytest.raises(RouteError) as caught:
        index_of(server.url("/simple/")).find_files("thing")
    assert "no simple API here" in caught.value.render()


def test_sdist_is_found_by_version_however_it_is_spelled(server: FileServer) -> None:
    html_page(
        server,
        "/simple/a-thing/",
        '<a href="w">a_thing-1.0-py3-none-any.whl</a>',
        '<a href="a">a_thing-1.0.tar.gz</a>',
        '<a href="b">a-thing-1.1.zip</a>',
    )
    index = index_of(server.url("/simple/"))
    assert index.find_sdist("a-thing", "1.0.0").filename == "a_thing-1.0.tar.gz"
    assert index.find_sdist("a-thing", "1.1").filename == "a-thing-1.1.zip"
    with pytest.raises(RouteError, match=r"no package index has an sdist of `a-thing` 1\.2"):
        index.find_sdist("a-thing", "1.2")


# --- logins -----------------------------------------------------------------------------------------------------------


def test_login_in_the_index_address_opens_its_pages_and_files(server: FileServer) -> None:
    html_page(server, "/simple/thing/", '<a href="/files/a">thing-1.0.tar.gz</a>')
    server.files["/files/a"] = b"data"
    server.logins |= {"/simple/thing/": ("me", "p@ss"), "/files/a": ("me", "p@ss")}
    index = index_of(server.url("/simple/").replace("http://", "http://me:p%40ss@"))

    found = index.find_file("thing", "thing-1.0.tar.gz")

    assert index.session().get(found.url, timeout=5).content == b"data"


def test_netrc_opens_an_index(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    server.logins["/simple/thing/"] = ("me", "word")
    with pytest.raises(RouteError) as caught:
        index_of(server.url("/simple/")).find_files("thing")
    assert "401" in caught.value.render()

    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password word\n")
    monkeypatch.setenv("NETRC", str(netrc))

    assert index_of(server.url("/simple/")).find_files("thing")


def test_untrusted_certificate_is_refused_unless_pip_trusts_the_host(tmp_path: Path) -> None:
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1", "-days", "2"]
    subprocess.run([*make, "-keyout", "key.pem", "-out", "cert.pem"], cwd=tmp_path, check=True, capture_output=True)
    with FileServer(certificate=(tmp_path / "cert.pem", tmp_path / "key.pem")) as server:
        html_page(server, "/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>')
        url = server.url("/simple/")
        with pytest.raises(RouteError) as caught:
            index_of(url).find_files("thing")
        assert "CERTIFICATE_VERIFY_FAILED" in caught.value.render()
        trusting = PipConfig(indexes=(url,), trusted_hosts=("127.0.0.1",))
        assert PackageIndex(trusting, patience=QUICK).find_files("thing")


def test_proxy_of_pip_is_used(server: FileServer) -> None:
    html_page(server, "http://index.example.org/simple/thing/", '<a href="a">thing-1.0.tar.gz</a>')
    index = index_of("http://index.example.org/simple/", proxy=server.url(""))
    assert index.find_file("thing", "thing-1.0.tar.gz").url == "http://index.example.org/simple/thing/a"


# --- pip's configuration ----------------------------------------------------------------------------------------------


def test_without_configuration_pypi_is_asked() -> None:
    assert parse_pip_config("") == PipConfig(indexes=(PYPI,))


def test_variables_go_before_the_download_section_and_that_before_the_global_one() -> None:
    listing = "\n".join(
        [
            ":env:.index-url='https://env.example.org/simple'",
            "download.index-url='https://download.example.org/simple'",
            "download.cert='/download.pem'",
            "global.cert='/global.pem'",
            "global.proxy='http://proxy.example.org:3128'",
            "global.extra-index-url='\\nhttps://a.example.org/simple\\nhttps://b.example.org/simple/'",
            ":env:.trusted-host='one two:8443'",
            ":env:.default-timeout='180'",
            "global.retries='2'",
            "install.index-url='https://other.example.org'",
        ]
    )
    assert parse_pip_config(listing) == PipConfig(
        indexes=(
            "https://env.example.org/simple/",
            "https://a.example.org/simple/",
            "https://b.example.org/simple/",
        ),
        cert="/download.pem",
        proxy="http://proxy.example.org:3128",
        trusted_hosts=("one", "two:8443"),
        timeout_s=180.0,
        attempts=3,
    )


@pytest.mark.parametrize("key", ["timeout", "retries"])
def test_number_of_pip_that_is_none_is_named(key: str) -> None:
    with pytest.raises(ConfigError, match=f"`{key}`: expected a number, got `soon`"):
        parse_pip_config(f"global.{key}='soon'")


def test_real_pip_reports_its_files_and_variables(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://file.example.org/simple\nextra-index-url = https://x.example.org/s\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    found = read_pip_config({**env, "PIP_CONFIG_FILE": str(file), "PIP_EXTRA_INDEX_URL": "https://y.example.org/s"})
    assert found.indexes == ("https://file.example.org/simple/", "https://y.example.org/s/")


def test_own_time_out_goes_before_pips() -> None:
    env = {**os.environ, "PIP_DEFAULT_TIMEOUT": "180"}
    env.pop("SPARK_IMAGES_TIMEOUT_S", None)
    assert PackageIndex.from_env(env).patience.timeout_s == 180
    assert PackageIndex.from_env({**env, "SPARK_IMAGES_TIMEOUT_S": "7"}).patience.timeout_s == 7


# --- the choice of a wheel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "platform", "python", "chosen"),
    [
        (["manylinux2014_x86_64", "manylinux2014_aarch64"], "linux/arm64", None, "manylinux2014_aarch64"),
        (["manylinux_2_17_x86_64", "manylinux_2_28_x86_64"], "linux/amd64", None, "manylinux_2_28_x86_64"),
        (["manylinux_2_28_aarch64", "manylinux_2_39_aarch64"], "linux/arm64", None, "manylinux_2_28_aarch64"),
        (["any", "manylinux1_x86_64"], "linux/amd64", None, "manylinux1_x86_64"),
        (["any", "manylinux1_x86_64"], "linux/arm64", None, "any"),
        (["win32", BOTH_TAGS], "linux/arm64", "3.11", BOTH_TAGS),
        (["musllinux_1_2_x86_64", "linux_x86_64"], "linux/amd64", None, "linux_x86_64"),
    ],
)  # fmt: skip
def test_wheel_of_the_platform_with_the_newest_glibc_that_fits(
    names: list[str], platform: str, python: str | None, chosen: str
) -> None:
    files = [wheel(f"thing-1.0-py3-none-{name}.whl") for name in names]
    found = select_wheel(files, project="thing", version="1.0", platform=platform, python=python)
    assert found.filename == f"thing-1.0-py3-none-{chosen}.whl"


def test_wheel_for_the_python_goes_before_abi3_and_that_before_any_python() -> None:
    tags = ["py3-none", "cp39-abi3", "cp311-cp311", "cp312-cp312"]
    files = [wheel(f"thing-1.0-{tag}-manylinux2014_x86_64.whl") for tag in tags]

    def chosen(python: str | None, offered: list[IndexFile]) -> str:
        found = select_wheel(offered, project="thing", version="1.0", platform="linux/amd64", python=python)
        return found.filename.removeprefix("thing-1.0-").removesuffix("-manylinux2014_x86_64.whl")

    assert chosen("3.11", files) == "cp311-cp311"
    assert chosen("3.12", files) == "cp312-cp312"
    assert chosen("3.13", files) == "cp39-abi3"
    assert chosen("3.13", files[:1]) == "py3-none"
    assert chosen(None, files) == "py3-none"


def test_higher_build_number_wins_among_equals() -> None:
    files = [wheel(f"thing-1.0-{build}-py3-none-any.whl") for build in ("2", "10", "1")]
    found = select_wheel(files, project="thing", version="1.0", platform="linux/amd64", python=None)
    assert found.filename == "thing-1.0-10-py3-none-any.whl"


def test_only_the_stated_version_counts() -> None:
    files = [wheel("thing-1.1-py3-none-any.whl", "1.1"), wheel("thing-1.0-py3-none-any.whl")]
    found = select_wheel(files, project="thing", version="1.0.0", platform="linux/amd64", python=None)
    assert found.filename == "thing-1.0-py3-none-any.whl"


def test_no_fitting_wheel_lists_what_there_is() -> None:
    files = [wheel("thing-1.0-cp311-cp311-win_amd64.whl"), wheel("thing-2.0-py3-none-any.whl", "2.0")]
    with pytest.raises(ContentError) as caught:
        select_wheel(files, project="thing", version="1.0", platform="linux/arm64", python="3.11")
    text = caught.value.render()
    assert "no wheel of `thing` 1.0 is for linux/arm64 and Python 3.11" in text
    assert "there is `thing-1.0-cp311-cp311-win_amd64.whl`" in text
    assert "2.0" not in text

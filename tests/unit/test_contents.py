from __future__ import annotations

from dataclasses import replace

from values import DEBIAN_PIN, HELLO_PIN, deb, wheel

from spark_images.contents import archive_content, deb_content, sdist_content, tree_content, wheel_content
from spark_images.pins import ArchivePin, FileContent, IndexRoute, SdistPin, TreeContent, UrlRoute


def test_a_git_pin_is_a_tree_with_the_pins_routes() -> None:
    pin = replace(HELLO_PIN, paths=("src",))
    assert tree_content(pin) == TreeContent(
        pin="hello", label="hello b12", digest=pin.tree, paths=("src",), routes=pin.routes
    )


def test_an_archive_is_called_as_its_first_address_calls_it() -> None:
    routes = (UrlRoute(url="https://example.org/a/fix.patch"), UrlRoute(url="https://mirror.example.org/1234"))
    pin = ArchivePin(name="fix", line=1, version="1", sha256="0" * 64, routes=routes)
    assert archive_content(pin) == FileContent(
        pin="fix", label="fix.patch", digest=f"sha256:{'0' * 64}", size_bytes=None, routes=routes
    )


def test_an_sdist_is_looked_for_under_the_file_name_of_pep_625() -> None:
    pin = SdistPin(name="attention", line=1, project="flash-attn", version="2.8.3", sha256="0" * 64)
    assert sdist_content(pin).routes == (IndexRoute(project="flash-attn", filename="flash_attn-2.8.3.tar.gz"),)


def test_a_wheel_has_digest_and_size_of_the_lock() -> None:
    locked = wheel("nvcc", "linux/arm64")
    content = wheel_content("cuda", locked)
    assert (content.pin, content.digest, content.size_bytes) == ("cuda", f"sha256:{locked.sha256}", 10)
    assert content.routes == (IndexRoute(project="nvcc", filename=locked.filename),)


def test_a_deb_has_every_route_of_its_pin() -> None:
    pin = replace(
        DEBIAN_PIN,
        routes=(
            "http://deb.debian.org/{archive}/{path}",
            "https://snapshot.debian.org/archive/{archive}/{snapshot}/{path}",
        ),
    )
    content = deb_content(pin, deb("libc6", "arm64", "runtime/arm64"))
    assert content.label == "libc6_1_arm64.deb"
    assert content.routes == (
        UrlRoute(url="http://deb.debian.org/debian/pool/main/libc6_1_arm64.deb"),
        UrlRoute(url="https://snapshot.debian.org/archive/debian/20261101T000000Z/pool/main/libc6_1_arm64.deb"),
    )

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from debs import locked

from spark_images import debian_lock
from spark_images.debian_lock import parse_uris, resolve_debs, write_debs_lock
from spark_images.errors import HostProgramError, RouteError
from spark_images.locks import LockedDeb, read_debs_lock
from spark_images.pins import DebSet, DebsPin

PIN = DebsPin(
    name="debian",
    line=1,
    suite="bookworm",
    lock="images/debian/debs.lock",
    snapshot=datetime(2026, 11, 21, tzinfo=UTC),
    routes=("http://deb.debian.org/{archive}/{path}",),
    sets=(DebSet(name="runtime", packages=("libc6",), arches=("amd64", "arm64")),),
)
BASE_URLS = {
    "debian-security": "http://deb.debian.org/debian-security/",
    "debian": "http://deb.debian.org/debian/",
}
SHA256 = "12345678" * 8


def test_what_apt_prints_becomes_locked_debs() -> None:
    output = (
        "Reading package lists...\n"
        "'http://deb.debian.org/debian/pool/main/g/gmp/libgmp10_6.2.1%2bdfsg1-1.1_arm64.deb' "
        f"libgmp10_2%3a6.2.1+dfsg1-1.1_arm64.deb 537920 SHA256:{SHA256}\n"
        "'http://deb.debian.org/debian-security/pool/updates/main/o/openssl/libssl3_3.0.22-1%7edeb12u2_arm64.deb' "
        f"libssl3_3.0.22-1~deb12u2_arm64.deb 1829128 SHA256:{SHA256}\n"
    )
    gmp, ssl = parse_uris(output, base_urls=BASE_URLS)
    assert gmp == LockedDeb(
        package="libgmp10",
        version="2:6.2.1+dfsg1-1.1",
        arch="arm64",
        archive="debian",
        path="pool/main/g/gmp/libgmp10_6.2.1+dfsg1-1.1_arm64.deb",
        sha256=SHA256,
        size_bytes=537920,
        sets=(),
    )
    assert (ssl.archive, ssl.path) == (
        "debian-security",
        "pool/updates/main/o/openssl/libssl3_3.0.22-1~deb12u2_arm64.deb",
    )


@pytest.mark.parametrize(
    "line",
    [
        "'http://deb.debian.org/debian/pool/x_1_arm64.deb' x_1_arm64.deb 5 MD5Sum:0123456789abcdef0123456789abcdef",
        f"'http://elsewhere.example/pool/x_1_arm64.deb' x_1_arm64.deb 5 SHA256:{SHA256}",
    ],
)
def test_a_file_without_sha256_or_from_elsewhere_is_refused(line: str) -> None:
    with pytest.raises(RouteError) as caught:
        parse_uris(line, base_urls=BASE_URLS)
    assert line in caught.value.why


def test_a_written_lock_is_read_back_as_it_was(tmp_path: Path) -> None:
    debs = [
        replace(locked("libstdc++6", version="1:12.2.0-14+deb12u1"), sets=("runtime/amd64", "runtime/arm64")),
        locked("gcc", version="1.10", sha256="1234e567" * 8),  # YAML would take both for numbers without quotes
        locked("gcc", version="1.10", arch="amd64", sha256="0" * 64),
    ]
    write_debs_lock(PIN, debs, tmp_path / "debs.lock")
    read = read_debs_lock(tmp_path / "debs.lock", PIN)
    assert set(read.debs) == set(debs)


def test_the_order_of_packages_does_not_change_the_lock(tmp_path: Path) -> None:
    debs = [locked("b"), locked("a"), locked("a", arch="amd64")]
    write_debs_lock(PIN, debs, tmp_path / "one")
    write_debs_lock(PIN, debs[::-1], tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    lines = (tmp_path / "one").read_text().splitlines()
    assert lines[0].startswith("#")
    assert "`nox -s lock`" in lines[0]
    assert [line.split(", version")[0] for line in lines[5:]] == [
        "  - {package: a",
        "  - {package: a",
        "  - {package: b",
    ]


def test_without_apt_it_says_that_only_the_lock_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostProgramError) as caught:
        resolve_debs(PIN, work=tmp_path)
    assert "`apt-get` is missing" in caught.value.render()
    assert "building does not" in caught.value.render()


def test_without_debians_keys_it_says_which_package_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "apt-get").write_text("#!/bin/sh\nexit 3\n")
    (programs / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(debian_lock, "KEY_FOLDERS", (tmp_path / "keyrings",))
    with pytest.raises(HostProgramError, match="archive keys are missing") as caught:
        resolve_debs(PIN, work=tmp_path / "work")
    assert "debian-archive-keyring" in caught.value.hint

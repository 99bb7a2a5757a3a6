"""Debian's real archive: what apt resolves, can be fetched and taken apart."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest
import requests

from spark_images.debian import assemble_root
from spark_images.debian_lock import resolve_debs
from spark_images.errors import ConfigError
from spark_images.pins import DebSet, DebsPin


def pin(*packages: str) -> DebsPin:
    return DebsPin(
        name="debian",
        line=1,
        suite="bookworm",
        lock="debs.lock",
        snapshot=datetime(2026, 11, 21, tzinfo=UTC),
        routes=("http://deb.debian.org/{archive}/{path}",),
        sets=(DebSet(name="tiny", packages=packages, arches=("arm64",)),),
    )


def test_a_set_is_closed_over_its_dependencies_and_becomes_a_root(tmp_path: Path) -> None:
    debs = resolve_debs(pin("mawk"), work=tmp_path)
    assert {deb.package for deb in debs} == {"mawk", "libc6", "libgcc-s1", "gcc-12-base"}
    assert {(deb.arch, deb.sets) for deb in debs} == {("arm64", ("tiny/arm64",))}
    files = []
    for deb in debs:
        answer = requests.get(f"http://deb.debian.org/{deb.archive}/{deb.path}", timeout=60)
        assert hashlib.sha256(answer.content).hexdigest() == deb.sha256
        assert len(answer.content) == deb.size_bytes
        path = tmp_path / f"{deb.package}.deb"
        path.write_bytes(answer.content)
        files.append((deb, path))
    digests = set()
    for name in ("one.tar", "two.tar"):
        with (tmp_path / name).open("wb") as tar:
            assemble_root(files, arch="arm64", epoch=1, output_tar=tar, slim=True)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_package_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="set `tiny` cannot be resolved for `arm64`") as caught:
        resolve_debs(pin("mawk", "no-such-package"), work=tmp_path)
    assert "no-such-package" in caught.value.render()

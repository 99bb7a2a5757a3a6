"""Layouts are read strictly, written whole, and handed to Docker unchanged in meaning."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from raw_layouts import CONFIG, EPOCH, TAR, file, folder, hardlink, tar_of, write_raw

from spark_images import layout_writer
from spark_images.canonical import write_canonical
from spark_images.errors import CanonicalError, DiskFullError
from spark_images.oci import Layout, docker_archive, read_layout, verify_blobs, write_root_layout

TREE = [folder("usr"), file("usr/a", b"a" * 3000), hardlink("usr/b", "usr/a")]


def root_layout(path: Path, content: bytes = tar_of(TREE)) -> Layout:
    path.parent.mkdir(parents=True, exist_ok=True)
    tar = path.with_suffix(".tar")
    tar.write_bytes(content)
    return write_root_layout(tar, architecture="arm64", env=(("PATH", "/bin"),), epoch=EPOCH, output=path)


def test_a_root_layout_holds_the_tar_as_it_is(tmp_path: Path) -> None:
    layout = root_layout(tmp_path / "root")

    assert layout.config["architecture"] == "arm64"
    assert layout.config["config"] == {"Env": ["PATH=/bin"]}
    (layer,) = layout.layers
    assert layer.diff_id == f"sha256:{hashlib.sha256(tar_of(TREE)).hexdigest()}"
    assert layer.uncompressed_bytes == len(tar_of(TREE))
    assert layer.media_type == f"{TAR}+zstd"
    verify_blobs(layout)


def test_a_root_layout_has_one_digest_wherever_it_is_written(tmp_path: Path) -> None:
    first, second = root_layout(tmp_path / "one" / "root"), root_layout(tmp_path / "two" / "other")

    assert first.manifest_digest == second.manifest_digest
    # The canonical form in one number: when this changes, CANONICAL_FORM has to.
    assert first.manifest_digest == "sha256:f1a658630f017bd56e45dcbbec99b4be32fb04ce02d64c1bcc0186ecb0fa76d9"


@pytest.mark.parametrize("cores", [1, 2, 20])
def test_the_compressor_gives_the_same_bytes_on_any_number_of_cores(
    tmp_path: Path, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = b"".join(hashlib.sha256(str(number).encode()).hexdigest().encode() for number in range(250_000))  # 16 MB
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))

    layout = root_layout(tmp_path / "root", words)

    assert layout.layers[0].digest == "sha256:595e84d793f9082cfea18c197a7e9ca182df713d6bd2c67a03677a398c1244a2"


def test_another_libzstd_is_an_error_that_says_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zstandard.ZSTD_VERSION", (1, 5, 9))

    with pytest.raises(CanonicalError, match=r"libzstd 1\.5\.9; images are written with 1\.5\.7") as caught:
        root_layout(tmp_path / "root")

    assert "./noxw" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["root.tar"]


def test_a_full_disk_names_the_place_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: layout_writer.LayerSink, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(layout_writer.LayerSink, "_store", full)

    with pytest.raises(DiskFullError, match=r"no room left to write `.*/root`"):
        root_layout(tmp_path / "root")

    assert [path.name for path in tmp_path.iterdir()] == ["root.tar"]


def test_a_layout_without_oci_layout_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()

    with pytest.raises(CanonicalError, match="is no complete OCI layout"):
        read_layout(tmp_path / "x")


def test_two_manifests_are_refused(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [TREE])
    index = json.loads((raw / "index.json").read_text())
    (raw / "index.json").write_text(json.dumps({"manifests": index["manifests"] * 2}))

    with pytest.raises(CanonicalError) as caught:
        read_layout(raw)

    assert "2 manifests, not one" in caught.value.why[0]


def test_a_truncated_blob_is_refused(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [TREE])
    blob = max((raw / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(blob.read_bytes()[:-512])

    with pytest.raises(CanonicalError) as caught:
        read_layout(raw)

    assert "has 9728 bytes, not 10240" in caught.value.why[0]


def test_a_missing_blob_is_refused(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [TREE])
    max((raw / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size).unlink()

    with pytest.raises(CanonicalError, match="is no complete OCI layout"):
        read_layout(raw)


def test_a_digest_that_is_a_path_is_refused(tmp_path: Path) -> None:
    raw = write_raw(tmp_path / "raw", [TREE])
    index = json.loads((raw / "index.json").read_text())
    index["manifests"][0]["digest"] = "sha256:../../../../etc/passwd"
    (raw / "index.json").write_text(json.dumps(index))

    with pytest.raises(CanonicalError) as caught:
        read_layout(raw)

    assert "is no sha256 digest" in caught.value.why[0]


def test_a_blob_with_other_bytes_of_the_same_size_is_found_by_verify_blobs(tmp_path: Path) -> None:
    layout = root_layout(tmp_path / "root")
    blob = layout.blob(layout.layers[0].digest)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(data)

    with pytest.raises(CanonicalError, match="is not what its name says") as caught:
        verify_blobs(read_layout(tmp_path / "root"))

    assert layout.layers[0].digest in caught.value.why[0]


def test_dockers_names_of_layers_are_understood(tmp_path: Path) -> None:
    docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"

    assert read_layout(write_raw(tmp_path / "raw", [TREE], media_type=docker)).layers[0].media_type == f"{TAR}+gzip"


@pytest.mark.parametrize("media_type", [TAR, f"{TAR}+gzip", f"{TAR}+zstd"])
def test_a_docker_archive_holds_the_config_and_the_uncompressed_layers(tmp_path: Path, media_type: str) -> None:
    layout = read_layout(write_raw(tmp_path / "raw", [TREE, [file("c", b"c")]], media_type=media_type))
    stream = io.BytesIO()

    docker_archive(layout, "localhost/spark-images/hello:abc", stream)

    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
        members = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    (manifest,) = json.loads(members["manifest.json"])
    assert manifest["RepoTags"] == ["localhost/spark-images/hello:abc"]
    assert f"sha256:{hashlib.sha256(members[manifest['Config']]).hexdigest()}" == layout.config_digest
    found = [f"sha256:{hashlib.sha256(members[name]).hexdigest()}" for name in manifest["Layers"]]
    assert found == layout.config["rootfs"]["diff_ids"]


def test_a_docker_archive_is_written_to_a_pipe(tmp_path: Path) -> None:
    layout = write_canonical(
        raw=write_raw(tmp_path / "raw", [TREE]), base=None, config=CONFIG, created_by=("COPY",), output=tmp_path / "out"
    )
    reading, writing = os.pipe()

    with os.fdopen(writing, "wb") as pipe:
        docker_archive(layout, "x:y", pipe)

    with os.fdopen(reading, "rb") as end, tarfile.open(fileobj=end, mode="r|") as archive:
        assert len(archive.getnames()) == 3

"""Benches of what moves bytes: writing the canonical layer, and fetching beside curl."""

from __future__ import annotations

import copy
import hashlib
import resource
import shutil
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from spark_images.bench.base import Measured, NotMeasured, Subject
from spark_images.errors import CheckError, RouteError
from spark_images.files import room_on
from spark_images.process import capture

if TYPE_CHECKING:
    from spark_images.oci import Layout
    from spark_images.package_index import PackageIndex
    from spark_images.pins import FileContent

LAYER_BYTES = 10**9
MB = 10**6
ROUNDS = 2  # of both, in turn, so that what else uses the line or the disk meets both
TOGETHER = 8  # downloads at once, for both


def canonical(subject: Subject) -> Measured:
    """Uncompressed layer data per second that one core works at it.

    Per core: bytes divided by CPU seconds (user and system) of the whole process, its compressing threads included.
    The layer is the pinned build root, again and again up to 1 GB: Debian's compilers, Python's and C's many small
    files. Copies lie further apart than the compressor looks back.
    """
    from spark_images.canonical import write_canonical
    from spark_images.fetch import fetch
    from spark_images.imageconfig import ImageConfig
    from spark_images.oci import read_layout
    from spark_images.staging import root_image
    from spark_images.store import Store
    from spark_images.workfolder import work_folder

    store = Store(subject.cache.store)
    root = next(root for root in subject.plan.roots if root.name == "build-root")
    fetch(subject.plan.deb_contents, store=store)
    source = read_layout(root_image(root, store, subject.cache).layout)
    config = ImageConfig(
        architecture=root.arch, user="", env=(), entrypoint=(), command=(), ports=(),
        workdir="/", stop_signal="", labels=(), epoch=0,
    )  # fmt: skip
    with work_folder(subject.cache, "bench") as folder, room_on(folder):
        files = write_raw(source, folder / "raw", architecture=root.arch)
        size = read_layout(folder / "raw").layers[0].size_bytes
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        made = write_canonical(
            raw=folder / "raw", base=None, config=config, created_by=("bench",), output=folder / "canonical"
        )
        wall_s, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return Measured(
        value=size / MB / cpu_s,
        facts=(
            f"{size / MB:.0f} MB of tar, {files} files, to {made.layers[0].size_bytes / MB:.0f} MB",
            f"{cpu_s:.2f} CPU s (user and system, all threads) in {wall_s:.2f} s: {size / MB / wall_s:.0f} MB/s",
        ),
    )


def write_raw(source: Layout, output: Path, *, architecture: str) -> int:
    """Write a layout as engines export it, of one uncompressed layer of LAYER_BYTES; how many files are in it."""
    from spark_images.layers import TAR
    from spark_images.layout_writer import write_index, write_json_blob

    blobs = output / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    with (blobs / "layer").open("wb") as file:
        files = _repeat(source, file)
    with (blobs / "layer").open("rb") as file:
        diff_id = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    layer = {"mediaType": TAR, "digest": diff_id, "size": (blobs / "layer").stat().st_size}
    (blobs / "layer").rename(blobs / diff_id.removeprefix("sha256:"))
    config = {"architecture": architecture, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [diff_id]}}
    described = write_json_blob(blobs, config, "application/vnd.oci.image.config.v1+json")
    manifest = {"schemaVersion": 2, "config": described, "layers": [layer]}
    write_index(output, write_json_blob(blobs, manifest, "application/vnd.oci.image.manifest.v1+json"))
    return files


def _repeat(source: Layout, output: BinaryIO) -> int:
    """The tree of the image below the folders 0, 1, … until there are LAYER_BYTES; how many files were written."""
    from spark_images.layers import open_layer

    files = number = 0
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as out:
        while True:
            for layer in source.layers:
                with (
                    open_layer(source.blob(layer.digest), layer.media_type) as stream,
                    tarfile.open(fileobj=stream, mode="r|") as tree,
                ):
                    for info in tree:
                        if out.offset >= LAYER_BYTES:
                            return files
                        entry = copy.copy(info)
                        entry.name = f"{number}/{info.name}"
                        entry.linkname = f"{number}/{info.linkname}" if info.islnk() else info.linkname
                        out.addfile(entry, cast("BinaryIO", tree.extractfile(info)) if info.isreg() else None)
                        files += info.isreg()
            number += 1


@dataclass(frozen=True)
class Download:
    """A file as curl is told to get it."""

    url: str
    size_bytes: int


def fetching(subject: Subject) -> Measured:
    """Throughput of fetching the image's wheels and .debs into an empty store, as a part of curl's for the same files.

    Ours includes asking the package index, verifying, and making files last; curl is handed the addresses.
    """
    from spark_images.fetch import fetch
    from spark_images.package_index import PackageIndex
    from spark_images.pins import FileContent
    from spark_images.store import Store
    from spark_images.workfolder import work_folder

    contents = tuple(content for content in subject.plan.contents if isinstance(content, FileContent))
    if shutil.which("curl") is None:
        raise NotMeasured("there is no `curl` to compare with; `apt-get install curl`")
    ours_s, curl_s = [], []
    with work_folder(subject.cache, "bench") as folder, room_on(folder):
        try:
            index = PackageIndex.from_env()
            files = [Download(_address(content, index), content.size_bytes or 0) for content in contents]
            for number in range(ROUNDS):
                began = time.monotonic()
                fetch(contents, store=Store(folder / f"store-{number}"), jobs=TOGETHER, quiet=True)
                ours_s.append(time.monotonic() - began)
                shutil.rmtree(folder / f"store-{number}")
                curl_s.append(_curl(files, folder / f"curl-{number}", cert=index.config.cert, proxy=index.config.proxy))
                shutil.rmtree(folder / f"curl-{number}")
        except RouteError as err:
            raise NotMeasured(err.render()) from err
    size_mb = sum(file.size_bytes for file in files) / MB
    rounds = (
        f"round {number}: {ours:.1f} s, {size_mb / ours:.0f} MB/s; curl {theirs:.1f} s, {size_mb / theirs:.0f} MB/s"
        for number, (ours, theirs) in enumerate(zip(ours_s, curl_s, strict=True), start=1)
    )
    return Measured(
        value=sum(curl_s) / sum(ours_s),
        facts=(f"{len(files)} files, {size_mb:.0f} MB, {TOGETHER} at once", *rounds),
    )


def _address(content: FileContent, index: PackageIndex) -> str:
    """Where the first route leads."""
    from spark_images.pins import UrlRoute

    route = content.routes[0]
    return route.url if isinstance(route, UrlRoute) else index.find_file(route.project, route.filename).url


def _curl(files: Sequence[Download], folder: Path, *, cert: str | None, proxy: str | None) -> float:
    """Seconds that curl takes for all files. NotMeasured where it cannot have them."""
    folder.mkdir()
    settings = folder / "settings"
    settings.write_text("".join(f'url = "{file.url}"\noutput = "{n}"\n' for n, file in enumerate(files)))
    command = ["curl", "-Z", "--parallel-max", str(TOGETHER), "--config", str(settings)]
    command += ["--fail", "--location", "--silent", "--show-error", "--netrc-optional"]
    command += [*(("--cacert", cert) if cert else ()), *(("--proxy", proxy) if proxy else ())]
    began = time.monotonic()
    done = capture(command, cwd=folder)
    seconds = time.monotonic() - began
    if done.status != 0:
        raise NotMeasured(f"curl ended with {done.status}: {' '.join(done.stderr.splitlines()[-2:])}")
    for number, file in enumerate(files):
        if (found := (folder / str(number)).stat().st_size) != file.size_bytes:
            raise CheckError(f"curl got {found} bytes of {file.url}, expected {file.size_bytes}")
    return seconds

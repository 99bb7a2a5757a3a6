"""A package index on loopback with 14 sdists of one project: some do not compile, one is missing, one breaks it."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

from file_server import FileServer
from pipeline import REPOSITORY, Pipeline, block_of

from spark_images.tree import tree_from_archive

PROJECT = "greeter"
VERSIONS = tuple(f"1.{minor}" for minor in range(14))
GOOD_WORD, BAD_WORD = "hello", "goodbye"


def sdist(version: str, files: Mapping[str, str]) -> bytes:
    """`greeter-<version>.tar.gz` with the files below its top folder."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, text in {**files, "PKG-INFO": f"Name: {PROJECT}\nVersion: {version}\n"}.items():
            info = tarfile.TarInfo(f"{PROJECT}-{version}/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return gzip.compress(raw.getvalue(), mtime=0)


class ToyUpstream:
    """The index. broken: versions that do not compile; culprit: the first that says another word."""

    def __init__(
        self, server: FileServer, *, culprit: str = "1.9", broken: tuple[str, ...] = (), missing: tuple[str, ...] = ()
    ) -> None:
        self.server = server
        source = (Path(__file__).parent / "project/source/hello.c").read_text()
        licence = (Path(__file__).parent / "project/source/LICENSE").read_text()
        self.archives = {}
        for version in VERSIONS:
            text = source
            if VERSIONS.index(version) >= VERSIONS.index(culprit):
                text = text.replace(f'"{GOOD_WORD} %s', f'"{BAD_WORD} %s')
            if version in broken:
                text = "this is no C\n" + text
            files = {"vendor/hello/hello.c": text, "vendor/hello/LICENSE": licence}
            self.archives[version] = sdist(version, files)
        self.publish(*(version for version in VERSIONS if version not in missing))

    @property
    def url(self) -> str:
        return self.server.url("/simple/")

    def publish(self, *versions: str) -> None:
        """Make the index offer these versions and no others; of all others it offers a wheel only."""
        links = []
        for version in VERSIONS:
            name = f"{PROJECT}-{version}.tar.gz" if version in versions else f"{PROJECT}-{version}-py3-none-any.whl"
            digest = hashlib.sha256(self.archives[version]).hexdigest()
            links.append(f'<a href="/files/{name}#sha256={digest}">{name}</a><br/>')
            self.server.files[f"/files/{name}"] = self.archives[version]
        page = f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"
        self.server.files[f"/simple/{PROJECT}/"] = page.encode()
        self.server.types[f"/simple/{PROJECT}/"] = "text/html"

    def pin(self, pipeline: Pipeline, version: str, tmp_path: Path) -> None:
        """Make the pipeline's pins.yaml take its source from this version's sdist."""
        archive = tmp_path / "greeter.tar.gz"
        archive.write_bytes(self.archives[version])
        out = io.BytesIO()
        with tree_from_archive(archive, "vendor/hello", work=tmp_path, source=archive.name) as tree:
            digest = tree.write(out)
        debian = block_of(REPOSITORY / "pins.yaml", "debian")
        (pipeline.project / "pins.yaml").write_text(
            "schema: 1\n"
            f"hello: {{kind: git, url: \"https://127.0.0.1:9/greeter\", version: '{version}', commit: {'0' * 40}, "
            f'committed: 2026-01-02T03:04:05Z, tree: "{digest}", '
            f"routes: [{{sdist: {PROJECT}=={version}, path: vendor/hello}}]}}\n{debian}"
        )

    def pin_extra(self, pipeline: Pipeline, version: str) -> None:
        """Add a second pin to pins.yaml: an sdist of the same project as it is."""
        pins = pipeline.project / "pins.yaml"
        digest = hashlib.sha256(self.archives[version]).hexdigest()
        pin = f"extra: {{kind: sdist, name: {PROJECT}, version: '{version}', sha256: {digest}}}\n"
        pins.write_text(pins.read_text().replace("schema: 1\n", f"schema: 1\n{pin}"))

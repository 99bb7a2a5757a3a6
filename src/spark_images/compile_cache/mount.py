"""Into and out of the cache mount of an engine: builds of our own, with the network off, before and after the compile.

podman keeps that mount in a folder of the user's, BuildKit in a volume that only its steps see: a step is the one way
that both have. ccache is told of two folders in it as its remote storage, so its own folder is nobody's but its own.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.compile_cache.index import KEY, LARGEST_ENTRY_BYTES
from spark_images.errors import BuildError
from spark_images.oci import read_layout

if TYPE_CHECKING:
    from spark_images.engine.base import BuildRequest, Engine

_MOUNT = "--mount=type=cache,id=spark-images-ccache,target=/spark/cache"
_LAST = "\nFROM scratch\nCOPY --from=mount /taken/ /\n"
_HOLDS = re.compile(r"\bccache holds (\S+)[RM]$")  # a result or a manifest, as ccache names files in its own folder
# What an earlier compile left in `new` is not of this plan, and may be of somebody whose changes are not trusted.
_BEGIN = f"""\
FROM build-root AS mount
RUN {_MOUNT} \\
    mkdir /taken && rm -rf /spark/cache/new && mkdir -p /spark/cache/ccache && cd /spark/cache/ccache && \\
    find . -type f -name '*[RM]' -printf 'ccache holds %P\\n'
{_LAST}"""
_FILL = f"""\
FROM build-root AS mount
RUN {_MOUNT} --mount=type=bind,from=entries,source=.,target=/spark/entries \\
    mkdir /taken && rm -rf /spark/cache/shared && cp -r /spark/entries /spark/cache/shared
{_LAST}"""
# What is taken is gone from the mount: ccache has all of it in its own folder as well.
_TAKE = f"""\
FROM build-root AS mount
RUN {_MOUNT} \\
    mkdir -p /taken /spark/cache/new && cp -r /spark/cache/new /taken/new && rm -rf /spark/cache/new /spark/cache/shared
{_LAST}"""


def settings(*, take: bool, give: bool) -> dict[str, str]:
    """What ccache has to be told in its environment."""
    folders = ["file:/spark/cache/shared|read-only"] * take + ["file:/spark/cache/new"] * give
    return {"CCACHE_REMOTE_STORAGE": " ".join(folders)}


@dataclass(frozen=True, kw_only=True)
class Mount:
    """The compile cache of an engine. request: of the compile; its root and its cap are those of our steps."""

    engine: Engine
    request: BuildRequest
    work: Path

    def begin(self) -> frozenset[str]:
        """Remove what earlier compiles have added and nobody took; the keys that ccache has in its own folder."""
        lines = self._run("begin", _BEGIN)
        found = (match[1].replace("/", "") for line in lines if (match := _HOLDS.search(line.rstrip())))
        return frozenset(key for key in found if KEY.fullmatch(key))

    def fill(self, entries: Path) -> None:
        """Give ccache the files of a folder, named `xx/yyyy` by their keys, to read."""
        self._run("fill", _FILL, ("entries", entries))

    def take(self) -> Iterator[tuple[str, bytes]]:
        """Every entry that the compile has added: key and bytes."""
        import tarfile

        self._run("take", _TAKE)
        layout = read_layout(self.work / "take" / "raw")
        for layer in layout.layers:
            with tarfile.open(layout.blob(layer.digest), "r:*") as tar:
                for info in tar:
                    key = "".join(Path(info.name).parts[-2:])
                    if info.isfile() and KEY.fullmatch(key) and info.size <= LARGEST_ENTRY_BYTES:
                        stream = tar.extractfile(info)
                        assert stream is not None
                        yield key, stream.read()
        shutil.rmtree(self.work / "take")

    def _run(self, name: str, dockerfile: str, *contexts: tuple[str, Path]) -> list[str]:
        """The log of a build on the compile's root; BuildError where it fails."""
        folder = self.work / name
        (folder / "context").mkdir(parents=True)
        # Another text each time, or it is taken for a finished step. BuildKit's --no-cache would empty the mount.
        (folder / "Dockerfile").write_text(dockerfile.replace("mkdir ", f": {uuid.uuid4()} && mkdir ", 1))
        request = replace(
            self.request,
            dockerfile=folder / "Dockerfile",
            context=folder / "context",
            contexts=contexts,
            roots=tuple(root for root in self.request.roots if root.name == "build-root"),
            secrets=(),
            use_cache=True,
            output=folder / "raw",
        )
        lines: list[str] = []
        outcome = self.engine.build(request, lines.append)
        if outcome.status != 0:
            raise BuildError(f"the engine's compile cache cannot be reached: `{name}`", why=lines[-5:])
        return lines


def entry_file(folder: Path, key: str) -> Path:
    """Where ccache looks for an entry in a folder that is its remote storage."""
    return folder / key[:2] / key[2:]

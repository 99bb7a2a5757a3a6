"""The canonical form: what an engine exported, written again so that every engine's export gives the same bytes."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from spark_images.errors import CanonicalError
from spark_images.imageconfig import PLAN_LABEL, ImageConfig
from spark_images.layer_diff import Content, Entry, FileSystem, LayerContents, changes, resolve_links
from spark_images.layers import CHUNK, TAR, Layer, damaged, open_layer, parents, read_entries, whiteout
from spark_images.layout_writer import LayoutWriter, new_layout
from spark_images.oci import Layout, read_layout, timestamp
from spark_images.tarform import FILE_TIME, open_canonical

# Where engines and our steps mount something; podman leaves these in the layer of a step, BuildKit takes them away.
_MOUNT_POINTS = frozenset(
    (
        *("etc/hostname", "etc/hosts", "etc/resolv.conf", "run/.containerenv"),
        *("run/secrets", "run/secrets/limits", "run/secrets/profile"),
        *("spark", "spark/scripts", "spark/inputs", "spark/cache"),
    )
)


def write_canonical(
    *,
    raw: Path,
    base: Layout | None,
    config: ImageConfig,
    created_by: Sequence[str],
    output: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> Layout:
    """Write the canonical layout of what an engine exported to the new folder `output`.

    base: what the last stage stands on; its layers stay as they are. created_by: for the history, a text per layer
    above the base; when another number of layers is left, neutral texts stand in for all of them, whatever the engine.
    on_progress: bytes of tar written so far and in all; called from several threads, one at a time.
    Raises CanonicalError (the export does not stand on the base, says something else than `config` or is damaged, or
    this environment has another libzstd) and DiskFullError.
    """
    source = read_layout(raw)
    kept = base.layers if base else ()
    _check(source, base, config)
    with new_layout(output) as writer, ExitStack() as files, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        raw_layers = source.layers[len(kept) :]
        opened = pool.map(lambda one: _seekable(source, one, writer.folder), raw_layers)
        tars = [files.enter_context(tar) for tar in opened]
        indexes = list(pool.map(lambda tar, one: _index(tar, one, FILE_TIME), tars, raw_layers))
        below = FileSystem()
        if base:
            interest = _Interest.of(indexes)
            for contents in pool.map(lambda one: _index_base(base, one, interest), kept):
                below.apply(contents)
        changed = [layer for contents in indexes if (layer := changes(contents, below, epoch=FILE_TIME))]
        texts = created_by if len(created_by) == len(changed) else [f"layer {n}" for n, _ in enumerate(changed, 1)]
        written = _write_layers(writer, changed, texts, on_progress, pool)
        if base:
            for kept_layer in kept:
                writer.take(kept_layer, base.blob(kept_layer.digest))
        writer.finish(config=config_document(config), layers=[*kept, *written], annotations=dict(config.labels))
    return read_layout(output)


def config_document(config: ImageConfig) -> dict[str, object]:
    """The OCI image config, but for the layers and their history; settings that are empty are left out."""
    settings = {
        "User": config.user,
        "Env": [f"{name}={value}" for name, value in config.env],
        "Entrypoint": list(config.entrypoint),
        "Cmd": list(config.command),
        "ExposedPorts": {port: {} for port in config.ports},
        "WorkingDir": config.workdir,
        "StopSignal": config.stop_signal,
        "Labels": dict(config.labels),
    }
    return {
        "architecture": config.architecture,
        "os": config.os,
        "created": timestamp(config.epoch),
        "config": {name: value for name, value in settings.items() if value},
    }


def compare_config(raw_config: Mapping[str, Any], config: ImageConfig) -> tuple[str, ...]:
    """How what an engine wrote into the image config differs from the plan's, a sentence each.

    Not compared: labels that the plan does not know, a PATH that it does not set (both engines add one), the platform
    (engines write the builder's), and no working directory, as setting one would make a layer in one of the engines.
    """
    said = raw_config.get("config") or {}
    env = dict(entry.partition("=")[::2] for entry in said.get("Env") or ())
    wanted_env = dict(config.env)
    if "PATH" not in wanted_env:
        env.pop("PATH", None)
    labels, wanted_labels = said.get("Labels") or {}, dict(config.labels)
    pairs = [
        ("User", said.get("User") or "", config.user),
        ("Entrypoint", tuple(said.get("Entrypoint") or ()), config.entrypoint),
        ("Cmd", tuple(said.get("Cmd") or ()), config.command),
        ("ExposedPorts", sorted(said.get("ExposedPorts") or ()), sorted(config.ports)),
        ("StopSignal", said.get("StopSignal") or "", config.stop_signal),
        *((f"Env {name}", env.get(name), wanted_env.get(name)) for name in sorted(env.keys() | wanted_env.keys())),
        *(
            (f"Label {name}", labels.get(name), value)
            for name, value in sorted(wanted_labels.items())
            if name != PLAN_LABEL
        ),
    ]
    if (workdir := said.get("WorkingDir") or "/") != "/":
        pairs.append(("WorkingDir", workdir, config.workdir))
    return tuple(
        f"{name}: the engine wrote {_shown(found)}, the plan says {_shown(wanted)}"
        for name, found, wanted in pairs
        if found != wanted
    )


def _shown(value: object) -> str:
    if not value:
        return "nothing"
    return f"`{' '.join(map(str, value))}`" if isinstance(value, list | tuple) else f"`{value}`"


def _check(source: Layout, base: Layout | None, config: ImageConfig) -> None:
    if base:
        wanted = [layer.diff_id for layer in base.layers]
        found = [layer.diff_id for layer in source.layers[: len(wanted)]]
        if wanted != found:
            raise CanonicalError(
                "what the engine exported does not stand on the base it was given",
                why=(f"base:     {' '.join(wanted)}", f"exported: {' '.join(found) or 'no layers'}"),
                hint="build again; if it stays so, the last stage's FROM names something else",
            )
        if (arch := base.config.get("architecture")) != config.architecture:
            raise CanonicalError(f"the base is for `{arch}`, the plan for `{config.architecture}`")
    if differences := compare_config(source.config, config):
        raise CanonicalError(
            "the image that the engine built says something else than the plan",
            why=differences,
            hint="render the Dockerfile anew with `./noxw -s render`: ENV, USER and the like are its template's",
        )


@dataclass(frozen=True)
class _Interest:
    """What of the layers below can matter to the layers above."""

    sizes: Mapping[str, Collection[int]]  # path above -> sizes that a file has there
    hidden: Collection[str]  # paths that are deleted or opaque above

    @classmethod
    def of(cls, indexes: Sequence[LayerContents]) -> _Interest:
        sizes: dict[str, set[int]] = {}
        for contents in indexes:
            for path, entry in contents.entries.items():
                sizes.setdefault(path, set()).update([entry.content.size] if entry.content else ())
        return cls(sizes, set().union(*(contents.deleted | contents.opaque for contents in indexes)))

    def in_path(self, path: str) -> bool:
        return path in self.sizes or path in self.hidden or any(folder in self.hidden for folder in parents(path))


def _seekable(layout: Layout, layer: Layer, folder: Path) -> BinaryIO:
    """The layer's tar as a file; one that is compressed is unpacked into a nameless file in the folder."""
    tar = open_layer(layout.blob(layer.digest), layer.media_type)
    if layer.media_type == TAR:
        return tar
    with tar, ExitStack() as stack:
        file = cast(BinaryIO, stack.enter_context(tempfile.TemporaryFile(dir=folder)))
        digest = hashlib.sha256()
        while chunk := tar.read(CHUNK):
            digest.update(chunk)
            file.write(chunk)
        if f"sha256:{digest.hexdigest()}" != layer.diff_id:
            raise damaged(layer.digest)
        file.flush()
        file.seek(0)
        stack.pop_all()
    return file


def _index(tar: BinaryIO, layer: Layer, epoch: int) -> LayerContents:
    entries = _entries(tar, layer, epoch, lambda offset, size: os.pread(tar.fileno(), size, offset))
    return LayerContents.of(entry for entry in entries if not _is_mount_point(entry.info))


def _is_mount_point(info: tarfile.TarInfo) -> bool:
    """Whether it is an empty file or a folder that an engine needs to mount something there while a step runs."""
    return info.name in _MOUNT_POINTS and (info.isdir() or (info.isreg() and info.size == 0))


def _index_base(base: Layout, layer: Layer, interest: _Interest) -> LayerContents:
    """What matters of one layer of the base; contents are compared later, so their checksums are taken here."""
    found = []
    with open_layer(base.blob(layer.digest), layer.media_type) as tar:

        def read_at(offset: int, size: int) -> bytes:
            tar.seek(offset)
            return tar.read(size)

        for entry in _entries(tar, layer, 0, read_at):
            path = entry.info.name
            if whiteout(path) or interest.in_path(path):
                if entry.content and entry.content.size in interest.sizes.get(path, ()):
                    entry.content.sha256()
                found.append(entry)
    return LayerContents.of(found)


def _entries(tar: BinaryIO, layer: Layer, epoch: int, read_at: Callable[[int, int], bytes]) -> Iterator[Entry]:
    infos = read_entries(tar, name=layer.digest, epoch=epoch)
    try:
        yield from resolve_links(infos, lambda info: Content(read_at, info.offset_data, info.size))
    except KeyError as err:
        raise CanonicalError(
            f"layer `{layer.digest}` has a hard link to {err}, which is not in it", why=("engines cannot unpack that",)
        ) from None


def _write_layers(
    writer: LayoutWriter,
    layers: Sequence[Sequence[Entry]],
    texts: Sequence[str],
    on_progress: Callable[[int, int], None] | None,
    pool: ThreadPoolExecutor,
) -> list[Layer]:
    counter = _Counter(sum(_tar_bytes(entry.info) for layer in layers for entry in layer), on_progress)
    futures = [pool.submit(_write_layer, writer, layer, counter.add) for layer in layers]
    try:
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        for future in done:
            future.result()
        return [replace(future.result(), created_by=text) for future, text in zip(futures, texts, strict=True)]
    finally:
        counter.stopped = True  # after an error or Ctrl-C the other threads need not go on
        for future in futures:
            future.cancel()


def _write_layer(writer: LayoutWriter, entries: Sequence[Entry], on_bytes: Callable[[int], None]) -> Layer:
    with writer.layer(on_bytes) as sink:
        with open_canonical(sink) as tar:
            for entry in entries:
                tar.addfile(entry.info, _Reader(entry.content) if entry.content else None)
        return sink.finish(created_by="")


def _tar_bytes(info: tarfile.TarInfo) -> int:
    return tarfile.BLOCKSIZE * (1 + -(-info.size // tarfile.BLOCKSIZE))


class _Reader:
    """A content as tarfile reads from it."""

    def __init__(self, content: Content) -> None:
        self._content, self._position = content, 0

    def read(self, size: int = CHUNK, /) -> bytes:
        data = self._content.read(self._position, size)
        self._position += len(data)
        return data


class _Stopped(Exception):
    """Ends a thread whose work is not wanted any more."""


class _Counter:
    """Adds up the work of all threads and reports it."""

    def __init__(self, total: int, report: Callable[[int, int], None] | None) -> None:
        self._total, self._report = total, report
        self._done = 0
        self._lock = threading.Lock()
        self.stopped = False

    def add(self, size: int) -> None:
        if self.stopped:
            raise _Stopped
        with self._lock:
            self._done = min(self._done + size, self._total)  # extended headers are not in the total
            if self._report:
                self._report(self._done, self._total)

"""Fetching: every pinned content into the store, several at a time.

A route that has nothing gives way to the next one, and says so. A route that serves something else ends the fetch.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from spark_images.download import Patience
from spark_images.errors import InterruptedByUser
from spark_images.fetch_display import Display, choose_display
from spark_images.files import disk_full_error
from spark_images.package_index import PackageIndex
from spark_images.pins import Content, FileContent, IndexRoute, SdistRoute
from spark_images.routes import Routes
from spark_images.store import Store

POLL_S = 0.1
PARTING_S = 5.0  # what the other downloads get to end; they are daemon threads, so nothing waits for them longer


@dataclass(frozen=True, kw_only=True)
class FetchSummary:
    """What a fetch did. files, bytes: what came into the store; already: contents that were there."""

    files: int
    bytes: int
    seconds: float
    already: int


def fetch(
    contents: Sequence[Content],
    *,
    store: Store,
    jobs: int = 8,
    quiet: bool = False,
    patience: Patience | None = None,
    index: PackageIndex | None = None,
) -> FetchSummary:
    """Bring every content that the store lacks, `jobs` at a time; verified before it is visible.

    patience: default from SPARK_IMAGES_TIMEOUT_S. index: default from pip's configuration, read only where needed.
    Raises RouteError (no route left), ContentError (another content), DiskFullError, InterruptedByUser; the other
    downloads stop with the first error. What is complete stays; what is not goes on from where it was the next time.
    """
    began = time.monotonic()
    wanted = {content.digest: content for content in contents}
    missing = [content for content in wanted.values() if not store.has(content.digest)]
    brought: list[Content] = []
    if missing:
        patience = patience or Patience.from_env(os.environ)
        known_bytes = sum(_size_bytes(content) for content in missing)
        store.root.mkdir(parents=True, exist_ok=True)
        needed_bytes = known_bytes - sum(store.arrived_bytes(content.digest) for content in missing)
        if needed_bytes > shutil.disk_usage(store.root).free:
            raise disk_full_error(store.root, needed_bytes)
        stop = threading.Event()
        if index is None and any(isinstance(route, IndexRoute | SdistRoute) for c in missing for route in c.routes):
            index = PackageIndex.from_env(stop=stop)
        with choose_display(files=len(missing), total_bytes=known_bytes, quiet=quiet) as display:
            routes = Routes(store, patience=patience, index=index, stop=stop, note=display.note)
            largest_first = sorted(missing, key=_size_bytes, reverse=True)
            brought = _bring_all(largest_first, routes, jobs=jobs, display=display)
    return FetchSummary(
        files=len(brought),
        bytes=sum(store.path(content.digest).stat().st_size for content in brought),
        seconds=time.monotonic() - began,
        already=len(wanted) - len(brought),
    )


def _size_bytes(content: Content) -> int:
    return content.size_bytes or 0 if isinstance(content, FileContent) else 0


def _bring_all(contents: Sequence[Content], routes: Routes, *, jobs: int, display: Display) -> list[Content]:
    """Returns what came, without what another process brought; raises the first error when the others have stopped."""
    waiting: queue.SimpleQueue[Content] = queue.SimpleQueue()
    for content in contents:
        waiting.put(content)
    brought: list[Content] = []
    done_bytes: list[int] = []
    errors: list[BaseException] = []

    def work() -> None:
        while not routes.stop.is_set():
            try:
                content = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                if routes.bring(content):
                    brought.append(content)
                done_bytes.append(routes.store.path(content.digest).stat().st_size)
            except BaseException as err:  # the caller's thread raises it
                errors.append(err)
                routes.stop.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(jobs, len(contents)))]
    for thread in threads:
        thread.start()
    try:
        while not routes.stop.is_set() and (running := [thread for thread in threads if thread.is_alive()]):
            transfers = tuple(routes.transfers)
            arrived = sum(done_bytes) + sum(transfer.done_bytes for transfer in transfers)
            display.show(transfers, done_files=len(done_bytes), done_bytes=arrived)
            for transfer in transfers:
                transfer.cut_if_stalled(routes.patience.timeout_s)
            running[0].join(POLL_S)
    except KeyboardInterrupt:
        _part(threads, routes)
        raise InterruptedByUser(
            "the fetch was interrupted", hint="run the same command again: it goes on from where it was"
        ) from None
    if errors:
        _part(threads, routes)
        raise errors[0]
    return brought


def _part(threads: Sequence[threading.Thread], routes: Routes) -> None:
    routes.stop.set()
    last = time.monotonic() + PARTING_S
    while (running := [thread for thread in threads if thread.is_alive()]) and time.monotonic() < last:
        for transfer in tuple(routes.transfers):
            transfer.cut()
        running[0].join(POLL_S)

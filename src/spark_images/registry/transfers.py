"""Blobs on their way, several at once, shown while they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from spark_images.download import Transfer
from spark_images.errors import InterruptedByUser
from spark_images.fetch_display import choose_display

AT_ONCE = 4  # registries serve one connection slower than the line is; more gain nothing
_POLL_S = 0.1
_PARTING_S = 10.0


def run_transfers(
    title: str, jobs: Sequence[tuple[Transfer, Callable[[], None]]], *, stop: threading.Event, quiet: bool = False
) -> None:
    """Run every job, a few at a time, largest first. Raises the first error once the others have stopped.

    stop: is set when one failed or on Ctrl-C; a job ends soon after.
    """
    waiting = sorted(jobs, key=lambda job: -(job[0].size_bytes or 0))
    lock, errors = threading.Lock(), list[BaseException]()
    running: list[Transfer] = []
    done: list[Transfer] = []

    def work() -> None:
        while not stop.is_set():
            with lock:
                if not waiting:
                    return
                transfer, job = waiting.pop(0)
                running.append(transfer)
            try:
                job()
                done.append(transfer)
            except BaseException as err:  # the caller's thread raises it
                errors.append(err)
                stop.set()
            finally:
                running.remove(transfer)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(jobs)))]
    total = sum(transfer.size_bytes or 0 for transfer, _ in jobs)
    with choose_display(files=len(jobs), total_bytes=total, quiet=quiet, title=title) as display:
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) and not stop.is_set():
                now = tuple(running)
                arrived = sum(transfer.done_bytes for transfer in (*done, *now))
                display.show(now, done_files=len(done), done_bytes=arrived)
                next(iter(t for t in threads if t.is_alive()), threads[0]).join(_POLL_S)
        except KeyboardInterrupt:
            _part(threads, tuple(running), stop)
            raise InterruptedByUser("stopped", hint="the same command again goes on from what is there") from None
    if errors:
        _part(threads, tuple(running), stop)
        raise errors[0]


def _part(threads: Sequence[threading.Thread], running: Sequence[Transfer], stop: threading.Event) -> None:
    stop.set()
    for transfer in running:
        transfer.cut()
    for thread in threads:
        thread.join(_PARTING_S / len(threads))

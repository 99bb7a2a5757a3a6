"""What a person sees of running downloads and uploads, on stderr: bars on a terminal, else a line now and then."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, Self

from spark_images.download import Transfer
from spark_images.terminal import is_live, tell
from spark_images.units import format_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_EVERY_S = 10.0
BAR_EVERY_S = 0.25  # drawing costs a few milliseconds of Python each time


class Display(Protocol):
    """Shows a state whenever it is told one; `note` may be called from any thread."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...
    def note(self, text: str) -> None: ...
    def show(self, transfers: Iterable[Transfer], *, done_files: int, done_bytes: int) -> None: ...


class Lines:
    """One line every ten seconds; notes at once. quiet: only the notes."""

    def __init__(self, *, files: int, total_bytes: int, quiet: bool, title: str = "fetch") -> None:
        self.files, self.total_bytes, self.quiet, self.title = files, total_bytes, quiet, title
        self._next = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def note(self, text: str) -> None:
        tell(text)

    def show(self, transfers: Iterable[Transfer], *, done_files: int, done_bytes: int) -> None:
        if self.quiet or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + LINE_EVERY_S
        now = ", ".join(transfer.label for transfer in transfers)
        size = f"{format_size(done_bytes)} of {format_size(max(self.total_bytes, done_bytes))}"
        self.note(f"{self.title}: {done_files} of {self.files} files, {size}; now: {now}")


class Bars:
    """One bar for all files and one for each that is on its way, drawn by the caller's thread only."""

    def __init__(self, *, files: int, total_bytes: int, title: str = "fetch") -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self.files, self.total_bytes, self.title = files, total_bytes, title
        self._notes: deque[str] = deque()
        self._tasks: dict[Transfer, TaskID] = {}
        self._next = 0.0
        self._progress: Progress = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
            TimeRemainingColumn(), console=Console(stderr=True), auto_refresh=False, transient=True,
        )  # fmt: skip
        self._all = self._progress.add_task(title, total=total_bytes or None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._print_notes()
        self._progress.stop()

    def note(self, text: str) -> None:
        self._notes.append(text)

    def show(self, transfers: Iterable[Transfer], *, done_files: int, done_bytes: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + BAR_EVERY_S
        self._print_notes()
        running = set(transfers)
        for gone in self._tasks.keys() - running:
            self._progress.remove_task(self._tasks.pop(gone))
        for transfer in running:
            if transfer not in self._tasks:
                self._tasks[transfer] = self._progress.add_task(transfer.label, total=None)
            self._progress.update(self._tasks[transfer], completed=transfer.done_bytes, total=transfer.size_bytes)
        total = max(self.total_bytes, done_bytes)  # some sizes are known only when the file comes
        text = f"{self.title}: {done_files} of {self.files} files"
        self._progress.update(self._all, completed=done_bytes, total=total or None, description=text)
        self._progress.refresh()

    def _print_notes(self) -> None:
        while self._notes:
            self._progress.console.print(self._notes.popleft(), markup=False, highlight=False)


def choose_display(*, files: int, total_bytes: int, quiet: bool, title: str = "fetch") -> Display:
    """Bars where somebody watches. title: what is done to the files."""
    if quiet or not is_live(sys.stderr, os.environ):
        return Lines(files=files, total_bytes=total_bytes, quiet=quiet, title=title)
    return Bars(files=files, total_bytes=total_bytes, title=title)

"""The story of a run goes to stderr; stdout is for data, in tables where people read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TextIO

_STYLES = {  # of the words that say how something stands; each is also read without its colour
    **dict.fromkeys(("built", "good", "green", "ok"), "green"),
    **dict.fromkeys(("failed", "bad", "red", "missing"), "bold red"),
    **dict.fromkeys(("interrupted", "skip", "skipped", "absent", "to do"), "yellow"),
    "running": "cyan",
}


def tell(*lines: str) -> None:
    """Say it at once, whatever stderr is."""
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def is_live(stream: TextIO, env: Mapping[str, str]) -> bool:
    """Whether somebody watches who can be shown a line that changes. env: CI and TERM are looked at."""
    return stream.isatty() and not env.get("CI") and env.get("TERM", "dumb") != "dumb"


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say what is done meanwhile: with its seconds where somebody watches, else once."""
    if not is_live(sys.stderr, os.environ):
        tell(what)
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2, transient=True) as shown:
        shown.add_task(what)
        yield


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = (), whole: Collection[str] = ()
) -> None:
    """Write a table to stdout: as wide as the terminal, and a line for each row where nobody watches.

    right: headings of columns of numbers. whole: headings of columns that are not broken over lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 10_000
    table = Table(box=box.SIMPLE_HEAD, padding=0, show_edge=False)  # the box parts columns by one space
    for heading in headings:
        fixed = heading in whole or heading in right
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=fixed, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    console = Console(file=sys.stdout, width=width, highlight=False)
    with console.capture() as drawn:
        console.print(table)
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))

"""The project with some of its pins moved, as a folder of its own, so that the user's clone is never touched."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_images.errors import CompatError, ConfigError, StaleLockError, UsageError
from spark_images.own_verbs import run_verb
from spark_images.pins import DebsPin, Pins, RequirementsPin, SdistPin, WheelsPin
from spark_images.pins_edit import Path as KeyPath
from spark_images.pins_edit import edit_pin, replace_block
from spark_images.pins_file import read_pins
from spark_images.project import PARTS, Project
from spark_images.release_values import values_of
from spark_images.upstream import Release, Upstream

# How `lock` and `render` end where a variant cannot be made of its pins. The wanted one is judged by its plan.
OF_ANOTHER_VARIANT = (CompatError.exit_status, ConfigError.exit_status, UsageError.exit_status)


@dataclass(frozen=True, kw_only=True)
class ToRelease:
    """A pin moved to a release of its upstream; what pins.yaml says of it is asked when it is needed."""

    pin: str
    release: Release


@dataclass(frozen=True, kw_only=True)
class ToValues:
    """A pin with these values, as an image's label or a record has them."""

    pin: str
    values: tuple[tuple[KeyPath, str | None], ...]


@dataclass(frozen=True, kw_only=True)
class ToText:
    """A pin as another revision of pins.yaml has it, with its lock and requirements.

    block: its lines, "" where it has no such pin.
    """

    pin: str
    block: str
    files: tuple[tuple[str, str], ...] = ()  # path from the project's root -> text


Move = ToRelease | ToValues | ToText


def copy_project(root: Path, folder: Path) -> None:
    """All that plans are made from, and the images' tests, into an empty folder."""
    for part in PARTS:
        shutil.copytree(root / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pins.yaml", folder)


def edit_project(moves: Sequence[Move], root: Path, folder: Path, *, upstream: Upstream) -> Project:
    """The project with its pins moved, in an empty folder; locks and Dockerfiles may not go with them yet.

    root: the user's clone, which is only read. Raises RouteError and ContentError where a release cannot be had.
    """
    copy_project(root, folder)
    text = (root / "pins.yaml").read_text(encoding="utf-8")
    pins = read_pins(root / "pins.yaml")
    for move in moves:
        text = _moved(text, move, pins, folder, upstream)
    (folder / "pins.yaml").write_text(text, encoding="utf-8")
    return Project(folder)


def materialise(
    moves: Sequence[Move],
    root: Path,
    folder: Path,
    *,
    upstream: Upstream,
    on_line: Callable[[str], None],
    refuse: Callable[[Project], None] = lambda project: None,
    for_one: bool = False,
) -> int:
    """As edit_project, and locks that were made from something else are made anew, Dockerfiles rendered.

    Returns 0, or the status with which a verb of ours failed. Raises ConfigError where the pins.yaml would be wrong.
    refuse: raises where such pins need not be tried; called before the locks, which may take minutes. for_one: one
    variant alone is wanted, so what cannot be made for another is left as it is; a plan of that one would say so.
    """
    project = edit_project(moves, root, folder, upstream=upstream)
    refuse(project)
    note = folder.with_name("note")
    locks = (("lock", name) for name in stale_locks(project, {move.pin for move in moves}))
    for words in (*locks, ("render",)):
        status = run_verb(folder, *words, note=note, on_line=on_line)
        if status and not (for_one and status in OF_ANOTHER_VARIANT):
            return status
    return 0


def _moved(text: str, move: Move, pins: Pins, folder: Path, upstream: Upstream) -> str:
    match move:
        case ToRelease():
            return edit_pin(text, move.pin, values_of(pins[move.pin], move.release, upstream=upstream))
        case ToValues():
            return edit_pin(text, move.pin, dict(move.values))
        case ToText():
            for path, content in move.files:
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(content, encoding="utf-8")
            return replace_block(text, move.pin, move.block)


def stale_locks(project: Project, moved: set[str]) -> list[str]:
    """Of the moved pins, and of those that are made from others, the ones whose locks were made from something else."""
    stale = []
    for pin in project.pins.pins:
        if pin.name not in moved and not isinstance(pin, RequirementsPin):
            continue
        try:
            match pin:
                case WheelsPin() | RequirementsPin():
                    project.wheels_lock(pin.name)
                case DebsPin():
                    _ = project.debs_lock
                case SdistPin() if pin.lock:
                    project.sources_lock(pin.name)
                case _:
                    pass
        except StaleLockError:
            stale.append(pin.name)
    return stale

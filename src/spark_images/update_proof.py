"""Moving pins forward: one proposal after another is locked, rendered, built and tested; what passes is taken over."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from spark_images.cache import Cache
from spark_images.checkout import said_by_git
from spark_images.errors import SparkImagesError
from spark_images.own_verbs import ImageWords, run_verb
from spark_images.pins_edit import edit_pin
from spark_images.project import Project
from spark_images.repin import Move, copy_project, materialise
from spark_images.terminal import tell
from spark_images.update import Row, State
from spark_images.upstream import Upstream
from spark_images.workfolder import work_folder

# What tells which version of several broke it: row, image, verb that failed, project folder -> a sentence.
Culprit = Callable[[Row, str, str, Path], str]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """How proposals are proved. today: what `verified:` says. words: engine and memory of the builds."""

    verify: bool
    words: ImageWords
    today: date
    culprit: Culprit


def move_forward(
    root: Path, rows: Sequence[Row], proof: Proof, *, upstream: Upstream, accept: Callable[[Row], None]
) -> tuple[Row, ...]:
    """The rows with what became of each proposal; each is tried on top of those that were accepted before it.

    root: the project that accepted ones change: pins.yaml, locks, Dockerfiles. accept: called after each of them.
    """
    done = []
    for row in rows:
        if row.state is not State.PROPOSED or row.move is None:
            done.append(row)
            continue
        tell(row.title)
        with work_folder(upstream.cache, "update") as work:
            row = _prove(row, row.move, root, work, proof, upstream)
            if row.state is State.ACCEPTED:
                _take_over(work / "project", root)
                accept(row)
        tell(f"  {row.state.value}{f': {row.why}' if row.why else ''}")
        done.append(row)
    return tuple(done)


def _prove(row: Row, move: Move, root: Path, work: Path, proof: Proof, upstream: Upstream) -> Row:
    folder = work / "project"
    folder.mkdir()
    last: list[str] = []

    def say(line: str) -> None:
        tell(f"  | {line}")
        if line.startswith("error: "):
            last[:] = [line.removeprefix("error: ")]

    try:
        status = materialise((move,), root, folder, upstream=upstream, on_line=say)
    except SparkImagesError as err:
        return replace(row, state=State.FAILED, why=err.what)
    if status:
        return replace(row, state=State.FAILED, why=last[0] if last else f"status {status}")
    if not proof.verify:
        return replace(row, state=State.ACCEPTED)
    images = images_of(Project(folder), row.pin)
    if not images:
        return replace(row, state=State.ACCEPTED, why="no image is made of it, so nothing was tested")
    for image in images:
        words = replace(proof.words, image=image)
        for verb in (words.build(), ("test", *words.variant(), *words.engine_words())):
            if status := run_verb(folder, *verb, note=work / "note", on_line=say):
                why = f"{verb[0]} of {image}: {last[0] if last else f'status {status}'}"
                culprit = proof.culprit(row, image, verb[0], root) if row.span > 1 else ""
                return replace(row, state=State.FAILED, why="; ".join(part for part in (why, culprit) if part))
    path = folder / "pins.yaml"
    path.write_text(edit_pin(path.read_text(encoding="utf-8"), row.pin, {("verified",): proof.today.isoformat()}))
    return replace(row, state=State.ACCEPTED)


def images_of(project: Project, pin: str) -> tuple[str, ...]:
    """The images that are made of a pin, in their first variant."""
    plans = (project.plan(image, *project.variant(image, None, None)) for image in project.images)
    return tuple(plan.image for plan in plans if pin in dict(plan.pins))


def _take_over(folder: Path, root: Path) -> None:
    """What differs in the proved folder, into the project: pins.yaml, locks and Dockerfiles."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        there = root / path.relative_to(folder)
        if not there.exists() or there.read_bytes() != path.read_bytes():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, there)


@contextmanager
def branch(project: Path, name: str) -> Iterator[tuple[Path, Callable[[Row], None]]]:
    """A new branch as a worktree of its own: its project folder, and what commits there. The clone is not touched.

    UsageError where the branch is there already, or the project is in no git repository.
    """
    top = said_by_git(project, "rev-parse", "--show-toplevel")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        said_by_git(project, "worktree", "add", "--quiet", "-b", name, str(tree), "HEAD")
        try:
            yield tree / project.resolve().relative_to(Path(top).resolve()), lambda row: _commit(tree, row)
        finally:
            said_by_git(project, "worktree", "remove", "--force", str(tree))


def _commit(tree: Path, row: Row) -> None:
    said_by_git(tree, "add", "--all")
    said_by_git(tree, "commit", "--quiet", "--message", row.title)


@contextmanager
def throw_away(project: Path, cache: Cache) -> Iterator[Path]:
    """A copy of the project that proposals may change and nobody keeps."""
    with work_folder(cache, "proposals") as work:
        copy_project(project, work)
        yield work

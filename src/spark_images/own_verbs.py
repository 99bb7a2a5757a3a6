"""Our own verbs, run as programs on a folder of a project, and the words that name an image to them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_images.engine.guard import guarded
from spark_images.process import stream


@dataclass(frozen=True, kw_only=True)
class ImageWords:
    """The words of a command line that say which image is built, and how."""

    image: str
    target: str | None = None
    base: str | None = None
    origin: str | None = None
    engine: str | None = None
    memory: str | None = None

    def variant(self) -> tuple[str, ...]:
        """For every verb about an image."""
        chosen = (("--target", self.target), ("--base", self.base), ("--from", self.origin))
        return (self.image, *(word for option, value in chosen if value for word in (option, value)))

    def engine_words(self) -> tuple[str, ...]:
        return ("--engine", self.engine) if self.engine else ()

    def build(self) -> tuple[str, ...]:
        memory = ("--memory", self.memory) if self.memory else ()
        return ("build", *self.variant(), *self.engine_words(), *memory)


def verb_command(project: Path, *words: str) -> list[str]:
    """The command that runs a verb on a project's folder."""
    return [sys.executable, "-m", "spark_images", "--project", str(project), *words]


def run_verb(project: Path, *words: str, note: Path, on_line: Callable[[str], None]) -> int:
    """Run a verb; its status. It ends with us, however we end. note: a path that is not used."""
    return stream(guarded(verb_command(project, *words), note), on_line)

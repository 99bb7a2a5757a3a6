"""Bringing what the next tries may need while one runs."""

from __future__ import annotations

import threading
from contextlib import suppress

from spark_images.bisect.candidate import Candidate
from spark_images.bisect.stages import Stage
from spark_images.errors import SparkImagesError


class Ahead:
    """Brings one thing after another, and never fails itself."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._begun: set[str] = set()
        self._thread: threading.Thread | None = None

    def begin(self, candidates: tuple[Candidate, ...]) -> None:
        """Begin with those that were not begun before; while an earlier one is under way, nothing more."""
        new = [candidate for candidate in candidates if candidate.key not in self._begun]
        if not new or (self._thread and self._thread.is_alive()):
            return
        self._begun |= {candidate.key for candidate in new}
        self._thread = threading.Thread(target=self._bring, args=(new,), daemon=True)
        self._thread.start()

    def _bring(self, candidates: list[Candidate]) -> None:
        for candidate in candidates:
            with suppress(SparkImagesError, OSError):  # the try that needs it meets the same, and reports it
                self._stage.fetch_ahead(candidate)

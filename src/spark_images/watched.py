"""Running a program that fetches: it must get on, or it is ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_images.files import no_room_error
from spark_images.process import capture


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How the program ended. stalled: it was ended because nothing grew for `stall_s`."""

    status: int  # None
    stalled: bool
    stdout: bytes
    said: str  # the last lines of stderr

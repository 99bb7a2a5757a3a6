"""A search whose answers are made up: 64 revisions, some of which cannot be built, and pins of which two interact.

Run as a program it searches with a journal in the folder that it is given, as slowly as it is told, and prints what it
found: something to kill and to run again.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from spark_images.bisect.answer import Answer, Cause
from spark_images.bisect.asking import Asker, check_ends, search_line, search_set
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.journal import Journal
from spark_images.bisect.subject import ChangeSet, Line
from spark_images.repin import ToValues
from spark_images.search import Change, Verdict, order_changes

REVISIONS = 64
GOOD, BAD, SKIP = Verdict.GOOD, Verdict.BAD, Verdict.SKIP


@dataclass
class MadeUp:
    """A stage that answers at once. judge: the verdict on a candidate. tried: labels, in order."""

    judge: Callable[[Candidate], Verdict]
    pause_s: float = 0.0
    builds: bool = True
    tried: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def try_out(self, candidate: Candidate, *, repeat: int, every_run: bool) -> Answer:
        time.sleep(self.pause_s)
        self.tried.append(candidate.label)
        verdict = self.judge(candidate)
        cause = Cause.BUILD_FAILED if verdict is SKIP else Cause.CHECK
        failures = int(verdict is BAD)
        return Answer(key=candidate.key, label=candidate.label, verdict=verdict, cause=cause, runs=1, failures=failures)

    def fetch_ahead(self, candidate: Candidate) -> None:
        self.fetched.append(candidate.label)

    def known_beforehand(self, candidate: Candidate) -> bool:
        return False


def line_of(count: int) -> Line:
    return Line(
        what="releases of `toy`",
        candidates=tuple(Candidate(key=f"pin:toy={n}", label=f"toy {n}") for n in range(count)),
    )


def set_of(*names: str) -> ChangeSet:
    moves = {name: (ToValues(pin=name, values=()), ToValues(pin=name, values=((("version",), "2"),))) for name in names}
    changes = order_changes(Change(name=name) for name in names)
    return ChangeSet(changes=changes, moves=moves, told=dict.fromkeys(names, "1 -> 2"))


@dataclass(frozen=True)
class History:
    """64 revisions, each of which moves one pin; bad once both of a pair are moved. A run of 16 is unbuildable."""

    pins: tuple[str, ...]  # by revision; the first moves nothing
    pair: tuple[str, str]
    broken: range

    @classmethod
    def random(cls, seed: int) -> History:
        rng = random.Random(seed)
        one, other = sorted(rng.sample(range(1, REVISIONS), 2))
        pins = [f"pin-{rng.randrange(8)}" for _ in range(REVISIONS)]
        pins[one], pins[other] = "torch", "vllm"
        start = rng.randrange(1, REVISIONS - 17)
        return cls(tuple(pins), ("torch", "vllm"), range(start, start + 16))

    @property
    def culprit(self) -> int:
        return max(place for place, pin in enumerate(self.pins) if pin in self.pair)

    def judge(self, candidate: Candidate) -> Verdict:
        if candidate.key.startswith("set:"):
            return BAD if set(self.pair) <= candidate.made else GOOD
        place = int(candidate.label.split()[1])
        return SKIP if place in self.broken else BAD if place >= self.culprit else GOOD


def search(folder: Path, seed: int, *, pause_s: float = 0.0) -> dict[str, object]:
    """The range of the line, the pair, and how many tries this run took."""
    history, line = History.random(seed), line_of(REVISIONS)
    stage = MadeUp(history.judge, pause_s)
    asker = Asker(stage, Journal.open(folder, "toy", {"seed": seed}))
    check_ends(asker, line.candidates[0], line.candidates[-1])
    left = search_line(line, asker)
    moved = dict.fromkeys(history.pins[1 : left.bad + 1])
    found = search_set(set_of(*moved), asker)
    return {"range": [left.good, left.bad], "failing": sorted(found.failing), "tries": len(stage.tried)}


if __name__ == "__main__":
    print(json.dumps(search(Path(sys.argv[1]), int(sys.argv[2]), pause_s=float(sys.argv[3]))))

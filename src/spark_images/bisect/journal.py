"""What a search has learned so far: one folder of the records, which only grows and survives kill -9.

bisect-<image>-<16 hex>/
    question.json       what is asked; its digest is in the folder's name
    answers.jsonl       a line per answer, in the order in which they came
    logs/<n>-<label>    what each try said
    report.json range.svg    at the end
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from spark_images.bisect.answer import PASSING, Answer
from spark_images.exclusive import try_alone
from spark_images.files import room_on, write_text


class Journal:
    """The answers to one question. One process at a time writes; the caller holds exclusive.alone(journal.lock)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reload()

    def reload(self) -> None:
        """Read the answers again, as another process may have written some until now."""
        self._answers: dict[str, Answer] = {}  # by the candidate's key; the last one counts
        path = self.folder / "answers.jsonl"
        if path.exists():
            self._read(path)
        self.resumed = len(self._answers)  # answers of earlier runs

    @classmethod
    def open(cls, records: Path, image: str, question: Mapping[str, object], *, fresh: bool = False) -> Self:
        """The journal of a question, with what is known already. fresh: forget that."""
        text = json.dumps(question, sort_keys=True)
        folder = records / f"bisect-{image}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        if fresh:
            (folder / "answers.jsonl").unlink(missing_ok=True)
        if not (folder / "question.json").exists():
            write_text(folder / "question.json", json.dumps(question, indent=1, sort_keys=True) + "\n")
        return cls(folder)

    @property
    def lock(self) -> Path:
        """Held while a process searches."""
        return self.folder / "lock"

    @property
    def answers(self) -> tuple[Answer, ...]:
        """All that is known, in the order in which it was learned."""
        return tuple(self._answers.values())

    def get(self, key: str) -> Answer | None:
        """What is known of a candidate."""
        return self._answers.get(key)

    def add(self, answer: Answer) -> None:
        """Keep an answer; when this returns it is on disk."""
        line = json.dumps(answer.document(), ensure_ascii=False) + "\n"
        path = self.folder / "answers.jsonl"
        with room_on(path), path.open("ab") as out:
            if out.tell() and not _ends_line(path):
                out.write(b"\n")  # a process was killed while it wrote
            out.write(line.encode())
            out.flush()
            os.fsync(out.fileno())
        self._answers.pop(answer.key, None)
        self._answers[answer.key] = answer

    def log(self, label: str) -> Path:
        """A new log for a try."""
        number = len(list((self.folder / "logs").iterdir())) + 1
        return self.folder / "logs" / f"{number:03}-{re.sub('[^A-Za-z0-9._+-]+', '-', label)[:60]}.txt"

    def _read(self, path: Path) -> None:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                answer = Answer.read(json.loads(line))
            except (KeyError, TypeError, ValueError):
                continue  # half a line
            self._answers.pop(answer.key, None)
            if answer.cause not in PASSING:
                self._answers[answer.key] = answer


def _journals(records: Path) -> Iterator[Journal]:
    return (Journal(path.parent) for path in records.glob("bisect-*/question.json"))


def search_runs(records: Path) -> bool:
    """Whether any process searches by a journal in these records."""
    for journal in _journals(records):
        with try_alone(journal.lock) as held:
            if not held:
                return True
    return False


def tried_and_unfinished(records: Path) -> Iterator[str]:
    """The plan_ids of what searches have tried that are not at their end."""
    unfinished = (journal for journal in _journals(records) if not (journal.folder / "report.json").exists())
    return (answer.plan_id for journal in unfinished for answer in journal.answers if answer.plan_id)


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"

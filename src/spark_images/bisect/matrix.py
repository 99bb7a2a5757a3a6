"""Candidates for other runners: a job matrix is written, their verdicts are read back."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from spark_images.bisect.answer import Answer
from spark_images.bisect.candidate import Candidate
from spark_images.errors import BisectError, UsageError
from spark_images.files import read_json, write_text


def write_matrix(path: Path, candidates: list[Candidate], command: tuple[str, ...]) -> None:
    """A job matrix of GitHub's and Gitea's form: an entry per candidate, with the command and its verdict file."""
    include = []
    for number, candidate in enumerate(candidates):
        name = f"{number:02}-{re.sub('[^A-Za-z0-9._+-]+', '-', candidate.label)[:60]}.json"
        words = (*command, "--try", candidate.key, "--verdict", f"verdicts/{name}")
        include.append({"candidate": candidate.label, "verdict": f"verdicts/{name}", "command": shlex.join(words)})
    write_text(path, json.dumps({"include": include}, indent=1, ensure_ascii=False) + "\n")


def read_verdicts(folder: Path, search: str) -> tuple[Answer, ...]:
    """What other runners found. UsageError for a folder that is not there, BisectError for another search's verdict."""
    if not folder.is_dir():
        raise UsageError(f"there is no folder `{folder}`")
    found = []
    for path in sorted(folder.rglob("*.json")):
        data = read_json(path)
        try:
            assert data is not None
            of, answer = data["search"], Answer.read(data["answer"])
        except (AssertionError, KeyError, TypeError, ValueError):
            raise BisectError(f"`{path}` holds no verdict", hint="a runner writes it with `--verdict`") from None
        if of != search:
            raise BisectError(
                f"`{path}` is the verdict of another search",
                why=(f"this search: {search}", f"that verdict: {of}"),
                hint="runners have to work on the same files, with the same check, as this machine",
            )
        found.append(answer)
    return tuple(found)


def write_verdict(path: Path, search: str, answer: Answer) -> None:
    """The verdict file of a candidate that was tried here, for the machine that searches."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"search": search, "answer": answer.document()}
    write_text(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")

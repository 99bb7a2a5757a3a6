"""A page of docs/ as its reader follows it: files are written as it says, commands run as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One block of code: under which heading it stands, and the words right before it."""

    heading: str
    lead: str
    language: str
    text: str


def steps_of(page: Path) -> Iterator[Step]:
    """Every block of a page, in its order."""
    text, heading, end = page.read_text(), "", 0
    for block in _BLOCK.finditer(text):
        between = text[end : block.start()]
        if headings := re.findall(r"^## (.*)$", between, re.MULTILINE):
            heading = headings[-1]
        lead = " ".join(between.strip().rpartition("\n\n")[2].split())
        yield Step(heading, lead, block[1], block[2])
        end = block.end()


def follow(page: Path, folder: Path, env: Mapping[str, str], *headings: str) -> dict[str, str]:
    """Do what these sections say (default: all), in a folder; command -> its stdout. What is not understood fails.

    The words before a block name its file: "New file `…`", "At the end of `…`", "In `…`, in place of the line `…`".
    """
    printed: dict[str, str] = {}
    done = [step for step in steps_of(page) if not headings or step.heading in headings]
    assert {step.heading for step in done} >= set(headings), f"{page.name} lost a section"
    for step in done:
        if step.language == "sh":
            for command in step.text.splitlines():
                printed[command.partition("#")[0].strip()] = run(command, folder, env)
        elif new := re.search(r"New file `([^`]+)`:$", step.lead):
            path = folder / new[1]
            assert not path.exists(), f"{path} is not new"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step.text)
        elif end := re.search(r"At the end of `([^`]+)`:$", step.lead):
            with (folder / end[1]).open("a") as file:
                file.write(f"\n{step.text}")
        elif line := re.search(r"In `([^`]+)`, in place of the line `([^`]+)`:$", step.lead):
            path = folder / line[1]
            text, count = re.subn(rf"^ *{re.escape(line[2])}.*\n", step.text, path.read_text(), flags=re.MULTILINE)
            assert count == 1, f"`{line[2]}` begins {count} lines of {path}"
            path.write_text(text)
        else:
            raise AssertionError(f"{page.name}: nobody can follow: {step.lead}")
    return printed


def run(command: str, folder: Path, env: Mapping[str, str]) -> str:
    """A line of shell in the folder; it must succeed."""
    ended = subprocess.run(["bash", "-c", command], cwd=folder, env=env, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def bring_nox(folder: Path) -> None:
    """noxw, the sessions and what they read, and an environment that noxw takes for the folder's own: links to ours."""
    shutil.copytree(ROOT / "ci", folder / "ci")
    for name in ("noxw", "noxfile.py", "requirements.lock", ".hadolint.yaml"):
        shutil.copy(ROOT / name, folder)
    (folder / ".venv").mkdir()
    for part in ("bin", "lib", "pyvenv.cfg"):
        (folder / ".venv" / part).symlink_to(Path(sys.prefix) / part)
    (folder / ".venv.lock").write_text("made by a test\n")
    stamp = "{ pwd -P; readlink -f .venv/bin/python; cat requirements.lock; } | sha256sum >.venv/stamp"
    subprocess.run(["sh", "-c", stamp], cwd=folder, check=True)


def clone(folder: Path) -> Path:
    """What a clone of this repository has, without src/ and tests/: what the environment imports is ours."""
    folder.mkdir()
    for part in ("images", "templates", "scripts"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pins.yaml", folder)
    bring_nox(folder)
    return folder


def environment(cache: Path, **more: str) -> dict[str, str]:
    """Of a reader with a cache of his own."""
    return {**os.environ, "SPARK_IMAGES_CACHE": str(cache), "NO_COLOR": "1", **more}

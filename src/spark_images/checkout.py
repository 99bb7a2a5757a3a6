"""The git repository that a project lies in: what git says there, and the project's files as a commit has them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from spark_images.cache import Cache
from spark_images.errors import UsageError
from spark_images.git_tree import FOREIGN
from spark_images.process import Captured, capture
from spark_images.project import PARTS
from spark_images.workfolder import work_folder


def git(root: Path, *words: str, env: Mapping[str, str] = os.environ) -> Captured:
    """Run git in a folder of the repository; what a status means is the caller's to say."""
    own = {name: value for name, value in env.items() if name not in FOREIGN}
    return capture(("git", "-C", str(root), *words), env=own)


def said_by_git(root: Path, *words: str, env: Mapping[str, str] = os.environ) -> str:
    """What it prints. UsageError where it fails."""
    return _good(root, *words, env=env).stdout.decode(errors="replace").strip()


def _good(root: Path, *words: str, env: Mapping[str, str] = os.environ) -> Captured:
    ended = git(root, *words, env=env)
    if ended.status != 0:
        named = next(word for word in words if word[:1] != "-" and "=" not in word)
        raise UsageError(f"`git {named}` failed in {root}", why=ended.stderr.strip().splitlines()[-2:])
    return ended


@contextmanager
def files_at(commit: str, root: Path, cache: Cache) -> Iterator[Path]:
    """What plans are made from as a commit has it, for the time of the block; empty where it has nothing of it."""
    listed = said_by_git(root, "ls-tree", "--name-only", commit, "--", "pins.yaml", *PARTS).split()
    with work_folder(cache, "commit") as folder:
        if listed:
            archive = _good(root, "archive", commit, "--", *listed)
            with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
                tar.extractall(folder)
        yield folder

"""The git route: exactly the objects of one commit, as they lie in the repository.

Blobs are read with `git cat-file`, not checked out and not through `git archive`: line-end conversion, filters (LFS),
export-ignore and export-subst change bytes depending on attributes and on the user's settings.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from spark_images.errors import ContentError, RouteError
from spark_images.process import Captured
from spark_images.tree import SourceTree
from spark_images.watched import run_watched

# What a caller's git may have left in the environment (hooks do) would send our commands to another repository.
FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
           "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX")  # fmt: skip


def tree_from_git(url: str, commit: str, *, work: Path, stall_s: float, stop: threading.Event) -> SourceTree:
    """The tree of one commit. Submodules are unusable entries: an error only where they count.

    work: an empty folder for a bare repository; the caller removes it. stall_s: git is ended when nothing arrives for
    that long. Raises RouteError when the repository cannot be reached or does not have the commit.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"not a commit: {commit!r}")
    repository = work / "repository"
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
    git = ("git", "--git-dir", str(repository))

    def run(*arguments: str) -> Captured:
        return run_watched((*git, *arguments), folder=work, stall_s=stall_s, stop=stop, env=env)

    run("init", "--quiet", "--bare")
    fetch = ("fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    ended = run(*fetch, "--depth=1", "--", url, commit)
    if ended.status != 0:
        # Some servers refuse to be asked for a commit that no ref names, and dumb HTTP knows no depth: take all refs.
        ended = run(*fetch, "--", url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    if ended.status != 0:
        raise RouteError(_reason(ended.stderr))
    if run("cat-file", "-e", f"{commit}^{{commit}}").status != 0:
        raise RouteError(f"the repository does not have the commit {commit}")
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    listed = run("ls-tree", "-r", "-z", "--full-tree", commit)
    if listed.status != 0:
        raise RouteError(_reason(listed.stderr))
    with ExitStack() as unless_done:
        tree = unless_done.enter_context(SourceTree(source=f"commit {commit[:12]} of `{name or url}`", work=work))
        _read_objects(tree, (*git, "cat-file", "--batch"), env, listed.stdout)
        unless_done.pop_all()
    return tree


def _reason(said: str) -> str:
    lines = [re.sub(r"//[^/@\s]*@", "//", line) for line in said.splitlines()]
    errors = [line.partition(": ")[2] for line in lines if line.startswith(("fatal: ", "error: "))]
    return errors[0] if errors else (lines[-1] if lines else "git failed without a word")


def _read_objects(tree: SourceTree, command: tuple[str, ...], env: dict[str, str], listing: bytes) -> None:
    """Add what the listing names. command: takes an object's name per line and answers with its content."""
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as blobs:
        assert blobs.stdin is not None
        assert blobs.stdout is not None
        for line in listing.split(b"\0")[:-1]:
            about, _, raw_name = line.partition(b"\t")
            mode, kind, identity = about.decode("ascii").split()
            name = raw_name.decode("utf-8", "surrogateescape")
            if any(part in ("", ".", "..", ".git") for part in name.split("/")):
                raise ContentError(f"{tree.source} holds `{name!r}`, a name that leads out of it")
            if kind != "blob":
                why = f"is a submodule (at {identity[:12]}): pin it by itself, or state `paths` without it"
                tree.add_unusable(name, why)
                continue
            blobs.stdin.write(f"{identity}\n".encode("ascii"))
            blobs.stdin.flush()
            size = int(blobs.stdout.readline().split()[2])
            content = io.BytesIO(blobs.stdout.read(size))
            blobs.stdout.read(1)  # the line end after the content
            if mode == "120000":
                tree.add_link(name, content.read().decode("utf-8", "surrogateescape"))
            else:
                tree.add_file(name, content, executable=mode == "100755")

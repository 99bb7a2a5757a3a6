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
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spark_images.errors import ContentError, MissingError, RouteError
from spark_images.process import Captured
from spark_images.tree import SourceTree
from spark_images.watched import run_watched

# What a caller's git may have left in the environment (hooks do) would send our commands to another repository.
FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
           "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Submodule:
    """A submodule of a commit. url: absolute, or as it is written where that is another form."""

    path: str
    url: str
    commit: str


def resolve_tag(url: str, tag: str, *, work: Path, stall_s: float, stop: threading.Event) -> str:
    """The commit that a tag names now.

    work: an empty folder. Raises RouteError when the repository cannot be reached or has no such tag.
    """
    refs = (f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}")  # the latter where the tag is an object of its own
    ended = Git(work, stall_s, stop).run("ls-remote", "--", url, *refs)
    if ended.status != 0:
        raise RouteError(reason_of(ended.stderr))
    found = dict(line.split("\t")[::-1] for line in ended.stdout.decode().splitlines())
    commit = found.get(refs[1]) or found.get(refs[0])
    if commit is None:
        raise MissingError(f"the repository has no tag `{tag}`")
    return commit


def tree_from_git(url: str, commit: str, *, work: Path, stall_s: float, stop: threading.Event) -> SourceTree:
    """The tree of one commit. Submodules are unusable entries: an error only where they count.

    work: an empty folder for a bare repository; the caller removes it. stall_s: git is ended when nothing arrives for
    that long. Raises RouteError when the repository cannot be reached or does not have the commit.
    """
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(f"not a commit: {commit!r}")
    git = Git(work, stall_s, stop)
    git.run("init", "--quiet", "--bare")
    fetch = ("fetch", "--progress", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    ended = git.run(*fetch, "--depth=1", "--", url, commit)
    if ended.status != 0:
        # Some servers refuse to be asked for a commit that no ref names, and dumb HTTP knows no depth: take all refs.
        ended = git.run(*fetch, "--", url, "+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    if ended.status != 0:
        raise RouteError(reason_of(ended.stderr))
    if git.run("cat-file", "-e", f"{commit}^{{commit}}").status != 0:
        raise MissingError(f"the repository does not have the commit {commit}")
    name = urlsplit(url).path.rstrip("/").rpartition("/")[2].removesuffix(".git")
    listing = git.listing(commit)
    with ExitStack() as unless_done:
        tree = unless_done.enter_context(SourceTree(source=f"commit {commit[:12]} of `{name or url}`", work=work))
        _read_objects(tree, (*git.command, "cat-file", "--batch"), git.env, listing)
        unless_done.pop_all()
    return tree


def list_submodules(
    url: str, commit: str, *, work: Path, stall_s: float, stop: threading.Event
) -> tuple[Submodule, ...]:
    """The submodules of a commit that tree_from_git has brought into `work`, by their paths.

    Raises ContentError for one whose address the commit does not say.
    """
    git = Git(work, stall_s, stop)
    said = git.run("config", "--blob", f"{commit}:.gitmodules", "--null", "--list").stdout.decode()
    modules: dict[str, dict[str, str]] = {}
    for key, _, value in (line.partition("\n") for line in said.split("\0")):
        name, _, option = key.removeprefix("submodule.").rpartition(".")
        modules.setdefault(name, {})[option] = value
    urls = {module.get("path", ""): module.get("url", "") for module in modules.values()}
    found = []
    for mode, _, identity, path in git.listing(commit):
        if mode == "160000":
            if not urls.get(path):
                raise ContentError(
                    f"commit {commit[:12]} of {url} does not say where its submodule `{path}` comes from"
                )
            found.append(Submodule(path=path, url=_absolute(urls[path], url), commit=identity))
    return tuple(found)


def _absolute(url: str, parent: str) -> str:
    """As git resolves a submodule's address that begins with `./` or `../`: from that of the repository around it."""
    base = parent.rstrip("/")
    if not url.startswith(("./", "../")):
        return url
    while url.startswith(("./", "../")):
        step, _, url = url.partition("/")
        base = base.rpartition("/")[0] if step == ".." else base
    return f"{base}/{url}"


class Git:
    """git on a bare repository in `work`, in an environment of ours."""

    def __init__(self, work: Path, stall_s: float, stop: threading.Event) -> None:
        self.env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        self.env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
        self.env.setdefault("GIT_SSH_COMMAND", "ssh -oBatchMode=yes")
        self.command = ("git", "--git-dir", str(work / "repository"))
        self._work, self._stall_s, self._stop = work, stall_s, stop

    def run(self, *arguments: str) -> Captured:
        """Run one command of git to its end."""
        return run_watched(
            (*self.command, *arguments), folder=self._work, stall_s=self._stall_s, stop=self._stop, env=self.env
        )

    def listing(self, commit: str) -> list[tuple[str, str, str, str]]:
        """Mode, kind, object and name of everything in a commit. RouteError when it cannot be listed."""
        listed = self.run("ls-tree", "-r", "-z", "--full-tree", commit)
        if listed.status != 0:
            raise RouteError(reason_of(listed.stderr))
        found = []
        for line in listed.stdout.split(b"\0")[:-1]:
            about, _, raw_name = line.partition(b"\t")
            mode, kind, identity = about.decode("ascii").split()
            found.append((mode, kind, identity, raw_name.decode("utf-8", "surrogateescape")))
        return found


def reason_of(said: str) -> str:
    """The error in what git said, without passwords."""
    lines = [re.sub(r"//[^/@\s]*@", "//", line) for line in said.splitlines()]
    errors = [line.partition(": ")[2] for line in lines if line.startswith(("fatal: ", "error: "))]
    return errors[0] if errors else (lines[-1] if lines else "git failed without a word")


def _read_objects(
    tree: SourceTree, command: tuple[str, ...], env: dict[str, str], listing: Iterable[tuple[str, str, str, str]]
) -> None:
    """Add what the listing names. command: takes an object's name per line and answers with its content."""
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as blobs:
        assert blobs.stdin is not None
        assert blobs.stdout is not None
        for mode, kind, identity, name in listing:
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

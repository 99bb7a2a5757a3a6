"""The history of git repositories: which refs there are, which commits lie between two, when one was made."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path

from spark_images.cache import Cache
from spark_images.download import Patience
from spark_images.errors import RouteError, UsageError
from spark_images.exclusive import alone
from spark_images.git_tree import Git, reason_of
from spark_images.process import capture
from spark_images.terminal import tell
from spark_images.workfolder import work_folder


def list_refs(url: str, follow: str, *, cache: Cache) -> dict[str, str]:
    """Name -> commit of the refs that match `tags/b*` or `heads/main`. RouteError when the repository does not answer.

    Of a tag that is an object of its own, it is the commit behind it.
    """
    kind, _, pattern = follow.partition("/")
    with work_folder(cache, "git") as work:
        ended = _git(work).run("ls-remote", "--", url, f"refs/{kind}/*")
    if ended.status != 0:
        raise RouteError(f"{url} does not answer", why=(reason_of(ended.stderr),))
    found = dict(line.split("\t")[::-1] for line in ended.stdout.decode().splitlines())
    names = {ref.removeprefix(f"refs/{kind}/"): commit for ref, commit in found.items()}
    return {
        name: names.get(f"{name}^{{}}", commit)
        for name, commit in names.items()
        if not name.endswith("^{}") and fnmatch.fnmatchcase(name, pattern)
    }


def commits_between(url: str, good: str, bad: str, *, cache: Cache) -> tuple[tuple[str, datetime], ...]:
    """Commits and their times on the first-parent way from `good` to `bad`, both included, oldest first.

    good, bad: commits, or names of tags or branches. The history is kept in the cache, without files where the server
    can leave them out. Raises RouteError when the repository does not answer, UsageError when it lacks one of the two,
    or where no way leads from one to the other.
    """
    folder = cache.histories / hashlib.sha256(url.encode()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    git = _git(folder)
    refs = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
    with alone(folder / "lock", on_wait=lambda: tell(f"another process reads the history of {url}; waiting for it")):
        if not (folder / "repository").exists():
            git.run("init", "--quiet", "--bare")
        ended = git.run("fetch", "--progress", "--filter=tree:0", "--no-write-fetch-head", "--", url, *refs)
    if ended.status != 0:
        raise RouteError(f"{url} does not answer", why=(reason_of(ended.stderr),))
    ends = []
    for name in (good, bad):
        found = git.run("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
        if found.status != 0:
            raise UsageError(f"{url} has no commit `{name}`")
        ends.append(found.stdout.decode().strip())
    listed = git.run("rev-list", "--first-parent", "--reverse", "--format=%H %cI", ends[1], f"^{ends[0]}")
    lines = [line.split() for line in listed.stdout.decode().splitlines() if not line.startswith("commit ")]
    way = git.run("merge-base", "--is-ancestor", *ends)
    if not lines or way.status != 0:
        raise UsageError(f"`{bad}` is no descendant of `{good}` in {url}", hint="are good and bad the wrong way round?")
    first = commit_time(folder / "repository", ends[0])
    return ((ends[0], first), *((commit, _time(time)) for commit, time in lines))


def time_of(url: str, commit: str, *, cache: Cache) -> datetime | None:
    """When a commit of a repository was made, UTC; None where the repository does not have it or does not answer."""
    with work_folder(cache, "git") as work:
        return commit_time(work / "repository", commit) if not _fetch_bare(url, commit, work) else None


def has_commit(url: str, commit: str, *, cache: Cache) -> bool:
    """Whether a repository gives a commit away; its files are left out where the server can do that.

    RouteError when the repository does not answer.
    """
    with work_folder(cache, "git") as work:
        said = _fetch_bare(url, commit, work)
        if said and _git(work).run("ls-remote", "--exit-code", "--", url, "HEAD").status not in (0, 2):
            raise RouteError(reason_of(said))
        return not said


def _fetch_bare(url: str, commit: str, work: Path) -> str:
    """Bring a commit without its files into `work`; what git said where that failed, else ""."""
    git = _git(work)
    git.run("init", "--quiet", "--bare")
    ended = git.run("fetch", "--depth=1", "--filter=tree:0", "--no-tags", "--no-write-fetch-head", "--", url, commit)
    return ended.stderr or "git failed" if ended.status else ""


def commit_time(repository: Path, commit: str) -> datetime:
    """When a commit that the repository has was made, UTC."""
    ended = capture(("git", "--git-dir", str(repository), "show", "--no-patch", "--format=%cI", commit))
    return _time(ended.stdout.decode().strip())


def is_commit(text: str) -> bool:
    """Whether a text is a commit, or the beginning of one that is long enough to be meant as such."""
    return re.fullmatch(r"[0-9a-f]{7,40}", text) is not None


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _git(work: Path) -> Git:
    return Git(work, Patience.from_env(os.environ).timeout_s, threading.Event())

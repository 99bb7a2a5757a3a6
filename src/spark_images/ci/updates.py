"""The branch of a scheduled update: named by its content, so that the same proposals are pushed once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from spark_images.checkout import git, said_by_git
from spark_images.ci.job import Job
from spark_images.ci.login import TOKEN

PREFIX = "updates/"
AUTHOR = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "spark-images"), ("EMAIL", "spark-images@localhost"))
}


@contextmanager
def update_branch(job: Job) -> Iterator[str]:
    """A name for update-pins to commit under; what is left under it is deleted at the end."""
    branch = f"incoming-updates-{os.getpid()}"
    try:
        yield branch
    finally:
        git(job.root, "branch", "--delete", "--force", branch)


def push_updates(job: Job, branch: str, *, whole: bool) -> None:
    """Push the branch as `updates/<12 hex of what it proposes>`, unless it is empty or there already.

    whole: update-pins came to its end, so an empty branch says that there is nothing.
    """
    if git(job.root, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}").status:
        return  # update-pins did not get that far, and its step says why
    titles = said_by_git(job.root, "log", "--format=%s", f"HEAD..{branch}").splitlines()
    if not titles:
        if whole:
            job.ends("There is nothing newer to take over.")
        return
    name = branch_name(titles)
    job.summary.facts += [*(("update", title) for title in titles), ("branch", name)]
    if said_by_git(job.root, *_login(job), "ls-remote", _remote(job), f"refs/heads/{name}", env=_env(job)):
        job.ends("The same update is on its branch already.")
        return
    push = ("push", _remote(job), f"refs/heads/{branch}:refs/heads/{name}")
    command = ["git", "-C", str(job.root), *_login(job), *push]
    if job.steps.program("push the branch", command, env=_env(job)):
        job.ends("Its branch is pushed; open a pull request from it.")


def branch_name(titles: Sequence[str]) -> str:
    """The same for the same proposals, whatever else has changed and in whichever order they come."""
    return f"{PREFIX}{hashlib.sha256(chr(10).join(sorted(titles)).encode()).hexdigest()[:12]}"


def _remote(job: Job) -> str:
    """The repository that the job runs for; outside of a forge, `origin`."""
    server, repository = job.env.get("GITHUB_SERVER_URL"), job.env.get("GITHUB_REPOSITORY")
    return f"{server}/{repository}" if server and repository else "origin"


def _login(job: Job) -> tuple[str, ...]:
    """The token is asked for by git where the server wants one, and stands on no command line."""
    if not job.token:
        return ()
    helper = f'!f() {{ echo username=x-access-token; echo "password=${TOKEN}"; }}; f'
    return ("-c", "credential.helper=", "-c", f"credential.helper={helper}")


def _env(job: Job) -> dict[str, str]:
    return {**job.env, TOKEN: job.token, "GIT_TERMINAL_PROMPT": "0"}

"""What is pushed to Gitea: this repository with one small image in the place of its own, and that image's upstream."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from forge import Repository
from pipeline import REPOSITORY, block_of, git

from spark_images.tree import write_tree

RELEASED = "2026-01-02T03:04:05Z"  # long enough ago for `update-pins`, which lets a release cool down


class Upstream:
    """The git repository that the image's source comes from; a release is a tag."""

    def __init__(self, repository: Repository, folder: Path, source: Path) -> None:
        self.repository, self.folder = repository, folder
        shutil.copytree(source, folder)
        shutil.rmtree(folder / ".git", ignore_errors=True)
        git("init", "-q", "-b", "main", cwd=folder)

    @property
    def url(self) -> str:
        return f"{self.repository.forge.url}{self.repository.path.removeprefix('/repos')}.git"

    def release(self, tag: str, files: Mapping[str, str]) -> None:
        """Publish the next version, with these files written."""
        for name, text in files.items():
            (self.folder / name).write_text(text)
        git("add", "-A", cwd=self.folder)
        dated = {**os.environ, "GIT_COMMITTER_DATE": RELEASED, "GIT_AUTHOR_DATE": RELEASED}
        who = ["-c", "user.name=upstream", "-c", "user.email=upstream@example.org"]
        subprocess.run(["git", *who, "commit", "-q", "-m", tag], cwd=self.folder, env=dated, check=True)
        git("tag", tag, cwd=self.folder)
        git("push", "-q", self.repository.push_url, "main", tag, cwd=self.folder)

    def pin(self, tag: str) -> str:
        """Its line in pins.yaml."""
        tar = io.BytesIO()
        write_tree(self.folder, out=tar)
        digest = hashlib.sha256(tar.getvalue()).hexdigest()
        commit = git("rev-parse", "HEAD", cwd=self.folder)
        return (
            f'hello: {{kind: git, url: "{self.url}", follow: "tags/v*", version: {tag}, commit: {commit}, '
            f'committed: {RELEASED}, tree: "sha256:{digest}"}}\n'
        )


class Clone:
    """A clone of the pushed repository: this one as it lies here, with the image `hello` in the place of its own."""

    def __init__(self, repository: Repository, folder: Path, env: Mapping[str, str]) -> None:
        """env: of the programs that are run here, with a cache folder of their own."""
        self.repository, self.folder, self.env = repository, folder, env
        listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=REPOSITORY)
        for name in filter(None, listed.split("\0")):
            source, target = REPOSITORY / name, folder / name
            if source.is_file():  # not one that is deleted, and not committed yet
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        for part in ("images", "templates", "ci"):
            shutil.rmtree(folder / part, ignore_errors=True)
        git("init", "-q", "-b", "main", cwd=folder)

    def take(self, project: Path) -> None:
        """Put a small project's image in."""
        for part in ("images", "templates", "scripts"):
            shutil.copytree(project / part, self.folder / part, dirs_exist_ok=True)

    def pin(self, pin: str) -> None:
        """Write pins.yaml, and what is rendered from it."""
        debian = block_of(REPOSITORY / "pins.yaml", "debian")
        (self.folder / "pins.yaml").write_text(f"schema: 1\n{pin}{debian}")
        self.run("python", "-m", "spark_images", "render")

    def run(self, program: str, *arguments: str) -> str:
        """What one of our programs prints in the clone; it has to succeed."""
        path = Path(sys.executable).parent / program
        done = subprocess.run([path, *arguments], cwd=self.folder, env=self.env, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def revert(self) -> None:
        """Take the last commit's changes back; they are not committed yet."""
        git("checkout", "-q", "HEAD~1", "--", ".", cwd=self.folder)

    def push(self, message: str) -> str:
        """Commit all and push it to the branch main; the commit."""
        git("add", "-A", cwd=self.folder)
        git("commit", "-q", "-m", message, cwd=self.folder)
        git("push", "-q", self.repository.push_url, "main", cwd=self.folder)
        return git("rev-parse", "HEAD", cwd=self.folder)

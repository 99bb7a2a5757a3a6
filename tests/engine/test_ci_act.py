"""GitHub's workflow files as they are installed, run by act job by job: on this machine, from a git server's copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pipeline import REPOSITORY, git, make_pipeline
from registries import DEBIANS, DISTRIBUTION, Registry, distribution, tool

from spark_images.cache import Cache
from spark_images.engine.base import Engine

ACT = tool("act")
SERVER = "https://forge.example"

pytestmark = [
    pytest.mark.parametrize("engine", ["podman"], indirect=True),  # which of them does not matter here
    pytest.mark.skipif(ACT is None, reason="act is not here"),
    pytest.mark.skipif(not (DEBIANS or DISTRIBUTION), reason="no registry program is here"),
]


@dataclass(frozen=True)
class Forge:
    """A small project with workflows, in a working copy and on a server; every runner is this machine."""

    project: Path
    server: Path
    cache: Path
    registry: Registry

    def commit(self, message: str) -> None:
        git("add", "--all", cwd=self.project)
        git("commit", "--quiet", "--message", message, cwd=self.project)
        git("push", "--quiet", "--force", str(self.server / "you/project"), "HEAD:refs/heads/main", cwd=self.project)

    def __call__(self, event: str, workflow: str, job: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        rewrite = {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.file://{self.server}/.insteadOf",
            "GIT_CONFIG_VALUE_0": f"{SERVER}/",
        }
        home = self.project.parent / "home"
        kept = {name: value for name, value in os.environ.items() if name.startswith("SPARK_IMAGES_")}
        inside = {
            **kept,
            **rewrite,
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SPARK_IMAGES_CACHE": str(self.cache),
            "SPARK_IMAGES_ENGINE": "podman",
            "GITHUB_SERVER_URL": SERVER,
            "GITHUB_REPOSITORY": "you/project",
        }
        command = [str(ACT), event, "-W", f".github/workflows/{workflow}.yaml", "-j", job]
        for label in ("ubuntu-24.04-arm", "self-hosted", "here"):
            command += ["-P", f"{label}=-self-hosted"]
        for name, value in inside.items():
            command += ["--env", f"{name}={value}"]
        variables = {"SPARK_IMAGES_REGISTRY": f"{self.registry.host}/you", "SPARK_IMAGES_RUNNER_AMD64": "here"}
        for name, value in variables.items():
            command += ["--var", f"{name}={value}"]
        return subprocess.run(
            [*command, "-s", "GITHUB_TOKEN=a-token", *arguments],
            cwd=self.project,
            env={**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "NO_COLOR": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=400,
        )

    def pull_request(self, since: str, job: str) -> subprocess.CompletedProcess[str]:
        """A job of a pull request from a branch of the repository itself."""
        event = self.project.parent / "event.json"
        asked = {"base": {"sha": since}, "head": {"repo": {"full_name": "you/project"}}}
        event.write_text(json.dumps({"pull_request": asked, "repository": {"full_name": "you/project"}}))
        return self("pull_request", "pull-request", job, "-e", str(event))

    def render(self) -> None:
        verb = [sys.executable, "-m", "spark_images", "--project", str(self.project), "render"]
        subprocess.run(verb, check=True, capture_output=True)

    def tags(self) -> set[str]:
        folder = self.registry.folder / "data/docker/registry/v2/repositories/you/hello/_manifests/tags"
        return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory, engine: Engine, engine_caches: dict[str, Cache]) -> Iterator[Forge]:
    folder = tmp_path_factory.mktemp("forge")
    cache = engine_caches[engine.name].root
    pipeline = make_pipeline(folder, cache)
    project = pipeline.project
    (folder / "home").mkdir()
    shutil.copytree(REPOSITORY / "src", project / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "noxfile.py", project)
    # The environment of these tests in place of one that would be made from the index in every job.
    environment = Path(sys.prefix)
    (project / "noxw").write_text(
        f'#!/bin/sh\ncd "$(dirname "$0")"\nln -sfn {environment} .venv\n'
        'PYTHONPATH="$PWD/src" exec .venv/bin/python -m nox "$@"\n'
    )
    (project / "noxw").chmod(0o755)
    (project / ".gitignore").write_text("/.venv\n__pycache__/\n/ci-results/\n/source/\n")
    assert pipeline("ci", "--forge", "github").returncode == 0
    git("init", "--quiet", "--initial-branch=main", cwd=project)
    git("init", "--quiet", "--bare", "--initial-branch=main", str(folder / "server/you/project"), cwd=folder)
    git("remote", "add", "origin", f"{SERVER}/you/project", cwd=project)
    with distribution(folder / "registry") as registry:
        made = Forge(project, folder / "server", cache, registry)
        made.commit("a project")
        yield made


def test_main_builds_pushes_and_promotes_once(forge: Forge) -> None:
    first = forge("push", "main", "build-0")
    again = forge("push", "main", "build-0")

    assert first.returncode == 0, first.stdout
    assert {"here", "1.0-here"} < forge.tags()
    assert "| promote | ok |" in first.stdout
    assert "/you/ci-results:build-hello-for-here-on-debian-1-1" in first.stdout
    assert again.returncode == 0, again.stdout
    assert "linux/amd64 on here | in the registry |" in again.stdout.replace("linux/arm64", "linux/amd64")
    assert "build, verify, push, promote" not in again.stdout


def test_a_pull_request_builds_what_it_changes(forge: Forge) -> None:
    base = git("rev-parse", "HEAD", cwd=forge.project)
    (forge.project / "README.md").write_text("text\n")
    forge.commit("no image changes")
    untouched = forge.pull_request(base, "matrix")
    image = forge.project / "images/hello/image.yaml"
    image.write_text(image.read_text().replace("stop-signal: SIGTERM", "stop-signal: SIGINT"))
    forge.render()
    forge.commit("an image changes")
    touched = forge.pull_request(base, "matrix")

    assert "| hello for here on debian |" in untouched.stdout
    assert 'set-output:: wave-0={"include":[]}' in untouched.stdout
    assert 'set-output:: wave-0={"include":[{"title":"hello for here on debian"' in touched.stdout


def test_what_is_typed_into_a_form_is_run_by_no_shell(forge: Forge, tmp_path: Path) -> None:
    typed = f"$(touch {tmp_path}/run) `touch {tmp_path}/run` '; touch {tmp_path}/run; '"
    inputs = {"image": "hello", "good": typed, "bad": typed, "check": "test"}
    words = [word for name, value in inputs.items() for word in ("--input", f"{name}={value}")]

    searched = forge("workflow_dispatch", "bisect", "bisect", *words)
    inputs["check"] = f"touch {tmp_path}/run"
    words = [word for name, value in inputs.items() for word in ("--input", f"{name}={value}")]
    refused = forge("workflow_dispatch", "bisect", "bisect", *words)

    assert "is no end of a search" in searched.stdout
    assert f"`touch {tmp_path}/run` is no check" in refused.stdout
    assert not (tmp_path / "run").exists()


def test_an_update_is_pushed_on_a_branch_of_its_own_once(forge: Forge) -> None:
    source, pins = forge.project / "source", forge.project / "pins.yaml"
    git("tag", "v1", cwd=source)
    (source / "NOTES").write_text("new\n")
    git("add", "--all", cwd=source)
    git("commit", "--quiet", "--message", "a release", cwd=source)
    git("tag", "v2", cwd=source)
    text = (
        pins.read_text().replace("kind: git,", 'kind: git, follow: "tags/v*",').replace("version: '1.0'", "version: v1")
    )
    pins.write_text(text)
    forge.render()
    forge.commit("the source is followed")
    options = ("--var", "SPARK_IMAGES_UPDATE_OPTIONS=--cool-down 0 hello")

    first = forge("schedule", "schedule", "update-pins", *options)
    again = forge("schedule", "schedule", "update-pins", *options)

    assert first.returncode == 0, first.stdout
    (branch,) = git("branch", "--list", "updates/*", cwd=forge.server / "you/project").split()
    changed = git("diff", "--name-only", "main", branch, cwd=forge.server / "you/project").splitlines()
    assert "pins.yaml" in changed
    assert "a-token" not in first.stdout
    assert again.returncode == 0, again.stdout
    assert "The same update is on its branch already." in again.stdout

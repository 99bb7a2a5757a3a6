"""docs/adding-a-pin.md and docs/adding-an-image.md, followed to the letter in a copy of this clone; no engine."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from file_server import FileServer
from followed import ROOT, clone, environment, follow, run
from package_server import publish

from spark_images.pins import GitPin, SdistPin
from spark_images.project import Project

SDIST = "bottle-0.13.4.tar.gz"
REPOSITORY = "https://github.com/ggml-org/whisper.cpp"


@dataclass(frozen=True)
class Followed:
    """The folder after both pages, and what their commands printed."""

    folder: Path
    env: dict[str, str]
    printed: dict[str, str]

    @property
    def project(self) -> Project:
        return Project(self.folder)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Followed]:
    """The index and the repository that the pages name are on this machine."""
    work = tmp_path_factory.mktemp("adding")
    upstream = work / "upstream"
    upstream.mkdir()
    (upstream / "whisper.c").write_text("int main(void) { return 0; }\n")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org", "-C", str(upstream)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a release"], ["tag", "v1.7.6"]):
        subprocess.run([*git, *words], check=True)
    with FileServer() as server:
        publish(server, "bottle", {SDIST: "2025-06-15"})
        env = environment(
            work / "cache",
            PIP_INDEX_URL=server.url("/simple/"),
            PIP_CONFIG_FILE="/dev/null",
            GIT_CONFIG_COUNT="1",
            GIT_CONFIG_KEY_0=f"url.file://{upstream}.insteadOf",
            GIT_CONFIG_VALUE_0=REPOSITORY,
        )
        folder = clone(work / "clone")
        kinds = ("A project on the package index", "A tree of a git repository")  # test_sdists.py follows the other one
        printed = follow(ROOT / "docs/adding-a-pin.md", folder, env, *kinds)
        sections = ("The files", "Render and look", "A new target")  # the one between them needs an engine
        printed |= follow(ROOT / "docs/adding-an-image.md", folder, env, *sections)
        yield Followed(folder, env, printed)


def test_the_command_completes_the_pin_of_an_sdist(followed: Followed) -> None:
    pin = followed.project.pins["bottle"]
    assert isinstance(pin, SdistPin)
    assert pin.sha256 == hashlib.sha256(SDIST.encode()).hexdigest()
    assert f"{pin.released:%Y-%m-%d}" == "2025-06-15"


def test_the_command_completes_the_pin_of_a_git_repository(followed: Followed) -> None:
    pin = followed.project.pins["whisper-cpp"]
    assert isinstance(pin, GitPin)
    upstream = followed.folder.parent / "upstream"
    assert pin.commit == subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=upstream, text=True).strip()
    assert pin.committed.year > 1970
    assert pin.tree.strip("sha256:0") != ""


def test_the_new_image_has_a_plan_with_its_pin(followed: Followed) -> None:
    plan = json.loads(followed.printed["./noxw -s plan-web"])
    assert (plan["image"], plan["target"], plan["platform"]) == ("web", "gb10", "linux/arm64")
    assert f"sources/{SDIST}" in plan["inputs"]
    assert "bottle" in plan["pins"]


def test_the_new_target_has_a_plan(followed: Followed) -> None:
    plan = json.loads(followed.printed["./noxw -s plan-web -- --target rtx40"])
    assert (plan["target"], plan["platform"]) == ("rtx40", "linux/amd64")


def test_dockerfiles_for_both_targets_are_there_and_current(followed: Followed) -> None:
    made = {path.name for path in (followed.folder / "images/web").glob("*.Dockerfile")}
    assert made == {"gb10-debian.Dockerfile", "rtx40-debian.Dockerfile"}
    run("./noxw -s render -- --check", followed.folder, followed.env)


def test_nox_lists_the_sessions_of_the_new_image(followed: Followed) -> None:
    listed = followed.printed["./noxw -l"]
    for verb in ("build", "test", "audit", "verify", "push", "promote", "bisect", "reproduce"):
        assert f"- {verb}-web -> " in listed


def test_the_workflows_build_the_new_image_for_both_targets(followed: Followed) -> None:
    workflow = (followed.folder / "ci/gitea/main.yaml").read_text()
    assert "web --target gb10 --base debian" in workflow
    assert "web --target rtx40 --base debian" in workflow


def test_the_lint_of_the_page_sees_the_new_dockerfile_and_the_new_script(followed: Followed, tmp_path: Path) -> None:
    command = next(command for command in followed.printed if " lint " in command)
    for name, wrong in {
        "images/web/gb10-debian.Dockerfile": "RUN cd /tmp\n",
        "scripts/compile_web": "echo $1\n",
    }.items():
        path = followed.folder / name
        shutil.copy(path, tmp_path / "before")
        path.write_text(path.read_text() + wrong)
        with pytest.raises(AssertionError, match="not in order"):
            run(command, followed.folder, followed.env)
        shutil.copy(tmp_path / "before", path)


def test_lint_refuses_a_checker_that_there_is_not(followed: Followed) -> None:
    with pytest.raises(AssertionError, match="no checker `hadolit`; there are ruff,"):
        run("./noxw -s lint -- hadolint hadolit", followed.folder, followed.env)

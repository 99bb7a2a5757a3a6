"""What `nox -l` offers, run as users run it: in a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = [path.parent.name for path in ROOT.glob("images/*/image.yaml")]


def nox(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nox", "--noxfile", str(folder / "noxfile.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def sessions(folder: Path) -> dict[str, str]:
    """Name and description of every session."""
    listed = nox(folder, "--list").stdout.splitlines()
    return dict(line[2:].split(" -> ", 1) for line in listed if line.startswith(("- ", "* ")))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose .venv holds a `python` that prints its arguments and ends with the status in STATUS."""
    shutil.copy(ROOT / "noxfile.py", tmp_path)
    (tmp_path / "images/toy").mkdir(parents=True)
    (tmp_path / "images/toy/image.yaml").touch()
    (tmp_path / "images/debian").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for path, text in {
        tmp_path / ".venv/bin/python": '#!/bin/sh\necho "$@"\necho "the story" >&2\nexit $(cat STATUS)\n',
        tmp_path / "noxw": "#!/bin/sh\n",
    }.items():
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "STATUS").write_text("0")
    return tmp_path


@pytest.mark.parametrize("image", IMAGES)
def test_every_image_has_its_sessions(image: str) -> None:
    assert {f"{verb}-{image}" for verb in ("build", "test", "push", "plan", "reproduce")} <= set(sessions(ROOT))


@pytest.mark.parametrize("image", [path.parent.name for path in ROOT.glob("images/*/recipes.yaml")])
def test_recipes_have_their_session(image: str) -> None:
    assert {f"recipe-{image}", "learn-vllm"} <= set(sessions(ROOT))


def test_recipes_need_no_image_yaml_for_their_session(project: Path) -> None:
    (project / "images/debian/recipes.yaml").touch()

    ended = nox(project, "-s", "recipe-debian", "--", "small", "--as", "docker")

    assert ended.stdout == "-m spark_images recipe debian small --as docker\n"


def test_every_session_says_what_it_does_on_one_line_of_a_terminal() -> None:
    lines = {name: f"- {name} -> {text}" for name, text in sessions(ROOT).items()}

    assert {name for name, line in lines.items() if len(line) > 80 or line.endswith(" ")} == set()
    assert "tests" in sessions(ROOT)


def test_only_folders_with_an_image_yaml_give_sessions(project: Path) -> None:
    found = sessions(project)

    assert "build-toy" in found
    assert "toy" in found["build-toy"]
    assert "build-debian" not in found


def test_session_hands_its_arguments_to_the_verb_and_keeps_the_streams_apart(project: Path) -> None:
    ended = nox(project, "-s", "build-toy", "--", "--engine", "podman")

    assert ended.returncode == 0
    assert ended.stdout == "-m spark_images build toy --engine podman\n"
    assert ended.stderr == "the story\n"


def test_exit_status_of_the_verb_is_that_of_nox_and_ends_it(project: Path) -> None:
    (project / "STATUS").write_text("43")

    ended = nox(project, "-s", "build-toy", "report")

    assert ended.returncode == 43
    assert "report" not in ended.stdout
    assert ended.stderr == "the story\n"  # and nothing more: the verb has said why


def test_unknown_session_offers_the_nearest(project: Path) -> None:
    ended = nox(project, "-s", "build-tyo")

    assert ended.returncode != 0
    assert "did you mean `build-toy`?" in ended.stderr

"""A project's files as a commit has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_images.cache import Cache
from spark_images.checkout import files_at, said_by_git
from spark_images.errors import UsageError


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for who in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{who}_NAME", "nobody")
        monkeypatch.setenv(f"GIT_{who}_EMAIL", "nobody@localhost")
    clone = tmp_path / "clone"
    clone.mkdir()
    (clone / "pins.yaml").write_text("pins\n")
    (clone / "other").write_text("not what plans are made from\n")
    said_by_git(clone, "init", "--quiet")
    said_by_git(clone, "add", "--all")
    said_by_git(clone, "commit", "--quiet", "--message", "first")
    return clone


def test_a_commit_gives_its_own_files_whatever_a_hook_says_of_another_repository(
    clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "pins.yaml").write_text("changed since\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    with files_at("HEAD", clone, Cache(tmp_path / "cache")) as files:
        assert {path.name: path.read_text() for path in files.iterdir()} == {"pins.yaml": "pins\n"}


def test_a_commit_whose_content_is_missing_is_an_error_of_git(clone: Path, tmp_path: Path) -> None:
    blob = said_by_git(clone, "rev-parse", "HEAD:pins.yaml")
    (clone / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(UsageError, match="`git archive` failed"), files_at("HEAD", clone, Cache(tmp_path / "cache")):
        pass

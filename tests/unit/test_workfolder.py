"""Work folders are gone when their process is, however it ended; nobody takes one that is in use."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_images.cache import Cache
from spark_images.workfolder import remove_abandoned, settle, work_folder

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
HOLD = """
import sys, time
from pathlib import Path
from spark_images.cache import Cache
from spark_images.workfolder import work_folder
with work_folder(Cache(Path(sys.argv[1])), "hello") as folder:
    (folder / "raw").write_text("half of it")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@contextmanager
def another_process(cache: Cache) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that holds a work folder, and the folder."""
    command = [sys.executable, "-c", HOLD, str(cache.root)]
    with subprocess.Popen(command, env=ENV, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            folder = process.stdout.readline().strip()
            assert folder, "the process has not come as far as its folder"
            yield process, Path(folder)
        finally:
            process.kill()


def test_a_folder_is_new_empty_and_gone_at_the_end(cache: Cache) -> None:
    with work_folder(cache, "hello") as folder:
        assert list(folder.iterdir()) == []
        assert cache.work in folder.parents
        (folder / "raw").mkdir()
        (folder / "raw/blob").touch()
    assert list(cache.work.iterdir()) == []


def test_a_folder_is_gone_after_an_exception(cache: Cache) -> None:
    def use() -> None:
        with work_folder(cache, "hello") as folder:
            (folder / "raw").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()
    assert list(cache.work.iterdir()) == []


def test_two_at_once_have_folders_of_their_own(cache: Cache) -> None:
    with work_folder(cache, "hello") as outer:
        with work_folder(cache, "hello") as inner:
            assert inner != outer
        assert outer.is_dir()
        assert not inner.exists()


def test_what_a_killed_process_left_is_removed(cache: Cache) -> None:
    with another_process(cache) as (process, folder):
        process.kill()
        process.wait()
        assert (folder / "raw").exists()

        removed = remove_abandoned(cache)

        assert removed == (f"work folder `{folder.parent.name}` of a killed run",)
        assert list(cache.work.iterdir()) == []


def test_a_folder_that_a_process_uses_is_left_alone(cache: Cache) -> None:
    with another_process(cache) as (_, folder):
        assert remove_abandoned(cache) == ()
        assert (folder / "raw").read_text() == "half of it"


def test_a_folder_of_this_process_is_left_alone(cache: Cache) -> None:
    with work_folder(cache, "hello") as folder:
        assert remove_abandoned(cache) == ()
        assert folder.is_dir()


def test_locks_of_builds_are_no_work_folders(cache: Cache) -> None:
    cache.work.mkdir(parents=True)
    (cache.work / f"{'a' * 64}.lock").touch()
    assert remove_abandoned(cache) == ()
    assert len(list(cache.work.iterdir())) == 1


def test_a_cache_without_work_folders_has_none_to_remove(cache: Cache) -> None:
    assert remove_abandoned(cache) == ()


@pytest.mark.parametrize(("module", "line"), [(os, "open"), (fcntl, "flock")], ids=["opened", "locked"])
def test_a_folder_that_is_removed_before_it_is_held_is_made_again(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, module: Any, line: str
) -> None:
    """Another process cleans between the lines of work_folder."""
    really = getattr(module, line)

    def clean_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        assert len(remove_abandoned(cache)) == 1
        return really(*arguments)

    monkeypatch.setattr(module, line, clean_first)
    with work_folder(cache, "hello") as folder:
        assert folder.is_dir()
    assert list(cache.work.iterdir()) == []


@pytest.mark.parametrize(("module", "line"), [(os, "open"), (fcntl, "flock")], ids=["opened", "locked"])
def test_a_folder_that_goes_away_while_it_is_looked_at_was_not_abandoned(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, module: Any, line: str
) -> None:
    """Its owner ends, or another cleaner is faster, between the lines of remove_abandoned."""
    folder = cache.work / "hello-abc"
    folder.mkdir(parents=True)
    really = getattr(module, line)

    def remove_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        folder.rmdir()
        return really(*arguments)

    monkeypatch.setattr(module, line, remove_first)
    assert remove_abandoned(cache) == ()


def test_what_is_finished_first_stays(tmp_path: Path) -> None:
    first, second, place = tmp_path / "first", tmp_path / "second", tmp_path / "layouts/one"
    for folder in (first, second):
        folder.mkdir()
        (folder / "by").write_text(folder.name)
    settle(first, place)
    settle(second, place)
    assert (place / "by").read_text() == "first"
    with pytest.raises(FileNotFoundError):
        settle(tmp_path / "nothing", tmp_path / "layouts/two")

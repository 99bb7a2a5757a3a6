"""A compile cache that runners share: another runner compiles nothing, and no state of the store changes a digest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from file_store import FileStore, serve_files
from pipeline import make_pipeline
from runners import Runner, runner_beside

from spark_images.bench.compiling import CacheUse, cache_counts
from spark_images.compile_cache.index import read_index, unseal
from spark_images.engine.base import Engine


class Fleet:
    """Runners of one project, each with a cache of its own, all with one store of ccache's entries."""

    def __init__(self, folder: Path, engine: Engine, entries: FileStore) -> None:
        self._pipeline = make_pipeline(folder, folder / "unused", "cached")
        self._engine, self._folder = engine, folder
        self.entries = entries
        self.runners: list[Runner] = []

    def first_build(self) -> tuple[Runner, str]:
        """A new runner that has built the image, and what that said."""
        made = runner_beside(self._pipeline, self._folder / f"runner{len(self.runners)}")
        self.runners.append(made.with_env(SPARK_IMAGES_CCACHE_REMOTE=self.entries.url))
        done = self.runners[-1]("build", "cached", "--engine", self._engine.name, "--memory", "1GiB")
        assert done.returncode == 0, done.stderr
        return self.runners[-1], done.stderr


@pytest.fixture
def fleet(tmp_path: Path, engine: Engine) -> Iterator[Fleet]:
    with serve_files(tmp_path / "entries") as entries:
        yield Fleet(tmp_path, engine, entries)


def compiled(runner: Runner) -> CacheUse:
    """What the cache was to the compile of a runner."""
    (log,) = (runner.cache / "records").glob("*/log.txt")
    with log.open() as lines:
        counts = cache_counts(lines)
    assert counts is not None
    return counts.use


def warm(fleet: Fleet) -> Runner:
    """The first of two runners, of which the second has compiled nothing."""
    first, _ = fleet.first_build()
    assert compiled(first) is CacheUse.COLD
    second, said = fleet.first_build()
    assert compiled(second) is CacheUse.WARM, said
    assert second.digest() == first.digest()
    return first


@pytest.mark.parametrize("engine", ["docker"], indirect=True)
def test_another_runner_compiles_nothing(fleet: Fleet) -> None:
    warm(fleet)


@pytest.mark.parametrize("engine", ["podman"], indirect=True)
def test_another_runner_compiles_nothing_and_no_state_of_the_store_changes_the_digest(fleet: Fleet) -> None:
    first = warm(fleet)
    # Every entry becomes one that ccache would take without a question, made for another key.
    (note,) = (fleet.entries.folder / "spark-images").iterdir()
    entries = read_index(note.stem, unseal(note.read_bytes())[0])
    files = [fleet.entries.folder / entry.key[:2] / entry.key[2:] for entry in entries]
    contents = [file.read_bytes() for file in files]
    swapped = [*contents[1:], contents[0]]
    for file, content in zip(files, swapped, strict=True):
        file.write_bytes(content)
    third, said = fleet.first_build()
    assert f"{len(files)} are missing there or not what was noted" in said
    assert compiled(third) is CacheUse.COLD
    assert third.digest() == first.digest()
    assert not [file for file, content in zip(files, swapped, strict=True) if file.read_bytes() == content], "healed"

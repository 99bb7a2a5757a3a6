"""What the pins and locks name stays in the store, and nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Set
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from small_project import make_project
from test_workfolder import another_process
from values import DEBS, WHEELS

from spark_images.bisect.answer import Answer, Cause
from spark_images.bisect.journal import Journal
from spark_images.cache import Cache
from spark_images.errors import EngineError, StaleLockError
from spark_images.exclusive import try_alone
from spark_images.project import Project
from spark_images.prune import clean, named_digests, prune
from spark_images.record import Outcome, Result
from spark_images.record_writer import RecordWriter
from spark_images.search import Verdict
from spark_images.store import Pruned, Store

OLD = "0" * 64  # a plan that is no longer anybody's
AN_ANSWER = Answer(key="pin:hello=2", label="hello 2", verdict=Verdict.BAD, cause=Cause.CHECK)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "clone")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    cache = Cache(tmp_path / "cache")
    cache.store.mkdir(parents=True)
    return cache


@pytest.fixture
def no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which neither podman nor a Docker daemon is to be found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


def put(cache: Cache, data: bytes) -> str:
    """Bring a file into the store; its digest."""
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    arrived = cache.root / "arrived"
    arrived.write_bytes(data)
    Store(cache.store).add_file(arrived, digest)
    return digest


def an_image(cache: Cache, plan_id: str, ending: str = "") -> Path:
    """A layout as a build or a pull leaves one."""
    layout = cache.images / f"{plan_id}{ending}"
    layout.mkdir(parents=True)
    (layout / "oci-layout").write_text("{}")
    return layout


def built(cache: Cache, plan_id: str, *, day: int) -> RecordWriter:
    """The record of an attempt at a plan, begun on a day."""
    return RecordWriter.start(
        cache.records, plan_id=plan_id, image="hello", target="gb10", base="debian", plan={}, command=(),
        engine=None, host={}, now=datetime(2026, 1, day, tzinfo=UTC),
    )  # fmt: skip


def name_in_pins(project: Project, letter: str, digest: str) -> Project:
    """The clone with this digest in the place of the one that is 64 times the letter."""
    path = project.root / "pins.yaml"
    text = path.read_text()
    assert letter * 64 in text
    path.write_text(text.replace(letter * 64, digest.removeprefix("sha256:")))
    return Project(project.root)


def test_every_kind_of_pin_names_its_contents(project: Project, cache: Cache) -> None:
    git, archive, sdist, image = (f"sha256:{letter * 64}" for letter in "abcd")
    wheels = {f"sha256:{wheel.sha256}" for wheel in WHEELS.wheels}
    debs = {f"sha256:{deb.sha256}" for deb in DEBS.debs}
    assert named_digests(project, Store(cache.store)) == {git, archive, sdist, image} | wheels | debs


def test_an_image_names_all_that_its_manifests_lead_to(project: Project, cache: Cache) -> None:
    config, layer = put(cache, b"a config"), put(cache, b"a layer")
    manifest = put(cache, json.dumps({"config": {"digest": config}, "layers": [{"digest": layer}]}).encode())
    index = put(cache, json.dumps({"manifests": [{"digest": manifest}]}).encode())
    named = named_digests(name_in_pins(project, "d", index), Store(cache.store))
    assert {index, manifest, config, layer} <= named


def test_prune_keeps_what_a_pin_names_and_removes_the_rest(
    project: Project, cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted, unwanted = put(cache, b"the patch"), put(cache, b"an old patch")
    prune(name_in_pins(project, "b", wanted), cache=cache, dry_run=False)
    store = Store(cache.store)
    assert store.verify(wanted)
    assert not store.has(unwanted)
    assert "removed 1 objects" in capsys.readouterr().err


def test_prune_removes_the_assembled_roots(project: Project, cache: Cache) -> None:
    (cache.roots / "some-key").mkdir(parents=True)
    prune(project, cache=cache, dry_run=False)
    assert not [*cache.roots.iterdir()]


def test_a_dry_run_removes_nothing_and_counts(
    project: Project, cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    unwanted = put(cache, b"an old patch")
    (cache.roots / "some-key").mkdir(parents=True)
    prune(project, cache=cache, dry_run=True)
    assert Store(cache.store).has(unwanted)
    assert (cache.roots / "some-key").is_dir()
    assert "would remove 1 objects" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["", ".differs-0123456789ab", "-0123456789ab"])
def test_prune_removes_an_image_that_nothing_wants(project: Project, cache: Cache, ending: str) -> None:
    layout = an_image(cache, OLD, ending)
    prune(project, cache=cache, dry_run=True)
    assert layout.is_dir()
    prune(project, cache=cache, dry_run=False)
    assert not layout.exists()
    assert not [*cache.work.iterdir()]


def test_prune_keeps_the_image_of_todays_plan_whichever_machine_builds_it(project: Project, cache: Cache) -> None:
    image = project.image("hello")
    target, base = project.variant(image, None, None)
    plans = [project.plan(image, target, base, builder=f"linux/{arch}").plan_id for arch in ("amd64", "arm64")]
    layouts = [an_image(cache, plan) for plan in plans]
    prune(project, cache=cache, dry_run=False)
    assert len(set(plans)) == 2
    assert all(layout.is_dir() for layout in layouts)


def test_of_other_plans_prune_keeps_what_was_built_last(project: Project, cache: Cache) -> None:
    first, last, failed = (letter * 64 for letter in "123")
    for day, plan_id in enumerate((first, last, failed), start=1):
        with built(cache, plan_id, day=day) as record:
            outcome = Outcome.FAILED if plan_id == failed else Outcome.BUILT
            record.finish(Result(outcome=outcome, seconds=1.0))
    layouts = [an_image(cache, plan_id) for plan_id in (first, last, failed)]
    prune(project, cache=cache, dry_run=False)
    assert [layout.is_dir() for layout in layouts] == [False, True, False]


def test_prune_keeps_what_an_unfinished_bisect_has_tried(project: Project, cache: Cache) -> None:
    journal = Journal.open(cache.records, "hello", {"good": "1", "bad": "2"})
    journal.add(replace(AN_ANSWER, plan_id=OLD))
    layout = an_image(cache, OLD)
    prune(project, cache=cache, dry_run=False)
    assert layout.is_dir()
    (journal.folder / "report.json").write_text("{}")
    prune(project, cache=cache, dry_run=False)
    assert not layout.exists()


def test_while_a_bisect_runs_no_image_goes(project: Project, cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    journal = Journal.open(cache.records, "hello", {"good": "1", "bad": "2"})
    layout = an_image(cache, OLD)
    with try_alone(journal.lock):
        prune(project, cache=cache, dry_run=False)
    assert layout.is_dir()
    assert "left the images and the assembled root file systems" in capsys.readouterr().err


def test_while_an_attempt_is_under_way_no_root_goes(project: Project, cache: Cache) -> None:
    (cache.roots / "some-key").mkdir(parents=True)
    with built(cache, OLD, day=1) as record:  # as units are built, without the lock of a plan
        prune(project, cache=cache, dry_run=False)
        record.finish(Result(outcome=Outcome.BUILT, seconds=1.0))
    assert (cache.roots / "some-key").is_dir()


def test_what_another_clone_has_built_while_the_store_was_emptied_stays(
    project: Project, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = Store.prune

    def build_meanwhile(store: Store, keep: Set[str], *, dry_run: bool = False) -> Pruned:
        with built(cache, OLD, day=1) as record:
            record.finish(Result(outcome=Outcome.BUILT, seconds=1.0))
        return empty(store, keep, dry_run=dry_run)

    monkeypatch.setattr(Store, "prune", build_meanwhile)
    layout = an_image(cache, OLD)
    prune(project, cache=cache, dry_run=False)
    assert layout.is_dir()


def test_prune_leaves_records_alone(project: Project, cache: Cache) -> None:
    (cache.records / "one").mkdir(parents=True)
    prune(project, cache=cache, dry_run=False)
    assert (cache.records / "one").is_dir()


def test_nothing_is_removed_where_a_lock_is_stale(project: Project, cache: Cache) -> None:
    unwanted = put(cache, b"an old patch")
    path = project.root / "pins.yaml"
    path.write_text(path.read_text().replace("nvcc==13,", "nvcc==14,"))
    with pytest.raises(StaleLockError):
        prune(Project(project.root), cache=cache, dry_run=False)
    assert Store(cache.store).has(unwanted)


@pytest.mark.usefixtures("no_engine")
def test_clean_removes_work_folders_also_where_no_engine_answers(
    cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    with another_process(cache) as (process, folder):
        process.kill()
        process.wait()
    clean(cache=cache, engine=None)
    assert not folder.exists()
    assert folder.parent.name in capsys.readouterr().err

    clean(cache=cache, engine=None)
    assert capsys.readouterr().err == "nothing was left behind\n"


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_clean_fails_where_the_engine_that_was_named_does_not_answer(cache: Cache, engine: str) -> None:
    with pytest.raises(EngineError):
        clean(cache=cache, engine=engine)


@pytest.mark.usefixtures("no_engine")
def test_clean_forgets_uploads_that_no_registry_remembers(cache: Cache) -> None:
    old, new = (cache.uploads / f"{name}.json" for name in ("old", "new"))
    cache.uploads.mkdir(parents=True)
    for state in (old, new):
        state.write_text("{}")
    eight_days_ago = time.time() - 8 * 86400
    os.utime(old, (eight_days_ago, eight_days_ago))
    clean(cache=cache, engine=None)
    assert (old.exists(), new.exists()) == (False, True)

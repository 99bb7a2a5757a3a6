"""What an engine run sees, and the script that stages the same again when all of it is gone."""

from __future__ import annotations

import hashlib
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from values import toy_plan

from spark_images.cache import Cache
from spark_images.ingredients import Input
from spark_images.jobs import Jobs
from spark_images.pins import FileContent
from spark_images.plan import Plan
from spark_images.staging import stage, stage_inputs, write_replay
from spark_images.store import Store
from spark_images.workfolder import work_folder

GATE: dict[str, Any] = {"gib_per_job": 0.75, "profile": "412 31.2 mmq.cu.o\n", "cold": False}
CONTENTS = {"trees/hello.tar": b"a tree", "wheels/target/it's+a b.whl": b"a wheel", "sources/$HOME.tar.gz": b"a source"}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "it's a $HOME of `caches`")


@pytest.fixture
def store(cache: Cache) -> Store:
    return Store(cache.store)


@pytest.fixture
def plan(store: Store, tmp_path: Path) -> Plan:
    """A plan whose inputs are in the store."""
    inputs = []
    for path, data in CONTENTS.items():
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (tmp_path / "arrived").write_bytes(data)
        store.root.mkdir(parents=True, exist_ok=True)
        store.add_file(tmp_path / "arrived", digest)
        content = FileContent(pin="hello", label=path, digest=digest, size_bytes=len(data), routes=())
        inputs.append(Input(path=path, content=content))
    return replace(toy_plan(), inputs=tuple(inputs))


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "step").write_text("#!/bin/sh\necho a step\n")
    (folder / "step").chmod(0o644)  # as a clone on a file system without modes has it
    (folder / "compile_other").write_text("not of this image")
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def check_sums(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=folder, text=True, capture_output=True
    )


def test_dockerfile_and_the_plans_scripts_are_staged(plan: Plan, scripts: Path, tmp_path: Path) -> None:
    staged = stage(plan, tmp_path / "build", root=scripts.parent, jobs=Jobs(3, 12), memory_bytes=8 << 30, **GATE)
    assert staged.dockerfile.read_text() == plan.dockerfile
    assert [path.name for path in staged.scripts.iterdir()] == ["step"]
    assert (staged.scripts / "step").read_bytes() == (scripts / "step").read_bytes()
    assert mode(staged.scripts / "step") == 0o755


def test_patches_of_the_plan_lie_beside_its_scripts(plan: Plan, scripts: Path, tmp_path: Path) -> None:
    patch = "images/vllm/patches/fix.patch"
    (tmp_path / patch).parent.mkdir(parents=True)
    (tmp_path / patch).write_text("a patch")
    plan = replace(plan, patches=((patch, "1" * 64),))
    staged = stage(plan, tmp_path / "build", root=tmp_path, jobs=Jobs(3, 12), memory_bytes=8 << 30, **GATE)
    assert (staged.scripts / "patches/fix.patch").read_text() == "a patch"


@pytest.mark.parametrize(
    ("jobs", "memory_bytes", "cold", "expected"),
    [
        (3, 8 << 30, False, "JOBS=3\nQUEUE=12\nMEMORY_MIB=8192\nUNIT_MIB=768\nCOMPILE_CACHE=on\n"),
        (1, (512 << 20) + 5, False, "JOBS=1\nQUEUE=12\nMEMORY_MIB=512\nUNIT_MIB=768\nCOMPILE_CACHE=on\n"),
        (3, None, False, "JOBS=3\nQUEUE=12\nMEMORY_MIB=0\nUNIT_MIB=768\nCOMPILE_CACHE=on\n"),
        (3, 8 << 30, True, "JOBS=3\nQUEUE=12\nMEMORY_MIB=8192\nUNIT_MIB=768\nCOMPILE_CACHE=ignore\n"),
    ],
    ids=["capped", "whole MiB", "no cap", "cold"],
)
def test_the_limits_say_jobs_cap_and_whether_the_compile_cache_counts(
    plan: Plan, scripts: Path, tmp_path: Path, jobs: int, memory_bytes: int | None, cold: bool, expected: str
) -> None:
    options = {**GATE, "cold": cold}
    staged = stage(
        plan, tmp_path / "build", root=scripts.parent, jobs=Jobs(jobs, 12), memory_bytes=memory_bytes, **options
    )
    secrets = dict(staged.secrets)
    assert secrets["limits"].read_text() == expected
    assert secrets["profile"].read_text() == "412 31.2 mmq.cu.o\n"


def test_the_compile_caches_settings_come_through_the_shell_that_reads_the_limits(
    plan: Plan, scripts: Path, tmp_path: Path
) -> None:
    settings = {"CCACHE_REMOTE_STORAGE": "file:/a|read-only file:/b"}
    whole = {**GATE, "compile_cache": settings}
    staged = stage(plan, tmp_path / "build", root=scripts.parent, jobs=Jobs(3, 12), memory_bytes=None, **whole)
    shell = ["bash", "-c", 'set -a; . "$1"; printenv CCACHE_REMOTE_STORAGE', "-", str(dict(staged.secrets)["limits"])]
    assert subprocess.check_output(shell, text=True) == "file:/a|read-only file:/b\n"


def test_a_rebuild_gives_the_steps_a_file_as_no_run_had_it(plan: Plan, scripts: Path, tmp_path: Path) -> None:
    def staged(name: str, rebuild: str) -> Path:
        options = {**GATE, "rebuild": rebuild}
        place = tmp_path / name
        return stage(plan, place, root=scripts.parent, jobs=Jobs(3, 12), memory_bytes=None, **options).scripts

    assert not (staged("usual", "") / "rebuild").exists()
    assert (staged("again", "this attempt") / "rebuild").read_text() == "this attempt"


def test_inputs_are_the_stores_own_files(plan: Plan, store: Store, tmp_path: Path) -> None:
    folder = stage_inputs(plan, tmp_path / "inputs", store)
    for entry in plan.inputs:
        assert (folder / entry.path).samefile(store.path(entry.content.digest))
        assert mode(folder / entry.path) == 0o444
    staged = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert staged == {*CONTENTS, "SHA256SUMS"}


def test_sha256sum_accepts_the_staged_inputs_and_no_others(plan: Plan, store: Store, tmp_path: Path) -> None:
    folder = stage_inputs(plan, tmp_path / "inputs", store)
    assert check_sums(folder).stdout.splitlines() == [f"{path}: OK" for path in CONTENTS]

    (folder / "trees/hello.tar").unlink()
    (folder / "trees/hello.tar").write_bytes(b"another tree")
    assert "trees/hello.tar: FAILED" in check_sums(folder).stdout


def replay_script(plan: Plan, store: Store, cache: Cache, script: Path, command: str, env: dict[str, str]) -> Path:
    """A replay of a build that is over, its work folder removed; the shell command sees `inputs` as $1, `raw` as $2."""
    with work_folder(cache, "hello") as work:
        inputs, raw = stage_inputs(plan, work / "inputs", store), work / "raw"
        engine = ("sh", "-euc", command, "engine", str(inputs), str(raw))
        write_replay(script, plan, engine, inputs=inputs, raw=raw, store=store, env=env)
    assert not work.exists()
    return inputs


def test_a_replay_runs_after_everything_but_the_store_is_gone(
    plan: Plan, store: Store, cache: Cache, tmp_path: Path
) -> None:
    said = 'it\'s "so" $HOME `date`'
    command = 'cd "$1"; sha256sum -c --strict SHA256SUMS; echo "$SAID"; mkdir "$2"'
    script = tmp_path / "replay.sh"
    inputs = replay_script(plan, store, cache, script, command, {"SAID": said})

    for _ in range(2):  # it can be run again: what it left is in nobody's way
        done = subprocess.run([script], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*(f"{path}: OK" for path in CONTENTS), said]
        assert (inputs.parent / "raw").is_dir()


def test_a_replay_ends_with_the_status_of_the_engine(plan: Plan, store: Store, cache: Cache, tmp_path: Path) -> None:
    script = tmp_path / "replay.sh"
    replay_script(plan, store, cache, script, "exit 7", {})
    assert subprocess.run([script]).returncode == 7


def test_a_replay_does_not_run_the_engine_without_its_inputs(
    plan: Plan, store: Store, cache: Cache, tmp_path: Path
) -> None:
    script, ran = tmp_path / "replay.sh", tmp_path / "ran"
    replay_script(plan, store, cache, script, f"touch '{ran}'", {})
    store.path(plan.inputs[0].content.digest).unlink()
    assert subprocess.run([script], capture_output=True).returncode != 0
    assert not ran.exists()

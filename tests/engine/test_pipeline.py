"""The whole way of a small image on each engine that answers, through the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pipeline import Pipeline, make_pipeline, output_of, rests_under_300_mib

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.oci import read_layout


@pytest.fixture
def pipeline(tmp_path: Path, engine: Engine, engine_caches: dict[str, Cache]) -> Pipeline:
    return make_pipeline(tmp_path, engine_caches[engine.name].root)


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, engine: Engine, engine_caches: dict[str, Cache]
) -> Iterator[Pipeline]:
    """One that is built, for what only reads it. Its step says what the compile cache held."""
    made = make_pipeline(tmp_path_factory.mktemp("built"), engine_caches[engine.name].root)
    made.misbehave("echo cache holds $(ls /spark/cache) of earlier\n")
    done = build(made, engine)
    assert done.returncode == 0, done.stderr
    yield made
    cleaned = made("clean", "--engine", engine.name)
    assert cleaned.returncode == 0, cleaned.stderr


def build(pipeline: Pipeline, engine: Engine, *options: str) -> subprocess.CompletedProcess[str]:
    return pipeline("build", "hello", "--engine", engine.name, "--memory", "512MiB", *options)


def newest_log(pipeline: Pipeline) -> str:
    logs = sorted((pipeline.cache / "records").glob("*-hello-*/log.txt"))
    return logs[-1].read_text() if logs else ""


def plan_id(pipeline: Pipeline) -> str:
    planned = pipeline("plan", "hello")
    assert planned.returncode == 0, planned.stderr
    return str(json.loads(planned.stdout)["plan_id"])


def test_a_build_ends_in_a_verified_layout_that_the_engine_holds_and_runs(built: Pipeline, engine: Engine) -> None:
    identity = plan_id(built)
    layout = read_layout(built.cache / "images" / identity)
    reference = f"localhost/spark-images/hello:{identity[:12]}"
    assert engine.image_id(reference) == layout.config_digest
    assert output_of(engine, reference) == 'hello world, version 1.0, a "quoted" $HOME\n'


def test_the_second_build_says_that_it_is_built_already(built: Pipeline, engine: Engine) -> None:
    again = build(built, engine)
    assert again.returncode == 0, again.stderr
    assert "is built already: nothing that its plan names has changed" in again.stderr


def test_a_cold_build_gives_the_same_digest(built: Pipeline, engine: Engine) -> None:
    again = build(built, engine, "--cold")
    assert again.returncode == 0, again.stderr
    assert "same digest as before" in again.stderr


def test_a_rebuild_runs_the_step_again_with_what_the_compile_cache_holds(built: Pipeline, engine: Engine) -> None:
    again = build(built, engine, "--rebuild")
    assert again.returncode == 0, again.stderr
    assert "same digest as before" in again.stderr
    assert re.search("cache holds .*last-version.* of earlier", newest_log(built))


def test_explain_names_the_pin_that_moved(built: Pipeline, pipeline: Pipeline) -> None:
    """The project of `pipeline` has another commit of the source than the one that was built."""
    explained = pipeline("build", "hello", "--explain")
    assert explained.returncode == 0
    assert "pin `hello`" in explained.stdout


def test_a_compiler_error_is_named_by_its_first_line(pipeline: Pipeline, engine: Engine) -> None:
    pipeline.misbehave("echo 'this is no C' >hello.c\n")
    failed = build(pipeline, engine)
    assert failed.returncode == 40, failed.stderr
    assert "hello.c:1: error" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_a_step_over_the_cap_is_named_as_out_of_memory(pipeline: Pipeline, engine: Engine) -> None:
    pipeline.misbehave("head -c 2000000000 /dev/zero | tail\n")
    failed = build(pipeline, engine)
    assert failed.returncode == 41, failed.stderr
    assert "out of memory" in failed.stderr
    assert "--memory" in failed.stderr


def test_a_step_that_wants_the_network_fails(pipeline: Pipeline, engine: Engine) -> None:
    pipeline.misbehave("echo >/dev/tcp/192.0.2.1/80\n")
    failed = build(pipeline, engine)
    assert failed.returncode == 40, failed.stderr
    assert "Network is unreachable" in failed.stderr


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_a_build_that_was_stopped_leaves_nothing_and_passes_when_run_again(
    pipeline: Pipeline, engine: Engine, ending: signal.Signals
) -> None:
    pipeline.misbehave(rests_under_300_mib(f"resting until {ending.name}"))
    running = pipeline.start("build", "hello", "--engine", engine.name, "--memory", "300MiB")
    assert running.stdout is not None
    deadline = time.monotonic() + 120
    while f"resting until {ending.name}" not in newest_log(pipeline):
        assert running.poll() is None, running.stdout.read()
        assert time.monotonic() < deadline, newest_log(pipeline)
        time.sleep(0.1)
    os.kill(running.pid, ending)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == (130 if ending == signal.SIGINT else -signal.SIGKILL), said
    again = build(pipeline, engine)
    assert again.returncode == 0, again.stderr
    assert not [path for path in (pipeline.cache / "work").iterdir() if path.is_dir()]


def test_a_changed_source_is_an_error_and_not_built(pipeline: Pipeline, engine: Engine) -> None:
    pins = pipeline.project / "pins.yaml"
    text = pins.read_text()
    tree = text.partition('tree: "sha256:')[2][:64]
    pins.write_text(text.replace(tree, "0" * 64))
    assert pipeline("render").returncode == 0
    failed = build(pipeline, engine)
    assert failed.returncode == 21, failed.stderr
    assert tree in failed.stderr
    assert "0" * 64 in failed.stderr


def test_an_edited_dockerfile_is_drift(pipeline: Pipeline, engine: Engine) -> None:
    path = pipeline.project / "images" / "hello" / "here-debian.Dockerfile"
    path.write_text(path.read_text().replace("USER 10001:10001", "USER 0:0"))
    failed = build(pipeline, engine)
    assert failed.returncode == 13, failed.stderr


def test_image_tests_run_in_the_container(built: Pipeline, engine: Engine) -> None:
    before = results_kept(built)
    tested = built("test", "hello", "--engine", engine.name)
    assert tested.returncode == 0, tested.stdout + tested.stderr
    assert "2 passed" in tested.stdout + tested.stderr
    (kept,) = results_kept(built) - before
    assert kept.with_suffix(".xml").read_text().count("<testcase ") == 2
    assert [path.read_text().splitlines()[0] for path in kept.with_suffix(".logs").iterdir()] == ["+ sleep 3600"]


def results_kept(pipeline: Pipeline) -> set[Path]:
    """Results of image tests, of all records of the engine's cache, which other tests use as well."""
    return set((pipeline.cache / "records").glob("*/tests*.json"))


def test_all_gates_run_and_say_what_they_allow(built: Pipeline, engine: Engine) -> None:
    verified = built("verify", "hello", "--engine", engine.name)
    assert verified.returncode == 0, verified.stderr
    gates = {line.split()[0]: line.split()[1] for line in verified.stderr.splitlines() if line.startswith("  ")}
    assert {name: gates[name] for name in ("audit", "test", "smoke")} == {
        "audit": "green:",
        "test": "green:",
        "smoke": "skipped:",
    }
    assert "`promote-hello` may move the target's tags, but not `latest`" in verified.stderr


def test_a_red_gate_does_not_keep_the_others_from_running(built: Pipeline, engine: Engine, tmp_path: Path) -> None:
    copy = replace(built, project=shutil.copytree(built.project, tmp_path / "copy"))
    tests = copy.project / "images/hello/tests/test_hello.py"
    tests.write_text(tests.read_text() + "\n\ndef test_this_is_red() -> None:\n    assert not __name__\n")
    verified = copy("verify", "hello", "--engine", engine.name)
    assert verified.returncode == 60
    assert "error: `hello` did not pass test" in verified.stderr
    assert "  smoke  skipped: " in verified.stderr

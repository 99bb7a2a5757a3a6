"""Searches with real builds: a package index on loopback, a small image, and the first engine that answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from file_server import FileServer
from pipeline import Pipeline, git, make_pipeline
from toy_upstream import ToyUpstream

from spark_images.cache import Cache
from spark_images.engine import choose_engine
from spark_images.errors import EngineError

BUILD = ("--memory", "512MiB")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def engine(cache: Path, buildkit_image: str) -> Iterator[str]:
    """The first engine that answers."""
    try:
        chosen = choose_engine(None, cache=Cache(cache), buildkit_image=buildkit_image, env=os.environ)
        chosen.facts()
    except EngineError as err:
        pytest.skip(f"no engine answers: {err.what}")
    yield chosen.name
    for layout in (cache / "images").iterdir():
        reference = f"localhost/spark-images/hello:{layout.name[:12]}"
        if chosen.image_id(reference) is not None:
            chosen.client().images.remove(reference, force=True)
    chosen.drop_caches()


@pytest.fixture
def toy(tmp_path: Path, cache: Path, engine: str) -> Iterator[tuple[Pipeline, ToyUpstream]]:
    """The small project, its source an sdist of an index that can change."""
    with FileServer() as server:
        upstream = ToyUpstream(server, broken=("1.6", "1.7"), missing=("1.5",))
        pipeline = make_pipeline(tmp_path, cache)
        env = {**pipeline.env, "PIP_INDEX_URL": upstream.url, "PIP_CONFIG_FILE": "/dev/null"}
        pipeline = replace(pipeline, env=env)
        upstream.pin(pipeline, "1.0", tmp_path)
        assert pipeline("render").returncode == 0
        yield pipeline, upstream
        assert pipeline("clean", "--engine", engine).returncode == 0


def search(pipeline: Pipeline, engine: str, *words: str) -> subprocess.CompletedProcess[str]:
    return pipeline("bisect", "hello", "--engine", engine, *BUILD, *words, timeout_s=500)


def report(ended: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert ended.returncode == 0, ended.stderr
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


# What the built program says is in the image: the word that it was compiled with.
SAYS_HELLO = (
    'test "$SPARK_IMAGE" && for blob in "$SPARK_LAYOUT"/blobs/sha256/*; do '
    "zstd -dcq <$blob 2>/dev/null || cat $blob; done | grep -aq 'hello %s, version'"
)
SEARCH = ("--good", "hello=greeter==1.4", "--bad", "hello=greeter==1.10", "--check", SAYS_HELLO)


def test_the_release_that_broke_it_is_found_beside_releases_that_do_not_build(
    toy: tuple[Pipeline, ToyUpstream], engine: str
) -> None:
    pipeline, _ = toy
    running = pipeline.start("bisect", "hello", "--engine", engine, *BUILD, *SEARCH)
    answers = pipeline.cache / "records"
    deadline = time.monotonic() + 300
    while not any(path.stat().st_size for path in answers.glob("bisect-hello-*/answers.jsonl")):
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(running.pid, signal.SIGKILL)  # while the next one is built
    running.communicate(timeout=60)
    found = report(search(pipeline, engine, *SEARCH, "--json"))
    assert (found["before"]["label"], found["after"]["label"]) == ("hello 1.8", "hello 1.9")
    verdicts = {one["label"]: one["verdict"] for one in found["tried"]}
    assert verdicts["hello 1.4"] == "good"
    skipped = {one["label"]: one["cause"] for one in found["tried"] if one["verdict"] == "skip"}
    assert set(skipped) <= {"hello 1.6", "hello 1.7"}
    assert set(skipped.values()) <= {"build failed"}
    assert skipped, "the middle of the line does not build, so it has been tried"
    assert (pipeline.project / "pins.yaml").read_text().count("greeter==1.0") == 1, "the clone is as it was"


def test_where_building_is_the_check_a_release_that_does_not_build_is_bad(
    toy: tuple[Pipeline, ToyUpstream], engine: str
) -> None:
    pipeline, _ = toy
    words = ("--good", "hello=greeter==1.4", "--bad", "hello=greeter==1.6", "--check", "build", "--json")
    found = report(search(pipeline, engine, *words))
    assert found["after"]["label"] == "hello 1.6"
    assert "does not compile in stage `compile`" in found["tried"][1]["reason"]


def test_of_two_revisions_the_pair_of_pins_is_named(
    toy: tuple[Pipeline, ToyUpstream], engine: str, tmp_path: Path
) -> None:
    pipeline, upstream = toy
    project = pipeline.project
    image = project / "images/hello/image.yaml"
    image.write_text(image.read_text().replace("source: hello,", "source: hello, sources: [extra],"))
    revisions = []
    for hello, extra in (("1.0", "1.0"), ("1.3", "1.0"), ("1.3", "1.1")):
        upstream.pin(pipeline, hello, tmp_path)
        upstream.pin_extra(pipeline, extra)
        assert pipeline("render").returncode == 0
        git("init", "-q", cwd=project)
        git("add", "pins.yaml", "images", "templates", "scripts", cwd=project)
        git("commit", "-q", "-m", f"hello {hello}, extra {extra}", cwd=project)
        revisions.append(git("rev-parse", "HEAD", cwd=project))
    both = (
        'cd "$SPARK_PROJECT"; ! { grep -q "^hello:.*greeter==1.[34]" pins.yaml '
        "&& grep -q \"^extra:.*version: '1.1'\" pins.yaml; }"
    )
    words = ("--good", revisions[0], "--bad", revisions[-1], "--check", both, "--json")
    found = report(search(pipeline, engine, *words))
    assert found["after"]["label"] == revisions[2][:12]
    assert sorted(one["pin"] for one in found["set"]["failing"]) == ["extra", "hello"]
    assert sorted(found["set"]["needs_all"]) == ["extra", "hello"]
    reasons = [one["reason"] for one in found["tried"]]
    assert any(reason.startswith("the same image as") for reason in reasons), "a state that a revision had"
    ends = ("--good", revisions[0], "--bad", revisions[-1], "--check", both)
    pair = search(pipeline, engine, *ends, "--try", f"set:extra,hello@{revisions[2]}")
    assert pair.returncode == 1, pair.stderr
    again = search(pipeline, engine, "--check", both, "--try", revisions[1])
    assert again.returncode == 0, again.stderr


def test_a_newer_release_is_taken_when_its_image_is_built_and_tested_and_else_the_culprit_named(
    toy: tuple[Pipeline, ToyUpstream], engine: str, tmp_path: Path
) -> None:
    pipeline, upstream = toy
    upstream.pin(pipeline, "1.0", tmp_path)
    upstream.pin_extra(pipeline, "1.0")
    image = pipeline.project / "images/hello/image.yaml"
    image.write_text(image.read_text().replace("source: hello,", "source: hello, sources: [extra],"))
    test = pipeline.project / "images/hello/tests/test_hello.py"
    test.write_text(
        "from pathlib import Path\n\n\ndef test_extra_is_older_than_1_4():\n"
        "    pins = (Path(__file__).parents[3] / 'pins.yaml').read_text()\n"
        "    extra = next(line for line in pins.splitlines() if line.startswith('extra:'))\n"
        "    assert int(extra.partition('1.')[2].partition(\"'\")[0]) < 4, extra\n"
    )
    assert pipeline("render").returncode == 0
    update = ("update-pins", "extra", "--verify", "--apply", "--cool-down", "0", "--engine", engine, *BUILD)
    upstream.publish("1.0", "1.1")
    moved = pipeline(*update)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    pins = (pipeline.project / "pins.yaml").read_text()
    assert "name: greeter, version: '1.1'" in pins
    assert "verified: 20" in pins
    upstream.publish("1.1", "1.4", "1.5")
    failed = pipeline(*update)
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "first bad: extra 1.4" in failed.stdout + failed.stderr
    assert (pipeline.project / "pins.yaml").read_text() == pins

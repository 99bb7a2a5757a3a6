"""The way of an image through its smoke checks, with a stand-in for docker that runs what the container would run."""

from __future__ import annotations

import shutil
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_project import make_project

from spark_images.cache import Cache
from spark_images.errors import HostProgramError
from spark_images.exclusive import try_alone
from spark_images.record import Outcome, RecordView, Result, read_records
from spark_images.record_writer import RecordWriter
from spark_images.smoke import smoke_image
from spark_images.smoke_results import SmokeResults
from spark_images.verdict import Colour, Gate
from spark_images.verdicts import kept_verdicts

HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "scripts/smoke"
# Runs on this machine what `docker run` was to run in a container; programs of llama.cpp are those of FOLDER.
DOCKER = """#!{python}
import os, sys
words = sys.argv[1:]
if words[0] != "run":
    sys.exit(0)
at = words.index("--entrypoint")
open("{folder}/calls", "a").write(" ".join(words[:at]) + "\\n")
program = words[at + 1].replace("/opt/llama.cpp/bin", "{folder}")
scripts = next(word for word in words if word.endswith(":/spark/smoke:ro")).split(":")[0]
arguments = [word.replace("/spark/smoke", scripts) for word in words[at + 3 :]]
os.chdir(words[words.index("--workdir") + 1])
os.execvp(program, [program, *arguments])
"""


class World:
    """A project whose image is built, an engine, and a machine with a GPU."""

    def __init__(self, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.project, self.cache, self.folder = make_project(root / "project"), Cache(root / "cache"), folder
        (self.project.root / "scripts/smoke").symlink_to(SCRIPTS)
        self.image = self.project.image("hello")
        self.target, self.base = self.project.variant(self.image, None, None)
        self.plan = self.project.plan(self.image, self.target, self.base)
        engine, layout = SimpleNamespace(name="docker", env={}), SimpleNamespace(manifest_digest="sha256:1", config={})
        monkeypatch.setattr("spark_images.built.built_layout", lambda *_: layout)
        monkeypatch.setattr("spark_images.built.load_into", lambda *_, **__: "localhost/hello:1")
        monkeypatch.setattr("spark_images.engine.choose_engine", lambda *_, **__: engine)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(folder / "driver"))
        with RecordWriter.start(
            self.cache.records,
            plan_id=self.plan.plan_id,
            image="hello",
            target=self.target.name,
            base=self.base,
            plan={},
            command=[],
            engine=None,
            host={},
            now=datetime.now(UTC),
        ) as record:
            record.finish(Result(outcome=Outcome.BUILT, seconds=1))

    def smoke(self, *checks: str) -> SmokeResults:
        image = replace(self.image, smoke=checks)
        return smoke_image(self.project, image, self.target, self.base, cache=self.cache, engine=None)

    @property
    def record(self) -> RecordView:
        (record,) = read_records(self.cache.records)
        return record

    @property
    def verdict(self) -> tuple[Gate, Colour, str]:
        (kept,) = kept_verdicts(self.cache, self.plan.plan_id)
        return kept.gate, kept.colour, kept.evidence


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """docker, llama-server, llama-bench and the driver's library, all stand-ins."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("bin")
    stand_in = f"#!{sys.executable}\n{(HERE / 'llama_stand_in.py').read_text()}"
    docker = DOCKER.format(python=sys.executable, folder=folder)
    for name, text in (("docker", docker), ("llama-server", stand_in), ("llama-bench", stand_in)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755 | stat.S_IXUSR)
    (folder / "driver").mkdir()
    source, made = HERE / "stub_driver.c", folder / "driver/libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return folder


@pytest.fixture
def world(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (folder / "calls").unlink(missing_ok=True)
    return World(tmp_path, folder, monkeypatch)


def test_a_red_check_is_kept_with_its_log_and_the_verdict_is_red(world: World) -> None:
    results = world.smoke("llamacpp")  # the stand-in does not say what the tiny model must
    assert results.colour is Colour.RED
    assert "the model must say" in results.sentence
    (kept,) = world.record.appended("smoke")
    assert (kept["verdict"], kept["digest"]) == ("red", "sha256:1")
    assert (world.record.folder / "smoke.xml").exists()
    assert "stage: llama-server on the CPU: start" in (world.record.folder / "smoke-llamacpp.log").read_text()
    assert world.verdict[:2] == (Gate.SMOKE, Colour.RED)


def test_checks_run_in_containers_with_the_gpu_and_without_a_network(world: World) -> None:
    world.smoke("cuda_kernel", "llamacpp")
    calls = (world.folder / "calls").read_text().splitlines()
    assert len(calls) == 2
    assert all("--gpus all --network none --read-only" in call for call in calls)


def test_package_that_the_image_lacks_is_red_because_image_yaml_promises_the_check(world: World) -> None:
    results = world.smoke("marlin")
    assert (results.colour, results.sentence) == (Colour.RED, "marlin: no Python package `torch` here")


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [("STUB_INIT", "100", "finds no GPU"), ("STUB_MAJOR", "9", "compute capability 9.1, the target 12.1a")],
    ids=["none", "other"],
)
def test_without_the_targets_gpu_nothing_runs_and_the_verdict_is_skipped(
    world: World, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, sentence: str
) -> None:
    monkeypatch.setenv(variable, value)
    results = world.smoke("llamacpp")
    assert (results.colour, sentence in results.sentence) == (Colour.SKIPPED, True)
    assert not (world.folder / "calls").exists()
    assert world.verdict[:2] == (Gate.SMOKE, Colour.SKIPPED)
    assert sentence in world.verdict[2]


def test_podman_without_a_description_of_the_gpu_says_how_to_make_one(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = SimpleNamespace(name="podman", env={})
    monkeypatch.setattr("spark_images.engine.choose_engine", lambda *_, **__: engine)
    monkeypatch.setattr("spark_images.smoke.gpu_in_containers", lambda engine: "no CDI file")
    with pytest.raises(HostProgramError) as caught:
        world.smoke("llamacpp")
    assert "nvidia-ctk cdi generate" in caught.value.hint


def test_whoever_comes_second_waits_for_the_gpu(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    said = ""
    with ThreadPoolExecutor(1) as pool:
        with try_alone(world.cache.gpu_lock) as held:  # as another process would
            assert held
            waiting = pool.submit(world.smoke)
            give_up = time.monotonic() + 60
            while "another process has the GPU" not in said and time.monotonic() < give_up:
                time.sleep(0.05)
                said += capfd.readouterr().err
            assert "another process has the GPU; waiting for it" in said
            assert not waiting.done()
        assert waiting.result(timeout=60).colour is Colour.SKIPPED

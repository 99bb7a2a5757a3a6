"""Both engines for real: what a build may do, what it gives, and what is left of it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import docker.errors
import pytest
import tiny
from processes import command_of, guards_below

from spark_images.cache import Cache
from spark_images.engine import choose_engine, daemon
from spark_images.engine.attempt import build_env, owner_of
from spark_images.engine.base import OWNER, BuildRequest, Engine, RootImage
from spark_images.engine.containers import EngineClient, running
from spark_images.engine.freezer import NOTE, Container, Freezer, below, end_left
from spark_images.engine.smallest import smallest_program
from spark_images.errors import CanonicalError, DiskFullError, EngineError, EngineTooOldError, UsageError
from spark_images.oci import read_layout

MIB = 1 << 20
SOURCE = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}  # for programs of ours that tests start
MOUNTS = (
    "--mount=type=bind,source=.,target=/spark/scripts --mount=type=bind,from=inputs,source=.,target=/spark/inputs "
    "--mount=type=cache,id=spark-images-test,target=/spark/cache --mount=type=secret,id=limits"
)


@dataclass
class Bench:
    """Builds with one engine: change `request`, call it with the first stage's RUN words."""

    engine: Engine
    request: BuildRequest
    lines: list[str] = field(default_factory=list)

    def __call__(self, *words: str, memory_mib: int | None = 256, mounts: str = MOUNTS) -> int:
        """Build `RUN /probe WORDS write /made`; the status. The output is in `lines`."""
        run = json.dumps(["/probe", *words, "write", "/made"])
        self.request.dockerfile.write_text(
            f"FROM build-root AS compile\nRUN {mounts} {run}\n"
            "FROM runtime-root\nCOPY --from=compile /made /made\nUSER 10001:10001\n"
        )
        self.lines = []
        self.request = replace(self.request, memory_bytes=None if memory_mib is None else memory_mib * MIB)
        return self.engine.build(self.request, self.lines.append).status

    @property
    def said(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return tiny.compile_probe(tmp_path_factory.mktemp("probe"))


@pytest.fixture
def bench(engine: Engine, tmp_path: Path, probe: bytes) -> Bench:
    folders = {name: tmp_path / name for name in ("scripts", "inputs")}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "here.txt").write_text(f"this is {name}\n")
    limits = tmp_path / "limits"
    limits.write_text("JOBS=2\n")
    request = BuildRequest(
        dockerfile=tmp_path / "Dockerfile",
        context=folders["scripts"],
        contexts=(("inputs", folders["inputs"]),),
        roots=(
            # what differs from test to test must not be cached from the test before
            tiny.write_root(tmp_path, "build-root", {"probe": probe, "name": str(tmp_path).encode()}),
            tiny.write_root(tmp_path, "runtime-root", {"probe": probe}, tiny.FOREIGN),
        ),
        secrets=(("limits", limits),),
        memory_bytes=None,
        use_cache=True,
        output=tmp_path / "raw",
        attempt="test",
    )
    return Bench(engine, request)


# --- what a step sees -------------------------------------------------------------------------------------------------


def test_a_root_can_be_mounted_as_it_is(bench: Bench, tmp_path: Path) -> None:
    toolkit = tiny.write_root(tmp_path, "toolkit", {"usr/local/cuda-12.8/version": b"twelve eight\n"})
    bench.request = replace(bench.request, roots=(*bench.request.roots, toolkit))
    mounted = f"{MOUNTS} --mount=type=bind,from=toolkit,source=/,target=/spark/toolkit"
    assert bench("cat", "/spark/toolkit/usr/local/cuda-12.8/version", mounts=mounted) == 0, bench.said
    assert "twelve eight" in bench.said


def test_a_step_has_no_network_but_the_loopback(bench: Bench) -> None:
    assert bench("net") == 0, bench.said
    rows = [line.partition("/proc/net/dev: ")[2] for line in bench.lines if "/proc/net/dev: " in line]
    assert [row.partition(":")[0].strip() for row in rows if ":" in row] == ["lo"]


def test_a_step_sees_scripts_inputs_and_limits(bench: Bench) -> None:
    assert bench("cat", "/spark/scripts/here.txt", "cat", "/spark/inputs/here.txt", "cat", "/run/secrets/limits") == 0
    for words in ("this is scripts", "this is inputs", "JOBS=2"):
        assert words in bench.said


def test_the_cap_is_visible_inside_a_step(bench: Bench) -> None:
    assert bench("limit", memory_mib=256) == 0, bench.said
    assert str(256 * MIB) in bench.said


def test_a_step_over_the_cap_is_killed(bench: Bench) -> None:
    assert bench("allocate", "700", memory_mib=256) != 0
    assert "allocated" not in bench.said


def test_the_same_step_without_a_cap_is_not_killed(bench: Bench) -> None:
    assert bench("allocate", "700", memory_mib=None) == 0, bench.said
    assert "allocated 700" in bench.said


def test_variables_that_change_builds_do_not_reach_the_engine() -> None:
    env = build_env(
        {"DOCKER_DEFAULT_PLATFORM": "linux/s390x", "BUILDAH_ISOLATION": "chroot", "HOME": "/h"}, TMPDIR="/t"
    )
    assert env == {"HOME": "/h", "TMPDIR": "/t"}


# --- caches -----------------------------------------------------------------------------------------------------------


def test_other_limits_do_not_run_a_step_again(bench: Bench) -> None:
    words, shown = ("cat", "/spark/scripts/here.txt"), "/spark/scripts/here.txt: this is scripts"
    assert bench(*words) == 0
    assert shown in bench.said
    bench.request.secrets[0][1].write_text("JOBS=1\n")
    assert bench(*words) == 0
    assert shown not in bench.said


@pytest.mark.parametrize("where", ["scripts", "inputs"])
def test_a_changed_script_or_input_runs_its_step_again(bench: Bench, tmp_path: Path, where: str) -> None:
    words = ("cat", f"/spark/{where}/here.txt")
    assert bench(*words) == 0
    (tmp_path / where / "here.txt").write_text("another one\n")
    assert bench(*words) == 0
    assert ": another one" in bench.said


def test_the_compile_cache_survives_other_caps_and_clean(bench: Bench) -> None:
    script, counter = bench.request.context / "here.txt", f"/spark/cache/{os.getpid()}-{time.monotonic_ns()}"
    for number, memory_mib in enumerate((256, 300, 300), start=1):
        script.write_text(f"script {number}")  # so that the step runs
        assert bench("count", counter, memory_mib=memory_mib) == 0, bench.said
        assert f"count is {number}" in bench.said
        if number == 2:
            bench.engine.clean()


def test_without_the_cache_a_finished_step_runs_again(bench: Bench) -> None:
    words, shown = ("cat", "/spark/scripts/here.txt"), "/spark/scripts/here.txt: this is scripts"
    assert bench(*words) == 0
    bench.request = replace(bench.request, use_cache=False)
    assert bench(*words) == 0
    assert shown in bench.said


def test_a_long_log_is_not_cut(bench: Bench) -> None:
    assert bench("lines", "40000") == 0  # 3.8 MB; BuildKit by itself stops at 2 MiB
    # BuildKit breaks a line that has come in two pieces.
    assert "".join(re.sub(r"^#\d+ [\d.]+ ", "", line) for line in bench.lines).count(" of a long log ") == 40000


# --- what comes out ---------------------------------------------------------------------------------------------------


def test_the_export_is_a_layout_with_the_foreign_root_and_what_the_step_made(bench: Bench) -> None:
    assert bench("say", "hello") == 0, bench.said
    exported = read_layout(bench.request.output)
    assert [layer.media_type for layer in exported.layers] == ["application/vnd.oci.image.layer.v1.tar"] * 2
    with tarfile.open(exported.blob(exported.layers[1].digest)) as layer:
        made = layer.extractfile("made")
        assert made is not None
        assert made.read() == b"made in a step\n"
    root = bench.request.roots[1]
    assert exported.layers[0].diff_id == read_layout(root.layout).layers[0].diff_id


def test_a_failing_step_is_an_outcome_with_its_command(bench: Bench) -> None:
    bench.request.dockerfile.write_text('FROM build-root\nRUN ["/probe", "say", "now", "fail", "7"]\n')
    outcome = bench.engine.build(bench.request, bench.lines.append)
    assert outcome.status != 0
    assert "now" in bench.said
    assert outcome.command[0] == bench.engine.name
    assert not (bench.request.output / "index.json").exists()


def test_the_command_of_a_build_with_its_environment_runs_it_again(bench: Bench) -> None:
    assert bench("say", "hello") == 0
    outcome = bench.engine.build(bench.request, bench.lines.append)
    again = subprocess.run(
        outcome.command, env={**os.environ, **outcome.env}, capture_output=True, text=True, check=False
    )
    assert again.returncode == 0, again.stderr
    assert "cache" in (again.stdout + again.stderr).lower()  # it found the finished step


def test_a_missing_context_is_named_before_anything_runs(bench: Bench) -> None:
    bench.request = replace(bench.request, contexts=(("inputs", Path("/nonexistent/inputs")),))
    with pytest.raises(EngineError) as caught:
        bench("say", "hello")
    assert caught.value.why == ("`inputs`: no folder `/nonexistent/inputs`",)
    assert bench.lines == []


def test_a_full_disk_in_a_step_is_named(bench: Bench) -> None:
    mounts = "--mount=type=tmpfs,target=/full"
    bench.request.dockerfile.write_text(
        f'FROM build-root\nRUN {mounts} ["/probe", "say", "write failed: No space left on device", "fail", "1"]\n'
    )
    with pytest.raises(DiskFullError) as caught:
        bench.engine.build(bench.request, bench.lines.append)
    assert "No space left on device" in caught.value.why[0]


def test_what_is_loaded_has_the_layouts_config_digest(bench: Bench, tmp_path: Path) -> None:
    root = tiny.write_root(tmp_path, "loaded", {"probe": b"x" * 100})
    reference = f"localhost/spark-images/test-load:{os.getpid()}"
    assert bench.engine.image_id(reference) is None
    bench.engine.load(root.layout, reference)
    try:
        assert bench.engine.image_id(reference) == read_layout(root.layout).config_digest
        tags = bench.engine.client().images.get(reference).tags
        assert tags == [reference]
    finally:
        bench.engine.client().images.remove(reference)


def test_a_damaged_layer_is_named_and_nothing_is_loaded(bench: Bench, tmp_path: Path) -> None:
    root = tiny.write_root(tmp_path, "damaged", {"probe": os.urandom(100_000)})
    layer = read_layout(root.layout).layers[0]
    blob = root.layout / "blobs" / "sha256" / layer.digest.removeprefix("sha256:")
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:50_000] + bytes(layer.size_bytes - 50_000))
    reference = f"localhost/spark-images/test-load:{os.getpid()}"
    with pytest.raises((CanonicalError, EngineError), match=r"is damaged|`podman pull` failed"):
        bench.engine.load(root.layout, reference)
    assert bench.engine.image_id(reference) is None


def test_loading_again_moves_the_name_to_the_other_image(bench: Bench, tmp_path: Path) -> None:
    reference, client = f"localhost/spark-images/test-load:{os.getpid()}", bench.engine.client()
    ids = []
    try:
        for name in ("one", "two"):
            layout = tiny.write_root(tmp_path, name, {"file": name.encode()}).layout
            bench.engine.load(layout, reference)
            ids.append(read_layout(layout).config_digest)
        assert bench.engine.image_id(reference) == ids[1]
    finally:
        for identity in ids:
            client.images.remove(identity, force=True)


def test_image_id_takes_less_than_150_ms_of_a_core(engine: Engine) -> None:
    engine.image_id("localhost/spark-images/none:none")  # finds the engine
    times = []
    for _ in range(5):
        began = sum(os.times()[:4])
        engine.image_id("localhost/spark-images/none:none")
        times.append(sum(os.times()[:4]) - began)
    assert min(times) < 0.15


# --- stopped builds ---------------------------------------------------------------------------------------------------

BUILD = """
import pickle, signal, sys
from spark_images.cache import Cache
from spark_images.engine import choose_engine
import os, pathlib
signal.signal(signal.SIGTERM, signal.default_int_handler)
name, cache, image, request = sys.argv[1:]
engine = choose_engine(name, cache=Cache(pathlib.Path(cache)), buildkit_image=image, env=os.environ)
engine.build(pickle.loads(pathlib.Path(request).read_bytes()), lambda line: print(line, flush=True))
"""


@dataclass
class Sleeper:
    """A build in a process of its own whose step sleeps, known by a word on its command line."""

    pipeline: subprocess.Popen[str]
    token: str

    def step_runs(self) -> bool:
        for folder in Path("/proc").glob("[0-9]*"):
            words = command_of(int(folder.name))
            if words[0] == b"/probe" and self.token.encode() in words:
                return True
        return False

    def kill_with_guard(self) -> None:
        """kill -9 also of what would end the build after a kill -9 of the pipeline."""
        for pid in (self.pipeline.pid, *guards_below(self.pipeline.pid)):
            os.kill(pid, signal.SIGKILL)
        self.pipeline.wait()

    def step_ends(self, within_s: float = 15) -> bool:
        deadline = time.monotonic() + within_s
        while self.step_runs() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.step_runs()


@pytest.fixture
def sleeper(bench: Bench, engine_caches: dict[str, Cache], buildkit_image: str, tmp_path: Path) -> Iterator[Sleeper]:
    token = f"sleeper-{os.getpid()}-{time.monotonic_ns()}"
    bench.request.dockerfile.write_text(
        'FROM build-root\nRUN ["/probe", "write", "/first"]\n'
        f'RUN {MOUNTS} ["/probe", "say", "{token}", "sleep", "120"]\n'
    )
    pickled = tmp_path / "request"
    pickled.write_bytes(pickle.dumps(replace(bench.request, memory_bytes=256 * MIB)))
    name = bench.engine.name
    command = [sys.executable, "-c", BUILD, name, str(engine_caches[name].root), buildkit_image, str(pickled)]
    pipeline = subprocess.Popen(command, env=SOURCE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sleeper = Sleeper(pipeline, token)
    assert pipeline.stdout is not None
    for line in pipeline.stdout:
        if line.strip().endswith(token):  # as output of the step, not as part of the instruction
            break
    assert sleeper.step_runs()
    yield sleeper
    pipeline.kill()
    pipeline.wait()
    if sleeper.step_runs():
        bench.engine.clean()


def assert_nothing_left(bench: Bench, caches: dict[str, Cache]) -> None:
    """No image of finished steps (podman would keep one that a container uses), no bundle of a step, no builder."""
    owner = owner_of(caches[bench.engine.name])
    if bench.engine.name == "podman":
        label = ["--filter", f"label={OWNER}={owner}"]
        assert subprocess.check_output(["podman", "images", "--all", "--quiet", *label], text=True) == ""
        tmp = caches["podman"].engines / "podman" / "tmp"
        assert [path.name for path in tmp.iterdir() if not path.name.startswith("buildah-cache")] == []
    else:
        names = subprocess.check_output(["docker", "ps", "--all", "--format", "{{.Names}}"], text=True)
        assert owner not in names
        assert owner not in subprocess.check_output(["docker", "buildx", "ls"], text=True)


def test_clean_ends_all_that_a_killed_pipeline_left(
    bench: Bench, sleeper: Sleeper, engine_caches: dict[str, Cache]
) -> None:
    sleeper.kill_with_guard()
    time.sleep(0.5)
    assert sleeper.step_runs()  # which is why there is something to clean
    assert bench.engine.clean() != ()
    assert sleeper.step_ends()
    assert_nothing_left(bench, engine_caches)
    assert bench.engine.clean() == ()


def test_a_step_ends_when_the_pipeline_is_killed_and_the_next_build_says_what_it_removed(
    bench: Bench, sleeper: Sleeper, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeper.pipeline.kill()
    sleeper.pipeline.wait()
    assert sleeper.step_ends(within_s=5)
    assert bench("say", "again") == 0, bench.said
    left = {"podman": "build step buildah-", "docker": "builder spark-images-"}[bench.engine.name]
    assert f"removed what a killed build left: {left}" in bench.said
    assert f"removed what a killed build left: {left}" in capsys.readouterr().err
    assert bench("say", "again") == 0
    assert "killed build" not in bench.said


def test_a_build_after_a_kill_ends_what_was_left_first(bench: Bench, sleeper: Sleeper) -> None:
    sleeper.kill_with_guard()
    assert sleeper.step_runs()
    assert bench("say", "again") == 0, bench.said
    assert sleeper.step_ends(within_s=1)


def test_a_step_whose_engine_command_was_killed_does_not_run_on(bench: Bench, sleeper: Sleeper) -> None:
    (guarding,) = guards_below(sleeper.pipeline.pid)
    engine_command = next(pid for pid in below(guarding))
    os.kill(engine_command, signal.SIGKILL)
    assert sleeper.pipeline.wait(timeout=20) == 0  # the program of this test prints the status, whatever it is
    assert sleeper.step_ends(within_s=5)


def test_ctrl_c_ends_the_step(sleeper: Sleeper) -> None:
    sleeper.pipeline.send_signal(signal.SIGINT)
    assert sleeper.pipeline.wait(timeout=30) != 0
    assert sleeper.step_ends()


def test_a_second_build_waits_for_the_first_which_clean_leaves_alone(bench: Bench, sleeper: Sleeper) -> None:
    assert any("a build runs" in line for line in bench.engine.clean())
    assert sleeper.step_runs()
    threading.Timer(1, sleeper.pipeline.terminate).start()
    assert bench("say", "second") == 0, bench.said
    assert bench.lines[0] == "waiting for another build on this engine to end"
    assert sleeper.step_ends(within_s=1)


def test_clean_ends_what_a_killed_build_left_frozen(engine: Engine, engine_caches: dict[str, Cache]) -> None:
    note = engine_caches[engine.name].engines / engine.name / NOTE
    note.parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(["sleep", "60"]) as frozen:
        started = Path(f"/proc/{frozen.pid}/stat").read_text().split()[21]
        frozen.send_signal(signal.SIGSTOP)
        note.write_text(f"process\t{frozen.pid}\t{started}\n")
        assert any(line.startswith(f"frozen process {frozen.pid}") for line in engine.clean())
        assert frozen.wait(5) == -signal.SIGKILL
    assert engine.clean() == ()


def test_a_builder_whose_cgroups_are_out_of_reach_is_paused_and_builds_again_after_its_end(
    bench: Bench, engine_caches: dict[str, Cache], tmp_path: Path
) -> None:
    if bench.engine.name != "docker":
        return
    assert bench("say", "hello") == 0, bench.said
    name = f"buildx_buildkit_spark-images-{owner_of(engine_caches['docker'])}0"

    def status() -> str:
        return str(bench.engine.client().containers.get(name).status)

    builder, nobody = Container(name, daemon.docker_socket(os.environ)), 1 << 30
    freezer = Freezer(tmp_path / "note", nobody, builder=builder)
    freezer.hold()
    assert status() == "paused"
    freezer.thaw()
    assert status() == "running"
    freezer.hold()
    assert end_left(tmp_path / "note") == (f"frozen container {name}",)
    assert status() == "exited"
    assert bench("say", "again") == 0, bench.said


def test_clean_with_nothing_there_removes_nothing(engine: Engine) -> None:
    engine.clean()
    assert engine.clean() == ()


# --- containers -------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(bench: Bench, tmp_path: Path) -> Iterator[Callable[[RootImage], str]]:
    """Loads a root under a name of this test; gone afterwards."""
    reference = f"localhost/spark-images/test-run:{os.getpid()}"

    def load(root: RootImage) -> str:
        bench.engine.load(root.layout, reference)
        return reference

    yield load
    bench.engine.client().images.remove(reference, force=True)


def test_running_gives_a_container_with_mounts_variables_and_our_labels(
    bench: Bench, loaded: Callable[[RootImage], str], engine_caches: dict[str, Cache], tmp_path: Path
) -> None:
    client, reference = bench.engine.client(), loaded(bench.request.roots[0])
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "file").write_text("from the host\n")
    with running(
        client,
        reference,
        entrypoint=["/probe"],
        command=["cat", "/shared/file", "sleep", "60"],
        mounts={shared: "/shared"},
        env={"A": "b"},
        network="none",
    ) as container:
        assert container.labels[OWNER] == owner_of(engine_caches[bench.engine.name])
        status, said = container.exec_run(["/probe", "net", "env", "A"])
        assert (status, b" lo:" in said, b"eth0" in said, b"A=b" in said) == (0, True, False, True)
        assert b"from the host" in container.logs()
    with pytest.raises(docker.errors.NotFound):
        client.containers.get(str(container.id))


@pytest.mark.parametrize("read_only", [True, False])
def test_container_of_a_test_has_a_memory_limit_and_no_rights(
    bench: Bench, loaded: Callable[[RootImage], str], read_only: bool
) -> None:
    client, reference = bench.engine.client(), loaded(bench.request.roots[0])
    with running(
        client,
        reference,
        entrypoint=["/probe"],
        command=["cat", "/proc/self/status", "cat", "/proc/self/mounts", "limit"],
        network="none",
        memory_bytes=64 << 20,
        read_only=read_only,
    ) as container:
        assert container.wait(timeout=60)["StatusCode"] == 0
        said = container.logs().decode()
    assert (" ro," in next(line for line in said.splitlines() if " / " in line)) == read_only
    assert "CapEff:\t0000000000000000\n" in said
    assert "NoNewPrivs:\t1\n" in said
    assert str(64 << 20) in said


def test_what_a_container_printed_is_kept_where_the_client_says(
    bench: Bench, loaded: Callable[[RootImage], str], tmp_path: Path
) -> None:
    client, reference = bench.engine.client(), loaded(bench.request.roots[0])
    assert isinstance(client, EngineClient)
    client.logs = tmp_path / "logs"
    for word in ("one", "two"):
        with running(client, reference, entrypoint=["/probe"], command=["say", word], network="none") as container:
            container.wait(timeout=60)
    first, second = (path.read_text() for path in sorted((tmp_path / "logs").iterdir()))
    assert (first.splitlines()[0], second.splitlines()[0]) == ("+ /probe say one", "+ /probe say two")
    assert "one" in first.splitlines()[1]


def test_running_removes_the_container_when_the_test_fails(bench: Bench, loaded: Callable[[RootImage], str]) -> None:
    client, reference = bench.engine.client(), loaded(bench.request.roots[0])
    with (
        pytest.raises(RuntimeError),
        running(client, reference, entrypoint=["/probe"], command=["sleep", "60"]) as container,
    ):
        raise RuntimeError
    with pytest.raises(docker.errors.NotFound):
        client.containers.get(str(container.id))


def test_clean_removes_a_container_that_a_killed_test_left(bench: Bench, loaded: Callable[[RootImage], str]) -> None:
    client, reference = bench.engine.client(), loaded(bench.request.roots[0])
    entered = running(client, reference, entrypoint=["/probe"], command=["sleep", "60"], network="none")
    container = entered.__enter__()
    assert any(str(container.name) in line or container.short_id in line for line in bench.engine.clean())
    with pytest.raises(docker.errors.NotFound):
        client.containers.get(str(container.id))


FOREIGN_MACHINE = {"arm64": "aarch64", "amd64": "x86_64"}[tiny.FOREIGN]


@pytest.mark.skipif(
    not Path("/proc/sys/fs/binfmt_misc", f"qemu-{FOREIGN_MACHINE}").exists(), reason="no qemu for the foreign machine"
)
def test_a_foreign_program_runs(bench: Bench, loaded: Callable[[RootImage], str], tmp_path: Path) -> None:
    files = {"true": smallest_program(FOREIGN_MACHINE)}
    reference = loaded(tiny.write_root(tmp_path, "foreign", files, tiny.FOREIGN))
    with running(bench.engine.client(), reference, entrypoint=["/true"], network="none") as container:
        assert container.wait(timeout=30)["StatusCode"] == 0


def test_what_is_no_program_of_any_machine_does_not_run(
    bench: Bench, loaded: Callable[[RootImage], str], tmp_path: Path
) -> None:
    reference = loaded(tiny.write_root(tmp_path, "broken", {"true": b"\x7fELF nothing of use"}))
    with running(bench.engine.client(), reference, entrypoint=["/true"], network="none") as container:
        assert container.wait(timeout=30)["StatusCode"] != 0


# --- which engine -----------------------------------------------------------------------------------------------------


def test_unknown_engine_names_the_nearest(engine_caches: dict[str, Cache]) -> None:
    with pytest.raises(UsageError) as caught:
        choose_engine("dokcer", cache=engine_caches["docker"], buildkit_image="x", env=os.environ)
    assert caught.value.hint == "did you mean `docker`?"


def test_no_engine_says_what_was_tried(engine_caches: dict[str, Cache], tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "HOME": str(tmp_path)}
    with pytest.raises(EngineError) as caught:
        choose_engine(None, cache=engine_caches["docker"], buildkit_image="x", env=env)
    assert caught.value.what == "no build engine answers"
    assert caught.value.why[0] == f"tried docker: no engine answers on `{tmp_path}/none.sock`"
    assert caught.value.why[-1] == "tried podman: it is not installed"
    assert "./noxw -s doctor" in caught.value.hint


def test_a_daemon_on_another_machine_is_refused(engine_caches: dict[str, Cache], tmp_path: Path) -> None:
    env = {"DOCKER_HOST": "ssh://elsewhere", "HOME": str(tmp_path)}
    with pytest.raises(EngineError, match="is not on this machine"):
        choose_engine("docker", cache=engine_caches["docker"], buildkit_image="x", env=env)


def test_dockers_context_is_followed(engine_caches: dict[str, Cache], tmp_path: Path) -> None:
    meta = tmp_path / ".docker/contexts/meta" / hashlib.sha256(b"mine").hexdigest()
    meta.mkdir(parents=True)
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "mine"}')
    (meta / "meta.json").write_text('{"Endpoints": {"docker": {"Host": "unix:///nonexistent/mine.sock"}}}')
    with pytest.raises(EngineError, match="`/nonexistent/mine"):
        choose_engine("docker", cache=engine_caches["docker"], buildkit_image="x", env={"HOME": str(tmp_path)})


def test_podman_behind_dockers_socket_is_not_taken_for_docker(engine_caches: dict[str, Cache], tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    socket = Path(tempfile.mkdtemp(prefix="sock")) / "p.sock"
    service = subprocess.Popen(["podman", "system", "service", "--time=20", f"unix://{socket}"])
    try:
        for _ in range(100):
            if socket.exists():
                break
            time.sleep(0.05)
        env = {"PATH": os.environ["PATH"], "DOCKER_HOST": f"unix://{socket}"}
        with pytest.raises(EngineError, match="it is podman that answers"):
            choose_engine("docker", cache=engine_caches["docker"], buildkit_image="x", env=env)
    finally:
        service.terminate()
        service.wait()


@pytest.mark.skipif(
    not (shutil.which("podman") and shutil.which("runc")) or shutil.which("crun") is not None,
    reason="needs podman and runc, and no real crun that podman would find before the broken one",
)
def test_where_crun_cannot_run_podman_is_set_to_runc_and_that_is_remembered(tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "crun"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    env = {**os.environ, "PATH": f"{broken.parent}:{os.environ['PATH']}"}
    written = []
    for _ in range(2):
        podman = choose_engine("podman", cache=Cache(tmp_path), buildkit_image="x", env=env)
        assert podman.facts().runtime == "runc"
        assert 'runtime = "runc"' in Path(podman.env["CONTAINERS_CONF"]).read_text()
        written.append((tmp_path / "engines/podman/trial.json").stat().st_mtime_ns)
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("program", "says", "expected"),
    [
        (
            "podman",
            "podman version 3.4.4",
            "podman is too old: found 3.4.4, needed 4.2 or later",
        ),
        ("docker", "github.com/docker/buildx v0.10.5 abc", "buildx is too old: found 0.10.5, needed 0.12 or later"),
    ],
)
def test_a_program_that_is_too_old_is_named_with_what_is_needed(
    program: str, says: str, expected: str, engine: Engine, tmp_path: Path
) -> None:
    if engine.name != program:
        return
    fake = tmp_path / "bin" / program
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    env = {**os.environ, "PATH": str(fake.parent)}
    old = choose_engine(program, cache=Cache(tmp_path), buildkit_image="x", env=env)
    with pytest.raises(EngineTooOldError) as caught:
        old.facts()
    assert caught.value.what == expected


def test_choosing_takes_less_than_300_ms_of_a_core_and_no_docker_sdk(
    engine: Engine, engine_caches: dict[str, Cache]
) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from spark_images.cache import Cache
        began = sum(os.times()[:4])
        from spark_images.engine import choose_engine
        choose_engine(sys.argv[1], cache=Cache(Path(sys.argv[2])), buildkit_image="x", env=os.environ)
        print(sum(os.times()[:4]) - began, "docker" in sys.modules, "requests" in sys.modules)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), engine.name, str(engine_caches[engine.name].root)]
    taken, *imported = subprocess.check_output(command, env=SOURCE, text=True).split()
    assert float(taken) < 0.3
    assert imported == ["False", "False"]

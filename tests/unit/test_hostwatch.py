"""What a watch does with a build while a host's memory goes down and comes back; the host is two files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from spark_images.engine.freezer import Freezer
from spark_images.engine.hostwatch import HostWatch
from spark_images.errors import HostMemoryError
from spark_images.floor import FloorRule
from spark_images.units import GIB, MIB

RULE = FloorRule(floor_bytes=GIB, timeout_s=60, calm_s=0.1)


class Build(Freezer):
    """Notes what is done to it."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent/note"), 0)
        self.done: list[str] = []

    def pids(self) -> frozenset[int]:
        return frozenset({11})

    def hold(self) -> None:
        self.done.append("hold")

    def thaw(self) -> None:
        self.done.append("thaw")

    def kill(self) -> None:
        self.done.append("kill")


class Host:
    """A host whose memory we say, with a process that takes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "proc/4121").mkdir(parents=True)
        self.has(8 * GIB)

    def has(self, available_bytes: int) -> None:
        meminfo = f"MemTotal: {16 * GIB // 1024} kB\nMemFree: {16 * GIB // 1024} kB\n"
        (self.root / "proc/meminfo").write_text(f"{meminfo}MemAvailable: {available_bytes // 1024} kB\n")
        held = 16 * GIB - available_bytes
        (self.root / "proc/4121/status").write_text(f"Name:\tvllm\nVmRSS:\t{held // 1024} kB\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def look(watch: HostWatch, build: Build, times: int = 1) -> None:
    """As an engine does, each time late enough for a sample."""
    for _ in range(times):
        time.sleep(0.11)
        watch.look(build)


def test_a_build_on_a_host_with_memory_is_left_alone(host: Host) -> None:
    said: list[str] = []
    build, watch = Build(), HostWatch(RULE, said.append, root=host.root)
    look(watch, build, 3)
    watch.end()
    assert (build.done, said, watch.document()["freezes"]) == ([], [], [])


def test_a_build_is_held_at_the_first_sample_below_the_floor_and_it_is_said_who_took_the_memory(host: Host) -> None:
    said: list[str] = []
    build, watch = Build(), HostWatch(RULE, said.append, root=host.root)
    host.has(512 * MIB)
    look(watch, build)
    assert build.done == ["hold"]
    assert said == [
        "the host has 512 MiB left, the floor is 1 GiB: the build is frozen until memory is back, 60 s at most",
        "  since the build began, `vllm` (pid 4121): 8 GiB -> 15.5 GiB",
    ]


def test_it_goes_on_when_memory_is_back_and_the_record_has_how_long_it_was_held(host: Host) -> None:
    said: list[str] = []
    build, watch = Build(), HostWatch(RULE, said.append, root=host.root)
    host.has(512 * MIB)
    look(watch, build)
    host.has(256 * MIB)
    look(watch, build)
    host.has(4 * GIB)
    look(watch, build, 2)
    assert build.done == ["hold", "hold", "hold", "thaw"]
    assert said[-1] == "the host has 4 GiB again: the build goes on"
    (freeze,) = json.loads(json.dumps(watch.document()))["freezes"]
    assert (freeze["available_bytes"], freeze["lowest_bytes"], freeze["ended"]) == (512 * MIB, 256 * MIB, "thawed")
    assert 0.3 < freeze["seconds"] < 3
    assert freeze["took"] == ["`vllm` (pid 4121): 8 GiB -> 15.5 GiB"]


def test_a_build_that_is_held_too_long_is_ended_and_the_error_names_who_took_the_memory(host: Host) -> None:
    rule = FloorRule(floor_bytes=GIB, timeout_s=0.2)
    build, watch = Build(), HostWatch(rule, print, root=host.root)
    host.has(512 * MIB)
    with pytest.raises(HostMemoryError) as caught:
        look(watch, build, 10)
    assert build.done[-1] == "kill"
    assert caught.value.render().splitlines()[:3] == [
        "error: the host has 512 MiB of memory left, and the build was stopped for it",
        "  it was below the floor of 1 GiB for 0 s, in which the build was frozen",
        "  since the build began, `vllm` (pid 4121): 8 GiB -> 15.5 GiB",
    ]
    watch.end()
    assert '"ended": "stopped"' in json.dumps(watch.document())


def test_a_build_that_ends_while_it_is_held_says_so_in_the_record(host: Host) -> None:
    watch = HostWatch(RULE, print, root=host.root)
    host.has(0)
    look(watch, Build())
    watch.end()
    assert '"ended": "ended"' in json.dumps(watch.document())


def test_pressure_is_noted_where_the_kernel_tells_it(host: Host) -> None:
    (host.root / "proc/pressure").mkdir()
    (host.root / "proc/pressure/memory").write_text("some avg10=1.00 total=1\nfull avg10=0.50 total=1\n")
    watch = HostWatch(RULE, print, root=host.root)
    host.has(0)
    look(watch, Build())
    assert "some avg10=1.00 total=1 | full avg10=0.50 total=1" in json.dumps(watch.document())


def test_looking_more_often_takes_no_more_samples(host: Host) -> None:
    build, watch = Build(), HostWatch(RULE, print, root=host.root)
    host.has(0)
    began = time.monotonic()
    while len(build.done) < 5:
        watch.look(build)
    assert time.monotonic() - began >= 4 * 0.1

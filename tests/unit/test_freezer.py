"""Holding still what runs in containers, on real cgroups and real processes; layouts of other machines from files."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_images.engine.freezer import Container, Freezer, Group, Stopped, end_left

TICKER = """
import sys, time
for group in sys.argv[2:]:
    open(group + "/cgroup.procs", "w").write("0")
with open(sys.argv[1], "w", buffering=1) as ticks:
    while True:
        print(time.monotonic(), file=ticks)
        time.sleep(0.02)
"""
HIERARCHIES = {"v2": ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"), "v1": ("/sys/fs/cgroup/freezer",), "none": ()}


@dataclass
class Step:
    """An engine's command, below it a process in a PID namespace of its own that ticks 50 times a second."""

    engine: subprocess.Popen[bytes]
    ticks: Path
    group: Path | None
    note: Path

    @property
    def freezer(self) -> Freezer:
        return Freezer(self.note, self.engine.pid)

    def ticks_on(self, within_s: float = 3) -> bool:
        before, deadline = self.ticks.read_bytes(), time.monotonic() + within_s
        while time.monotonic() < deadline:
            if len(self.ticks.read_bytes()) > len(before) + 30:
                return True
            time.sleep(0.02)
        return False

    def stands_still(self) -> bool:
        time.sleep(0.1)
        before = self.ticks.read_bytes()
        time.sleep(0.4)
        return self.ticks.read_bytes() == before


@pytest.fixture(params=["v2", "v1", "none"])
def step(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Step]:
    hierarchy: str = request.param
    if os.geteuid() != 0:
        pytest.skip("only root makes PID namespaces and cgroups everywhere")
    group = None
    for top in HIERARCHIES[hierarchy]:
        state = "cgroup.freeze" if hierarchy == "v2" else "freezer.state"
        made = Path(top, f"spark-images-test-{os.getpid()}")
        with contextlib.suppress(OSError):
            made.mkdir()
            if (made / state).exists():
                group = made
                break
            made.rmdir()
    if hierarchy != "none" and group is None:
        pytest.skip(f"no freezer of version {hierarchy} is mounted here, or it is read-only")
    ticks = tmp_path / "ticks"
    program = [sys.executable, "-c", TICKER, str(ticks), *([str(group)] if group else [])]
    engine = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *program])
    step = Step(engine, ticks, group, tmp_path / "engine" / "frozen")
    deadline = time.monotonic() + 10
    while not (ticks.exists() and ticks.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    yield step
    end_left(step.note)
    engine.kill()
    engine.wait()
    while group is not None:
        with contextlib.suppress(OSError):  # until its last process is gone
            group.rmdir()
            break
        time.sleep(0.02)


def test_what_is_held_stands_still_and_goes_on_after_the_thaw(step: Step) -> None:
    assert step.ticks_on()
    freezer = step.freezer
    freezer.hold()
    assert step.stands_still()
    freezer.thaw()
    assert step.ticks_on()
    assert freezer.held == ()
    assert not step.note.exists()


def test_it_is_the_steps_cgroup_that_is_held_or_by_sigstop_where_it_has_none(step: Step) -> None:
    freezer = step.freezer
    freezer.hold()
    freezer.hold()
    assert len(freezer.held) == 1
    said = str(freezer.held[0])
    assert said == f"cgroup {step.group}" if step.group else "by SIGSTOP" in said


def test_what_is_held_can_be_ended_without_running_again(step: Step) -> None:
    freezer = step.freezer
    freezer.hold()
    assert step.stands_still()
    before = step.ticks.read_bytes()
    freezer.kill()
    assert step.engine.wait(timeout=5) != 0
    assert step.ticks.read_bytes() == before


def test_who_comes_after_a_kill_ends_what_is_frozen_and_says_what(step: Step) -> None:
    step.freezer.hold()  # and whoever did it is gone
    (said,) = end_left(step.note)
    assert said.startswith("frozen cgroup" if step.group else "frozen process")
    assert step.engine.wait(timeout=5) != 0
    assert end_left(step.note) == ()


def test_nothing_is_frozen_that_could_not_be_noted(step: Step, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    freezer = Freezer(tmp_path / "file" / "frozen", step.engine.pid)
    with pytest.raises(OSError, match=r"exists|directory"):
        freezer.hold()
    assert step.ticks_on()


def test_the_engines_own_processes_are_not_held() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        engine.stdout.readline()
        freezer = Freezer(Path("/nonexistent/note"), engine.pid)
        assert len(freezer.pids()) == 1
        freezer.hold()
        assert freezer.held == ()
        for pid in (*freezer.pids(), engine.pid):
            os.kill(pid, 9)


def test_a_process_that_has_the_number_of_one_that_ended_is_left_alone(tmp_path: Path) -> None:
    note = tmp_path / "frozen"
    with subprocess.Popen(["sleep", "60"]) as other:
        note.write_text(f"process\t{other.pid}\t1\n")
        end_left(note)
        time.sleep(0.1)
        assert other.poll() is None
        other.kill()


def test_a_step_that_ended_while_it_was_held_can_be_let_go_and_ended(tmp_path: Path) -> None:
    root = machine(tmp_path, (10, 1, "host", "/me"), (11, 10, "step", "/me/step"))
    for release in (Freezer.thaw, Freezer.kill):
        freezer = Freezer(tmp_path / "note", 10, root=root)
        freezer.hold()
        assert freezer.held == (Group(freeze_file(root, "/me/step")),)
        group = freeze_file(root, "/me/step").parent
        group.rename(tmp_path / "gone")
        release(freezer)
        (tmp_path / "gone").rename(group)


def test_a_note_with_unknown_words_and_groups_that_are_gone_are_no_errors(tmp_path: Path) -> None:
    note = tmp_path / "frozen"
    note.write_text(f"group\t{tmp_path}/gone/freezer.state\ncontai")
    assert end_left(note) == (f"frozen cgroup {tmp_path}/gone",)


# --- layouts of other machines ----------------------------------------------------------------------------------------

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def machine(root: Path, *processes: tuple[int, int, str, str], mounts: str = V2) -> Path:
    """Files of a machine with these processes: number, parent, PID namespace, cgroup of version 2."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mountinfo").write_text(mounts)
    for pid, parent, namespace, group in processes:
        folder = root / f"proc/{pid}"
        (folder / "ns").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} (a (strange) name) S {parent} {'0 ' * 17}4711 0")
        (folder / "ns/pid").symlink_to(f"pid:[{namespace}]")
        (folder / "cgroup").write_text(f"0::{group}\n")
        (root / f"sys/fs/cgroup{group}").mkdir(parents=True, exist_ok=True)
        if group != "/":
            (root / f"sys/fs/cgroup{group}/cgroup.freeze").write_text("0")
    return root


def freeze_file(root: Path, group: str) -> Path:
    return root / f"sys/fs/cgroup{group}/cgroup.freeze"


def test_of_a_builder_only_the_steps_are_held(tmp_path: Path) -> None:
    scope = "/system.slice/docker-0123.scope"
    root = machine(
        tmp_path,
        (100, 1, "builder", f"{scope}/init"),  # docker-init
        (101, 100, "builder", f"{scope}/init"),  # buildkitd
        (102, 101, "builder", f"{scope}/init"),  # its runc
        (103, 102, "step", f"{scope}/buildkit/abc"),
        (104, 103, "step", f"{scope}/buildkit/abc"),
        (200, 101, "other", f"{scope}/buildkit/def"),  # BuildKit runs steps at once
        (300, 1, "elsewhere", "/user.slice"),
    )
    builder = Container("builder", tmp_path / "no.sock")
    freezer = Freezer(tmp_path / "note", 100, builder=builder, root=root)
    freezer.hold()
    groups = [freeze_file(root, f"{scope}/buildkit/{name}") for name in ("abc", "def")]
    assert set(freezer.held) == {Group(state) for state in groups}
    assert [state.read_text() for state in groups] == ["1", "1"]
    freezer.thaw()
    assert [state.read_text() for state in groups] == ["0", "0"]


def test_a_step_that_begins_while_the_build_is_held_is_held_as_well(tmp_path: Path) -> None:
    root = machine(tmp_path, (10, 1, "host", "/user.slice/me"))
    freezer = Freezer(tmp_path / "note", 10, root=root)
    freezer.hold()
    assert freezer.held == ()
    (tmp_path / "proc/self/mountinfo").unlink()
    (tmp_path / "proc/self").rmdir()
    machine(tmp_path, (11, 10, "step", "/user.slice/me/step"))
    freezer.hold()
    assert freeze_file(root, "/user.slice/me/step").read_text() == "1"


def test_a_cgroup_that_the_engine_shares_is_not_frozen_but_the_process_is_stopped(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        root = machine(tmp_path, (10, 1, "host", "/me"), (sleeper.pid, 10, "step", "/me"))
        freezer = Freezer(tmp_path / "note", 10, root=root)
        freezer.hold()
        assert freezer.held == (Stopped(sleeper.pid, "4711"),)
        assert freeze_file(root, "/me").read_text() == "0"
        sleeper.kill()


def test_a_builder_of_another_user_is_paused_by_its_daemon_and_noted_before(tmp_path: Path) -> None:
    asked: list[tuple[str, bool]] = []
    address, note = tmp_path / "docker.sock", tmp_path / "note"

    def serve(listener: socket.socket) -> None:
        for _ in range(4):
            connection, _ = listener.accept()
            with connection:
                line = connection.recv(4096).decode().splitlines()[0]
                asked.append((line.removesuffix(" HTTP/1.1"), note.exists()))
                connection.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        server = threading.Thread(target=serve, args=(listener,), daemon=True)
        server.start()
        freezer = Freezer(note, 100, builder=Container("builder", address), root=machine(tmp_path))
        freezer.hold()
        freezer.hold()
        freezer.thaw()
        freezer.hold()
        assert end_left(note) == ("frozen container builder",)
        server.join(10)
    said = [words for words, _ in asked]
    assert said == [f"POST /containers/builder/{action}" for action in ("pause", "unpause", "pause", "kill")]
    assert asked[0][1]

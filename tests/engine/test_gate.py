"""scripts/memgate before real compilers, and before stand-ins that take what they are told, in a real memory cgroup."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from processes import command_of

MEMGATE = Path(__file__).parents[2] / "scripts/memgate"
# `standin MIB SECONDS -c x.cu -o x.o` takes MIB in SECONDS, in twenty parts (in 0 seconds at once), then writes x.o.
STANDIN = """\
#!/usr/bin/python3 -IS
import os, sys, time
mib, seconds, held = int(sys.argv[1]), float(sys.argv[2]), []
if os.environ.get("LOG"):
    with open(os.environ["LOG"], "a") as log:
        log.write(sys.argv[-1] + "\\n")
parts = 20 if seconds else 1
for _ in range(parts):
    held.append(bytearray(b"x") * (mib * 2**20 // parts))
    time.sleep(seconds / parts)
with open(sys.argv[-1], "w") as object:
    object.write("made")
"""


@dataclass(frozen=True)
class Machine:
    """A folder to compile in, and a memory cgroup around whatever runs in it."""

    folder: Path
    cgroup: Path
    env: dict[str, str] = field(default_factory=dict)

    def start(self, *command: str | Path) -> subprocess.Popen[str]:
        inside = ["sh", "-c", f'echo $$ >{self.cgroup}/cgroup.procs && exec "$@"', "sh", *map(str, command)]
        return subprocess.Popen(
            inside,
            cwd=self.folder,
            env={**os.environ, "MEMGATE_UNIT_MIB": "10", "MEMGATE_SLOTS": "4", **self.env},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        started = self.start(*command)
        out, err = started.communicate(timeout=100)
        return subprocess.CompletedProcess(command, started.returncode, out, err)

    def build(self, *units: tuple[str, int, float]) -> subprocess.CompletedProcess[str]:
        """Stand-ins, all at once, as `memgate run` of a build tool: (name, MiB, seconds)."""
        return self.run(MEMGATE, "run", "sh", self.tool(*units))

    def tool(self, *units: tuple[str, int, float]) -> Path:
        """A build tool: it makes what is not there yet, and fails where one failed."""
        lines = ["pids="]
        for name, mib, seconds in units:
            command = f"{MEMGATE} {self.folder}/standin {mib} {seconds} -c {name}.cu -o {name}.o"
            lines.append(f'[ -f {name}.o ] || {{ {command} & pids="$pids $!"; }}')
            lines += ["sleep 0.4"] * (name == "first")
        lines += ["status=0", "for pid in $pids; do wait $pid || status=1; done", "exit $status"]
        script = self.folder / "tool"
        script.write_text("\n".join(lines) + "\n")
        return script

    def profile(self, *units: tuple[str, int, float]) -> None:
        """What the gate is told about units."""
        (self.folder / "profile").write_text("".join(f"{mib} {seconds} {name}.o\n" for name, mib, seconds in units))
        self.env["MEMGATE_PROFILE"] = str(self.folder / "profile")

    def kills(self) -> int:
        """Processes that the kernel has killed for memory."""
        files = (self.cgroup / "memory.events", self.cgroup / "memory.oom_control")
        text = next(file for file in files if file.exists()).read_text()
        return int(re.findall(r"^oom_kill (\d+)", text, re.MULTILINE)[0])

    def processes(self) -> list[str]:
        """What still runs in the cgroup."""
        return (self.cgroup / "cgroup.procs").read_text().split()


@contextlib.contextmanager
def memory_cgroup(mib: int) -> Iterator[Path]:
    """A memory cgroup of our own with a cap, version 1 or 2; nothing that ran in it outlives it."""
    first = Path("/sys/fs/cgroup/memory")
    folder = (first if first.is_dir() else Path("/sys/fs/cgroup")) / f"spark-images-test-{os.getpid()}"
    try:
        folder.mkdir()
        if first.is_dir():
            (folder / "memory.limit_in_bytes").write_text(f"{mib}M")
        else:
            (folder / "memory.max").write_text(f"{mib}M")
            (folder / "memory.swap.max").write_text("0")
    except OSError as err:
        pytest.skip(f"no memory cgroup can be made here: {err}")
    try:
        yield folder
    finally:
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        until(lambda: not (folder / "cgroup.procs").read_text())
        folder.rmdir()


def until(true: object, seconds: float = 10.0) -> None:
    give_up = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "standin").write_text(STANDIN)
    (tmp_path / "standin").chmod(0o755)
    with memory_cgroup(400) as cgroup:
        yield Machine(tmp_path, cgroup)


def test_compilers_that_do_not_fit_together_run_one_after_the_other(machine: Machine) -> None:
    units = [(name, 200, 0.5) for name in ("a", "b", "c")]
    machine.profile(*units)
    built = machine.build(*units)
    assert built.returncode == 0, built.stderr
    assert machine.kills() == 0
    assert "again" not in built.stdout


def test_without_the_gate_the_same_compilers_are_killed(machine: Machine) -> None:
    tool = machine.tool(*((name, 200, 0.5) for name in ("a", "b", "c")))
    machine.env["MEMGATE_INSIDE"] = "1"
    assert machine.run("sh", tool).returncode == 1
    assert machine.kills() > 0


def test_what_fits_together_runs_together(machine: Machine) -> None:
    units = [(name, 60, 1.5) for name in ("a", "b", "c", "d")]
    machine.profile(*units)
    began = time.monotonic()
    assert machine.build(*units).returncode == 0
    assert time.monotonic() - began < 4  # one after the other would take six seconds


def test_the_long_and_the_large_go_first(machine: Machine) -> None:
    machine.env.update(MEMGATE_SLOTS="1", LOG=str(machine.folder / "order"))
    machine.profile(("short", 20, 1.0), ("long", 20, 400.0), ("large", 300, 2.0), ("first", 20, 1.0))
    built = machine.build(("first", 20, 1.0), *((name, 20, 0.1) for name in ("short", "long", "large")))
    assert built.returncode == 0, built.stderr
    order = (machine.folder / "order").read_text().split()
    assert [name for name in order if name != "first.o"] == ["long.o", "large.o", "short.o"]


def test_a_compiler_that_the_kernel_killed_runs_again_alone(machine: Machine) -> None:
    machine.profile(*((name, 10, 1) for name in "abc"))  # wrong, and all take their memory too fast to be stopped
    for _ in range(5):  # though now and then one is
        built = machine.build(*((name, 300, 0.0) for name in "abc"))
        assert built.returncode == 0, built.stderr
        if machine.kills():
            break
        for name in "abc":
            (machine.folder / f"{name}.o").unlink()
    assert re.search(r"\[spark\] gate [abc]\.o again reason=oom peak_mib=\d+ cap_mib=400", built.stdout)
    assert re.search(r"unit [abc]\.o peak_mib=3\d\d .* tries=2", built.stdout)


def test_a_compiler_that_does_not_fit_even_alone_fails_with_file_peak_and_cap(machine: Machine) -> None:
    built = machine.build(("huge", 600, 1.0), ("small", 20, 0.2))
    assert built.returncode == 1
    assert re.search(r"\[spark\] gate huge\.o failed reason=oom peak_mib=3\d\d cap_mib=400", built.stdout)
    assert "memgate: huge.o: killed again" in built.stderr
    assert (machine.folder / "small.o").exists()


def test_the_youngest_is_stopped_before_the_kernel_has_to_choose(machine: Machine) -> None:
    machine.profile(("a", 10, 9), ("b", 10, 1))
    built = machine.build(("a", 300, 2.0), ("b", 300, 2.0))
    assert built.returncode == 0, built.stderr
    assert machine.kills() == 0
    assert re.search(r"gate [ab]\.o again reason=short", built.stdout)


def test_a_compiler_that_somebody_kills_runs_again(machine: Machine) -> None:
    building = machine.start(MEMGATE, "run", "sh", machine.tool(("a", 20, 1.5)))
    kill_one(machine, "standin")
    out, err = building.communicate(timeout=30)
    assert building.returncode == 0, err
    assert "gate a.o again reason=killed" in out


def test_a_build_whose_gate_is_killed_goes_on(machine: Machine) -> None:
    building = machine.start(MEMGATE, "run", "sh", machine.tool(("a", 20, 1.5), ("b", 20, 1.5)))
    kill_one(machine, "memgate [^r].* -c a.cu")
    out, err = building.communicate(timeout=30)
    assert building.returncode == 0, err
    assert "1 gates were killed; `sh` goes on" in out
    assert {"a.o", "b.o"} <= {path.name for path in machine.folder.iterdir()}
    assert machine.processes() == []


def test_half_an_object_of_a_gate_that_was_killed_is_not_taken_for_a_whole_one(machine: Machine) -> None:
    slow = machine.folder / "slow"
    slow.write_text("#!/bin/sh\nprintf half >a.o\nsleep 1.5\nprintf whole >a.o\n")
    slow.chmod(0o755)
    (machine.folder / "tool").write_text(f"[ -f a.o ] || {MEMGATE} {slow} -c a.cu -o a.o\n")
    building = machine.start(MEMGATE, "run", "sh", "tool")
    until((machine.folder / "a.o").exists)
    kill_one(machine, "memgate [^r].* -c a.cu")
    out, err = building.communicate(timeout=30)
    assert (building.returncode, (machine.folder / "a.o").read_text()) == (0, "whole"), out + err


def test_a_build_whose_gate_was_killed_before_it_could_ask_goes_on(machine: Machine) -> None:
    (machine.folder / "tool").write_text("[ -f there ] && exit 0; touch there; exit 125\n")
    built = machine.run(MEMGATE, "run", "sh", "tool")
    assert (built.returncode, built.stdout) == (0, "[spark] gate no compiler has failed; `sh` goes on\n")


def test_a_build_tool_that_fails_again_has_failed(machine: Machine) -> None:
    assert machine.run(MEMGATE, "run", "sh", "-c", "exit 4").returncode == 4


def kill_one(machine: Machine, pattern: str) -> None:
    """SIGKILL for the first process in the cgroup whose command fits, a moment after it has come."""
    found: list[int] = []

    def look() -> bool:
        for pid in machine.processes():
            words = b" ".join(command_of(int(pid))).decode()
            if re.search(rf"/{pattern}", words) and not (pattern == "standin" and "memgate" in words):
                found.append(int(pid))
        return bool(found)

    until(look)
    time.sleep(0.3)
    os.kill(found[0], signal.SIGKILL)


def test_an_interrupt_ends_everything(machine: Machine) -> None:
    building = machine.start(MEMGATE, "run", "sh", machine.tool(("a", 20, 30.0), ("b", 20, 30.0)))
    until(lambda: len(machine.processes()) >= 6)
    os.killpg(building.pid, signal.SIGTERM)
    building.communicate(timeout=10)
    assert building.returncode == 143
    until(lambda: machine.processes() == [])


def test_a_gate_without_a_keeper_starts_one_which_ends_by_itself(machine: Machine) -> None:
    machine.env["MEMGATE_SOCKET"] = f"spark-images-test-{os.getpid()}"
    units = [(name, 200, 0.5) for name in ("a", "b", "c")]
    machine.profile(*units)
    assert machine.run("sh", machine.tool(*units)).returncode == 0
    assert machine.kills() == 0
    assert len(machine.processes()) == 1
    until(lambda: machine.processes() == [], seconds=20)


def keeper_of(machine: Machine) -> int:
    for pid in machine.processes():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if Path(f"/proc/{pid}/cwd").readlink() == Path("/"):
                return int(pid)
    raise AssertionError("no process of the gates is the keeper")


def test_compilers_go_on_when_their_keeper_is_killed(machine: Machine) -> None:
    machine.env["MEMGATE_SOCKET"] = f"spark-images-test-{os.getpid()}"
    building = machine.start("sh", machine.tool(("a", 200, 1.0), ("b", 300, 1.0)))
    until(lambda: len(machine.processes()) >= 5)
    os.kill(keeper_of(machine), signal.SIGKILL)
    out, err = building.communicate(timeout=30)
    assert building.returncode == 0, out + err


def test_without_any_keeper_the_compiler_just_runs(machine: Machine) -> None:
    machine.env["MEMGATE_SOCKET"] = "x" * 200  # no socket can have that name
    assert machine.run("sh", machine.tool(("a", 20, 0.1))).returncode == 0


def test_a_compilers_own_error_passes_through_once(machine: Machine) -> None:
    compiler = ("sh", "-c", "echo to out; echo to err >&2; exit 3", "x.c", "-o", "x.o")
    failed = machine.run(MEMGATE, "run", MEMGATE, *compiler)
    assert (failed.returncode, failed.stdout, failed.stderr) == (3, "to out\n", "to err\n")


@pytest.mark.parametrize("given", ["", "C.UTF-8"])
def test_a_compiler_gets_the_environment_that_the_gate_was_given(machine: Machine, given: str) -> None:
    machine.env["LC_ALL" if not given else "LC_CTYPE"] = given  # in the C locale Python sets LC_CTYPE
    shown = machine.run(MEMGATE, "run", MEMGATE, "sh", "-c", 'echo "<$LC_CTYPE>"', "x.c", "-o", "x.o")
    assert f"<{given}>\n" in shown.stdout


def test_a_program_that_is_not_there_is_named(machine: Machine) -> None:
    failed = machine.run(MEMGATE, "run", MEMGATE, "no-such-compiler", "-c", "x.c", "-o", "x.o")
    assert failed.returncode == 127
    assert "no-such-compiler: No such file or directory" in failed.stderr


def test_the_gate_takes_less_than_40_ms_of_a_core(machine: Machine) -> None:
    (machine.folder / "loop").write_text('for i in 1 2 3 4 5 6 7 8 9 10; do "$@"; done\n')
    compiler = ("/bin/true", "-c", "x.c", "-o", "x.o")

    def cpu_s(*command: str | Path) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert machine.run(MEMGATE, "run", "sh", "loop", *command).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    cost_s = min(cpu_s(MEMGATE, *compiler) for _ in range(3)) - min(cpu_s(*compiler) for _ in range(3))
    assert cost_s / 10 < 0.040


@pytest.mark.skipif(not (shutil.which("ccache") and shutil.which("g++")), reason="no ccache and g++ on this host")
def test_hits_of_the_compile_cache_pass_without_the_gate(machine: Machine) -> None:
    (machine.folder / "x.cpp").write_text("int x;\n")
    machine.env.update(CCACHE_DIR=str(machine.folder / "cache"), CCACHE_PREFIX=str(MEMGATE))
    compiling = ("ccache", "g++", "-c", "x.cpp", "-o", "x.o")
    assert "unit x.o" in machine.run(MEMGATE, "run", *compiling).stdout
    assert "unit x.o" not in machine.run(MEMGATE, "run", *compiling).stdout


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++ on this host")
def test_a_real_compiler_whose_cc1plus_is_killed_runs_again(machine: Machine) -> None:
    lines = ["status=0"]
    for name in ("a", "b"):
        (machine.folder / f"{name}.cpp").write_text("#include <regex>\n#include <map>\n#include <iostream>\n" * 2)
        lines.append(f"[ -f {name}.o ] || {MEMGATE} g++ -O2 -c {name}.cpp -o {name}.o || status=1")
    (machine.folder / "tool").write_text("\n".join([*lines, "exit $status"]))
    building = machine.start(MEMGATE, "run", "sh", "tool")
    kill_one(machine, "cc1plus")
    out, err = building.communicate(timeout=100)
    assert building.returncode == 0, err
    assert "Killed" not in err
    assert re.search(r"gate [ab]\.o again reason=killed", out)

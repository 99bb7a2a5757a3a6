"""process.py on real programs: what is streamed, what is kept, and that nothing outlives its end."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spark_images import process
from spark_images.errors import HostProgramError

OUR_SOURCE = {**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[1])}


def gone(pid: int, within_s: float = 5.0) -> bool:
    """Whether the process has ended (a zombie counts) within the time."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_quoted_can_be_pasted_into_a_shell() -> None:
    assert process.quoted(["podman", "build", "--label", "a b", "$(x)"]) == "+ podman build --label 'a b' '$(x)'"


def test_capture_keeps_both_streams_apart_and_the_status() -> None:
    captured = process.capture(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (captured.stdout, captured.stderr, captured.status) == (b"out\n", "err\n", 3)


def test_capture_keeps_more_than_a_pipe_holds_on_both_streams() -> None:
    code = "import sys; sys.stdout.write('o' * 1_000_000); sys.stderr.write('e' * 1_000_000)"
    captured = process.capture([sys.executable, "-c", code])
    assert (len(captured.stdout), len(captured.stderr)) == (1_000_000, 1_000_000)


def test_capture_gives_the_environment_and_the_folder(tmp_path: Path) -> None:
    captured = process.capture(["/bin/sh", "-c", 'echo "$A $PWD"'], env={"A": "b"}, cwd=tmp_path)
    assert captured.stdout == f"b {tmp_path}\n".encode()


def test_standard_input_is_empty() -> None:
    assert process.capture(["cat"], timeout_s=5).stdout == b""


def test_echo_gets_the_command_before_it_runs(tmp_path: Path) -> None:
    seen: list[tuple[str, bool]] = []
    made = tmp_path / "made"
    process.capture(["touch", str(made)], echo=lambda line: seen.append((line, made.exists())))
    assert seen == [(f"+ touch {made}", False)]


def test_stream_merges_and_cuts_lines_in_order() -> None:
    lines: list[str] = []
    status = process.stream(["sh", "-c", "echo one; echo two >&2; printf 'thr\\303\\251e\\r\\nlast'"], lines.append)
    assert (status, lines) == (0, ["one", "two", "thrée", "last"])


def test_stream_delivers_a_line_while_the_program_still_runs(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    waits = f"echo now; until [ -e {heard} ]; do sleep 0.02; done"
    assert process.stream(["sh", "-c", waits], lambda _line: heard.touch(), timeout_s=60) == 0


def test_status_of_a_program_that_a_signal_ended_is_what_a_shell_says() -> None:
    assert process.stream(["sh", "-c", "kill -9 $$"], print) == 137


def test_a_daemon_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    lines: list[str] = []
    began = time.monotonic()
    process.stream(["sh", "-c", "sleep 120 & echo $!"], lines.append)
    os.kill(int(lines[0]), signal.SIGKILL)
    assert time.monotonic() - began < 60


def test_missing_program_points_to_the_doctor() -> None:
    with pytest.raises(HostProgramError) as caught:
        process.capture(["no-such-program-of-ours"])
    assert caught.value.what == "`no-such-program-of-ours` is not installed"
    assert "./noxw -s doctor" in caught.value.hint


def test_time_out_ends_the_whole_group() -> None:
    lines: list[str] = []
    with pytest.raises(HostProgramError, match=r"did not end within 0\.5 s"):
        process.stream(["sh", "-c", "sleep 60 & echo $!; wait"], lines.append, timeout_s=0.5)
    assert gone(int(lines[0]))


def test_time_out_also_holds_for_a_program_that_closed_its_output() -> None:
    with pytest.raises(HostProgramError, match="did not end within"):
        process.capture(
            [sys.executable, "-c", "import os, time; os.close(1); os.close(2); time.sleep(60)"], timeout_s=1
        )


def test_a_program_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    lines: list[str] = []
    with pytest.raises(HostProgramError):
        process.stream(["sh", "-c", "trap '' TERM; echo $$; while :; do sleep 1; done"], lines.append, timeout_s=0.5)
    assert gone(int(lines[0]))


def test_an_error_in_the_callback_ends_the_program() -> None:
    pids: list[int] = []

    def refuse(line: str) -> None:
        pids.append(int(line))
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        process.stream(["sh", "-c", "echo $$; sleep 60"], refuse)
    assert gone(pids[0])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_us_ends_the_program_and_its_children(number: signal.Signals) -> None:
    code = (
        "import signal\n"
        "from spark_images import process\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "try:\n"
        "  process.stream(['sh', '-c', 'sleep 60 & echo $! $$; wait'], lambda line: print(line, flush=True))\n"
        "except KeyboardInterrupt:\n"
        "  raise SystemExit(130)\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", code], env=OUR_SOURCE, stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    children = [int(word) for word in ours.stdout.readline().split()]
    ours.send_signal(number)
    assert ours.wait(timeout=15) == 130
    assert len(children) == 2
    assert all(gone(child) for child in children)


def test_what_a_watcher_raises_ends_the_program() -> None:
    def refuse(written_bytes: int) -> None:
        if written_bytes:
            raise RuntimeError(f"{written_bytes} bytes are enough")

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="5 bytes are enough"):
        process.capture(["sh", "-c", "echo word; sleep 120"], watch=refuse)
    assert time.monotonic() - began < 60


def test_a_watcher_of_a_stream_is_called_four_times_a_second_also_while_lines_rain_and_while_nothing_comes() -> None:
    for script in ("i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done; sleep 1", "sleep 1.5"):
        longest_s = [longest_pause_s(script)]
        while longest_s[-1] >= 0.5 and len(longest_s) < 20:  # others had the machine meanwhile
            longest_s.append(longest_pause_s(script))
        assert longest_s[-1] < 0.5


def longest_pause_s(script: str) -> float:
    """Between two looks of a watcher at a shell that runs this."""
    looks: list[float] = []
    pids: set[int] = set()

    def look(pid: int) -> None:
        looks.append(time.monotonic())
        pids.add(pid)

    lines: list[str] = []
    assert process.stream(["sh", "-c", f"echo $$; {script}"], lines.append, watch=look) == 0
    assert pids == {int(lines[0])}
    return max(later - sooner for sooner, later in itertools.pairwise(looks))


def test_what_has_to_happen_before_a_program_is_ended_happens_before() -> None:
    lines: list[str] = []

    def before() -> None:
        lines.append("running" if not gone(int(lines[0]), within_s=0.01) else "gone")

    with pytest.raises(HostProgramError):
        process.stream(["sh", "-c", "echo $$; sleep 60"], lines.append, timeout_s=0.5, before_end=before)
    assert lines[1] == "running"
    assert gone(int(lines[0]))


def test_nothing_has_to_happen_before_an_end_of_its_own() -> None:
    called: list[int] = []
    process.stream(["true"], print, before_end=lambda: called.append(1))
    assert called == []


def test_an_attached_program_has_our_streams() -> None:
    code = "import sys; from spark_images import process; sys.exit(process.attach(['sh', '-c', 'cat; exit 3']))"
    ours = subprocess.run(
        [sys.executable, "-c", code], env=OUR_SOURCE, input=b"typed", capture_output=True, check=False
    )
    assert (ours.returncode, ours.stdout) == (3, b"typed")


def test_a_signal_to_us_lets_an_attached_program_put_things_away() -> None:
    code = (
        "import signal, sys\n"
        "from spark_images import process\n"
        "def interrupt(number, frame): raise KeyboardInterrupt('SIGTERM')\n"
        "signal.signal(signal.SIGTERM, interrupt)\n"
        "theirs = 'import time\\ntry:\\n  print(1, flush=True)\\n  time.sleep(60)\\n'\n"
        "theirs += 'except KeyboardInterrupt:\\n  time.sleep(1)\\n  print(\"tidy\")'\n"
        "try:\n"
        "  process.attach([sys.executable, '-c', theirs])\n"
        "except KeyboardInterrupt:\n"
        "  raise SystemExit(130)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], env=OUR_SOURCE, stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        ours.stdout.readline()
        ours.send_signal(signal.SIGTERM)
        assert ours.wait(timeout=15) == 130
        assert ours.stdout.read() == "tidy\n"


def test_a_program_that_is_handed_something_reads_it_to_its_end() -> None:
    ended = process.hand(["sh", "-c", "cat; echo said >&2; exit 3"], b"given", timeout_s=60)
    assert (ended.status, ended.stdout, ended.stderr) == (3, b"given", "said\n")


def test_a_program_that_reads_nothing_and_stays_is_ended() -> None:
    with pytest.raises(HostProgramError, match=r"`sleep` did not end within 0\.2 s"):
        process.hand(["sleep", "600"], b"", timeout_s=0.2)


def test_a_file_that_is_no_program_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("no line says what runs this\n")
    (tmp_path / "key").chmod(0o755)
    with pytest.raises(HostProgramError, match="cannot be started"):
        process.hand([str(tmp_path / "key"), "sign"], b"", timeout_s=60)

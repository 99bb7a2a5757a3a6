import io
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_images.buildlog import LogReader
from spark_images.progress import Progress

LOGS = Path(__file__).parent.parent / "golden" / "logs"
BEGIN = "[spark] step compile begin limit_mib=49152 jobs=6"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def plain(
    timed_lines: list[tuple[float, str]],
    *,
    env: dict[str, str] | None = None,
    expected_s: Callable[[str], float | None] = lambda step: None,
) -> list[str]:
    """What is written without a terminal when each line comes so many seconds after the start."""
    stream, clock, reader = io.StringIO(), Clock(), LogReader()
    with Progress(stream, env=env or {}, clock=clock, expected_s=expected_s) as progress:
        for second, line in [(0.0, "STEP 1/1: RUN /spark/scripts/step compile x"), *timed_lines]:
            clock.now_s = 1000.0 + second
            progress.feed(reader.feed(line))
    return stream.getvalue().splitlines()


def test_plain_lines_tell_beginning_state_and_end() -> None:
    assert plain(
        [
            (0, BEGIN),
            (16, "[spark] step compile sample memory_mib=5427 compilers=6 elapsed_s=16"),
            (40, "[123/370] Building CUDA object a.o"),
            (1808, "[spark] step compile end status=0 elapsed_s=1808 peak_mib=47000 oom_kills=0"),
        ]
    ) == [
        "compile: begins with 6 jobs, memory 48 GiB",
        "compile  0:16  memory 5.3 of 48.0 GiB  6 compilers",
        "compile  123/370  0:40  memory 5.3 of 48.0 GiB  6 compilers",
        "compile: done in 30:08, peak 45.9 GiB",
    ]


def test_plain_lines_come_at_most_every_fifteen_seconds() -> None:
    samples = [
        (second, f"[spark] step compile sample memory_mib=1 compilers=1 elapsed_s={second}")
        for second in range(2, 62, 2)
    ]
    assert len(plain([(0, BEGIN), *samples])) == 1 + 3


def test_expected_time_of_the_same_step_is_shown() -> None:
    lines = plain(
        [(0, BEGIN), (252, "[spark] step compile sample memory_mib=1 compilers=1 elapsed_s=252")],
        expected_s={"compile": 1120.0}.get,
    )
    assert lines[0] == "compile: begins with 6 jobs, memory 48 GiB, 18:40 last time"
    assert lines[1].startswith("compile  4:12 of ~18:40  ")


def test_missing_limit_is_said() -> None:
    lines = plain(
        [
            (0, "[spark] step compile begin limit_mib=0 jobs=6"),
            (20, "[spark] step compile sample memory_mib=1024 compilers=0 elapsed_s=20"),
        ]
    )
    assert lines == ["compile: begins with 6 jobs, memory no limit", "compile  0:20  memory 1.0 GiB, no limit"]


def test_failed_step_says_its_status() -> None:
    lines = plain([(0, BEGIN), (1, "[spark] step compile end status=137 elapsed_s=1 peak_mib=300 oom_kills=1")])
    assert lines[-1] == "compile: failed with status 137 in 0:01, peak 300 MiB"


def test_compilers_that_run_again_are_told_and_measured_units_are_not() -> None:
    lines = plain(
        [
            (0, BEGIN),
            (1, "[spark] gate mmq.cu.o again reason=oom peak_mib=7000 cap_mib=49152"),
            (2, "[spark] gate mmq.cu.o again reason=short peak_mib=7000 cap_mib=0"),
            (3, "[spark] unit mmq.cu.o peak_mib=412 seconds=31.2 cpu_s=30.9 expected_mib=400 tries=3"),
            (4, "[spark] gate mma.cu.o failed reason=oom peak_mib=49000 cap_mib=49152"),
        ]
    )
    assert lines[1:] == [
        "compile: mmq.cu.o: killed, runs again (held 6.8 GiB of 48 GiB)",
        "compile: mmq.cu.o: stopped before memory ran out, runs again (held 6.8 GiB)",
        "compile: mma.cu.o: killed also alone (held 47.9 GiB of 48 GiB)",
    ]


def test_cached_step_is_one_line() -> None:
    assert plain([(0, "--> Using cache 0123")]) == ["compile: unchanged, from the engine's cache"]


def test_github_and_gitea_fold_each_step_also_when_the_build_breaks_off() -> None:
    env = {"CI": "true", "GITHUB_ACTIONS": "true"}
    whole = plain([(0, BEGIN), (1, "[spark] step compile end status=0 elapsed_s=1 peak_mib=1 oom_kills=0")], env=env)
    assert whole == [
        "::group::compile",
        "compile: begins with 6 jobs, memory 48 GiB",
        "::endgroup::",
        "compile: done in 0:01, peak 1 MiB",
    ]
    assert plain([(0, BEGIN)], env=env)[-1] == "::endgroup::"


def on_terminal(env: dict[str, str], *, name: str = "ok-buildkit.log") -> str:
    """What a terminal of 80 columns gets while a real log goes by."""
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as stream:
        os.set_blocking(master, False)
        reader = LogReader()
        with Progress(stream, env={"COLUMNS": "80", **env}, clock=time.monotonic) as progress:
            for line in (LOGS / name).read_text().splitlines():
                progress.feed(reader.feed(line))
                if "[2/4]" in line:
                    time.sleep(0.6)  # longer than the live line's interval
        stream.flush()
        written = b""
        try:
            while chunk := os.read(master, 65536):
                written += chunk
        except BlockingIOError:
            pass
    os.close(master)
    return written.decode()


def test_terminal_shows_one_live_line_and_keeps_the_summary() -> None:
    written = on_terminal({"TERM": "xterm-256color"})
    assert "compile" in written
    assert "2/4  0:00  memory 0.0 of 0.3 GiB  Building CXX object" in written
    assert "compile: done in 0:03, peak 1 MiB\r\n" in written
    assert "begins with" not in written
    assert "\x1b[2K" in written  # the live line is wiped out


def test_no_color_leaves_no_colour() -> None:
    assert "\x1b[1;36m" in on_terminal({"TERM": "xterm-256color"})
    written = on_terminal({"TERM": "xterm-256color", "NO_COLOR": "1"})
    assert "36m" not in written
    assert "2/4" in written


@pytest.mark.parametrize("env", [{"TERM": "dumb"}, {"TERM": "xterm", "CI": "true"}, {}])
def test_terminals_that_cannot_redraw_get_plain_lines(env: dict[str, str]) -> None:
    written = on_terminal(env)
    assert "\x1b" not in written
    assert "compile: begins with 2 jobs, memory 300 MiB\r\n" in written

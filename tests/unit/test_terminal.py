"""What people see at a terminal, in a pipe and without colours: real ones, in processes of their own."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from spark_images.text_chart import bar, curve

SOURCE = Path(__file__).parents[2] / "src"
TABLE = """
from spark_images.terminal import print_table
print_table(("name", "state", "MiB", "why"), [("a [b]", "good", "7", "word " * 30), ("c", "failed", "12", "x" * 200)],
            right=("MiB",), whole=("name", "state"))
"""
WORKING = """
import time
from spark_images.terminal import tell, working
with working("reading [it]"):
    time.sleep(0.2)
tell("done")
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9][0-9;]*m")


def environment(**more: str) -> dict[str, str]:
    left_out = ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "GITHUB_ACTIONS")
    clean = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**clean, "TERM": "xterm-256color", "PYTHONPATH": str(SOURCE), **more}


def at_terminal(code: str, **env: str) -> str:
    """What a program writes to a terminal of 80 columns."""
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (40, 80))
    with subprocess.Popen([sys.executable, "-c", code], stdin=its, stdout=its, stderr=its, env=environment(**env)):
        os.close(its)
        said = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux says so when the last writer is gone
                chunk = b""
            if not chunk:
                break
            said += chunk
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def in_pipe(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment(**env), capture_output=True, text=True, check=True, timeout=120)


def plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()


def test_a_table_fits_the_terminal_and_breaks_between_words() -> None:
    lines = plain(at_terminal(TABLE))
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("a [b] good     7 word word")
    assert all(word in ("word", "a", "[b]", "good", "7") for line in lines[2:4] for word in line.split())
    assert sum(line.count("x") for line in lines) == 200


def test_a_table_in_a_pipe_has_one_line_for_each_row_and_no_codes() -> None:
    said = in_pipe(TABLE)
    assert "\x1b" not in said.stdout
    assert len(said.stdout.splitlines()) == 4
    assert said.stdout.splitlines()[3].endswith("x" * 200)


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_states_have_colours_unless_nobody_wants_them(env: dict[str, str], coloured: bool) -> None:
    assert bool(COLOUR.search(at_terminal(TABLE, **env))) is coloured


def test_a_long_step_counts_its_seconds_and_leaves_nothing_behind() -> None:
    said = at_terminal(WORKING)
    assert "reading [it]" in said
    assert "0:00:00" in said
    assert plain(said.rpartition("\x1b[2K")[2]) == ["done"]


@pytest.mark.parametrize("env", [{"CI": "true"}, {"TERM": "dumb"}])
def test_a_long_step_is_said_once_where_no_line_can_change(env: dict[str, str]) -> None:
    assert at_terminal(WORKING, **env) == "reading [it]\ndone\n"
    assert in_pipe(WORKING, **env).stderr == "reading [it]\ndone\n"


def test_a_curve_keeps_its_peak_and_names_its_ends() -> None:
    drawn = curve([1.0] * 500 + [9.0] + [1.0] * 499, top="9 GiB", end="1:40")
    assert drawn[0].startswith("9 GiB |")
    assert sum("█" in line for line in drawn) == 6
    assert drawn[0].count("█") == 1
    assert drawn[-1].split() == ["0:00", "1:40"]
    assert max(map(len, drawn)) <= 75


def test_a_curve_of_few_or_no_values_is_drawn() -> None:
    assert curve([0.0], top="0 MiB", end="0:01")[-1].split() == ["0:00", "0:01"]
    assert len(curve([], top="0 MiB", end="0:00")) == 7


def test_a_bar_is_as_long_as_its_part() -> None:
    assert [bar(part, 24) for part in (0, 0.5, 1)] == ["", "#" * 12, "#" * 24]

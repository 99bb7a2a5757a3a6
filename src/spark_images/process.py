"""Host programs: the one place that starts them, streams what they say and ends them with all their children."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from spark_images.errors import HostProgramError

GRACE_S = 10.0  # between SIGTERM and SIGKILL: podman and buildx need a second or two to put away a running step
_POLL_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Captured:
    """How a program ended. status: 0 to 255 as a shell says it, 128 + n where signal n ended it."""

    command: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: str


def quoted(command: Sequence[str]) -> str:
    """The command as one line that can be pasted into a shell, with `+ ` before it."""
    return "+ " + shlex.join(command)


def capture(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    echo: Callable[[str], None] | None = None,
    watch: Callable[[int], None] | None = None,
) -> Captured:
    """Run a program to its end, with empty standard input, and keep what it wrote; its status is the caller's to judge.

    env: the whole environment, ours if None. echo: gets the quoted command before it runs.
    watch: gets, a few times a second, how many bytes the program wrote so far; what it raises ends the program.
    Raises HostProgramError if the program is missing or takes longer than timeout_s.
    """
    out, err = bytearray(), bytearray()

    def look(pid: int) -> None:
        if watch is not None:
            watch(len(out) + len(err))

    status = _run(command, (out.extend, err.extend), env=env, cwd=cwd, timeout_s=timeout_s, echo=echo, look=look)
    return Captured(command=tuple(command), status=status, stdout=bytes(out), stderr=err.decode(errors="replace"))


def stream(
    command: Sequence[str],
    on_line: Callable[[str], None],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    echo: Callable[[str], None] | None = None,
    watch: Callable[[int], None] = lambda pid: None,
    before_end: Callable[[], None] = lambda: None,
) -> int:
    """Run a program, give every line of its output (stdout and stderr as they come) to on_line; returns its status.

    watch: gets its pid at least five times a second; what it raises ends the program. before_end: called before we end
    it, whatever the reason. Raises HostProgramError as `capture` does.
    """
    lines = _Lines(on_line)
    status = _run(
        command,
        (lines.feed,),
        env=env,
        cwd=cwd,
        timeout_s=timeout_s,
        echo=echo,
        look=watch,
        before_end=before_end,
    )
    lines.finish()
    return status


def attach(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
    """Run a program on our own terminal, to be watched and typed to; returns its status.

    What interrupts us interrupts it too, and it gets time to put things away. Raises HostProgramError if it is missing.
    """
    process = _start(command, env=env, cwd=cwd, start_new_session=False)
    try:
        return _shell_status(process.wait())
    except KeyboardInterrupt as interrupt:
        if interrupt.args:  # a signal to us alone; a Ctrl-C has reached all on the terminal, and twice means "at once"
            process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def hand(command: Sequence[str], data: bytes, *, env: Mapping[str, str] | None = None, timeout_s: float) -> Captured:
    """Give a program something to read and keep what it wrote. It has our terminal: it may ask there for a password.

    Raises HostProgramError as `capture` does.
    """
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with _start(command, env=env, cwd=None, **pipes) as process:
        try:
            out, err = process.communicate(data, timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise _timed_out(command, timeout_s) from None
        except BaseException:
            process.kill()
            raise
    status, said = _shell_status(process.returncode), err.decode(errors="replace")
    return Captured(command=tuple(command), status=status, stdout=out, stderr=said)


class _Lines:
    """Cuts a byte stream into lines."""

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip("\r"))

    def finish(self) -> None:
        if self._rest:
            self.feed(b"\n")


def _run(
    command: Sequence[str],
    sinks: tuple[Callable[[bytes], Any], ...],
    *,
    env: Mapping[str, str] | None,
    cwd: Path | None,
    timeout_s: float | None,
    echo: Callable[[str], None] | None,
    look: Callable[[int], None] = lambda pid: None,
    before_end: Callable[[], None] = lambda: None,
) -> int:
    """The status of the program; one sink takes both streams, two take stdout and stderr."""
    if echo is not None:
        echo(quoted(command))
    merged = len(sinks) == 1
    # A session of its own: a terminal's Ctrl-C reaches only us, who then end the whole group in order;
    # and a program that wants to ask for a password finds no terminal and fails instead of waiting for ever.
    process = _start(
        command,
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        start_new_session=True,
    )
    pipes: list[IO[bytes] | None] = [process.stdout] if merged else [process.stdout, process.stderr]
    open_pipes = {pipe.fileno(): sink for pipe, sink in zip(pipes, sinks, strict=True) if pipe is not None}
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        _pump(process, open_pipes, deadline, look)
        status = process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        _end(process, before_end)
        raise _timed_out(command, timeout_s, f"command: {shlex.join(command)}") from None
    except BaseException:
        _end(process, before_end)
        raise
    finally:
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
    return _shell_status(status)


def _timed_out(command: Sequence[str], timeout_s: float | None, *why: str) -> HostProgramError:
    error = HostProgramError(f"`{command[0]}` did not end within {timeout_s:g} s", why=why)
    error.timed_out = True
    return error


def _start(
    command: Sequence[str], *, env: Mapping[str, str] | None, cwd: Path | None, **options: Any
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=None if env is None else dict(env), cwd=cwd, **options)
    except FileNotFoundError as err:
        if cwd is not None and not cwd.is_dir():
            raise
        raise HostProgramError(
            f"`{command[0]}` is not installed", hint="`./noxw -s doctor` says what is missing and how to get it"
        ) from err
    except OSError as err:  # not ours to run, or no program at all
        raise HostProgramError(f"`{command[0]}` cannot be started") from err


def _shell_status(status: int) -> int:
    return 128 - status if status < 0 else status


def _pump(
    process: subprocess.Popen[bytes],
    pipes: dict[int, Callable[[bytes], Any]],
    deadline: float | None,
    look: Callable[[int], None],
) -> None:
    """Read until every pipe is closed, or the program has ended and nothing more comes.

    The second is for daemons that it leaves behind: they may hold a pipe open for ever.
    """
    pipes = dict(pipes)
    while pipes:
        look(process.pid)
        ended = process.poll() is not None  # before the select: what it wrote by then is seen by that select
        ready, _, _ = select.select(list(pipes), [], [], _POLL_S)
        for fd in ready:
            if chunk := os.read(fd, 1 << 16):
                pipes[fd](chunk)
            else:
                del pipes[fd]
        if ended and not ready:
            return
        if deadline is not None and time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(process.args, 0)


def _end(process: subprocess.Popen[bytes], before: Callable[[], None]) -> None:
    """SIGTERM to the program's whole group, SIGKILL to what is left of it after GRACE_S or at a second Ctrl-C."""
    if process.returncode is not None:
        return  # its number may belong to another process by now
    try:
        before()
        _signal_group(process.pid, signal.SIGTERM)
        give_up = time.monotonic() + GRACE_S
        while time.monotonic() < give_up:
            # WNOWAIT leaves the zombie: until the SIGKILL below nobody else can get this process group's number.
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(0.02)
    finally:
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)

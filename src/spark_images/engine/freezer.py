"""Holding the steps of a build still and letting them go on, with a note of it for whoever comes after a kill."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_images.cgroup import places
from spark_images.engine import daemon
from spark_images.errors import EngineError

ROOT = Path("/")
NOTE = "frozen"  # the note's name in an engine's folder


@dataclass(frozen=True)
class Group:
    """A step's cgroup. state: `cgroup.freeze` of version 2, `freezer.state` of version 1."""

    state: Path

    def freeze(self) -> None:
        self._write("FROZEN", "1")

    def thaw(self) -> None:
        self._write("THAWED", "0")

    def kill(self) -> None:
        """Version 1 lets nothing die that is frozen, and what is thawed after SIGKILL does not run any more."""
        for folder, _, _ in os.walk(self.state.parent):
            with contextlib.suppress(OSError):  # it is gone: its last process has ended
                for pid in Path(folder, "cgroup.procs").read_text().split():
                    _signal(int(pid), signal.SIGKILL)
        self.thaw()

    def _write(self, version_1: str, version_2: str) -> None:
        try:
            self.state.write_text(version_1 if self.state.name == "freezer.state" else version_2)
        except OSError as err:
            if err.errno not in (errno.ENOENT, errno.ENODEV):  # those: its last process has ended
                raise

    def __str__(self) -> str:
        return f"cgroup {self.state.parent}"


@dataclass(frozen=True)
class Container:
    """A whole builder, where its cgroups are not ours to write: its daemon pauses it.

    BuildKit and buildx go on after a pause of 125 s (measured with BuildKit 0.32.2 and buildx 0.36.1).
    """

    name: str
    socket: Path

    def freeze(self) -> None:
        self._ask("pause")

    def thaw(self) -> None:
        self._ask("unpause")

    def kill(self) -> None:
        """The daemon delivers the signal and resumes the container, which then runs no more."""
        self._ask("kill")

    def _ask(self, action: str) -> None:
        daemon.post(self.socket, f"/containers/{self.name}/{action}")

    def __str__(self) -> str:
        return f"container {self.name}"


@dataclass(frozen=True)
class Stopped:
    """A process of a step that has no cgroup of its own. started: tells it from another one with its number."""

    pid: int
    started: str

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if _start_of(self.pid) == self.started:
            _signal(self.pid, number)

    def __str__(self) -> str:
        return f"process {self.pid}, by SIGSTOP as it has no cgroup of its own"


Target = Group | Container | Stopped


class Freezer:
    """Freezes what runs in the containers below one process: podman's command, or the first process of a builder."""

    def __init__(self, note: Path, parent: int, *, builder: Container | None = None, root: Path = ROOT) -> None:
        """note: where it is written down before it happens. builder: what to pause where its steps are out of reach."""
        self._note = note
        self._parent = parent
        self._builder = builder
        self._root = root
        self._held: list[Target] = []

    @property
    def held(self) -> tuple[Target, ...]:
        """What is frozen now."""
        return tuple(self._held)

    def pids(self) -> frozenset[int]:
        """The build's own processes."""
        return frozenset(below(self._parent, self._root))

    def hold(self) -> None:
        """Freeze what is not frozen yet; to be called again while it is to last, as new steps may begin."""
        new = [target for target in self._targets() if target not in self._held]
        if not new:
            return
        self._held += new
        _write_note(self._note, self._held)
        for target in new:
            target.freeze()

    def thaw(self) -> None:
        """Let everything go on."""
        self._release(lambda target: target.thaw())

    def kill(self) -> None:
        """End what is frozen, without letting it run again."""
        self._release(lambda target: target.kill())

    def _release(self, how: Callable[[Target], None]) -> None:
        for target in self._held:
            how(target)
        self._held.clear()
        self._note.unlink(missing_ok=True)

    def _targets(self) -> Iterator[Target]:
        try:
            engine = (self._pid_namespace(self._parent), _states(self._parent, self._root))
        except OSError:  # another user's builder, or in another /proc
            if self._builder:
                yield self._builder
            return
        seen = set()
        for pid in below(self._parent, self._root):
            with contextlib.suppress(OSError):  # ended meanwhile
                if self._pid_namespace(pid) != engine[0]:  # else it is the engine's: a step has a namespace of its own
                    target = self._target(pid, engine[1])
                    if target not in seen:
                        seen.add(target)
                        yield target

    def _target(self, pid: int, engine: tuple[Path, ...]) -> Target:
        for state in _states(pid, self._root):
            if state not in engine and os.access(state, os.W_OK):
                return Group(state)
        return self._builder or Stopped(pid, _start_of(pid, self._root))

    def _pid_namespace(self, pid: int) -> str:
        return str((self._root / f"proc/{pid}/ns/pid").readlink())


def end_left(note: Path) -> tuple[str, ...]:
    """End what a killed run left frozen; a line for each. Only while no build runs that could have written the note."""
    try:
        words = [line.split("\t") for line in note.read_text().splitlines()]
    except FileNotFoundError:
        return ()
    ended = []
    for kind, *values in words:
        target: Target
        match kind, values:
            case "group", [state]:
                target = Group(Path(state))
            case "container", [name, socket]:
                target = Container(name, Path(socket))
            case "process", [pid, started]:
                target = Stopped(int(pid), started)
            case _:  # of another version of ours
                continue
        with contextlib.suppress(EngineError):  # the daemon is gone, and what it ran with it
            target.kill()
        ended.append(f"frozen {target}")
    note.unlink(missing_ok=True)
    return tuple(ended)


def _write_note(note: Path, held: list[Target]) -> None:
    lines = []
    for target in held:
        match target:
            case Group():
                words = ["group", str(target.state)]
            case Container():
                words = ["container", target.name, str(target.socket)]
            case Stopped():
                words = ["process", str(target.pid), target.started]
        lines.append("\t".join(words))
    note.parent.mkdir(parents=True, exist_ok=True)
    # Without fsync, which may take seconds while a build writes: it is for after a kill. No freeze outlives the kernel.
    hidden = note.with_name(f".{note.name}")
    hidden.write_text("\n".join(lines) + "\n")
    hidden.replace(note)


def _states(pid: int, root: Path) -> tuple[Path, ...]:
    """The files that would freeze the process's cgroups, version 2 first: there SIGKILL works on what is frozen."""
    found = []
    for place in sorted(places(pid, "freezer", root), key=lambda place: -place.version):
        if place.below is not None:
            state = place.top / place.below / ("cgroup.freeze" if place.version == 2 else "freezer.state")
            if state.exists():  # not in the root of a hierarchy
                found.append(state)
    return tuple(found)


def below(parent: int, root: Path = ROOT) -> list[int]:
    """Every process that descends from this one, nearest first."""
    children: dict[int, list[int]] = {}
    for stat in (root / "proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            fields = stat.read_text().rpartition(")")[2].split()  # the name before it may hold anything
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found = [parent]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _start_of(pid: int, root: Path = ROOT) -> str:
    """In ticks since the machine began; "" where there is no such process."""
    try:
        return (root / f"proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

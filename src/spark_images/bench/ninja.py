"""Compilers under a memory cap: a ninja build of given commands, with fixed job counts and behind scripts/memgate."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_images.bench.base import NotMeasured
from spark_images.bench.cgroup import capped
from spark_images.errors import HostProgramError
from spark_images.process import capture
from spark_images.profile import ExpectedUnit, profile_text
from spark_images.schedule import Unit

_UNIT = re.compile(rb"\[spark\] unit (\S+) peak_mib=(\d+) seconds=([\d.]+) cpu_s=([\d.]+) ")
_AGAIN = re.compile(rb"\[spark\] gate \S+ again ")
OF_THE_GATE = ("MEMGATE_", "CCACHE_", "MAKEFLAGS")  # of an outer build; they are not what is measured


@dataclass(frozen=True, kw_only=True)
class Compile:
    """One edge of a build. command: makes `unit`, its path below the build's folder; without the gate."""

    unit: str
    command: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Gate:
    """scripts/memgate and what it is told."""

    program: Path
    slots: int
    unit_mib: int
    profile: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """How a build went. units: what the gate measured of each, and all their CPU seconds together.

    again: compilers that the gate ran once more.
    """

    seconds: float
    failed: int  # of all units; none is made where the build did not end in time
    oom_kills: int
    units: tuple[Unit, ...] = ()
    cpu_s: float = 0.0
    again: int = 0
    said: tuple[str, ...] = field(default=(), repr=False)

    @property
    def core_part(self) -> float:
        """Part of a core that each compiler had, on average: below 1 where other work was on the machine."""
        return self.cpu_s / sum(unit.seconds for unit in self.units)

    @property
    def told(self) -> str:
        """`41.2 s` or `41.2 s, 3 units failed, 2 killed for memory`."""
        kills = f"{self.oom_kills} killed for memory" if self.oom_kills else ""
        failed = f"{self.failed} units failed" if self.failed else ""
        again = f"{self.again} run again" if self.again else ""
        return ", ".join(part for part in (f"{self.seconds:.1f} s", failed, kills, again) if part)


def program(name: str, package: str) -> str:
    """Path of a program of the host. Raises NotMeasured."""
    found = shutil.which(name)
    if found is None:
        raise NotMeasured(f"needs `{name}`; `apt-get install {package}`")
    return found


def build(
    compiles: Sequence[Compile],
    folder: Path,
    *,
    jobs: int,
    cap_bytes: int,
    gate: Gate | None = None,
    outside: bool = False,
    timeout_s: float = 600,
) -> Attempt:
    """Run them by `ninja -j JOBS` in a new folder and a new cgroup; what fails does not stop the others.

    outside: ninja and the gates stay out of the cgroup, and commands enter it by `$MEMBERS`, the file of its members.
    Raises NotMeasured where there is no ninja or no cgroup.
    """
    folder.mkdir()
    (folder / "build.ninja").write_text(ninja_file(compiles, gate))
    command = [program("ninja", "ninja-build"), "-k", "0", "-j", str(jobs)]
    with capped(cap_bytes) as group:
        env = {key: value for key, value in os.environ.items() if not key.startswith(OF_THE_GATE)}
        if gate is not None:
            command = [str(gate.program), "run", *command]
            env |= gate_environment(gate)
        if outside:
            env |= {"MEMGATE_CGROUP": str(group.folder), "MEMBERS": str(group.members)}
        began = time.monotonic()
        try:
            said = capture(
                command if outside else group.inside(command), cwd=folder, env=env, timeout_s=timeout_s
            ).stdout
        except HostProgramError:  # it took longer than it may
            said = b""
        seconds = time.monotonic() - began
        oom_kills = group.oom_kills()
    missing = [one.unit for one in compiles if not (folder / one.unit).exists()]
    return Attempt(
        seconds=seconds,
        failed=len(missing),
        oom_kills=oom_kills,
        units=measured(said),
        cpu_s=sum(float(cpu_s) for *_, cpu_s in _UNIT.findall(said)),
        again=len(_AGAIN.findall(said)),
        said=tuple(said.decode(errors="replace").splitlines()),
    )


def ninja_file(compiles: Sequence[Compile], gate: Gate | None) -> str:
    """The build in ninja's words, in the given order."""
    lines = ["rule run", f"  command = {f'{gate.program} ' if gate else ''}$compile", ""]
    for one in compiles:
        lines += [f"build {one.unit}: run", f"  compile = {shlex.join(one.command).replace('$', '$$')}"]
    return "\n".join(lines) + "\n"


def gate_environment(gate: Gate) -> Mapping[str, str]:
    """What memgate reads."""
    env = {"MEMGATE_SLOTS": str(gate.slots), "MEMGATE_UNIT_MIB": str(gate.unit_mib)}
    return env | ({"MEMGATE_PROFILE": str(gate.profile)} if gate.profile else {})


def measured(said: bytes) -> tuple[Unit, ...]:
    """The units that memgate says were compiled."""
    found = _UNIT.findall(said)
    return tuple(
        Unit(name=name.decode(), peak_mib=int(peak), seconds=float(seconds)) for name, peak, seconds, _ in found
    )


def write_profile(units: Sequence[Unit], file: Path) -> Path:
    """The units as memgate reads them; the file."""
    expected = (ExpectedUnit(unit=one.name, peak_mib=round(one.peak_mib), seconds=one.seconds) for one in units)
    file.write_text(profile_text(expected).text)
    return file

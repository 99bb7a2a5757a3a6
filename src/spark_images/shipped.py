"""images/<name>/profiles/<release>-<target>.txt: every unit of a release as it was measured once, for first builds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from spark_images.buildlog import UnitMeasured
from spark_images.errors import ConfigError

_NAME = re.compile(r"(?P<release>[0-9][0-9a-z.]*)-(?P<target>[a-z][a-z0-9-]*)\.txt")
_BASIS = "# basis: "
_LINE = re.compile(r"(?P<peak>[0-9]+) (?P<seconds>[0-9.]+) (?P<cpu>[0-9.]+) (?P<unit>\S+)")


@dataclass(frozen=True, kw_only=True)
class ShippedProfile:
    """One file. basis: on what it was measured."""

    release: Version
    target: str
    basis: str
    units: tuple[UnitMeasured, ...]

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all units."""
        return sum(unit.cpu_s for unit in self.units)


def read_shipped(folder: Path, target: str) -> tuple[ShippedProfile, ...]:
    """What images/<name> ships for a target, the newest release first; () for nothing. ConfigError names a bad line."""
    found = []
    for path in folder.glob("profiles/*.txt"):
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise ConfigError(f"`{path}` is not called `<release>-<target>.txt`")
        if name["target"] == target:
            found.append(parse_shipped(path.read_text(), path=str(path), release=name["release"], target=target))
    return tuple(sorted(found, key=lambda profile: profile.release, reverse=True))


def parse_shipped(text: str, *, path: str, release: str, target: str) -> ShippedProfile:
    """Lines `peak_mib seconds cpu_s unit`; of the comments one begins with `# basis: `. path: for messages."""
    basis, units = "", []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            basis = line.removeprefix(_BASIS) if line.startswith(_BASIS) else basis
        elif match := _LINE.fullmatch(line):
            units.append(
                UnitMeasured(
                    step="",
                    unit=match["unit"],
                    peak_mib=int(match["peak"]),
                    seconds=float(match["seconds"]),
                    cpu_s=float(match["cpu"]),
                    expected_mib=0,
                    tries=1,
                )
            )
        else:
            raise ConfigError(f"{path}:{number}: expected `peak_mib seconds cpu_s unit`, got `{line[:60]}`")
    return ShippedProfile(release=Version(release), target=target, basis=basis, units=tuple(units))

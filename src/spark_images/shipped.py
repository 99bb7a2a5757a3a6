"""images/<name>/profiles/<release>-<target>.txt: every unit of a release as it was measured once, for first builds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from spark_images.buildlog import UnitMeasured
from spark_images.errors import ConfigError
from spark_images.targets import read_targets

_NAME = re.compile(r"(?P<release>[0-9][0-9a-z.]*)-(?P<target>[a-z][a-z0-9-]*)\.txt")
_BASIS = "# basis: "
_SECONDS = r"[0-9]{1,9}(?:\.[0-9]+)?"
_LINE = re.compile(rf"(?P<peak>[0-9]{{1,9}}) (?P<seconds>{_SECONDS}) (?P<cpu>{_SECONDS}) (?P<unit>\S+)")
_RENAME = "rename it by the release and the target that it was measured for, as `0.20.2-gb10.txt`, or remove it"
_CORRECT = "correct the line, or take the file back as it was committed"


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
    """What images/<name> ships for a target, the newest release first; () for nothing.

    Raises ConfigError for a line that is wrong, and for a file whose name says no release or no target of targets.yaml.
    """
    found = []
    for path in sorted(folder.glob("profiles/*.txt")):
        name = _NAME.fullmatch(path.name)
        if name is None:
            raise ConfigError(f"`{path}` is not called `<release>-<target>.txt`", hint=_RENAME)
        known = [one.name for one in read_targets(folder.parent / "targets.yaml")]
        if name["target"] not in known:
            raise ConfigError(
                f"`{path}` is named for the target `{name['target']}`, and there is none of this name",
                why=[f"images/targets.yaml has {', '.join(f'`{one}`' for one in known)}"],
                hint=_RENAME,
            )
        if name["target"] == target:
            found.append(parse_shipped(_text(path), path=str(path), release=name["release"], target=target))
    return tuple(sorted(found, key=lambda profile: profile.release, reverse=True))


def parse_shipped(text: str, *, path: str, release: str, target: str) -> ShippedProfile:
    """Lines `peak_mib seconds cpu_s unit`; of the comments one begins with `# basis: `. path: for messages."""
    try:
        version = Version(release)
    except InvalidVersion as err:
        raise ConfigError(f"`{path}` is named for `{release}`, which is no version of a release", hint=_RENAME) from err
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
            raise ConfigError(
                f"{path}:{number}: expected `peak_mib seconds cpu_s unit`, got `{line[:60]}`", hint=_CORRECT
            )
    if not basis.strip():
        raise ConfigError(
            f"{path}:1: expected a line `{_BASIS}…`, and there is none",
            hint="say in it on what the units were measured: the machine, its cores and -j, the compilers",
        )
    if not units:
        raise ConfigError(
            f"{path}:1: expected a line `peak_mib seconds cpu_s unit` for each unit, and there is none",
            hint="take the file back as it was committed, or remove it: without one a build goes by gib-per-job",
        )
    return ShippedProfile(release=version, target=target, basis=basis, units=tuple(units))


def _text(path: Path) -> str:
    content = path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        raise ConfigError(f"{path}:{line}: expected text in UTF-8", hint=_CORRECT) from err

"""The lock of a debs pin: apt resolves its sets in a folder of its own, so the host's packages play no part."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from spark_images.contents import deb_url
from spark_images.errors import ConfigError, HostProgramError, RouteError
from spark_images.files import write_text
from spark_images.locks import LockedDeb, lock_text, made_from
from spark_images.pins import DebsPin
from spark_images.process import Captured, capture

APT_TIMEOUT_S = 900.0  # package lists are 10 MB per architecture
KEY_FOLDERS = (Path("/usr/share/keyrings"), Path("/etc/apt/trusted.gpg.d"))

# One line of `apt-get --print-uris`: 'URL' package_version_arch.deb size SHA256:hex
_URI = re.compile(
    r"'(?P<url>[^']+)' (?P<package>[^_ ]+)_(?P<version>[^_ ]+)_(?P<arch>[^_ ]+)\.deb"
    r" (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})"
)

# No file of the host's apt configuration is read, as it may hold hooks that touch the host.
_APT_CONF = """\
Dir "{root}/";
Dir::State "state";
Dir::State::status "status";
Dir::Cache "cache";
Dir::Etc "etc";
Dir::Etc::main "none";
Dir::Etc::parts "none.d";
Dir::Etc::preferences "none";
Dir::Etc::preferencesparts "none.d";
Dir::Etc::sourcelist "sources.list";
Dir::Etc::sourceparts "none.d";
Dir::Etc::trusted "none.gpg";
Dir::Etc::trustedparts "keys";
APT::Architecture "{arch}";
APT::Architectures {{ "{arch}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::ForceHash "sha256";
Acquire::Languages "none";
Acquire::Retries "3";
"""


def resolve_debs(pin: DebsPin, *, work: Path) -> tuple[LockedDeb, ...]:
    """The .debs of every set on every architecture, each set closed over its dependencies, without recommendations.

    Nothing counts as installed, and no package is added for being essential: a set lists what it wants.
    work: an empty folder for apt's state. The pin's first route is asked.
    Raises HostProgramError without apt or Debian's keys, RouteError when the archive does not answer,
    ConfigError when a set cannot be resolved.
    """
    if shutil.which("apt-get") is None:
        raise HostProgramError(
            f"`{pin.lock}` cannot be made: the program `apt-get` is missing",
            why=("apt resolves the package sets of a debs pin; only making the lock needs it, building does not",),
            hint="make the lock on Debian or Ubuntu, or in a container of one",
        )
    found: dict[tuple[str, str, str], LockedDeb] = {}
    for arch in sorted({arch for one in pin.sets for arch in one.arches}):
        env = _prepare_apt(pin, arch, work / arch, pin.routes[0])
        update = _apt(["update"], env)
        if update.status != 0:
            raise RouteError(
                f"pin `{pin.name}`: apt cannot read the package lists of `{pin.suite}` for `{arch}`",
                why=_complaints(update),
                hint="check the pin's first route and the network, then run `./noxw -s lock` again",
            )
        for one in pin.sets:
            if arch not in one.arches:
                continue
            install = _apt(["install", "--yes", "--print-uris", "--", *sorted(one.packages)], env)
            if install.status != 0:
                raise ConfigError(
                    f"pin `{pin.name}`: set `{one.name}` cannot be resolved for `{arch}` in `{pin.suite}`",
                    why=_complaints(install),
                    hint=f"correct the packages of set `{one.name}` in pins.yaml, then run `./noxw -s lock`",
                )
            debs = parse_uris(install.stdout.decode(), base_urls=_base_urls(pin, pin.routes[0]))
            if idle := sorted(set(one.without) - {deb.package for deb in debs}):
                raise ConfigError(
                    f"pin `{pin.name}`: set `{one.name}` leaves out what nothing in it brings: {', '.join(idle)}",
                    hint="correct `without` of that set in pins.yaml",
                )
            for deb in debs:
                if deb.package in one.without:
                    continue
                key = deb.package, deb.version, deb.arch
                sets = {*(found[key].sets if key in found else ()), f"{one.name}/{arch}"}
                found[key] = replace(deb, sets=tuple(sorted(sets)))
    return tuple(found[key] for key in sorted(found))


def parse_uris(output: str, *, base_urls: Mapping[str, str]) -> tuple[LockedDeb, ...]:
    """The .debs that `apt-get --print-uris` names. base_urls: archive -> the address that its paths follow."""
    debs = []
    for line in output.splitlines():
        if not line.startswith("'"):
            continue
        match = _URI.fullmatch(line.strip())
        archive = match and next((name for name, base in base_urls.items() if match["url"].startswith(base)), None)
        if match is None or archive is None:
            raise RouteError(
                "apt names a package file in a way that is not understood", why=(line,), hint="a sha256 is a must"
            )
        debs.append(
            LockedDeb(
                package=match["package"],
                version=unquote(match["version"]),  # apt writes an epoch's colon as %3a
                arch=match["arch"],
                archive=archive,
                path=unquote(match["url"].removeprefix(base_urls[archive])),
                sha256=match["sha256"],
                size_bytes=int(match["size"]),
                sets=(),
            )
        )
    return tuple(debs)


def write_debs_lock(pin: DebsPin, debs: Iterable[LockedDeb], path: Path) -> None:
    """Write the lock, whole or not at all, in an order of its own."""
    comment = f"The .debs behind the pin `{pin.name}` of pins.yaml. Remade by `nox -s lock`; do not edit."
    entries = [
        # Quotes where YAML could see a number: versions such as 1.10, digests such as 1234e56.
        f'{{package: {deb.package}, version: "{deb.version}", arch: {deb.arch}, archive: {deb.archive}, '
        f'path: {deb.path}, sha256: "{deb.sha256}", size: {deb.size_bytes}, sets: [{", ".join(deb.sets)}]}}'
        for deb in sorted(debs, key=lambda deb: (deb.package, deb.version, deb.arch))
    ]
    write_text(path, lock_text(comment, made=made_from(pin), key="debs", entries=entries))


def _base_urls(pin: DebsPin, route: str) -> dict[str, str]:
    return {archive: deb_url(pin, route, archive=archive, path="") for archive in ("debian-security", "debian")}


def _prepare_apt(pin: DebsPin, arch: str, root: Path, route: str) -> dict[str, str]:
    """Lay out apt's folders and return the environment in which apt uses nothing else."""
    for folder in ("state/lists/partial", "cache/archives/partial", "etc/keys", "etc/none.d"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    keys = [
        file
        for folder in KEY_FOLDERS
        for file in sorted(folder.glob("debian-archive-*"))
        if file.suffix in (".gpg", ".asc")
    ]
    if not keys:
        raise HostProgramError(
            "Debian's archive keys are missing, so package lists could not be verified",
            why=tuple(f"looked for `{folder}/debian-archive-*`" for folder in KEY_FOLDERS),
            hint="`sudo apt-get install debian-archive-keyring`",
        )
    for key in keys:
        shutil.copyfile(key, root / "etc/keys" / key.name)
    (root / "state/status").write_text("", encoding="ascii")  # nothing is installed
    base = _base_urls(pin, route)
    # The Release files of a snapshot are past their date by design.
    options = " [check-valid-until=no]" if "{snapshot}" in route else ""
    suites = (("debian", pin.suite), ("debian", f"{pin.suite}-updates"), ("debian-security", f"{pin.suite}-security"))
    sources = [f"deb{options} {base[archive]} {suite} main\n" for archive, suite in suites]
    (root / "etc/sources.list").write_text("".join(sources), encoding="ascii")
    configuration = root / "apt.conf"
    configuration.write_text(_APT_CONF.format(root=root.absolute(), arch=arch) + _host_transport(), encoding="utf-8")
    return {**os.environ, "LC_ALL": "C", "APT_CONFIG": str(configuration)}


def _host_transport() -> str:
    """How the host's apt reaches archives: its proxies and certificates are honoured, nothing else of it."""
    command = ["apt-config", "dump", "--no-empty", "--format", '%F "%v";%n', "Acquire::http", "Acquire::https"]
    return capture(command, timeout_s=APT_TIMEOUT_S).stdout.decode()


def _apt(arguments: list[str], env: dict[str, str]) -> Captured:
    return capture(["apt-get", "-qq", *arguments], env=env, timeout_s=APT_TIMEOUT_S)


def _complaints(done: Captured) -> tuple[str, ...]:
    lines = [line.strip() for line in (done.stdout.decode(errors="replace") + done.stderr).splitlines()]
    return tuple(line for line in lines if line and not line.startswith("'"))[-8:]

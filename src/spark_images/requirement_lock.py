"""The lock of a requirements pin: uv resolves for its platform and Python, from wheels and the sdists that are named.

No foreign code runs: what an sdist asks for is read from requirements.yaml, and the audit holds the image against it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.version import Version

from spark_images.errors import ConfigError, ContentError, HostProgramError, RouteError, SparkImagesError
from spark_images.files import write_text
from spark_images.locks import LockedWheel
from spark_images.pins import RequirementsPin
from spark_images.process import Captured, capture
from spark_images.wheel_lock import lock_file
from spark_images.wheel_tags import glibc_platform

if TYPE_CHECKING:
    from spark_images.package_index import IndexFile, PackageIndex, PipConfig

UV_TIMEOUT_S = 1800.0  # it reads the metadata of some hundred wheels: seconds, on a slow line minutes
ASK_JOBS = 8  # sizes that are asked for at once
MOST_REASONS = 8  # lines of the solver's explanation that an error shows; its log has all
_UNSOLVED, _UNDATED = "No solution found", "is missing an upload date"  # uv's words
_WHEELLESS = re.compile(r"([a-z0-9][a-z0-9._-]*)(?:[<>=!~]=?[^ ]+)? ha(?:s|ve) no (?:usable )?wheels")  # and these

_WITHOUT_WHEEL = (
    "of what has no wheel, `constraints` can name a version that has one, `exclusions` leave it out where nothing "
    "needs it, and what stands under `sdists` is built of its source, see docs/adding-a-pin.md"
)


def resolve_requirements(
    pin: RequirementsPin, *, work: Path, log: Path, index: PackageIndex | None = None
) -> tuple[LockedWheel, ...]:
    """Everything that the pin's releases need, themselves included: one file of each project, with its layer.

    work: an empty folder. log: a file that gets all that uv says. index: the user's own, as pip is configured, if None.
    Raises ConfigError where there is no solution, where the solution has what is refused, or where an exclusion or an
    override changes nothing, an sdist has a wheel, or a layer stays empty; RouteError when an index does not answer.
    """
    from spark_images.package_index import PackageIndex, select_wheel

    index = index or PackageIndex.from_env()
    files = _solve(pin, [one.name for one in pin.requirements.exclusions], work=work, log=log, config=index.config)
    files = {project: of for project, of in files.items() if project not in dict(pin.provided)}
    _check(pin, files)
    if pin.requirements.exclusions:
        _check_exclusions(pin, work=work, log=log.with_suffix(".full.log"), config=index.config)

    sdists = {one.name for one in pin.requirements.sdists}

    def locked(project: str) -> LockedWheel:
        version = files[project][0].version
        of = {"project": project, "version": version, "platform": pin.platform}
        if project in sdists:
            known = index.find_files(project)
            _require_wheelless(pin, (one for one in known if _counts(one, pin)), **of)
            file = files[project][0]
        else:
            file = select_wheel(files[project], **of, python=pin.python)
        return lock_file(file, **of, index=index, layer=pin.requirements.layer_of(project))

    with ThreadPoolExecutor(ASK_JOBS) as pool:
        return tuple(pool.map(locked, files))


def uv_command(pin: RequirementsPin, *, uv: str, work: Path) -> tuple[str, ...]:
    """How uv is asked. Only what is in `work` counts, no configuration of the user and no installed package."""
    return (
        uv, "pip", "compile", str(work / "requirements.in"),
        "--constraints", str(work / "constraints.txt"), "--overrides", str(work / "overrides.txt"),
        "--excludes", str(work / "excludes.txt"),
        "--python-platform", glibc_platform(pin.platform), "--python-version", pin.python,
        "--exclude-newer", f"{pin.exclude_newer:%Y-%m-%dT%H:%M:%SZ}",
        "--only-binary", ":all:", *(word for one in pin.requirements.sdists for word in ("--no-binary", one.name)),
        "--format", "pylock.toml", "--output-file", str(work / "pylock.toml"), "--config-file", str(work / "uv.toml"),
        "--python", sys.executable, "--no-python-downloads", "--no-cache", "--no-progress", "--verbose",
    )  # fmt: skip


def uv_environment(config: PipConfig, env: Mapping[str, str]) -> dict[str, str]:
    """uv does not read pip's configuration, so that is put into its words; what UV_* variables said before is dropped.

    Addresses with passwords in them are safe here, where a command line would show them.
    """
    kept = {name: value for name, value in env.items() if not name.startswith("UV_")}
    kept["UV_DEFAULT_INDEX"] = config.indexes[0]
    if config.indexes[1:]:
        kept["UV_INDEX"] = " ".join(config.indexes[1:])
    if config.trusted_hosts:
        kept["UV_INSECURE_HOST"] = " ".join(config.trusted_hosts)
    if config.cert:
        kept["SSL_CERT_FILE"] = config.cert
    if config.client_cert:
        kept["SSL_CLIENT_CERT"] = config.client_cert
    if config.proxy:
        kept["HTTPS_PROXY"] = kept["HTTP_PROXY"] = config.proxy
    if config.timeout_s is not None:
        kept["UV_HTTP_TIMEOUT"] = f"{config.timeout_s:.0f}"
    if config.attempts is not None:
        kept["UV_HTTP_RETRIES"] = str(config.attempts - 1)
    return kept


def read_pylock(text: str) -> dict[str, tuple[IndexFile, ...]]:
    """Project -> the wheels among which the platform's is, or the sdist, as uv's pylock.toml (PEP 751) lists them."""
    from spark_images.package_index import IndexFile

    found: dict[str, tuple[IndexFile, ...]] = {}
    for package in tomllib.loads(text)["packages"]:
        files: list[dict[str, Any]] = package.get("wheels") or [package["sdist"]]
        found[package["name"]] = tuple(
            IndexFile(
                project=package["name"],
                version=package["version"],
                filename=file.get("name") or unquote(urlsplit(file["url"]).path.rpartition("/")[2]),
                url=file["url"],
                sha256=file["hashes"].get("sha256"),
                size_bytes=file.get("size"),
            )
            for file in files
        )
    return found


def _solve(
    pin: RequirementsPin, exclusions: Iterable[str], *, work: Path, log: Path, config: PipConfig
) -> dict[str, tuple[IndexFile, ...]]:
    uv = shutil.which("uv", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))))
    if uv is None:
        raise HostProgramError(
            f"`{pin.lock}` cannot be made: the program `uv` is missing",
            why=("only making the lock needs it, building does not",),
            hint="run `./noxw -s lock`, which brings the version that requirements.lock names",
        )
    _write_lines(work / "requirements.in", pin.packages)
    # Of what the base has besides torch, no other version is a solution.
    rest = ((name, version) for name, version in pin.provided if name not in pin.base_torch)
    met = [f"{name}=={Version(version).base_version}" for name, version in rest]
    held = (*pin.requirements.constraints, *pin.requirements.sdists)
    _write_lines(work / "constraints.txt", (*(f"{one.name}=={one.version}" for one in held), *met))
    _write_lines(work / "overrides.txt", (f"{one.name}=={one.version}" for one in pin.requirements.overrides))
    _write_lines(work / "excludes.txt", (*exclusions, *pin.base_torch))
    # uv asks no build backend what is stated here, of any version: 1.0 is 1.0+local as well. JSON's strings are TOML's.
    stated = (
        f"[[dependency-metadata]]\nname = {json.dumps(one.name)}\nrequires-dist = {json.dumps(one.requires)}"
        for one in pin.requirements.sdists
    )
    _write_lines(work / "uv.toml", stated)
    done = capture(uv_command(pin, uv=uv, work=work), env=uv_environment(config, os.environ), timeout_s=UV_TIMEOUT_S)
    write_text(log, done.stderr)
    if done.status == 0:
        return read_pylock((work / "pylock.toml").read_text())
    raise _failure(pin, done, log)


def _failure(pin: RequirementsPin, done: Captured, log: Path) -> SparkImagesError:
    """What uv's words mean for whoever wrote the pin."""
    said = _reason(done)
    if _UNDATED in done.stderr:
        return RouteError(
            f"pin `{pin.name}`: the package index does not say when it got its files, as `exclude-newer` needs",
            why=(*said, f"the solver's log: {log}"),
            hint="make the lock with an index that does (PEP 700), for example `PIP_INDEX_URL=https://pypi.org/simple`",
        )
    if _UNSOLVED not in done.stderr:
        return RouteError(f"pin `{pin.name}`: uv cannot read the package index", why=(*said, f"its log: {log}"))
    of = f"{pin.platform} and Python {pin.python}"
    without = dict.fromkeys(_WHEELLESS.findall(done.stderr.rpartition("\nerror:")[2]))
    hint = f"change the releases or `exclude-newer` in line {pin.line} of pins.yaml, or {pin.requirements.path}"
    return ConfigError(
        f"pin `{pin.name}`: the requirements of {', '.join(f'`{package}`' for package in pin.packages)} have no "
        f"solution for {of}",
        why=(*(f"`{one}` has no wheel for {of}" for one in without), *said, f"the solver's log: {log}"),
        hint=f"{hint}: {_WITHOUT_WHEEL}" if without else hint,
    )


def _check(pin: RequirementsPin, files: Mapping[str, object]) -> None:
    """What must hold of a solution."""
    wrong = [
        f"`{project}` is refused: {refusal.because}"
        for project in files
        if (refusal := pin.requirements.refusal_of(project)) is not None
    ]
    wrong += [
        f"the version of `{one.name}` changes nothing: no release asks for it"
        for one in (*pin.requirements.constraints, *pin.requirements.overrides, *pin.requirements.sdists)
        if one.name not in files
    ]
    used = {pin.requirements.layer_of(project) for project in files}
    wrong += [f"nothing belongs to layer `{one.name}`" for one in pin.requirements.layers if one.name not in used]
    if wrong:
        raise ConfigError(
            f"pin `{pin.name}`: what its releases resolve to is not what {pin.requirements.path} wants", why=wrong
        )


def _counts(file: IndexFile, pin: RequirementsPin) -> bool:
    return not file.yanked and (file.uploaded is None or file.uploaded <= pin.exclude_newer)


def _require_wheelless(
    pin: RequirementsPin, files: Iterable[IndexFile], *, project: str, version: str, platform: str
) -> None:
    """Raise ConfigError where an index has a wheel that would do."""
    from spark_images.package_index import select_wheel

    try:
        wheel = select_wheel(files, project=project, version=version, platform=platform, python=pin.python)
    except ContentError:
        return
    raise ConfigError(
        f"{pin.requirements.path}: sdists: `{project}` {version} has a wheel for {platform}: `{wheel.filename}`",
        hint="take it out of `sdists`; a version is held by `constraints`",
    )


def _check_exclusions(pin: RequirementsPin, *, work: Path, log: Path, config: PipConfig) -> None:
    """An exclusion that leaves out nothing is a mistake; one without which there is no solution at all is none."""
    try:
        full = _solve(pin, (), work=work, log=log, config=config)
    except ConfigError:
        return
    if idle := [one.name for one in pin.requirements.exclusions if one.name not in full]:
        raise ConfigError(
            f"{pin.requirements.path}: exclusions: they leave out what no release asks for: {', '.join(idle)}"
        )


def _reason(done: Captured) -> tuple[str, ...]:
    """The error at the end of what uv said: its beginning and its end, where it is long."""
    lines = done.stderr.splitlines()
    begin = max((place for place, line in enumerate(lines) if line.startswith("error:")), default=len(lines) - 1)
    said = [re.sub(r"^(error|cause): *", "", line.strip()) for line in lines[begin:] if line.strip()]
    said = [line for line in said if not line.startswith(_UNSOLVED)]  # the error says so itself
    if len(said) > MOST_REASONS:
        said[MOST_REASONS // 2 : -(MOST_REASONS // 2)] = [f"… ({len(said) - MOST_REASONS} lines more)"]
    return tuple(said)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))

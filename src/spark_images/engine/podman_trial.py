"""How podman has to be told to start containers on this machine: found by trying, once, and remembered."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_images import process
from spark_images.engine.base import EngineFacts
from spark_images.engine.smallest import write_root
from spark_images.errors import EngineError, EngineTooOldError
from spark_images.files import read_json, write_text

CONF = "containers.conf"
ROOT = "trial-root"
_FORM = 2  # of trial.json
NEEDED = (4, 2)  # the first podman with `build --build-context`
_RUNC = {"engine": {"runtime": "runc"}}
_CGROUPFS = {"engine": {"runtime": "runc", "cgroup_manager": "cgroupfs", "events_logger": "file"}}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the trial gave. settings: containers.conf as it must be, "" where podman needs nothing from us.

    uncapped: why containers cannot be given a memory limit, "" where they can.
    """

    facts: EngineFacts
    settings: str
    uncapped: str


def find_settings(folder: Path, env: Mapping[str, str]) -> Found:
    """What podman needs here, as remembered in `folder` or, after a change of podman or a new boot, found anew.

    Leaves containers.conf in the folder. Raises EngineError where no setting starts a container, EngineTooOldError.
    """
    remembered, key = folder / "trial.json", _key(env)
    known = read_json(remembered)
    if known and known["key"] == key and (not known["settings"] or (folder / CONF).exists()):
        facts = EngineFacts(**known["facts"])
        return Found(facts=facts, settings=known["settings"], uncapped=known["uncapped"])
    said = process.capture(["podman", "--version"], env=env, timeout_s=60).stdout.decode().split()
    version = said[-1] if said else "nothing"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < NEEDED:
        raise EngineTooOldError(
            f"podman is too old: found {version}, needed {NEEDED[0]}.{NEEDED[1]} or later",
            hint="Debian 12 and Ubuntu 24.04 have a newer one; or use Docker",
        )
    settings = _try_all(folder, env)
    facts = _facts(_with(env, folder, settings))
    found = Found(facts=facts, settings=settings, uncapped=_why_uncapped(folder, _with(env, folder, settings), facts))
    write_text(remembered, json.dumps({"key": key, **asdict(found)}, indent=1))
    return found


def conf_env(folder: Path, found: Found) -> dict[str, str]:
    """The variables that make every podman command, and podman's service, use the settings."""
    return {"CONTAINERS_CONF": str(folder / CONF)} if found.settings else {}


def _key(env: Mapping[str, str]) -> list[object]:
    """What the trial's result depends on."""
    programs = [shutil.which(name, path=env.get("PATH")) for name in ("podman", "crun", "runc")]
    return [
        _FORM,
        *([path, Path(path).stat().st_mtime_ns, Path(path).stat().st_size] for path in programs if path),
        Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        os.geteuid(),
        list(_own_limits()),
        env.get("CONTAINERS_CONF", ""),
    ]


def _own_limits() -> tuple[int, int]:
    """The most open files and processes that a container may be given without CAP_SYS_RESOURCE."""
    files, processes = (resource.getrlimit(limit)[1] for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    pid_max = int(
        Path("/proc/sys/kernel/pid_max").read_text()
    )  # podman lowers its own process limit to this at its start
    most = 1 << 20
    return (
        most if files == resource.RLIM_INFINITY else min(files, most),
        pid_max if processes == resource.RLIM_INFINITY else min(processes, pid_max),
    )


def _candidates() -> list[str]:
    """Contents of containers.conf, from none at all to the most that a restricted machine needs."""
    files, processes = _own_limits()
    # Without CAP_SYS_RESOURCE podman's own defaults are more than it may give to a container.
    limits = {"containers": {"default_ulimits": [f"nofile={files}:{files}", f"nproc={processes}:{processes}"]}}
    tables: list[dict[str, dict[str, Any]]] = [
        {},
        limits,
        _RUNC,
        {**_RUNC, **limits},
        _CGROUPFS,
        {**_CGROUPFS, **limits},
    ]
    return ["".join(_toml(name, values) for name, values in table.items()) for table in tables]


def _toml(name: str, values: Mapping[str, Any]) -> str:
    return f"[{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def _try_all(folder: Path, env: Mapping[str, str]) -> str:
    """The first candidate with which a container starts."""
    folder.mkdir(parents=True, exist_ok=True)
    write_root(folder / ROOT)
    answers = []
    for settings in _candidates():
        if not (said := _refusal(folder, _with(env, folder, settings))):
            return settings
        answers.append(f"with {' '.join(settings.split()) or 'its own settings'}: {said}")
    raise EngineError("podman cannot start a container", why=answers, hint="`./noxw -s doctor` says what it needs")


def _why_uncapped(folder: Path, env: Mapping[str, str], facts: EngineFacts) -> str:
    if facts.cgroup == "v1" and os.geteuid() != 0:
        return "without root, cgroup version 1 gives no memory limits"  # and `podman run` only warns
    return _refusal(folder, env, "--memory", "64m", "--memory-swap", "64m")


def _refusal(folder: Path, env: Mapping[str, str], *options: str) -> str:
    """Start the smallest container; "" where that works, else podman's last words."""
    command = ["podman", "run", "--rm", "--network", "none", *options, "--rootfs", str(folder / ROOT), "/true"]
    tried = process.capture(command, env=env, timeout_s=60)
    if tried.status == 0:
        return ""
    return (tried.stderr.strip().splitlines() or [f"status {tried.status}"])[-1]


def _with(env: Mapping[str, str], folder: Path, settings: str) -> dict[str, str]:
    if not settings:
        return dict(env)
    # CONTAINERS_CONF stands in the place of the user's own containers.conf, with which no container starts.
    write_text(folder / CONF, settings)
    return {**env, "CONTAINERS_CONF": str(folder / CONF)}


def _facts(env: Mapping[str, str]) -> EngineFacts:
    asked = process.capture(["podman", "info", "--format", "json"], env=env, timeout_s=60)
    if asked.status != 0:
        raise EngineError(
            "podman does not work",
            why=asked.stderr.strip().splitlines()[-3:],
            hint="`./noxw -s doctor` says what it needs",
        )
    info = json.loads(asked.stdout)
    return EngineFacts(
        name="podman",
        version=info["version"]["Version"],
        builder=f"buildah {info['host']['buildahVersion']}",
        runtime=info["host"]["ociRuntime"]["name"],
        cgroup=info["host"]["cgroupVersion"],
    )

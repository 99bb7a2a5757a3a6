"""What this machine is and which programs it has: facts only, judged by doctor.py."""

from __future__ import annotations

import os
import platform
import pwd
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.cache import Cache
from spark_images.errors import HostProgramError, UsageError
from spark_images.platforms import ARCHES
from spark_images.process import capture
from spark_images.units import GIB

BINFMT = Path("/proc/sys/fs/binfmt_misc")
PROGRAMS = (
    "podman",
    "docker",
    "crun",
    "runc",
    "newuidmap",
    "skopeo",
    "git",
    "apt-get",
    "shellcheck",
    "cc",
    "docker-registry",
)
ADMIN_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"  # Debian keeps runc there, and a user's PATH does not name them
DRIVER = Path("/proc/driver/nvidia/version")
PROBE_TIMEOUT_S = 10


def host_platform() -> str:
    """This machine's platform in OCI words: "linux/amd64" or "linux/arm64"."""
    machine = platform.machine()
    if machine not in ARCHES:
        raise UsageError(f"no builds on `{machine}` machines", hint=f"supported: {', '.join(ARCHES)}")
    return f"linux/{ARCHES[machine]}"


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """What was read off the machine."""

    machine: str  # as `uname -m` says it: "x86_64"
    kernel: str
    apt: bool  # Debian, Ubuntu or a child of theirs
    systemd: bool  # runs, so an installed service starts
    root: bool
    user: str
    programs: Mapping[str, str]  # name -> version, or the path where versions were not asked; absent: not found
    driver: str  # of NVIDIA's GPUs: "580.95.05"; "" where none is loaded
    docker_problem: str  # why docker cannot be used; "" where it can, or where there is none
    subordinate_ids: bool  # the user has some, as containers without root need
    binfmt: Mapping[str, str]  # handler of foreign programs -> its flags: {"qemu-aarch64": "OPF"}
    cgroup: str  # "v2", "v1" or "v1 beside v2"
    memory_controller: bool
    memory_gib: float
    cache: Path
    free_gib: float  # where the cache lies


def read_host(env: Mapping[str, str], *, versions: bool = True) -> HostFacts:
    """Look at the machine. Without `versions` that takes a few ms: where podman is, docker is passed over as well."""
    search = f"{env.get('PATH', '')}:{ADMIN_FOLDERS}"
    places = {name: place for name in PROGRAMS if (place := shutil.which(name, path=search))}
    docker_problem = ""
    if "podman" in places and not versions:
        places.pop("docker", None)
    programs = {name: _version(name, place, env) if versions else place for name, place in places.items()}
    if "docker" in places:
        programs["docker"], docker_problem = _ask_docker(places["docker"], env)
    cache = Cache.from_env(env).root
    controllers = Path("/sys/fs/cgroup/cgroup.controllers")
    release = _text(Path("/etc/os-release"))
    user = _user_name()
    return HostFacts(
        machine=platform.machine(),
        kernel=platform.release(),
        apt="apt-get" in places and ("debian" in release or "ubuntu" in release),
        systemd=Path("/run/systemd/system").exists(),
        root=os.geteuid() == 0,
        user=user,
        programs=programs,
        driver=driver_version(_text(DRIVER)),
        docker_problem=docker_problem,
        subordinate_ids=any(
            line.split(":")[0] in (user, str(os.geteuid())) for line in _text(Path("/etc/subuid")).splitlines()
        ),
        binfmt={path.name: _flags(path.read_text()) for path in BINFMT.glob("qemu-*")},
        cgroup="v2" if controllers.exists() else "v1 beside v2" if Path("/sys/fs/cgroup/unified").exists() else "v1",
        memory_controller="memory" in _text(controllers) or Path("/sys/fs/cgroup/memory").exists(),
        memory_gib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB,
        cache=cache,
        free_gib=shutil.disk_usage(next(at for at in (cache, *cache.parents) if at.exists())).free / GIB,
    )


def driver_version(said: str) -> str:
    """The version in what the driver says of itself in /proc; "" where it says none."""
    found = re.search(r"^NVRM version:.*?\s(\d+(?:\.\d+)+)\s", said, re.MULTILINE)
    return found[1] if found else ""


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container may run under a number that nobody named
        return str(os.geteuid())


def _ask_docker(program: str, env: Mapping[str, str]) -> tuple[str, str]:
    """Version of the daemon and of buildx, or "" and why they do not answer."""
    said = []
    for arguments in (["version", "--format", "{{.Server.Version}}"], ["buildx", "version"]):
        status, output = _ask([program, *arguments], env)
        if status != 0:
            return "", (output.splitlines() or ["no answer"])[-1]
        said.append(output)
    return f"{said[0]}, buildx {said[1].split()[1]}", ""


def _version(name: str, place: str, env: Mapping[str, str]) -> str:
    """The first word that looks like a version in what the program says of itself; its path where none does."""
    if name in ("docker", "newuidmap"):  # asked otherwise, has none
        return place
    _, output = _ask([place, "--version"], env)
    words = (word.strip(",v()") for word in output.split())
    return next((word for word in words if word[:1].isdigit() and "." in word), place)


def _ask(command: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    try:
        answer = capture(command, env=env, timeout_s=PROBE_TIMEOUT_S)
    except HostProgramError as err:
        return 1, err.what
    return answer.status, (answer.stdout.decode(errors="replace") + answer.stderr).strip()


def _flags(handler: str) -> str:
    return next((line.removeprefix("flags:").strip() for line in handler.splitlines() if line.startswith("flags:")), "")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""

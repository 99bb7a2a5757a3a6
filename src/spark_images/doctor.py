"""What the work needs of this machine: what it is for, whether it is there, how to get it, and getting it as root."""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from spark_images.errors import HostProgramError
from spark_images.host import BINFMT, HostFacts, read_host
from spark_images.platforms import ARCHES
from spark_images.process import stream
from spark_images.terminal import print_table, tell

MINIMUM_FREE_GIB = (
    20  # the pinned inputs, a build's layers and the image of llama.cpp, and as much again for a second one
)
INSTALL_TIMEOUT_S = 1800
HANGING_DRIVER = "590."  # of owners of a GB10: servers stop while CUDA graphs are captured or replayed
# Without recommendations podman lacks what it needs for users without root and for a machine where crun cannot run.
PODMAN_PACKAGES = ("podman", "crun", "runc", "netavark", "uidmap", "slirp4netns", "fuse-overlayfs")


class Standing(enum.Enum):
    """How a machine stands with one thing."""

    GOOD = "ok"
    LACKING = "missing"  # the main job does not work without it
    WITHOUT = "absent"  # everything works but what the finding's purpose says


class Need(enum.Enum):
    """What a verb may ask of the machine before it starts."""

    ENGINE = enum.auto()  # podman or docker
    EMULATION = enum.auto()  # of the other architecture that images are made for
    TRANSFER = enum.auto()  # skopeo


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that the work may need, and what helps where it is not good."""

    name: str
    purpose: str
    standing: Standing
    found: str
    need: Need | None = None
    packages: tuple[str, ...] = ()  # of Debian and Ubuntu
    command: str = ""  # a shell line for root, after the packages
    note: str = ""  # what else there is to do


def check_host(facts: HostFacts) -> tuple[Finding, ...]:
    """What the facts mean for the work, most important first."""
    findings = [_engine(facts)]
    if facts.programs.get("podman") and not facts.programs.get("docker"):
        findings.append(_runtime(facts))
        if not facts.root:
            findings.append(_rootless(facts))
    findings += [
        _emulation(facts),
        _program(facts, "skopeo", "base images of other registries", Standing.LACKING, need=Need.TRANSFER),
        _memory_cap(facts),
        _disk(facts),
        _program(facts, "git", "git routes; other routes may serve the same content", Standing.WITHOUT),
        _program(facts, "apt-get", "remaking images/debian/debs.lock", Standing.WITHOUT, packages=()),
        _driver(facts),
    ]
    if facts.machine != "x86_64":  # there PyPI has the program
        findings.append(_program(facts, "shellcheck", "`./noxw -s lint`", Standing.WITHOUT))
    tools = ("gcc", "libc6-dev")
    findings.append(
        _program(facts, "cc", "engine tests; images have compilers of their own", Standing.WITHOUT, packages=tools)
    )
    # Where systemd runs the package would leave a service behind, which is not for us to start.
    packages = () if facts.systemd else ("docker-registry",)
    findings.append(_program(facts, "docker-registry", "tests of push and pull", Standing.WITHOUT, packages=packages))
    machine = f"{facts.machine}, {facts.memory_gib:.0f} GiB, Linux {facts.kernel}"
    findings.append(Finding(name="machine", purpose="", standing=Standing.GOOD, found=machine))
    return tuple(findings)


def root_line(findings: Iterable[Finding]) -> str:
    """The shell line with which root gets what the findings lack; "" where no command does."""
    bad = [finding for finding in findings if finding.standing is not Standing.GOOD]
    steps = [finding.command for finding in bad if finding.command]
    if packages := " ".join(dict.fromkeys(package for finding in bad for package in finding.packages)):
        # The time-out is for a machine that updates itself just then.
        install = f"apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends {packages}"
        steps = ["apt-get update", install, *steps]
    return " && ".join(steps)


def remedy(findings: Iterable[Finding], facts: HostFacts) -> str:
    """The one line that gets what the findings lack, as this user types it, and what else there is to do."""
    bad = [finding for finding in findings if finding.standing is not Standing.GOOD]
    line = root_line(bad)
    if line and not facts.apt:
        line = f"as on Debian, with this system's packages: {line}"
    elif line and not facts.root:
        line = f"sudo sh -c {shlex.quote(line)}"
    return "; ".join(text for text in (line, *(finding.note for finding in bad)) if text)


def unmet(facts: HostFacts, needs: Iterable[Need], platform: str) -> tuple[Finding, ...]:
    """What of the needs is not there, for images of this platform."""
    native = platform == f"linux/{ARCHES.get(facts.machine)}"
    wanted = set(needs) - ({Need.EMULATION} if native else set())
    bad = (finding for finding in check_host(facts) if finding.standing is not Standing.GOOD)
    return tuple(finding for finding in bad if finding.need in wanted)


def require(*needs: Need, env: Mapping[str, str], platform: str = "linux/arm64") -> None:
    """Make sure of what a verb needs, in a few ms where it is there; with SPARK_IMAGES_INSTALL=1 root installs it.

    platform: that of the images at hand; emulation is needed only where the machine's differs (the default is GB10's).
    Raises HostProgramError with the one line to run where something is missing.
    """
    if not unmet(read_host(env, versions=False), needs, platform):
        return
    facts = read_host(env)
    bad = unmet(facts, needs, platform)
    if bad and facts.root and facts.apt and env.get("SPARK_IMAGES_INSTALL") == "1":
        _install(bad, env)
        facts = read_host(env)
        bad = unmet(facts, needs, platform)
    if bad:
        raise _missing(bad, facts)


def doctor(*, install: bool, env: Mapping[str, str]) -> None:
    """Print what was found and how to get what is missing; with `install`, get it first.

    Raises HostProgramError where something is missing that the main job needs.
    """
    facts = read_host(env)
    findings = check_host(facts)
    if install and root_line(findings):
        if not (facts.root and facts.apt):
            raise HostProgramError("`--install` works as root on Debian and Ubuntu", hint=remedy(findings, facts))
        _install(findings, env)
        facts = read_host(env)
        findings = check_host(facts)
    _print(findings, facts)
    if lacking := [finding for finding in findings if finding.standing is Standing.LACKING]:
        raise _missing(lacking, facts)


def _engine(facts: HostFacts) -> Finding:
    packages: tuple[str, ...] = ()
    standing, command, note = Standing.GOOD, "", ""
    there = [f"{name} {version}" for name in ("docker", "podman") if (version := facts.programs.get(name))]
    if there:
        found = "; ".join(there)
    elif "permission denied" in facts.docker_problem:
        found = f"docker, which {facts.user} may not use"
        standing, command = Standing.LACKING, f"usermod -aG docker {shlex.quote(facts.user)}"
        note = "then log in again"
    else:
        found = f"docker, but: {facts.docker_problem}" if facts.docker_problem else ""
        standing, packages = Standing.LACKING, PODMAN_PACKAGES
    return Finding(
        name="engine",
        purpose="podman or docker: builds images and runs them",
        standing=standing,
        found=found,
        need=Need.ENGINE,
        packages=packages,
        command=command,
        note=note,
    )


def _runtime(facts: HostFacts) -> Finding:
    beside = "beside" in facts.cgroup  # crun refuses a machine with both cgroup hierarchies
    usable = [name for name in ("crun", "runc") if name in facts.programs and not (beside and name == "crun")]
    return Finding(
        name="OCI runtime",
        purpose="starts podman's containers",
        standing=Standing.GOOD if usable else Standing.LACKING,
        found=", ".join(f"{name} {facts.programs[name]}" for name in usable),
        need=Need.ENGINE,
        packages=("runc",),
    )


def _rootless(facts: HostFacts) -> Finding:
    tool = "newuidmap" in facts.programs
    add_ids = f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {shlex.quote(facts.user)}"
    return Finding(
        name="user namespaces",
        purpose="podman without root",
        standing=Standing.GOOD if tool and facts.subordinate_ids else Standing.LACKING,
        found=" and ".join(["newuidmap"] * tool + ["subordinate ids"] * facts.subordinate_ids),
        need=Need.ENGINE,
        packages=() if tool else ("uidmap", "slirp4netns", "fuse-overlayfs"),
        command="" if facts.subordinate_ids else add_ids,
    )


def _emulation(facts: HostFacts) -> Finding:
    cpu = "x86_64" if facts.machine == "aarch64" else "aarch64"
    arch = ARCHES[cpu]
    handler, conf = f"qemu-{cpu}", f"/usr/lib/binfmt.d/qemu-{cpu}.conf"
    there = "F" in facts.binfmt.get(handler, "")  # it keeps its interpreter open, so containers need not hold the file
    if facts.systemd:
        command = "systemctl restart systemd-binfmt"
    elif handler in facts.binfmt:
        command = f"echo -1 >{BINFMT}/{handler} && cat {conf} >{BINFMT}/register"
    else:
        mount = f"{{ mountpoint -q {BINFMT} || mount -t binfmt_misc binfmt_misc {BINFMT}; }}"
        command = f"{mount} && {{ [ -e {BINFMT}/{handler} ] || cat {conf} >{BINFMT}/register; }}"
    return Finding(
        name=f"{arch} emulation",
        purpose=f"runs {arch} images in tests",
        standing=Standing.GOOD if there else Standing.WITHOUT if facts.machine == "aarch64" else Standing.LACKING,
        found=handler if there else "",
        need=Need.EMULATION,
        packages=("qemu-user-static",),
        command=command,
    )


def _driver(facts: HostFacts) -> Finding:
    hangs = facts.driver.startswith(HANGING_DRIVER)
    return Finding(
        name="GPU driver",
        purpose="GPU smoke checks, serving",
        standing=Standing.GOOD if facts.driver and not hangs else Standing.WITHOUT,
        found=facts.driver,
        note=f"CUDA graphs have hung with drivers {HANGING_DRIVER}x: 580 is the one of DGX OS" if hangs else "",
    )


def _memory_cap(facts: HostFacts) -> Finding:
    return Finding(
        name="memory cap",
        purpose="keeps a build from taking the machine down",
        standing=Standing.GOOD if facts.memory_controller else Standing.LACKING,
        found=f"cgroup {facts.cgroup}",
        note="boot with `cgroup_enable=memory` on the kernel's command line",
    )


def _disk(facts: HostFacts) -> Finding:
    return Finding(
        name="disk",
        purpose=f"the cache, {facts.cache}",
        standing=Standing.GOOD if facts.free_gib >= MINIMUM_FREE_GIB else Standing.LACKING,
        found=f"{facts.free_gib:.0f} GiB free",
        note=f"make room for {MINIMUM_FREE_GIB} GiB, or name a folder on another disk in SPARK_IMAGES_CACHE",
    )


def _program(
    facts: HostFacts,
    name: str,
    purpose: str,
    otherwise: Standing,
    *,
    need: Need | None = None,
    packages: tuple[str, ...] | None = None,
) -> Finding:
    """A program whose package has its name, unless told otherwise."""
    return Finding(
        name=name,
        purpose=purpose,
        standing=Standing.GOOD if name in facts.programs else otherwise,
        found=facts.programs.get(name, ""),
        need=need,
        packages=(name,) if packages is None else packages,
    )


def _missing(lacking: Iterable[Finding], facts: HostFacts) -> HostProgramError:
    names = ", ".join(finding.name for finding in lacking)
    why = [f"{one.name}: {one.purpose}" + (f"; found {one.found}" if one.found else "") for one in lacking]
    return HostProgramError(f"this machine lacks: {names}", why=why, hint=remedy(lacking, facts))


def _install(findings: Iterable[Finding], env: Mapping[str, str]) -> None:
    line = root_line(findings)
    names = ", ".join(finding.name for finding in findings if root_line([finding]))
    tell(f"installing what this machine lacks: {names}", f"+ {line}")
    said: list[str] = []
    quiet = {**env, "DEBIAN_FRONTEND": "noninteractive"}
    if stream(["sh", "-c", line], said.append, env=quiet, timeout_s=INSTALL_TIMEOUT_S) != 0:
        raise HostProgramError("what this machine lacks could not be installed", why=said[-8:], hint=f"as root: {line}")


def _print(findings: Iterable[Finding], facts: HostFacts) -> None:
    print_table(
        ("standing", "what", "found", "for"),
        [(finding.standing.value, finding.name, finding.found, finding.purpose) for finding in findings],
        whole=("standing", "what"),
    )
    for finding in findings:
        if finding.standing is Standing.WITHOUT and (helps := remedy([finding], facts)):
            print(f"\n{finding.name}:\n  {helps}")  # what is lacking comes as an error with its own remedy

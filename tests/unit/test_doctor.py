"""What this machine lacks, and the line that gets it."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spark_images.doctor import Finding, Need, Standing, check_host, doctor, remedy, require, root_line, unmet
from spark_images.errors import HostProgramError
from spark_images.host import BINFMT, HostFacts, driver_version, read_host

COMPLETE = HostFacts(
    machine="x86_64",
    kernel="6.1.0",
    apt=True,
    systemd=False,
    root=True,
    user="ada",
    programs={
        "podman": "4.3.1",
        "crun": "1.8",
        "runc": "1.1.5",
        "newuidmap": "/usr/bin/newuidmap",
        "skopeo": "1.9.3",
        "git": "2.39.5",
        "apt-get": "2.6.1",
        "cc": "12.2.0",
        "docker-registry": "2.8.2",
    },
    driver="580.95.05",
    docker_problem="",
    subordinate_ids=True,
    binfmt={"qemu-aarch64": "OPF"},
    cgroup="v2",
    memory_controller=True,
    memory_gib=24.0,
    cache=Path("/home/ada/.cache/spark-images"),
    free_gib=100.0,
)


def without(facts: HostFacts, *programs: str) -> HostFacts:
    return replace(facts, programs={name: at for name, at in facts.programs.items() if name not in programs})


def bad(facts: HostFacts) -> dict[str, Finding]:
    return {finding.name: finding for finding in check_host(facts) if finding.standing is not Standing.GOOD}


def test_complete_machine_lacks_nothing() -> None:
    assert bad(COMPLETE) == {}
    assert root_line(check_host(COMPLETE)) == ""


def test_machine_without_an_engine_gets_podman_with_a_runtime() -> None:
    finding = bad(without(COMPLETE, "podman", "crun", "runc"))["engine"]

    assert finding.standing is Standing.LACKING
    assert {"podman", "runc", "uidmap"} <= set(finding.packages)


def test_docker_alone_is_an_engine_and_needs_no_runtime() -> None:
    facts = without(COMPLETE, "podman", "crun", "runc")

    assert bad(replace(facts, programs={**facts.programs, "docker": "28.2, buildx 0.36"})) == {}


def test_docker_that_the_user_may_not_use_gives_the_group_not_another_engine() -> None:
    facts = replace(without(COMPLETE, "podman"), root=False, docker_problem="permission denied while trying to connect")

    finding = bad(facts)["engine"]

    assert finding.command == "usermod -aG docker ada"
    assert finding.packages == ()
    assert finding.note == "then log in again"


def test_docker_that_does_not_answer_says_why() -> None:
    facts = replace(without(COMPLETE, "podman"), docker_problem="Cannot connect to the Docker daemon")

    assert bad(facts)["engine"].found == "docker, but: Cannot connect to the Docker daemon"


@pytest.mark.parametrize(("cgroup", "lacking"), [("v2", False), ("v1 beside v2", True)])
def test_crun_alone_is_enough_only_where_there_is_one_cgroup_hierarchy(cgroup: str, lacking: bool) -> None:
    facts = replace(without(COMPLETE, "runc"), cgroup=cgroup)

    assert ("OCI runtime" in bad(facts)) is lacking


def test_podman_without_root_needs_subordinate_ids() -> None:
    facts = replace(COMPLETE, root=False, subordinate_ids=False)

    assert bad(facts)["user namespaces"].command.endswith(" ada")
    assert "user namespaces" not in bad(replace(facts, root=True))


@pytest.mark.parametrize(
    ("machine", "handler", "standing"),
    [("x86_64", "qemu-aarch64", Standing.LACKING), ("aarch64", "qemu-x86_64", Standing.WITHOUT)],
)
def test_emulation_is_a_must_only_where_the_main_image_is_foreign(
    machine: str, handler: str, standing: Standing
) -> None:
    missing = next(f for f in check_host(replace(COMPLETE, machine=machine, binfmt={})) if f.need is Need.EMULATION)
    there = next(
        f for f in check_host(replace(COMPLETE, machine=machine, binfmt={handler: "OPF"})) if f.need is Need.EMULATION
    )

    assert missing.standing is standing
    assert f"/usr/lib/binfmt.d/{handler}.conf" in missing.command
    assert there.standing is Standing.GOOD


def test_driver_is_told_and_one_that_hangs_with_cuda_graphs_named() -> None:
    assert "GPU driver" not in bad(COMPLETE)
    assert bad(replace(COMPLETE, driver=""))["GPU driver"].standing is Standing.WITHOUT
    hangs = bad(replace(COMPLETE, driver="590.44.01"))["GPU driver"]
    assert (hangs.found, "580 is the one of DGX OS" in hangs.note) == ("590.44.01", True)


@pytest.mark.parametrize(
    "said",
    [
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build  (dvs-builder@U22)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue Oct 28 2026\nGCC version:  gcc 13.3.0",
    ],
)
def test_drivers_version_is_read_from_what_it_says(said: str) -> None:
    assert driver_version(said) in ("580.95.05", "580.159.04")
    assert driver_version("") == ""


def test_registry_server_is_not_installed_where_it_would_stay_as_a_service() -> None:
    facts = without(COMPLETE, "docker-registry")

    assert bad(facts)["docker-registry"].packages == ("docker-registry",)
    assert bad(replace(facts, systemd=True))["docker-registry"].packages == ()


def test_root_line_installs_everything_at_once_and_is_shell() -> None:
    line = root_line(check_host(replace(without(COMPLETE, "skopeo", "podman", "docker-registry"), binfmt={})))

    assert line.count("apt-get") == 2
    assert line.startswith("apt-get update && apt-get ")
    assert " podman " in line
    assert " skopeo " in line
    assert line.index("qemu-user-static") < line.index("/register")
    subprocess.run(["sh", "-n", "-c", line], check=True)


def test_handler_is_registered_by_hand_where_no_systemd_does_it(tmp_path: Path) -> None:
    def run_by_root(facts: HostFacts) -> None:
        line = next(finding.command for finding in check_host(facts) if finding.need is Need.EMULATION)
        line = line.replace("/usr/lib/binfmt.d/qemu-aarch64.conf", str(tmp_path / "conf"))
        subprocess.run(
            ["sh", "-ec", line.replace(str(BINFMT), str(tmp_path)).replace("mountpoint", "true")], check=True
        )

    (tmp_path / "conf").write_text("the handler")
    run_by_root(replace(COMPLETE, binfmt={}))
    assert (tmp_path / "register").read_text() == "the handler"

    (tmp_path / "qemu-aarch64").write_text("flags: OP")
    run_by_root(replace(COMPLETE, binfmt={"qemu-aarch64": "OP"}))
    assert (tmp_path / "qemu-aarch64").read_text() == "-1\n"
    assert (tmp_path / "register").read_text() == "the handler"


def test_handler_that_containers_cannot_use_is_no_emulation() -> None:
    assert "arm64 emulation" in bad(replace(COMPLETE, binfmt={"qemu-aarch64": "OP"}))


def bare_environment(folder: Path, **programs: str) -> dict[str, str]:
    """A PATH with just these programs, each a shell script."""
    for name, script in programs.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"PATH": str(folder), "SPARK_IMAGES_CACHE": str(folder / "cache")}


@pytest.fixture
def only_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_images.host.ADMIN_FOLDERS", "")


@pytest.mark.usefixtures("only_path")
def test_require_names_what_is_missing_what_it_is_for_and_one_line(tmp_path: Path) -> None:
    env = bare_environment(tmp_path, **{"apt-get": "echo apt 2.6.1"})

    with pytest.raises(HostProgramError) as caught:
        require(Need.TRANSFER, env=env)

    assert caught.value.what == "this machine lacks: skopeo"
    assert caught.value.why == ("skopeo: base images of other registries",)
    assert "--no-install-recommends skopeo" in caught.value.hint
    assert "\n" not in caught.value.hint


@pytest.mark.usefixtures("only_path")
def test_require_asks_only_for_what_is_needed(tmp_path: Path) -> None:
    require(Need.TRANSFER, env=bare_environment(tmp_path, skopeo="echo skopeo version 1.9.3"))


def test_images_of_the_machines_own_platform_need_no_emulation(tmp_path: Path) -> None:
    native = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[os.uname().machine]

    require(Need.EMULATION, env=bare_environment(tmp_path), platform=native)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_images_of_another_platform_need_emulation(machine: str) -> None:
    foreign = {"x86_64": "linux/arm64", "aarch64": "linux/amd64"}[machine]
    facts = replace(COMPLETE, machine=machine, binfmt={})

    assert [finding.need for finding in unmet(facts, [Need.EMULATION], foreign)] == [Need.EMULATION]
    assert unmet(replace(facts, binfmt={"qemu-aarch64": "F", "qemu-x86_64": "F"}), [Need.EMULATION], foreign) == ()


@pytest.mark.usefixtures("only_path")
def test_broken_podman_is_no_obstacle_where_docker_answers(tmp_path: Path) -> None:
    docker = 'case $1 in version) echo 28.2.2 ;; *) echo "github.com/docker/buildx v0.36.1 abc" ;; esac'

    require(Need.ENGINE, env=bare_environment(tmp_path, podman="exit 1", docker=docker))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs")
@pytest.mark.usefixtures("only_path")
def test_root_has_it_installed_only_where_that_is_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, skopeo = tmp_path / "log", tmp_path / "skopeo"
    env = bare_environment(
        tmp_path, **{"apt-get": f'case "$*" in *install*) echo "$@" >>{log}; /bin/ln -s /bin/true {skopeo} ;; esac'}
    )
    (tmp_path / "sh").symlink_to("/bin/sh")

    with pytest.raises(HostProgramError):
        require(Need.TRANSFER, env=env)
    assert not log.exists()

    require(Need.TRANSFER, env={**env, "SPARK_IMAGES_INSTALL": "1"})
    assert log.read_text().endswith("install -y --no-install-recommends skopeo\n")
    assert "installing what this machine lacks: skopeo" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs")
@pytest.mark.usefixtures("only_path")
def test_failed_install_shows_the_last_lines(tmp_path: Path) -> None:
    env = bare_environment(tmp_path, **{"apt-get": "echo E: no space left; exit 100"})
    (tmp_path / "sh").symlink_to("/bin/sh")

    with pytest.raises(HostProgramError, match="could not be installed") as caught:
        require(Need.TRANSFER, env={**env, "SPARK_IMAGES_INSTALL": "1"})

    assert caught.value.why == ("E: no space left",)


@pytest.mark.usefixtures("only_path")
def test_doctor_prints_each_remedy_on_one_line_and_fails_where_the_main_job_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(HostProgramError, match="this machine lacks: engine") as caught:
        doctor(install=False, env=bare_environment(tmp_path, **{"apt-get": "echo apt 2.6.1"}))

    (line,) = (line for line in caught.value.render().splitlines() if "install" in line)
    assert "podman" in line
    assert "fuse-overlayfs" in line
    assert any(line.startswith("  ") and "git" in line for line in capsys.readouterr().out.splitlines())


def test_versions_are_read_off_the_programs(tmp_path: Path) -> None:
    env = bare_environment(tmp_path, podman='echo "podman version 4.9.3"', crun='echo "crun version 1.14.1"; echo more')

    programs = read_host(env).programs

    assert programs["podman"] == "4.9.3"
    assert programs["crun"] == "1.14.1"


def test_line_for_a_user_is_one_sudo_command() -> None:
    facts = replace(without(COMPLETE, "skopeo"), root=False, binfmt={})

    words = shlex.split(remedy(check_host(facts), facts))

    assert words[:3] == ["sudo", "sh", "-c"]
    assert words[3:] == [root_line(check_host(facts))]

"""What a user finds inside the running container."""

from __future__ import annotations

import pytest
from testinfra.host import Host

from spark_images.imagetest import COMMAND_TIMEOUT_S, ImageUnderTest
from spark_images.platforms import MACHINES


def output(inside: Host, command: str, *arguments: str) -> str:
    """What a command prints; it must succeed, and in time."""
    result = inside.run(f"timeout {COMMAND_TIMEOUT_S} {command}", *arguments)
    assert result.rc == 0, result
    return str(result.stdout).strip()


def test_processes_run_as_the_images_user(inside: Host) -> None:
    assert (output(inside, "id -u"), output(inside, "id -g")) == ("10001", "10001")


def test_container_runs_the_targets_machine_code(inside: Host, under_test: ImageUnderTest) -> None:
    assert output(inside, "uname -m") == MACHINES[under_test.target.arch]


def test_user_has_a_name_and_no_password(inside: Host, under_test: ImageUnderTest) -> None:
    if under_test.image.runtime.image:  # that image's users stay as they are, and ours has a home by image.yaml alone
        assert output(inside, "printenv HOME") == dict(under_test.image.runtime.env)["HOME"]
        return
    assert output(inside, "id -un") == "spark"
    assert output(inside, "grep ^spark: /etc/passwd").split(":")[:4] == ["spark", "*", "10001", "10001"]


@pytest.mark.parametrize("folder", ["/", "/etc", "/opt", "/usr/bin", "/usr/local/bin"])
def test_user_cannot_write_to_the_system(inside: Host, folder: str) -> None:
    assert inside.file(folder).is_directory
    assert inside.run(f"timeout {COMMAND_TIMEOUT_S} touch %s/written", folder).rc != 0


def test_user_can_write_to_tmp(inside: Host) -> None:
    assert output(inside, "sh -c 'echo yes >/tmp/written && cat /tmp/written && rm /tmp/written'") == "yes"

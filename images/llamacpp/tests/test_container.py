"""What a user finds inside the running container."""

from __future__ import annotations

import pytest
from testinfra.host import Host

from spark_images.imagetest import COMMAND_TIMEOUT_S


@pytest.mark.parametrize("folder", ["/opt/llama.cpp/bin", "/usr/local/cuda/lib64"])
def test_user_cannot_write_to_what_was_compiled(inside: Host, folder: str) -> None:
    assert inside.file(folder).is_directory
    assert inside.run(f"timeout {COMMAND_TIMEOUT_S} touch %s/written", folder).rc != 0


@pytest.mark.parametrize("tool", ["gcc", "cc", "ld", "nvcc", "cmake", "ninja", "make", "ccache", "apt", "dpkg", "perl"])
def test_no_build_tool_is_on_the_path(inside: Host, tool: str) -> None:
    assert inside.run("command -v sh").rc == 0
    assert inside.run("command -v %s", tool).rc != 0


def test_server_is_not_writable_and_may_be_run(inside: Host) -> None:
    server = inside.file("/opt/llama.cpp/bin/llama-server")
    assert (server.is_file, server.uid, oct(server.mode)) == (True, 0, "0o755")

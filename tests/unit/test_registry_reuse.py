"""What is pushed already is not built: what is asked, and what becomes of a registry that cannot be asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from values import toy_plan

from spark_images.cache import Cache
from spark_images.errors import UsageError
from spark_images.registry.reuse import reuse


def test_without_the_variable_nothing_is_asked(tmp_path: Path) -> None:
    assert not reuse(toy_plan(), cache=Cache(tmp_path), env={})


def test_a_registry_that_does_not_answer_is_said_and_the_image_built(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    env = {"HOME": str(tmp_path), "SPARK_IMAGES_REUSE_FROM": f"127.0.0.1:{port}/you"}
    assert not reuse(toy_plan(), cache=Cache(tmp_path), env=env)
    assert "it is built here instead" in capsys.readouterr().err


def test_what_names_no_registry_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="HOST/NAME"):
        reuse(toy_plan(), cache=Cache(tmp_path), env={"SPARK_IMAGES_REUSE_FROM": "https://ghcr.io/you"})

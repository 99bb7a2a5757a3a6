"""How the image starts."""

from __future__ import annotations

from typing import Any


def test_image_starts_the_server_by_its_absolute_path(config: dict[str, Any]) -> None:
    assert config["Entrypoint"] == ["/opt/llama.cpp/bin/llama-server"]


def test_image_listens_where_it_says_that_it_does(config: dict[str, Any]) -> None:
    assert "LLAMA_ARG_HOST=0.0.0.0" in config["Env"]  # and its port is 8080 by itself: see test_server.py
    assert list(config["ExposedPorts"]) == ["8080/tcp"]

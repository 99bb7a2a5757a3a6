"""What an image says of itself and how it starts: the part of an OCI image config that a plan decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

TITLE_LABEL, VERSION_LABEL = "org.opencontainers.image.title", "org.opencontainers.image.version"
TARGET_LABEL, BASE_LABEL, PINS_LABEL = "io.spark-images.target", "io.spark-images.base", "io.spark-images.pins"
KERNELS_LABEL = "io.spark-images.kernels"  # where not those of serving
PLAN_LABEL = "io.spark-images.plan-id"  # added last: a Dockerfile cannot hold the plan_id, which is taken over its text


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """The OCI image config is written from this alone (OCI image spec, config.md)."""

    architecture: str  # "arm64"
    os: str = "linux"
    user: str  # "10001:10001"
    env: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    ports: tuple[str, ...]  # "8080/tcp"
    workdir: str
    stop_signal: str
    labels: tuple[tuple[str, str], ...]
    epoch: int  # seconds since 1970 UTC: `created`


def standing_on(config: ImageConfig, base: Mapping[str, Any]) -> ImageConfig:
    """The configuration of an image on a pinned one, whose environment and entry point stay where it says nothing else.

    base: the pinned image's OCI config. Its entry point sets up its CUDA for the host's driver, so it has to stay.
    """
    settings = base.get("config") or {}
    env = dict(entry.partition("=")[::2] for entry in settings.get("Env") or ()) | dict(config.env)
    entrypoint = config.entrypoint or tuple(settings.get("Entrypoint") or ())
    return replace(config, env=tuple(env.items()), entrypoint=entrypoint)

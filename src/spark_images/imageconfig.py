"""What an image says of itself and how it starts: the part of an OCI image config that a plan decides."""

from __future__ import annotations

from dataclasses import dataclass

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

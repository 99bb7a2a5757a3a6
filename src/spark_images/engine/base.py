"""What a build engine is to the rest of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import docker

    from spark_images.engine.hostwatch import HostWatch

LABEL = "io.spark-images.attempt"  # on every container, builder and throw-away image that we start or make
OWNER = "io.spark-images.cache"  # beside it: for which cache folder; clean() takes no other's
BUILDER = "SPARK_IMAGES_BUILDER"  # the variable that names a builder of buildx to use in place of one of our own


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """What was found: for the plan's display and the record."""

    name: str  # "podman" or "docker"
    version: str
    builder: str  # "buildah 1.28.2" or "BuildKit docker.io/moby/buildkit:v0.32.2 by buildx 0.30.1"
    runtime: str  # OCI runtime that is used: "crun", "runc"
    cgroup: str  # "v1" or "v2"


@dataclass(frozen=True, kw_only=True)
class RootImage:
    """A file system that stages start FROM: an OCI layout folder with one manifest."""

    name: str  # the name in the Dockerfile's FROM: "build-root"
    layout: Path
    digest: str  # the manifest's


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One execution of a Dockerfile. The network is always off; no platform is named: see DESIGN, Reproducibility."""

    dockerfile: Path
    context: Path  # the default context: the folder of scripts
    contexts: tuple[tuple[str, Path], ...]  # named contexts: (("inputs", …),)
    roots: tuple[RootImage, ...]
    secrets: tuple[tuple[str, Path], ...]  # id -> file, outside the cache key: (("limits", …),)
    memory_bytes: int | None  # cap of every step, swap off; None only where the user typed --no-memory-limit
    use_cache: bool  # False: every step runs again
    output: Path  # a folder that the engine fills with an OCI layout (raw material)
    attempt: str  # the record's id; goes into the label
    hostname: str = ""  # what steps take the machine for; "": the engine's choice. podman: each container has its own


@dataclass(frozen=True, kw_only=True)
class BuildOutcome:
    """How the engine's command ended. A non-zero status is not an exception: buildlog.py finds out what it means."""

    command: tuple[str, ...]  # as it was run, for replay
    env: Mapping[str, str]  # what it needs beside the user's environment
    status: int


class Engine(Protocol):
    """podman or docker. Constructors do not touch the engine; every method raises EngineError if it does not answer."""

    name: str

    @property
    def env(self) -> Mapping[str, str]:
        """What to add to the environment of other programs that use this engine, such as testinfra's `podman exec`."""

    def facts(self) -> EngineFacts:
        """Ask the engine what it is; raises EngineTooOldError (found, needed)."""

    def prepare(self) -> None:
        """Have what every build needs beside its inputs; raises EngineError where that cannot be had."""

    def build(
        self, request: BuildRequest, on_line: Callable[[str], None], watch: HostWatch | None = None
    ) -> BuildOutcome:
        """Run the Dockerfile and export the last stage to request.output; on_line gets every line of output.

        watch: freezes the steps while the host is short of memory, and raises HostMemoryError if it stays so.
        """

    def client(self) -> docker.DockerClient:
        """The docker SDK on this engine's socket, to run, exec, inspect, load and remove."""

    def image_id(self, reference: str) -> str | None:
        """Config digest of an image that the engine holds under this reference, None if it holds none. Cheap."""

    def load(self, layout: Path, reference: str) -> None:
        """Make the canonical layout available as `reference`; afterwards image_id() is its config digest."""

    def clean(self) -> tuple[str, ...]:
        """Remove every container, builder and throw-away image with our label; says what was removed, one line each.

        The compile cache stays, and so does what a build that runs now uses.
        """

    def drop_caches(self) -> tuple[str, ...]:
        """clean(), and remove what builds for this cache folder keep in the engine: compile cache, finished steps."""

"""Containers for tests, through the docker SDK on either engine; imported only where containers are run."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import docker.errors
import docker.types
import requests

from spark_images.engine.attempt import engine_disk_full
from spark_images.engine.base import LABEL, OWNER
from spark_images.errors import EngineError
from spark_images.platforms import ARCHES
from spark_images.process import quoted
from spark_images.units import GIB

if TYPE_CHECKING:
    from docker.models.containers import Container

LOG_BYTES = 4 << 20  # of a container, that are kept


class EngineClient(docker.DockerClient):
    """The SDK on an engine's socket, with the labels by which clean() finds what was started through it.

    logs: a folder in which running() leaves what each container printed; None for none.
    """

    def __init__(self, address: Path, labels: Mapping[str, str]) -> None:
        super().__init__(base_url=f"unix://{address}", version="auto", timeout=120)
        self.labels = dict(labels)
        self.logs: Path | None = None


@contextlib.contextmanager
def sdk_errors(doing: str) -> Iterator[None]:
    """Turns what the SDK raises inside the block into EngineError, or DiskFullError. doing: "load `x`"."""
    try:
        yield
    except (docker.errors.DockerException, requests.RequestException) as err:
        if "no space left on device" in str(err).lower():
            raise engine_disk_full(str(err)) from err
        raise EngineError(f"the engine could not {doing}") from err


@contextlib.contextmanager
def running(
    client: docker.DockerClient,
    image: str,
    *,
    command: Sequence[str] | None = None,
    entrypoint: Sequence[str] | None = None,
    network: str = "none",
    mounts: Mapping[Path, str] | None = None,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    ulimits: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    memory_bytes: int = 2 * GIB,
    read_only: bool = False,
) -> Iterator[Container]:
    """A started container of an image that the engine holds; removed at the end whatever happens, with its volumes.

    command, entrypoint: the image's own where None. network: "none" or "host".
    It has no capabilities, gains no privileges and holds no more than memory_bytes, swap included; with read_only it
    can write to /tmp alone. mounts: host path -> path inside, read-only. ulimits: name -> value, soft and hard.
    A foreign architecture runs where binfmt_misc has qemu for it.
    The container may have ended by itself: `container.reload()`, then `container.status`, `.logs()`, `.wait()`.
    """
    architecture = str(client.images.get(image).attrs["Architecture"])
    options: dict[str, Any] = {"entrypoint": list(entrypoint)} if entrypoint is not None else {}
    if architecture != ARCHES.get(platform.machine()):
        options["platform"] = (
            f"linux/{architecture}"  # said outright, an engine does not warn about it or look for another
        )
    container = client.containers.create(
        image,
        None if command is None else list(command),
        network_mode=network,
        mounts=[
            docker.types.Mount(target=inside, source=str(path.absolute()), type="bind", read_only=True)
            for path, inside in (mounts or {}).items()
        ],
        environment=dict(env or {}),
        user=user,
        ulimits=[docker.types.Ulimit(name=name, soft=value, hard=value) for name, value in (ulimits or {}).items()],
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        mem_limit=memory_bytes,
        memswap_limit=memory_bytes,
        read_only=read_only,
        tmpfs={"/tmp": "mode=1777"} if read_only else {},
        labels={LABEL: "container", **getattr(client, "labels", {}), **(labels or {})},
        **options,
    )
    try:
        container.start()
        yield container
    finally:
        with contextlib.suppress(docker.errors.NotFound):
            try:
                if logs := getattr(client, "logs", None):
                    _keep_log(container, logs)
            finally:
                container.remove(force=True, v=True)


def _keep_log(container: Container, folder: Path) -> None:
    """Under its number, with the command on top; of very long ones the end."""
    container.reload()
    folder.mkdir(parents=True, exist_ok=True)
    started = [*(container.attrs["Config"]["Entrypoint"] or ()), *(container.attrs["Config"]["Cmd"] or ())]
    printed: bytes = container.logs(stdout=True, stderr=True, timestamps=True)[-LOG_BYTES:]
    path = folder / f"{len(list(folder.iterdir())) + 1:03}.log"
    path.write_bytes(f"{quoted(started)}\n".encode() + printed)


def remove_containers(client: docker.DockerClient, owner: str) -> tuple[str, ...]:
    """Remove the containers that running() started for this owner; a line for each."""
    removed = []
    with sdk_errors("remove the containers that are left"):
        for container in client.containers.list(all=True, filters={"label": f"{OWNER}={owner}"}):
            with contextlib.suppress(docker.errors.NotFound):  # its own process has just removed it
                container.remove(force=True, v=True)
                removed.append(f"container {container.name}")
    return tuple(removed)

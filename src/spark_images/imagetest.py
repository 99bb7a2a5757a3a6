"""A pytest plugin for tests of a built image: the image, its files and configuration, and containers of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_images.elf import BrokenElfError, is_elf, read_elf
from spark_images.imagechecks import ImageFile, Tree, of_entry, tree_of
from spark_images.imagefiles import FileEntry, walk_files
from spark_images.oci import read_layout

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from testinfra.host import Host

    from spark_images.engine.base import Engine

LOGS = "containers"  # folder beside the results, a file for each container that running() started
COMMAND_TIMEOUT_S = 30  # of one command inside a container; 0.1 s each under emulation on a quiet machine


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The image under test, as it is handed to pytest in a file."""

    project: str  # folder
    image: str
    target: str
    base: str
    layout: str  # folder of the canonical OCI layout
    reference: str  # its name in the engine
    engine: str
    cuobjdump: str  # the program, "" where there is none


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spark-images")
    group.addoption("--subject", type=Path, required=False, help="subject.json: which image, in which engine")


class ImageUnderTest:
    """What tests ask of the image: its sources, its files, its configuration."""

    def __init__(self, subject: Subject) -> None:
        from spark_images.project import Project

        self.subject = subject
        self.project = Project(Path(subject.project))
        image = self.project.image(subject.image)
        self.target, self.base = self.project.variant(image, subject.target, subject.base)
        self.image = image.on(self.base)
        self.reference = subject.reference
        self.layout = Path(subject.layout)
        self.cuobjdump = Path(subject.cuobjdump)

    @cached_property
    def files(self) -> Tree:
        """Every path of the canonical layout after all layers, ELF files read."""
        return tree_of(image_file(entry) for entry in walk_files(read_layout(self.layout)))


def image_file(entry: FileEntry) -> ImageFile:
    """What the checks need to know of one path of a layout. Every file's first bytes are read, of an ELF file all."""
    elf, broken = None, ""
    if entry.type == "file" and not entry.link and entry.size >= 4:  # a hard link's content is read where it lies
        with entry.open() as stream:
            if is_elf(stream.read(4)):
                stream.seek(0)
                try:
                    elf = read_elf(stream)
                except BrokenElfError as err:
                    broken = str(err)
    return replace(of_entry(entry), elf=elf, broken=broken)


@pytest.fixture(scope="session")
def under_test(pytestconfig: pytest.Config) -> ImageUnderTest:
    """The image under test."""
    path: Path | None = pytestconfig.getoption("--subject")
    if path is None:
        pytest.exit("these tests need `--subject`: run them with `./noxw -s test-<image>`", returncode=4)
    return ImageUnderTest(Subject(**json.loads(path.read_text())))


@pytest.fixture(scope="session")
def engine(under_test: ImageUnderTest) -> Engine:
    """The engine that holds the image."""
    from spark_images.cache import Cache
    from spark_images.engine import choose_engine

    name, cache = under_test.subject.engine, Cache.from_env(os.environ)
    return choose_engine(name, cache=cache, env=os.environ)


@pytest.fixture(scope="session")
def client(engine: Engine, pytestconfig: pytest.Config) -> docker.DockerClient:
    """The docker SDK on the engine. What containers print is kept beside the results."""
    from spark_images.engine.containers import EngineClient

    client, subject = engine.client(), pytestconfig.getoption("--subject")
    assert isinstance(client, EngineClient)  # every engine's is
    client.logs = Path(subject).parent / LOGS
    return client


@pytest.fixture(scope="session")
def config(client: docker.DockerClient, under_test: ImageUnderTest) -> dict[str, Any]:
    """The image's configuration as the engine reports it."""
    found: dict[str, Any] = client.images.get(under_test.reference).attrs["Config"]
    return found


@pytest.fixture(scope="session")
def idle(client: docker.DockerClient, under_test: ImageUnderTest) -> Iterator[Container]:
    """A container of the image that does nothing, to look around in."""
    from spark_images.engine.containers import running

    with running(client, under_test.reference, entrypoint=["sleep"], command=["3600"], network="none") as container:
        yield container


@pytest.fixture(scope="session")
def inside(idle: Container, engine: Engine) -> Host:
    """testinfra in the idle container. Wrap slow commands in coreutils' `timeout`."""
    import testinfra

    host: Host = testinfra.get_host(f"{engine.name}://{idle.name}")
    return host


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder to mount into containers: any user may read it (pytest's own are private)."""
    folder = tmp_path_factory.mktemp("shared")
    folder.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Ask for a TCP port on the loopback that nothing listens on."""

    def ask() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    return ask

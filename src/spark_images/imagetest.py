"""Tests of a built image: a pytest plugin that gives them the image, and the runner that the verb `test` calls.

pytest runs in a process of its own, so that its plugins and settings are the tests' alone. It has the terminal, so that
further arguments such as `--pdb` work.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_images.elf import BrokenElfError, is_elf, read_elf
from spark_images.errors import CheckError
from spark_images.imagechecks import ImageFile, Tree, tree_of
from spark_images.imagefiles import FileEntry, walk_files
from spark_images.oci import read_layout
from spark_images.process import attach, quoted
from spark_images.terminal import tell

if TYPE_CHECKING:
    import docker
    from docker.models.containers import Container
    from testinfra.host import Host

    from spark_images.engine.base import Engine
    from spark_images.images import Image
    from spark_images.project import Project
    from spark_images.targets import Target

LOGS = "containers"  # folder beside the results, a file for each container that running() started
TEST_TIMEOUT_S = 300  # of one test with its fixtures; reading a 1 GB image takes some 10 s, all the others less
COMMAND_TIMEOUT_S = 30  # of one command inside a container; 0.1 s each under emulation on a quiet machine


@dataclass(frozen=True, kw_only=True)
class Failure:
    """One test that did not pass: its name, and the first line of why."""

    test: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class TestResults:
    """What came out. passed counts tests; whatever else happened to a test is a failure here, skips included."""

    __test__ = False  # pytest takes every class of this name for tests

    passed: int
    failures: tuple[Failure, ...]
    seconds: float

    @property
    def good(self) -> bool:
        """Some tests ran and all of them passed."""
        return self.passed > 0 and not self.failures


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


def run_image_tests(
    project: Project,
    image: Image,
    target: Target,
    base: str,
    *,
    layout: Path,
    reference: str,
    engine: Engine,
    cuobjdump: Path | None,
    results: Path,
    pytest_args: Sequence[str] = (),
) -> TestResults:
    """Run images/tests, images/<name>/tests and those of its components against an image in the engine.

    cuobjdump: as unpack_cuobjdump() returns it, None for a project without GPU images. results: a folder for what goes
    to pytest and comes from it: junit.xml, and in LOGS what containers printed. Raises CheckError where pytest itself
    failed: bad arguments, no tests.
    """
    results.mkdir(parents=True, exist_ok=True)
    subject = Subject(
        project=str(project.root),
        image=image.name,
        target=target.name,
        base=base,
        layout=str(layout),
        reference=reference,
        engine=engine.name,
        cuobjdump=str(cuobjdump or ""),
    )
    described = results / "subject.json"
    described.write_text(json.dumps(asdict(subject), indent=2))
    junit = results / "junit.xml"
    junit.unlink(missing_ok=True)
    images = project.root / "images"
    owners = ("", *image.on(base).compile.components, image.name)  # a component's tests hold in the whole as well
    tests = [str(folder) for owner in owners if (folder := images / owner / "tests").is_dir()]
    command = [sys.executable, "-m", "pytest", "-p", "spark_images.imagetest", f"--subject={described}"]
    command += [f"--junit-xml={junit}", f"--timeout={TEST_TIMEOUT_S}", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", *tests, *pytest_args]
    tell(quoted(command))
    source = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")]))
    env = {**os.environ, **engine.env, "PYTHONPATH": path}
    status = attach(command, cwd=project.root, env=env)
    if status not in (0, 1) or not junit.exists():
        meanings = {2: "interrupted, or a test file cannot be imported", 4: "bad arguments", 5: "no test was selected"}
        meaning = meanings.get(status, "internal error")
        raise CheckError(
            f"the tests of `{image.name}` did not run",
            why=[f"pytest ended with status {status}: {meaning}", quoted(command)],
        )
    return read_junit(junit)


def read_junit(junit: Path) -> TestResults:
    """The results that pytest wrote as JUnit XML."""
    passed, failures, seconds = 0, [], 0.0
    for case in ElementTree.parse(junit).iter("testcase"):
        seconds += float(case.get("time", "0"))
        bad = next((child for child in case if child.tag in ("failure", "error", "skipped")), None)
        if bad is None:
            passed += 1
        else:
            reason = (bad.get("message") or bad.text or bad.tag).strip().splitlines()
            failures.append(Failure(test=str(case.get("name")), reason=reason[0] if reason else bad.tag))
    return TestResults(passed=passed, failures=tuple(failures), seconds=round(seconds, 1))


# --- the plugin -------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spark-images")
    group.addoption("--subject", type=Path, required=False, help="subject.json: which image, in which engine")


class ImageUnderTest:
    """What tests ask of the image: its sources, its files, its configuration."""

    def __init__(self, subject: Subject) -> None:
        from spark_images.project import Project

        self.subject = subject
        self.project = Project(Path(subject.project))
        self.image = self.project.image(subject.image)
        self.target, self.base = self.project.variant(self.image, subject.target, subject.base)
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
    return ImageFile(
        path=f"/{entry.path}",
        kind=entry.type,
        mode=entry.mode,
        uid=entry.uid,
        size=entry.size,
        link=entry.link,
        elf=elf,
        broken=broken,
    )


@pytest.fixture(scope="session")
def under_test(pytestconfig: pytest.Config) -> ImageUnderTest:
    """The image under test."""
    path: Path | None = pytestconfig.getoption("--subject")
    if path is None:
        pytest.exit("these tests need `--subject`: run them with `nox -s test-<image>`", returncode=4)
    return ImageUnderTest(Subject(**json.loads(path.read_text())))


@pytest.fixture(scope="session")
def engine(under_test: ImageUnderTest) -> Engine:
    """The engine that holds the image."""
    from spark_images.cache import Cache
    from spark_images.engine import choose_engine

    name, cache = under_test.subject.engine, Cache.from_env(os.environ)
    return choose_engine(name, cache=cache, buildkit_image="", env=os.environ)  # no image: nothing is built here


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

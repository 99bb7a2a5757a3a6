"""The engines that answer on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pipeline
import pytest

from spark_images.bench.machines import unmount_below
from spark_images.cache import Cache
from spark_images.engine import NAMES, choose_engine
from spark_images.engine.base import Engine
from spark_images.engine.podman_left import remove_tree
from spark_images.errors import EngineError
from spark_images.project import Project

LEFT = pytest.StashKey[set[str]]()


def toys_in_docker() -> set[str]:
    """The images of tests in Docker's own store, which is of one piece: `localhost/spark-images/hello:TAG`."""
    ours = {path.parent.name for path in Path(__file__).parents[2].glob("images/*/image.yaml")}
    command = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", "localhost/spark-images/*"]
    if shutil.which("docker") is None:
        return set()
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()  # no daemon: none
    return {name for name in said if name.rpartition("/")[2].partition(":")[0] not in ours}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Before all workers."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        session.config.stash[LEFT] = toys_in_docker()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """After all workers: what the run has loaded into Docker goes."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        before = session.config.stash[LEFT]
        if made := toys_in_docker() - before:
            subprocess.run(["docker", "rmi", "--force", *sorted(made)], stdout=subprocess.DEVNULL, check=False)


@pytest.fixture(scope="session", autouse=True)
def shared_by_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for what all tests of a run need alike, on all its workers: what was fetched, and roots of .debs."""
    ours = tmp_path_factory.getbasetemp()
    pipeline.shared = (ours.parent if "PYTEST_XDIST_WORKER" in os.environ else ours) / "shared"
    yield pipeline.shared
    pipeline.shared = None


@pytest.fixture(scope="session", autouse=True)
def podman_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """podman's images in a storage of this worker's: podman 4 fails where another process removes images meanwhile."""
    if shutil.which("podman") is None:
        yield
        return
    asked = ["podman", "info", "--format", "{{.Store.GraphDriverName}}"]
    driver = subprocess.check_output(asked, text=True).strip()
    folder = tmp_path_factory.mktemp("podman")
    with tempfile.TemporaryDirectory(prefix="spark-") as run, pytest.MonkeyPatch.context() as patch:
        storage = {"driver": driver, "graphroot": str(folder / "storage"), "runroot": run}
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in storage.items()]
        # Without this its folder is a mount, which a run that is killed leaves behind.
        own_mount = '[storage.options.overlay]\nskip_mount_home = "true"\n'
        (folder / "storage.conf").write_text("[storage]\n" + "".join(lines) + own_mount)
        patch.setenv("CONTAINERS_STORAGE_CONF", str(folder / "storage.conf"))
        yield
        unmount_below(folder, Path(run))
        remove_tree(folder / "storage", os.environ)


@pytest.fixture(scope="session")
def buildkit_image() -> str:
    """What BuildKit runs from: the pin, or what SPARK_IMAGES_BUILDKIT_IMAGE names."""
    return Project(Path(__file__).parents[2]).buildkit_image(os.environ)


@pytest.fixture(scope="session")
def engine_caches(
    tmp_path_factory: pytest.TempPathFactory, podman_storage: None, shared_by_run: Path, buildkit_image: str
) -> Iterator[dict[str, Cache]]:
    """The cache folder of each engine: nothing here touches the user's builders and caches."""
    caches = {name: Cache(tmp_path_factory.mktemp(f"cache-{name}"), shared_by_run / "store") for name in NAMES}
    yield caches
    for name, cache in caches.items():
        if cache.engines.exists():
            choose_engine(name, cache=cache, buildkit_image=buildkit_image, env=os.environ).drop_caches()


@pytest.fixture(scope="module", autouse=True)
def engines_as_before(engine_caches: dict[str, Cache], buildkit_image: str) -> Iterator[None]:
    """Builders and images that belong to caches of a module's own end with it: an idle BuildKit holds 70 MB."""
    yield
    for cache in pipeline.caches - {kept.root for kept in engine_caches.values()}:
        for name in NAMES:
            if (cache / "engines" / name).exists():
                own = choose_engine(name, cache=Cache(cache), buildkit_image=buildkit_image, env=os.environ)
                own.drop_caches()
    pipeline.caches.clear()


@pytest.fixture(scope="session")
def default_engine(engine_caches: dict[str, Cache], buildkit_image: str) -> Engine:
    """The one that verbs choose by themselves, for what is the same with each."""
    try:
        return choose_engine(None, cache=engine_caches["podman"], buildkit_image=buildkit_image, env=os.environ)
    except EngineError as err:
        pytest.skip(f"no engine answers: {err.what}")


@pytest.fixture(scope="module", params=NAMES)
def engine(request: pytest.FixtureRequest, engine_caches: dict[str, Cache], buildkit_image: str) -> Engine:
    """Each engine, with a cache folder of its own. One that SPARK_IMAGES_REQUIRE_ENGINES names has to answer.

    By module, so that a module's other fixtures are made once: pytest sorts all tests of a run by a session's engine.
    """
    name: str = request.param
    try:
        chosen = choose_engine(name, cache=engine_caches[name], buildkit_image=buildkit_image, env=os.environ)
        chosen.facts()
    except EngineError as err:
        if name in os.environ.get("SPARK_IMAGES_REQUIRE_ENGINES", "").split(","):
            pytest.fail(f"{name} is required and does not answer: {err.render()}")
        pytest.skip(f"{name} does not answer: {err.what}")
    return chosen

"""A small project of its own for the pipeline's tests: one C program, the real scripts, the real Debian lock."""

from __future__ import annotations

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.oci import Layout, read_layout
from spark_images.pins import ImagePin
from spark_images.project import Project
from spark_images.store import Store
from spark_images.tree import write_tree

REPOSITORY = Path(__file__).parents[2]
ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}
shared: Path | None = None  # a folder in which pipelines keep what they fetch, and the roots that they make of it
caches: set[Path] = set()  # of pipelines so far: what builds with them leave in engines is not theirs to remove


@dataclass(frozen=True)
class Pipeline:
    """A project folder and a cache, driven through the command line as a user does."""

    project: Path
    env: dict[str, str]
    image: str = "hello"

    def __call__(self, *arguments: str, timeout_s: int = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), env=self.env, text=True, capture_output=True, timeout=timeout_s)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a verb in a process group of its own; its stderr goes to stdout."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "spark_images", "--project", str(self.project), *arguments]

    @property
    def cache(self) -> Path:
        return Path(self.env["SPARK_IMAGES_CACHE"])

    @property
    def store(self) -> Store:
        return Store(Cache.from_env(self.env).store)

    def misbehave(self, shell: str) -> None:
        """Make the compile step run these shell lines first, as a change of the source pin."""
        (self.project / "source" / "misbehave").write_text(shell)
        self.pin_source()

    def behave(self) -> None:
        (self.project / "source" / "misbehave").unlink(missing_ok=True)
        self.pin_source()

    def pin_source(self) -> None:
        """Commit the source folder to its git repository and write pins.yaml for that commit."""
        source = self.project / "source"
        git("init", "-q", cwd=source)
        git("add", "-A", cwd=source)
        git("commit", "-q", "--allow-empty", "-m", "a state of the source", cwd=source)
        commit = git("rev-parse", "HEAD", cwd=source)
        tar = io.BytesIO()
        write_tree(source, out=tar)
        digest = hashlib.sha256(tar.getvalue()).hexdigest()
        debian = block_of(REPOSITORY / "pins.yaml", "debian")
        (self.project / "pins.yaml").write_text(
            "schema: 1\n"
            f"{self.image}: {{kind: git, url: \"file://{source}\", version: '1.0', commit: {commit}, "
            f'committed: 2026-01-02T03:04:05Z, tree: "sha256:{digest}"}}\n{debian}'
        )
        assert self("render").returncode == 0


def make_pipeline(folder: Path, cache: Path, image: str = "hello") -> Pipeline:
    """The project of the image in a new folder, pinned and rendered."""
    project = folder / "project"
    shutil.copytree(Path(__file__).parent / ("project" if image == "hello" else f"project_{image}"), project)
    if image != "hello":
        shutil.copy(Path(__file__).parent / "unit.cpp", project / "source")
    shutil.copy(REPOSITORY / "templates" / "stages.j2", project / "templates")
    for script in ("step", "prove_isolation", "memgate"):
        shutil.copy(REPOSITORY / "scripts" / script, project / "scripts")
    (project / "images" / "debian").mkdir(parents=True)
    shutil.copy(REPOSITORY / "images" / "debian" / "debs.lock", project / "images" / "debian")
    (project / "images" / "targets.yaml").write_text(
        f"here: {{platform: linux/{ARCHES[platform.machine()]}, cpu-architecture: native, "
        "unified-memory: false, description: this machine}\n"
    )
    env = {**os.environ, "SPARK_IMAGES_CACHE": str(cache), "NO_COLOR": "1"}
    if shared:
        env["SPARK_IMAGES_STORE"] = str(shared / "store")
        share_roots(cache)
    pipeline = Pipeline(project, env, image)
    pipeline.pin_source()
    return pipeline


def rests_under_300_mib(says: str) -> str:
    """Lines for a step that is to be killed in a build with that cap, and not in one with another."""
    return f'[ "$MEMORY_MIB" != 300 ] || {{ echo {says}; sleep 600; }}\n'


def share_roots(cache: Path) -> None:
    """Make a new cache find the roots that others have made of .debs."""
    assert shared
    caches.add(cache)
    (shared / "roots").mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    if not (cache / "roots").exists():
        (cache / "roots").symlink_to(shared / "roots")


def base_of(pipeline: Pipeline, name: str) -> Layout:
    """The image that a build of this pipeline has stood on, by its pin."""
    pin = Project(pipeline.project).pins[name]
    assert isinstance(pin, ImagePin)
    return read_layout(next((pipeline.cache / "roots").glob(f"{pin.digest.removeprefix('sha256:')}-linux-*")))


def output_of(engine: Engine, reference: str) -> str:
    """What a container of the image prints, run to its end with its own command."""
    # Not run(): podman 4.3 looks into /proc for the log of a container that may have just ended.
    container = engine.client().containers.create(reference, network_mode="host", ulimits=[])
    try:
        container.start()
        container.wait(timeout=60)
        return container.logs().decode()
    finally:
        container.remove(force=True)


def git(*arguments: str, cwd: Path) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    return subprocess.check_output(["git", *identity, *arguments], cwd=cwd, text=True).strip()


def block_of(path: Path, key: str) -> str:
    """The lines of one top-level key of a YAML file."""
    lines = path.read_text().splitlines(keepends=True)
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{key}:"))
    end = start + 1
    while end < len(lines) and lines[end].startswith((" ", "\n")):
        end += 1
    return "".join(lines[start:end])

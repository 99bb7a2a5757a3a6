"""Docker: builds in a BuildKit builder of our own, everything else on the daemon's socket."""

from __future__ import annotations

import os
import platform
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from spark_images import process
from spark_images.cache import Cache
from spark_images.engine import daemon
from spark_images.engine.attempt import build_env, check_request, if_no_build, only_build, owner_of, run_engine, tidy
from spark_images.engine.base import BUILDER, OWNER, BuildOutcome, BuildRequest, EngineFacts
from spark_images.engine.builder import Builder
from spark_images.engine.freezer import NOTE, Container, Freezer
from spark_images.engine.named_builder import NamedBuilder
from spark_images.errors import EngineError, EngineTooOldError
from spark_images.files import write_text

if TYPE_CHECKING:
    import docker

    from spark_images.engine.hostwatch import HostWatch
    from spark_images.oci import Layout

NEEDED_API = (1, 41)  # Docker 20.10: the oldest that this was tried on
NEEDED_BUILDX = (0, 12)  # the first whose builders take `memory=`


class BuildKitEngine:
    """A Docker daemon on this machine, and the docker command with buildx."""

    name = "docker"

    def __init__(self, cache: Cache, buildkit_image: str, *, env: Mapping[str, str] | None = None) -> None:
        self._folder = cache.engines / "docker"
        self._env = dict(os.environ if env is None else env)
        self._owner = owner_of(cache)
        self._image = buildkit_image
        self._foreign = self._env.get(BUILDER, "")  # the name of a builder that is not ours; "" to have one of our own

    @property
    def env(self) -> Mapping[str, str]:
        """See Engine. Docker's command finds the daemon by itself."""
        return {}

    @cached_property
    def _socket(self) -> Path:
        return daemon.docker_socket(self._env)

    def answer(self) -> None:
        """Raises EngineError where no Docker daemon answers, or podman does in its place."""
        try:
            headers = daemon.ping(self._socket)
        except EngineError as err:
            raise EngineError(f"docker: {err.what}", why=err.why, hint=err.hint) from err.__cause__
        if "libpod" in headers.get("Server", "").lower():
            raise EngineError(f"docker: it is podman that answers on `{self._socket}`", hint="use `--engine podman`")

    def facts(self) -> EngineFacts:
        """See Engine."""
        self.answer()
        version, info = self._get("/version"), self._get("/info")
        if _numbers(str(version["ApiVersion"])) < NEEDED_API:
            raise EngineTooOldError(
                f"Docker is too old: found {version['Version']}, needed 20.10 or later",
                hint="get a newer one as https://docs.docker.com/engine/install/ says, or use podman",
            )
        return EngineFacts(
            name="docker",
            version=version["Version"],
            builder=f"BuildKit {self._foreign or self._image} by buildx {self._buildx_version()}",
            runtime=info["DefaultRuntime"],
            cgroup=f"v{info.get('CgroupVersion', '1')}",
        )

    def prepare(self) -> None:
        """See Engine: the image that BuildKit runs from is brought if the daemon does not have it."""
        self.facts()
        if self._foreign:
            return
        if not self._image:
            raise EngineError(
                "docker cannot build: no pin `buildkit` says from which image BuildKit runs",
                hint="add that pin, of kind image, or build with `--engine podman`",
            )
        if process.capture(["docker", "image", "inspect", self._image], env=self._env).status == 0:
            return
        pulled = process.capture(["docker", "pull", "--quiet", self._image], env=self._env)
        if pulled.status != 0:
            raise EngineError(
                f"docker cannot get BuildKit's image `{self._image}`",
                why=pulled.stderr.strip().splitlines()[-1:],
                hint="build with `--engine podman`, or name another image in `SPARK_IMAGES_BUILDKIT_IMAGE`",
            )

    def build(
        self, request: BuildRequest, on_line: Callable[[str], None], watch: HostWatch | None = None
    ) -> BuildOutcome:
        """See Engine."""
        check_request(request)
        self.facts()
        builder = self._builder()
        with only_build(self._folder, on_line, builder.remove):
            builder.ensure(request.memory_bytes, on_line)
            limited = request.memory_bytes is not None and builder.caps_steps()
            command = build_command(request, builder.name, cap_steps=limited)
            request.output.parent.mkdir(parents=True, exist_ok=True)
            note = self._folder / NOTE
            status = run_engine(
                command,
                on_line,
                env=build_env(self._env),
                note=note,
                freezer=lambda _: self._freezer(builder, note),
                watch=None if isinstance(builder, NamedBuilder) else watch,
            )
        return BuildOutcome(command=tuple(command), env={}, status=status)

    def client(self) -> docker.DockerClient:
        """See Engine."""
        from spark_images.engine.containers import EngineClient

        self.answer()
        return EngineClient(self._socket, {OWNER: self._owner})

    def image_id(self, reference: str) -> str | None:
        """See Engine."""
        found = daemon.get(self._socket, f"/images/{reference}/json")
        if found is None:
            return None
        # A daemon with containerd's image store calls an image by its manifest, not by its config: load() noted which.
        noted = self._noted(str(found["Id"]))
        return noted.read_text() if noted.exists() else str(found["Id"])

    def load(self, layout: Path, reference: str) -> None:
        """See Engine. The daemon only takes archives: one is streamed to it, no file is written."""
        from spark_images.engine.containers import sdk_errors
        from spark_images.oci import read_layout

        read = read_layout(layout)
        loading = sdk_errors(f"load `{reference}`")
        with closing(self.client()) as client, loading, _archive(read, reference) as archive:
            client.images.load(archive)
        found = self._get(f"/images/{reference}/json")
        if found["Id"] == read.config_digest:
            return
        if tuple(found["RootFS"]["Layers"]) != tuple(layer.diff_id for layer in read.layers):
            raise EngineError(f"docker loaded `{reference}` as another image", why=[f"its id is {found['Id']}"])
        noted = self._noted(str(found["Id"]))
        noted.parent.mkdir(parents=True, exist_ok=True)
        write_text(noted, read.config_digest)

    def clean(self) -> tuple[str, ...]:
        """See Engine. The builder's volume stays: it holds the compile cache, and its own policy bounds it."""
        return self._remove(lambda builder: builder.remove())

    def drop_caches(self) -> tuple[str, ...]:
        """See Engine."""
        return self._remove(lambda builder: builder.drop())

    def _freezer(self, builder: Builder | NamedBuilder, note: Path) -> Freezer:
        assert isinstance(builder, Builder)  # nobody watches another
        return Freezer(note, builder.pid(), builder=Container(builder.container, self._socket))

    def _remove(self, from_builder: Callable[[Builder | NamedBuilder], tuple[str, ...]]) -> tuple[str, ...]:
        from spark_images.engine.containers import remove_containers

        with closing(self.client()) as client:
            removed = remove_containers(client, self._owner)
        with if_no_build(self._folder) as alone:
            if not alone:
                return (*removed, "a build runs on docker: its builder is left")
            builder = self._builder()
            return (*removed, *tidy(self._folder, lambda: from_builder(builder)))

    def _builder(self) -> Builder | NamedBuilder:
        env = build_env(self._env)
        if self._foreign:
            return NamedBuilder(name=self._foreign, machine=platform.machine(), folder=self._folder, env=env)
        return Builder(
            name=f"spark-images-{self._owner}",
            image=self._image,
            folder=self._folder,
            env=env,
            get=lambda path: daemon.get(self._socket, path),
        )

    def _buildx_version(self) -> str:
        if shutil.which("docker", path=self._env.get("PATH")) is None:
            raise EngineError(
                "a Docker daemon answers but there is no `docker` command",
                hint="`./noxw -s doctor` says how to get it",
            )
        asked = process.capture(["docker", "buildx", "version"], env=self._env, timeout_s=30)
        found = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", asked.stdout.decode())
        if asked.status != 0 or found is None:
            raise EngineTooOldError(
                f"the `docker` command has no buildx: found none, needed {'.'.join(map(str, NEEDED_BUILDX))} or later",
                why=asked.stderr.strip().splitlines()[-1:],
                hint="install `docker-buildx-plugin` (Docker's packages) or `docker-buildx` (Ubuntu's)",
            )
        if _numbers(found[1]) < NEEDED_BUILDX:
            needed = ".".join(map(str, NEEDED_BUILDX))
            raise EngineTooOldError(
                f"buildx is too old: found {found[1]}, needed {needed} or later", hint="update `docker-buildx-plugin`"
            )
        return found[1]

    def _noted(self, identity: str) -> Path:
        return self._folder / "loaded" / identity.removeprefix("sha256:")

    def _get(self, path: str) -> dict[str, Any]:
        found = daemon.get(self._socket, path)
        if found is None:
            raise EngineError(f"docker on `{self._socket}` knows no `{path}`")
        return found


def build_command(request: BuildRequest, builder: str, *, cap_steps: bool) -> list[str]:
    """The whole `docker buildx build`. cap_steps: whether the builder understands a limit for each step."""
    command = ["docker", "buildx", "build", "--builder", builder, "--progress", "plain", "--network", "none"]
    command += ["--provenance=false", "--sbom=false"]
    if cap_steps:
        command += ["--resource", f"memory={request.memory_bytes}"]
    if not request.use_cache:
        command.append("--no-cache")
    if request.hostname:
        command += ["--build-arg", f"BUILDKIT_SANDBOX_HOSTNAME={request.hostname}"]
    for root in request.roots:
        command += ["--build-context", f"{root.name}=oci-layout://{root.layout.absolute()}@{root.digest}"]
    for name, path in request.contexts:
        command += ["--build-context", f"{name}={path.absolute()}"]
    for name, path in request.secrets:
        command += ["--secret", f"id={name},src={path.absolute()}"]
    export = f"type=oci,dest={request.output.absolute()},tar=false,compression=uncompressed,force-compression=true"
    return [*command, "--output", export, "--file", str(request.dockerfile), str(request.context)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@contextmanager
def _archive(layout: Layout, reference: str) -> Iterator[BinaryIO]:
    """The layout as the archive that a daemon loads, to be read; a thread makes it meanwhile."""
    from spark_images.oci import docker_archive

    read_end, write_end = os.pipe()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with os.fdopen(write_end, "wb", buffering=1 << 20) as stream:
                docker_archive(layout, reference, stream)
        except BaseException as err:
            failed.append(err)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with os.fdopen(read_end, "rb", buffering=1 << 20) as archive:
            yield archive
    finally:
        writer.join()  # once nobody reads any more, its next write fails
        if failed and not isinstance(failed[0], BrokenPipeError):
            raise failed[0]  # says more than the daemon's complaint about half an archive

"""podman: builds without a daemon, and a service of our own where the docker SDK needs one."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images import process
from spark_images.cache import Cache
from spark_images.engine import podman_left, podman_trial
from spark_images.engine.attempt import (
    build_env,
    check_request,
    engine_disk_full,
    if_no_build,
    only_build,
    owner_of,
    run_engine,
    tidy,
)
from spark_images.engine.base import LABEL, OWNER, BuildOutcome, BuildRequest, EngineFacts, RootImage
from spark_images.engine.freezer import NOTE, Freezer
from spark_images.engine.labelled import write_labelled
from spark_images.engine.mounted import mounted_key
from spark_images.errors import DiskFullError, EngineError, IsolationError

if TYPE_CHECKING:
    import docker

    from spark_images.engine.hostwatch import HostWatch
    from spark_images.engine.podman_service import Service


class PodmanEngine:
    """podman 4.2 or later, as the user who runs us: with or without root."""

    name = "podman"

    def __init__(self, cache: Cache, *, env: Mapping[str, str] | None = None) -> None:
        self._folder = cache.engines / "podman"
        self._tmp = self._folder / "tmp"  # TMPDIR of builds: buildah keeps cache mounts, so the compile cache, below it
        self._env = dict(os.environ if env is None else env)
        self._owner = owner_of(cache)
        self._service: Service | None = None

    @cached_property
    def _found(self) -> podman_trial.Found:
        return podman_trial.find_settings(self._folder, self._env)

    @property
    def env(self) -> Mapping[str, str]:
        """See Engine. Empty where podman needs no settings of ours."""
        return podman_trial.conf_env(self._folder, self._found)

    @property
    def _full_env(self) -> dict[str, str]:
        return {**self._env, **self.env}

    def answer(self) -> None:
        """Raises EngineError where there is no podman."""
        if shutil.which("podman", path=self._env.get("PATH")) is None:
            raise EngineError("podman: it is not installed", hint="`./noxw -s doctor` says how to get it")

    def facts(self) -> EngineFacts:
        """See Engine."""
        self.answer()
        return self._found.facts

    def prepare(self) -> None:
        """See Engine. There is nothing that podman itself does not bring."""
        self.answer()

    def build(
        self, request: BuildRequest, on_line: Callable[[str], None], watch: HostWatch | None = None
    ) -> BuildOutcome:
        """See Engine."""
        check_request(request)
        self.answer()
        if request.memory_bytes is not None and self._found.uncapped:
            raise IsolationError(
                "podman cannot cap the memory of a build here",
                why=[self._found.uncapped],
                hint="build as root, or where a user session has cgroup version 2 with the memory controller delegated",
            )
        with only_build(self._folder, on_line, lambda: self._left().remove()):
            self._tmp.mkdir(parents=True, exist_ok=True)
            mounted = mounted_key(request)
            roots = {root.name: self._root(root, mounted) for root in request.roots}
            result = f"localhost/spark-images/result-{self._owner}:{os.getpid()}"
            command = build_command(request, roots, result)
            env = {**self.env, "TMPDIR": str(self._tmp)}
            note = self._folder / NOTE
            status = run_engine(
                command,
                on_line,
                env=build_env(self._env, **env),
                note=note,
                freezer=lambda pid: Freezer(note, pid),
                watch=watch,
            )
            if status == 0:
                self._export(result, request.output)
            else:  # podman itself may have been killed, for memory say, and then its step runs on
                self._left().remove()
        return BuildOutcome(command=tuple(command), env=env, status=status)

    def client(self) -> docker.DockerClient:
        """See Engine. The service behind it ends with this process, or after ten idle minutes if that is killed."""
        from spark_images.engine.containers import EngineClient
        from spark_images.engine.podman_service import Service

        if self._service is None or not self._service.answers():
            self._service = Service.start(self._owner, self._full_env, log=self._folder / "service.log")
        return EngineClient(self._service.socket, {OWNER: self._owner})

    def image_id(self, reference: str) -> str | None:
        """See Engine."""
        asked = self._podman("image", "inspect", "--format", "{{.Id}}", reference, check=False)
        if asked.status == 0:
            return f"sha256:{asked.stdout.decode().strip().removeprefix('sha256:')}"
        if self._podman("image", "exists", reference, check=False).status == 1:
            return None
        raise self._failed(asked)

    def load(self, layout: Path, reference: str) -> None:
        """See Engine. podman reads the layout itself: no archive is written, and the manifest keeps its digest."""
        from spark_images.oci import read_layout

        image = self._pull(layout)
        self._podman("tag", image, reference)
        expected = read_layout(layout).config_digest
        if (got := self.image_id(reference)) != expected:
            raise EngineError(
                f"podman loaded `{reference}` as another image", why=[f"config {got}, expected {expected}"]
            )

    def clean(self) -> tuple[str, ...]:
        """See Engine. The compile cache stays; what a build that runs now holds stays too."""
        from spark_images.engine import podman_service

        self.answer()
        removed = list(podman_service.stop_left(self._owner))
        listed = self._podman("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={OWNER}={self._owner}")
        for container in listed.stdout.decode().split():
            self._podman("rm", "--force", "--volumes", container)
            removed.append(f"container {container[:12]}")
        with if_no_build(self._folder) as alone:
            if not alone:
                return (*removed, "a build runs on podman: what it uses is left")
            removed += tidy(self._folder, self._left().remove)
            # The compile cache is a cache mount, so the images of finished steps cost little to lose.
            pruned = self._podman("image", "prune", "--all", "--force", "--filter", f"label={OWNER}={self._owner}")
            removed += [f"image {image[:12]}" for image in pruned.stdout.decode().split()]
        return tuple(removed)

    def drop_caches(self) -> tuple[str, ...]:
        """See Engine."""
        removed = self.clean()
        with if_no_build(self._folder) as alone:
            if alone and self._tmp.exists():
                podman_left.remove_tree(self._tmp, self._full_env)
                return (*removed, f"compile cache {self._tmp}")
        return removed

    def _left(self) -> podman_left.Left:
        return podman_left.Left(
            tmp=self._tmp, owner=self._owner, env=self._full_env, runtime=self._found.facts.runtime, podman=self._podman
        )

    def _root(self, root: RootImage, mounted: str) -> str:
        """The name under which podman holds the root for this build, brought in if it is not there.

        It gets our labels, which the images of finished steps inherit: clean() finds them all by that. The history says
        for which cache folder and which mounted files it is: else podman would take steps of other scripts or inputs
        for finished. The layers are held once. And it gets the host's architecture, as no step runs on a foreign root.
        """
        made_for = f"{self._owner} {mounted}"
        name = f"localhost/spark-images/root-{self._owner}:{root.digest.removeprefix('sha256:')[:12]}-{mounted[:12]}"
        if self._podman("image", "exists", name, check=False).status != 0:
            with tempfile.TemporaryDirectory(dir=self._tmp, prefix="root-") as folder:
                write_labelled(root.layout, Path(folder), {LABEL: "root", OWNER: self._owner}, made_for=made_for)
                self._podman("tag", self._pull(Path(folder)), name)
        return name

    def _pull(self, layout: Path) -> str:
        """Bring a layout into podman's storage; the image's id. It gets no name."""
        with tempfile.TemporaryDirectory(prefix="spark-images-") as folder:
            incoming = f"spark-images-incoming-{os.getpid()}"
            Path(folder, incoming).symlink_to(layout.absolute())  # older podmans make a name of the path, in lower case
            pulled = self._podman("pull", "--quiet", f"oci:{incoming}", cwd=Path(folder))
        image = pulled.stdout.decode().split()[-1]
        names = self._podman("image", "inspect", "--format", "{{range .RepoTags}}{{println .}}{{end}}", image)
        for name in names.stdout.decode().split():
            if f"/{incoming}:" in name:
                self._podman("untag", image, name)
        return image

    def _export(self, image: str, output: Path) -> None:
        """The built image as an uncompressed OCI layout, and away with it.

        700 MB took 6.5 s; `podman push` to a folder and skopeo took a little longer.
        """
        output.mkdir(parents=True, exist_ok=True)
        try:
            self._podman("save", "--quiet", "--format", "oci-dir", "--uncompressed", "--output", str(output), image)
        finally:
            self._podman(
                "rmi", "--no-prune", image
            )  # by name: where it has another name, or steps stand on it, it stays

    def _podman(self, *arguments: str, check: bool = True, cwd: Path | None = None) -> process.Captured:
        self.answer()
        done = process.capture(["podman", *arguments], env=self._full_env, cwd=cwd)
        if check and done.status != 0:
            raise self._failed(done)
        return done

    @staticmethod
    def _failed(done: process.Captured) -> EngineError | DiskFullError:
        said = done.stderr.strip().splitlines()[-3:]
        if "no space left on device" in done.stderr.lower():
            return engine_disk_full(*said)
        return EngineError(f"`podman {done.command[1]}` failed", why=[process.quoted(done.command), *said])


def build_command(request: BuildRequest, roots: Mapping[str, str], result: str) -> list[str]:
    """The whole `podman build`. roots: stage name -> image in podman's storage. result: a name for what is built."""
    command = ["podman", "build", "--pull=never", "--network", "none", "--http-proxy=false", "--format", "oci"]
    if request.memory_bytes is not None:
        command += ["--memory", str(request.memory_bytes), "--memory-swap", str(request.memory_bytes)]
    if not request.use_cache:
        command.append("--no-cache")
    for name, image in roots.items():
        command += ["--build-context", f"{name}=container-image://{image}"]
    for name, path in request.contexts:
        command += ["--build-context", f"{name}={path.absolute()}"]
    for name, path in request.secrets:
        command += ["--secret", f"id={name},src={path.absolute()}"]
    return [*command, "--file", str(request.dockerfile), "--tag", result, str(request.context)]

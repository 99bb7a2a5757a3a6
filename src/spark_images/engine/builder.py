"""The BuildKit builder of our own: a container with a memory cap, and a cache that outlives it."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_images import process
from spark_images.engine.smallest import write_root
from spark_images.errors import EngineError
from spark_images.files import read_json, write_text

# BuildKit's own policy throws cache mounts away, the compile cache with them, 48 h after their last use. Here no rule
# takes them (ccache bounds itself), and what finished steps left goes when the disk gets tight.
_CONFIG = """\
[worker.oci]
  gc = true
  [[worker.oci.gcpolicy]]
    filters = ["type!=exec.cachemount"]
    reservedSpace = "10GB"
    maxUsedSpace = "100GB"
    minFreeSpace = "10%"
"""
# BuildKit cuts a step's log at 2 MiB and 200 KiB/s; the compile's log is what errors and progress are read from.
_ENV = {"BUILDKIT_STEP_LOG_MAX_SIZE": "-1", "BUILDKIT_STEP_LOG_MAX_SPEED": "-1"}
_MARK = "SPARK_IMAGES_BUILDER"  # a variable in the builder's environment: the state that it was made for


@dataclass(frozen=True, kw_only=True)
class Builder:
    """buildx's docker-container builder of this name; get asks the daemon."""

    name: str
    image: str
    folder: Path
    env: Mapping[str, str]
    get: Callable[[str], dict[str, Any] | None]

    @property
    def container(self) -> str:
        """The container's name, which buildx gives it."""
        return f"buildx_buildkit_{self.name}0"

    def ensure(self, memory_bytes: int | None, on_line: Callable[[str], None]) -> None:
        """Have the builder run with this cap, swap off. For another cap or image it is made anew; its cache stays."""
        options = [f"image={self.image}", *(f"env.{key}={value}" for key, value in _ENV.items())]
        if memory_bytes is not None:
            options += [f"memory={memory_bytes}", f"memory-swap={memory_bytes}"]
        state = hashlib.sha256("\n".join([_CONFIG, *options]).encode()).hexdigest()[:16]
        known = process.capture(["docker", "buildx", "inspect", "--bootstrap", self.name], env=self.env)
        if known.status == 0 and self._state() == state:
            return
        self.remove()
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "buildkitd.toml"
        write_text(config, _CONFIG)
        command = ["docker", "buildx", "create", "--name", self.name, "--driver", "docker-container"]
        for option in (*options, f"env.{_MARK}={state}"):
            command += ["--driver-opt", option]
        made = process.capture([*command, "--config", str(config), "--bootstrap"], env=self.env, echo=on_line)
        if made.status != 0:
            self.remove()
            raise EngineError(
                f"the BuildKit builder from `{self.image}` does not start",
                why=made.stderr.strip().splitlines()[-3:],
                hint="where that image cannot be had, name another one in `SPARK_IMAGES_BUILDKIT_IMAGE`",
            )

    def pid(self) -> int:
        """The first process of the running builder, as the host numbers it."""
        container = self.get(f"/containers/{self.container}/json")
        if container is None:
            raise EngineError(
                f"the builder's container `{self.container}` is gone", hint="the same command again makes a new one"
            )
        return int(container["State"]["Pid"])

    def caps_steps(self) -> bool:
        """Whether `--resource memory=` works on this builder: tried once for each state of buildx and BuildKit."""
        plugin = process.capture(["docker", "buildx", "version"], env=self.env).stdout.decode().strip()
        remembered, key = self.folder / "resource.json", [plugin, self.image]
        known = read_json(remembered)
        if known and known["key"] == key:
            return bool(known["works"])
        works = steps_take_a_cap(self.name, folder=self.folder, env=self.env)
        write_text(remembered, json.dumps({"key": key, "works": works}))
        return works

    def remove(self) -> tuple[str, ...]:
        """Remove the builder and what runs in it; its volume, with all caches, stays. A line for what was there."""
        there = self.get(f"/containers/{self.container}/json") is not None
        if shutil.which("docker", path=self.env.get("PATH")) is None:
            return ()
        process.capture(["docker", "buildx", "rm", "--keep-state", "--force", self.name], env=self.env)
        if there:  # buildx removes only what it has in its own book
            process.capture(["docker", "rm", "--force", self.container], env=self.env)
        if self.get(f"/containers/{self.container}/json") is not None:
            raise EngineError(f"the builder's container `{self.container}` cannot be removed")
        return (f"builder {self.name}",) if there else ()

    def drop(self) -> tuple[str, ...]:
        """Remove the builder and its volume. A line for each that was there."""
        removed = self.remove()
        volume = f"{self.container}_state"
        if self.get(f"/volumes/{volume}") is None:
            return removed
        gone = process.capture(["docker", "volume", "rm", volume], env=self.env)
        if gone.status != 0:
            raise EngineError(f"the builder's volume `{volume}` cannot be removed", why=gone.stderr.splitlines()[-1:])
        return (*removed, f"volume {volume}")

    def _state(self) -> str | None:
        container = self.get(f"/containers/{self.container}/json") or {}
        variables: list[str] = container.get("Config", {}).get("Env") or []
        return next((value.partition("=")[2] for value in variables if value.startswith(f"{_MARK}=")), None)


def steps_take_a_cap(builder: str, *, folder: Path, env: Mapping[str, str]) -> bool:
    """Whether `--resource memory=` works on a builder: tried. folder: where to. EngineError if it cannot run a step."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        write_root(Path(work, "root"))
        dockerfile = Path(work, "Dockerfile")
        dockerfile.write_text('FROM scratch\nCOPY true /\nRUN ["/true"]\n')
        command = ["docker", "buildx", "build", "--builder", builder, "--network", "none", "--no-cache"]
        command += ["--output", "type=cacheonly", "--provenance=false", "--file", str(dockerfile)]
        tried = process.capture([*command, "--resource", "memory=64m", f"{work}/root"], env=env)
        works = tried.status == 0
        if not works and process.capture([*command, f"{work}/root"], env=env).status != 0:
            raise EngineError("BuildKit cannot run a step", why=tried.stderr.strip().splitlines()[-3:])
    return works

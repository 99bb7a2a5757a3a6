"""A BuildKit builder of somebody else's, such as one in a Kubernetes cluster: used, never made, changed or removed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images import process
from spark_images.engine.base import BUILDER
from spark_images.engine.builder import steps_take_a_cap
from spark_images.errors import EngineError, EngineTooOldError
from spark_images.platforms import ARCHES

_BOOT_S = 600  # a pod may wait for its node, its volume and its image


@dataclass(frozen=True, kw_only=True)
class NamedBuilder:
    """A builder that `docker buildx ls` lists. Several builds at once on it share its memory: that is its owner's care.

    Nothing here reaches its processes, so no build on it can be frozen; what caps a step is BuildKit alone.
    """

    name: str
    machine: str  # of this host, as `uname -m` says it
    folder: Path
    env: Mapping[str, str]

    def ensure(self, memory_bytes: int | None, on_line: Callable[[str], None]) -> None:
        """Have it answer. Raises EngineError where it does not, or cannot build here what it would there."""
        command = ["docker", "buildx", "inspect", "--bootstrap", self.name]
        known = process.capture(command, env=self.env, echo=on_line, timeout_s=_BOOT_S)
        said = known.stdout.decode(errors="replace")
        native = native_platform(said)
        if known.status != 0 or not native:
            lines = [line for line in (said + known.stderr).splitlines() if line.strip()]
            raise EngineError(
                f"the builder `{self.name}` does not answer",
                why=[line for line in lines if "error" in line.lower()][:3] or lines[-3:],
                hint=f"`docker buildx ls` lists them; unset `{BUILDER}` to build in one of our own on this machine",
            )
        wanted = f"linux/{ARCHES.get(self.machine, self.machine)}"
        if native.split("/")[:2] != wanted.split("/"):
            raise EngineError(
                f"the builder `{self.name}` runs on `{native}`, this machine on `{wanted}`",
                why=["a plan names the platform that its compilers run on, and takes it from this machine"],
                hint=f"run this on a machine like the builder's, or name another one in `{BUILDER}`",
            )
        on_line(f"builder {self.name} is not ours: its host's memory is not watched, each step's cap is its only limit")

    def caps_steps(self) -> bool:
        """True; EngineTooOldError where `--resource memory=` does not work on it, as nothing else of ours caps it.

        Tried each time: it may be another one since.
        """
        if steps_take_a_cap(self.name, folder=self.folder, env=self.env):
            return True
        raise EngineTooOldError(
            f"the builder `{self.name}` cannot limit the memory of a step",
            why=["needed: BuildKit 0.31 and buildx 0.35 or later, not rootless"],
            hint=f"unset `{BUILDER}` to build in one of our own on this machine",
        )

    def remove(self) -> tuple[str, ...]:
        """Nothing of ours is there: a build whose client is gone is cancelled by BuildKit."""
        return ()

    drop = remove


def native_platform(inspected: str) -> str:
    """The first platform that `docker buildx inspect` lists for the first node; "" where it lists none."""
    found = re.search(r"^Platforms:\s+([^,*\s]+)", inspected, re.MULTILINE)
    return found[1] if found else ""

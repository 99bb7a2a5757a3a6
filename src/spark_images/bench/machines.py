"""Several machines on one: network namespaces, each with a cache of its own, joined by a switch and by nothing else.

For the bench of the shared caches and for the tests of two runners. Of engines a machine has what they keep for itself:
podman's storage lies below its folder, Docker's builder is named by its cache.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_images import process
from spark_images.errors import HostProgramError

SWITCH = "10.83.0.1"  # in namespaces of our own only, so it can be nobody else's


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A namespace. inside: before a command that is to run there. env: the whole environment of such a command."""

    address: str
    inside: tuple[str, ...]
    env: Mapping[str, str]

    @property
    def cache(self) -> Path:
        """Its SPARK_IMAGES_CACHE."""
        return Path(self.env["SPARK_IMAGES_CACHE"])


def unable() -> str:
    """Why this user and host cannot have such machines; "" where they can."""
    if os.geteuid() != 0:
        return "network namespaces are for root"
    if missing := [name for name in ("ip", "nsenter") if shutil.which(name) is None]:
        return f"`{missing[0]}` is not installed"
    name = f"spark-{os.getpid()}-probe"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except HostProgramError as err:
        return err.what
    return ""


@contextmanager
def machines(folder: Path, count: int, env: Mapping[str, str], *, store: Path | None = None) -> Iterator[list[Machine]]:
    """The switch, on which servers may listen, and after it so many machines with empty caches below a folder.

    store: one that they share, as from a volume. Raises HostProgramError where namespaces cannot be made.
    """
    with ExitStack() as stack:
        # Sockets lie in it: with a long path each `podman run` takes ten seconds (measured with 4.3.1).
        run = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-")))
        stack.callback(unmount_below, folder, run)
        switch = _namespace(stack, "switch")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "address", "add", f"{SWITCH}/24", "dev", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        made = [_machine(switch, SWITCH, folder / "switch", run / "0", env, store)]
        for number in range(1, count + 1):
            name, address = _namespace(stack, str(number)), f"10.83.0.{number + 1}"
            far = ("peer", "name", "port", "netns", name)
            _ip("-n", switch, "link", "add", f"port{number}", "type", "veth", *far)
            _ip("-n", switch, "link", "set", f"port{number}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "port")
            _ip("-n", name, "link", "set", "port", "up")
            made.append(_machine(name, address, folder / f"machine{number}", run / str(number), env, store))
        yield made


def _namespace(stack: ExitStack, name: str) -> str:
    whole = f"spark-{os.getpid()}-{name}"
    _ip("netns", "add", whole)
    stack.callback(_ip, "netns", "delete", whole)
    _ip("-n", whole, "link", "set", "lo", "up")
    return whole


def _machine(name: str, address: str, folder: Path, run: Path, env: Mapping[str, str], store: Path | None) -> Machine:
    folder.mkdir(parents=True)
    storage = folder / "storage.conf"
    storage.write_text(
        "[storage]\n"
        'driver = "overlay"\n'
        f"graphroot = {json.dumps(str(folder / 'containers'))}\n"
        f"runroot = {json.dumps(str(run))}\n"
    )
    of_its_own = {
        "SPARK_IMAGES_CACHE": str(folder / "cache"),
        "CONTAINERS_STORAGE_CONF": str(storage),
        **({"SPARK_IMAGES_STORE": str(store)} if store else {}),
    }
    # Not `ip netns exec`: that hides /sys/fs/cgroup, without which nothing can be capped.
    return Machine(address=address, inside=("nsenter", f"--net=/run/netns/{name}"), env={**env, **of_its_own})


def unmount_below(*folders: Path) -> None:
    """A podman that was killed leaves its storage mounted on itself, and then nobody can remove the folder."""
    mounted = [line.split()[1].replace("\\040", " ") for line in Path("/proc/mounts").read_text().splitlines()]
    ours = [place for place in mounted if any(Path(place).is_relative_to(folder) for folder in folders)]
    for place in sorted(ours, reverse=True):
        process.capture(["umount", place])


def _ip(*words: str) -> None:
    done = process.capture(["ip", *words])
    if done.status != 0:
        raise HostProgramError(f"`ip {' '.join(words)}` failed", why=done.stderr.strip().splitlines()[-1:])

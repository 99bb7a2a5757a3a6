"""podman's API service, one for each of our processes that needs the docker SDK."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_images.engine import daemon
from spark_images.errors import EngineError

_IDLE_S = 600  # it ends by itself after this: if we are killed, nobody else ends it
_START_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Service:
    """A running `podman system service`."""

    socket: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, owner: str, env: Mapping[str, str], *, log: Path) -> Service:
        """Start it and wait until it answers. Raises EngineError with its last words."""
        socket = _folder(owner) / f"{os.getpid()}.sock"
        socket.unlink(missing_ok=True)
        command = ["podman", "system", "service", f"--time={_IDLE_S}", f"unix://{socket}"]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            # Of a session of its own, so that a Ctrl-C does not end it before the containers are removed through it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=dict(env), start_new_session=True
            )
        service = cls(socket=socket, process=process)
        atexit.register(service.stop)
        give_up = time.monotonic() + _START_S
        while process.poll() is None and time.monotonic() < give_up:
            if service.answers():
                return service
            time.sleep(0.05)
        service.stop()
        raise EngineError("podman's service does not start", why=log.read_text(errors="replace").splitlines()[-3:])

    def answers(self) -> bool:
        """Whether it is there."""
        try:
            return self.socket.exists() and bool(daemon.ping(self.socket))
        except EngineError:
            return False

    def stop(self) -> None:
        """End it."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.socket.unlink(missing_ok=True)
        _remove_if_empty(self.socket.parent)


def stop_left(owner: str) -> tuple[str, ...]:
    """End the services whose process is gone; a line for each."""
    stopped = []
    folder = _folder(owner)
    for commands in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = commands.read_bytes().decode(errors="replace").split("\0")
            address = next((word for word in words if word.startswith(f"unix://{folder}/")), None)
            if address is None or "service" not in words:
                continue
            starter = int(Path(address).stem)
            if not Path(f"/proc/{starter}").exists():
                os.kill(int(commands.parent.name), signal.SIGTERM)
                stopped.append(f"podman service of process {starter}")
    for socket in folder.glob("*.sock"):
        if not Path(f"/proc/{socket.stem}").exists():
            socket.unlink()
    _remove_if_empty(folder)
    return tuple(stopped)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # another process has a service
        folder.rmdir()


def _folder(owner: str) -> Path:
    """A folder of this user alone with a short name: a socket's path may have 107 bytes at most."""
    folder = Path(tempfile.gettempdir(), f"spark-images-{os.geteuid()}-{owner}")
    folder.mkdir(mode=0o700, exist_ok=True)
    stat = folder.lstat()
    if stat.st_uid != os.geteuid() or stat.st_mode & 0o77 or folder.is_symlink():
        raise EngineError(f"`{folder}` belongs to somebody else or is open to others", hint="remove it")
    return folder

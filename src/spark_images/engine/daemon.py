"""Questions to an engine's socket without the docker SDK, whose import alone takes a quarter of a second."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from spark_images.errors import EngineError

_TIMEOUT_S = 10.0  # a busy dockerd takes seconds for /info; one that is gone refuses at once


def docker_socket(env: Mapping[str, str]) -> Path:
    """The socket that the docker command would use: DOCKER_HOST, else its context, else /var/run/docker.sock.

    Raises EngineError for a daemon on another machine: builds are sized by the memory of this one.
    """
    address = env.get("DOCKER_HOST") or _context_address(env) or "unix:///var/run/docker.sock"
    if not address.startswith("unix://"):
        raise EngineError(
            f"docker at `{address}` is not on this machine",
            why=["the memory cap of a build is taken from this machine's memory"],
            hint="name a socket: `DOCKER_HOST=unix:///var/run/docker.sock`",
        )
    return Path(address.removeprefix("unix://"))


def _context_address(env: Mapping[str, str]) -> str | None:
    """The address of docker's current context, None for the default one."""
    try:
        folder = Path(env.get("DOCKER_CONFIG") or Path(env.get("HOME") or Path.home(), ".docker"))
    except RuntimeError:  # a user without a home folder has no contexts
        return None
    context = env.get("DOCKER_CONTEXT") or _json(folder / "config.json").get("currentContext") or "default"
    if context == "default":
        return None
    meta = _json(folder / "contexts" / "meta" / hashlib.sha256(context.encode()).hexdigest() / "meta.json")
    try:
        return str(meta["Endpoints"]["docker"]["Host"])
    except KeyError as err:
        raise EngineError(f"docker's context `{context}` is not known", hint="see `docker context ls`") from err


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise EngineError(f"`{path}` cannot be read") from err
    return found


def ping(address: Path) -> Mapping[str, str]:
    """The headers of the answer to /_ping: `Api-Version`, and a `Server` that tells podman from Docker.

    Quicker than /version, for which a Docker daemon starts its runtime. Raises EngineError if nothing answers.
    """
    return _ask(address, "/_ping")[1]


def get(address: Path, path: str) -> dict[str, Any] | None:
    """GET a JSON object from the engine on a socket, None if it says 404. Raises EngineError if it does not answer."""
    status, _, body = _ask(address, path)
    if status == 404:
        return None
    try:
        said: dict[str, Any] = json.loads(body)
    except ValueError as err:
        raise EngineError(f"`{address}` answers, but not as an engine does (HTTP {status})") from err
    if status != 200:
        raise EngineError(f"the engine on `{address}` refused", why=[str(said.get("message", said))])
    return said


def post(address: Path, path: str) -> None:
    """POST without a body. What is so already, or is not there, counts as done. Raises EngineError like get()."""
    status, _, body = _ask(address, path, method="POST")
    if status not in (204, 304, 404, 409):
        raise EngineError(f"the engine on `{address}` refused", why=[body.decode(errors="replace").strip()])


def _ask(address: Path, path: str, *, method: str = "GET") -> tuple[int, Mapping[str, str], bytes]:
    import http.client

    connection = http.client.HTTPConnection("localhost", timeout=_TIMEOUT_S)
    try:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(_TIMEOUT_S)
            stream.connect(str(address))
            connection.sock = stream
            connection.request(method, quote(path, safe="/:@"))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
    except PermissionError as err:
        raise EngineError(
            f"the engine on `{address}` does not let you in",
            hint="`sudo usermod -aG docker $USER` and log in anew; podman needs no such group",
        ) from err
    except (OSError, http.client.HTTPException) as err:
        raise EngineError(
            f"no engine answers on `{address}`", why=[str(err)], hint="`./noxw -s doctor` says how to get one"
        ) from err

"""Servers as commands for a container engine, and as units of systemd that run them. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

from spark_images.recipes.server import CACHE, HEALTHY, MODELS, PORT, SHM_GIB, START_S, STOP_S, Place, Server, Serving

_PLAIN = re.compile(r"[A-Za-z0-9_@:/.,=+-]+")  # what systemd takes as it stands
_WAIT_S = 5


def shell_script(serving: Serving, place: Place) -> str:
    """Commands for a POSIX shell, one per server; each but the first waits until the one before is up."""
    lines = []
    for server in serving.servers:
        if server.after:
            lines += [_wait(server.after, place.engine), ""]
        options = ("--detach", "--restart", serving.restart, *_options(server, place))
        lines += [_folded((place.engine, "run"), options, place.image, server.command), ""]
    return "\n".join(lines[:-1]) + "\n"


def systemd_units(serving: Serving, place: Place) -> tuple[tuple[str, str], ...]:
    """File name and text of a unit per server. A unit is up when its server answers, so that the next may follow."""
    return tuple((f"{server.name}.service", "\n".join(_unit(server, place)) + "\n") for server in serving.servers)


def _options(server: Server, place: Place) -> Iterator[str]:
    yield from ("--name", server.name)
    yield from ("--gpus", "all") if place.engine == "docker" else ("--device", "nvidia.com/gpu=all")
    yield from ("--shm-size", f"{SHM_GIB}g")
    yield from ("--publish", f"{place.listen}:{server.published}:{PORT}")
    yield from ("--volume", f"{place.models}:{MODELS}")
    yield from ("--volume", f"{server.name}-cache:{CACHE}")
    yield from ("--env", "HF_TOKEN")  # from the caller's environment, if it is there
    for name, value in server.env:
        yield from ("--env", f"{name}={value}")


def _folded(program: Sequence[str], options: Sequence[str], image: str, command: Sequence[str]) -> str:
    """One command over several lines, an option with its value on each."""
    rows = [list(program)]
    for words in (options, (image, *command[:3]), command[3:]):
        rows.append([])
        for word in words:
            if word.startswith("-") and rows[-1]:
                rows.append([])
            rows[-1].append(shlex.quote(word))
    return " \\\n  ".join(" ".join(row) for row in rows)


def _wait(name: str, engine: str) -> str:
    healthy = shlex.join((engine, "exec", name, *HEALTHY))
    loop = f"until {healthy} 2>/dev/null; do sleep {_WAIT_S}; done"
    return f"timeout {START_S} sh -c {shlex.quote(loop)} || exit"


def _unit(server: Server, place: Place) -> Iterator[str]:
    engine = f"/usr/bin/{place.engine}"
    needs = ["docker.service"] if place.engine == "docker" else []
    yield "[Unit]"
    yield f"Description=vLLM {server.release} with {server.model}".replace("%", "%%")
    yield "Wants=network-online.target"
    yield " ".join(["After=network-online.target", *needs, *([f"{server.after}.service"] if server.after else [])])
    yield from (f"Requires={unit}" for unit in needs)
    yield ""
    yield "[Service]"
    yield "Type=exec"
    yield "# HF_TOKEN=… for models that need one"
    yield "EnvironmentFile=-/etc/spark-images.env"
    yield f"ExecStartPre=-{_line(engine, 'rm', '--force', server.name)}"
    run = (engine, "run", "--rm", *_options(server, place), place.image, *server.command)
    yield f"ExecStart={_line(*run)}"
    yield "# It has started when it answers; if it ends before, so does the waiting."
    healthy = shlex.join((engine, "exec", server.name, *HEALTHY))
    loop = f"until {healthy} 2>/dev/null; do kill -0 $MAINPID || exit 1; sleep {_WAIT_S}; done"
    yield f"ExecStartPost={_line('/bin/sh', '-c', loop)}"
    yield f"ExecStop={_line(engine, 'stop', '--time', str(STOP_S), server.name)}"
    yield f"TimeoutStartSec={START_S}"
    yield f"TimeoutStopSec={2 * STOP_S}"
    yield "Restart=on-failure"
    yield "RestartSec=30"
    yield ""
    yield "[Install]"
    yield "WantedBy=multi-user.target"


def _line(*words: str) -> str:
    """A command line as systemd reads it: neither `%` nor `$` means anything (systemd.service(5), COMMAND LINES)."""
    quoted = []
    for word in words:
        text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        quoted.append(word if _PLAIN.fullmatch(word) else f'"{text}"')
    return " ".join(quoted)

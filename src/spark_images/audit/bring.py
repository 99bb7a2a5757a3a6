"""Bringing what is to be audited: an image that skopeo can reach, as an OCI layout in a temporary folder."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from spark_images.errors import RegistryError, UsageError, did_you_mean
from spark_images.loopback import is_loopback
from spark_images.process import capture, stream
from spark_images.terminal import tell

TRANSPORTS = ("docker://", "docker-daemon:", "docker-archive:", "containers-storage:", "oci:", "oci-archive:", "dir:")
INSPECT_S = 120
COPY_S = 4 * 3600  # an image of 20 GB over a line of 12 Mbit/s


def source_of(what: str, images: Iterable[str]) -> str:
    """The image in skopeo's words; UsageError for what cannot be one. images: names of ours, for the nearest one."""
    if what.startswith(TRANSPORTS):
        return what
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", what) or not re.search(r"[/:]", what):
        raise UsageError(
            f"`{what}` is no image of this repository, no OCI layout, no wheel and no reference of an image",
            hint=did_you_mean(what, images)
            or "written as `ghcr.io/you/image:tag`; for what the local Docker holds as `docker-daemon:image:tag`",
        )
    return f"docker://{what}"


def inspect_config(source: str) -> dict[str, Any]:
    """The image's config, before anything large is fetched."""
    done = capture(["skopeo", "inspect", "--config", *_tls(source, ""), source], timeout_s=INSPECT_S, echo=tell)
    if done.status != 0:
        raise _error(source, done.stderr)
    config = json.loads(done.stdout)
    return config if isinstance(config, dict) else {}


def bring_layout(source: str, *, platform: str, folder: Path) -> Path:
    """Copy the image for a platform into an OCI layout below `folder`. Raises RegistryError in skopeo's words."""
    system, _, arch = platform.partition("/")
    lines: list[str] = []
    command = ["skopeo", "--override-os", system, "--override-arch", arch, "copy", "--quiet", *_tls(source, "src-")]
    if stream([*command, source, "oci:layout"], lines.append, cwd=folder, timeout_s=COPY_S, echo=tell) != 0:
        raise _error(source, "\n".join(lines))
    return folder / "layout"


def _tls(source: str, side: str) -> Sequence[str]:
    host = source.removeprefix("docker://").partition("/")[0]
    return (f"--{side}tls-verify=false",) if source.startswith("docker://") and is_loopback(host) else ()


def _error(source: str, said: str) -> RegistryError:
    words = re.findall(r'msg="((?:[^"\\]|\\.)*)"', said)[-1:] or said.strip().splitlines()[-2:]
    return RegistryError(
        f"`{source}` cannot be had",
        why=[word.replace('\\"', '"') for word in words],
        hint="look at the name; where a login is needed: `skopeo login HOST`",
    )

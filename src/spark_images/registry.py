"""Push an image and read it back; pull one by digest and verify it. The transfers are skopeo's."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from pathlib import Path

from spark_images.errors import RegistryError, UsageError
from spark_images.oci import Layout, read_layout, verify_blobs
from spark_images.process import capture

TRANSFER_TIMEOUT_S = 3600  # one image of 20 GB at 6 MB/s


def push(layout: Layout, *, registry: str, image: str, tag: str) -> str:
    """Push a layout as `registry/image:tag`; returns the reference by digest after reading it back.

    registry: `HOST[:PORT]/NAME`. A tag that holds another digest is never overwritten: RegistryError.
    """
    repository = _repository(registry, image)
    if (found := _digest_of(f"{repository}:{tag}")) not in (None, layout.manifest_digest):
        raise RegistryError(
            f"{repository}:{tag} exists and is another image",
            why=(f"there: {found}", f"here:  {layout.manifest_digest}"),
            hint="a plan's tag never moves; find out which of the two is what the plan says: `nox -s reproduce-"
            f"{image}` builds it again",
        )
    if found is None:
        _skopeo(
            "copy",
            "--preserve-digests",
            "--dest-tls-verify=" + _tls(registry),
            f"oci:{layout.path}",
            f"docker://{repository}:{tag}",
        )
    back = _digest_of(f"{repository}:{tag}")
    if back != layout.manifest_digest:
        raise RegistryError(
            f"{repository}:{tag} is not what was pushed",
            why=(f"pushed:    {layout.manifest_digest}", f"read back: {back or 'nothing'}"),
            hint="push again; if it stays so, the registry rewrites manifests and cannot be trusted with them",
        )
    return f"{repository}@{layout.manifest_digest}"


def pull(reference: str, output: Path) -> Layout:
    """Pull `HOST/NAME@sha256:…` into a new OCI layout and check every blob against its digest."""
    if not re.fullmatch(r"[A-Za-z0-9.:\-]+/[a-z0-9._/\-]+@sha256:[0-9a-f]{64}", reference):
        raise UsageError(f"`{reference}` is not HOST/NAME@sha256:…", hint="a tag may move; `push` prints the digest")
    if output.exists():
        raise UsageError(f"{output} exists already", hint="name a folder that does not")
    _skopeo(
        "copy", "--preserve-digests", "--src-tls-verify=" + _tls(reference), f"docker://{reference}", f"oci:{output}"
    )
    layout = read_layout(output)
    verify_blobs(layout)
    wanted = reference.rpartition("@")[2]
    if layout.manifest_digest != wanted:
        raise RegistryError(f"{reference} came as {layout.manifest_digest}", hint="do not use this registry")
    return layout


def _digest_of(reference: str) -> str | None:
    """sha256 of the manifest's bytes as the registry serves them, None where there is no such tag."""
    command = ["skopeo", "inspect", "--raw", "--tls-verify=" + _tls(reference), f"docker://{reference}"]
    ended = capture(command, timeout_s=60)
    if ended.status == 0:
        return f"sha256:{hashlib.sha256(ended.stdout).hexdigest()}"
    if re.search(r"manifest unknown|name unknown|not found", ended.stderr):
        return None
    raise _failed(ended.stderr)


def _skopeo(*arguments: str) -> None:
    ended = capture(["skopeo", *arguments], timeout_s=TRANSFER_TIMEOUT_S)
    if ended.status != 0:
        raise _failed(ended.stderr)


def _failed(stderr: str) -> RegistryError:
    lines = [line.partition("msg=")[2].strip('"') or line for line in stderr.strip().splitlines()]
    return RegistryError(
        "the registry did not take part", why=lines[-3:], hint="log in with `skopeo login HOST`, or check the address"
    )


def _repository(registry: str, image: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.\-]+(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+", registry):
        raise UsageError(f"`{registry}` is not HOST[:PORT]/NAME in lower case", hint="e.g. ghcr.io/you")
    return f"{registry}/{image}"


def _tls(reference: str) -> str:
    """Plain HTTP is for loopback only, as with docker and podman."""
    host = reference.partition("/")[0].rpartition(":")[0] or reference.partition("/")[0]
    if host == "localhost":
        return "false"
    try:
        return "false" if ipaddress.ip_address(host).is_loopback else "true"
    except ValueError:
        return "true"

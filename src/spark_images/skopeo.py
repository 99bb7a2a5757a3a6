"""What skopeo does for push and pull: look at manifests, copy images, log in; and what its errors mean.

It finds logins in $REGISTRY_AUTH_FILE, in what `skopeo login` and `podman login` write
($XDG_RUNTIME_DIR/containers/auth.json), and in what `docker login` writes (~/.docker/config.json).
"""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path

from spark_images.download import Patience
from spark_images.errors import RegistryError
from spark_images.files import disk_full_error
from spark_images.process import capture, stream
from spark_images.terminal import tell

SLOWEST_BYTES_PER_S = 100_000  # a transfer that is slower on the whole has hung
_GRACE_S = 30  # skopeo ends itself at its time-out; only if it does not, we do

_ABSENT = re.compile(r"manifest unknown|name unknown|reading manifest .*not found", re.DOTALL)
_DAMAGED = re.compile(r"igest did not match|does not match expected")
_TLS = re.compile(r"x509|certificate|tls: |HTTP response to HTTPS client")
_REFUSED = re.compile(
    r"unauthorized|(?<!permission )denied|authentication required|invalid username/password"
    r"|(?:StatusCode:|status code from registry|HTTP status:) 40[13]"
)
_SILENT = re.compile(
    r"connection (?:refused|reset)|no such host|server misbehaving|timeout|deadline exceeded|unreachable|no route|EOF"
)


def look(reference: str, *options: str) -> bytes | None:
    """The manifest's bytes as the registry serves them, None where there is none; with "--config" the config's."""
    limit_s = Patience.from_env(os.environ).timeout_s
    command = ["skopeo", f"--command-timeout={limit_s}s", "inspect", "--raw", f"--tls-verify={tls_verify(reference)}"]
    ended = capture([*command, *options, f"docker://{reference}"], timeout_s=limit_s + _GRACE_S)
    if ended.status == 0:
        return ended.stdout
    if _ABSENT.search(ended.stderr):
        return None
    raise registry_error(reference, ended.stderr)


def copy(source: str, destination: str, *, reference: str, cwd: Path, size_bytes: int) -> None:
    """Let skopeo copy from or to a reference, in `cwd`, as it would cut a layout's absolute path at a colon."""
    limit_s = 600 + size_bytes // SLOWEST_BYTES_PER_S
    verify = tls_verify(reference)
    command = ["skopeo", f"--command-timeout={limit_s}s", "copy", "--preserve-digests", "--retry-times=2"]
    command += [f"--src-tls-verify={verify}", f"--dest-tls-verify={verify}", source, destination]
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line.startswith("Copying"):
            tell(f"  {line}")

    if stream(command, on_line, cwd=cwd, timeout_s=limit_s + _GRACE_S, echo=tell) == 0:
        return
    said = "\n".join(lines)
    if destination.startswith("oci:") and "no space left on device" in said:
        raise disk_full_error(cwd, size_bytes)
    raise registry_error(reference, said)


def registry_error(reference: str, said: str) -> RegistryError:
    """The error that skopeo's words mean. Queries of addresses are left out: they may hold a signature or a token."""
    host = host_of(reference)
    fatal = re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', said) or said.strip().splitlines()[-2:]
    why = [re.sub(r'^Error parsing image name "[^"]*": ', "", line.replace('\\"', '"')) for line in fatal]
    why = [part for line in why for part in re.sub(r"(https?://[^\s\"?]*)\?[^\s\"]*", r"\1?…", line).split("\\n")]
    text = "\n".join(why)
    if _DAMAGED.search(text):
        what = f"{host} served a blob that is not what its digest says"
        hint = "its storage is damaged: delete the image there and push it again from where it was built"
    elif _TLS.search(text):
        what = f"{host} cannot be trusted: it has no TLS that this machine accepts"
        hint = f"put its CA into `/etc/containers/certs.d/{host}/ca.crt`; only a registry on loopback may do without"
    elif _REFUSED.search(text):
        insecure = "" if tls_verify(reference) == "true" else "--tls-verify=false "
        what = f"{host} refuses access"
        hint = f"log in: `skopeo login {insecure}{host}` (a login by podman or docker counts too), and look at the name"
    elif _SILENT.search(text):
        what = f"{host} does not answer"
        scheme = "https" if tls_verify(reference) == "true" else "http"
        hint = f"is the address right, and does the registry run? `curl -i {scheme}://{host}/v2/` shows what is there"
    else:
        what = f"{host} did not do what was asked"
        hint = "the lines above are skopeo's and the registry's; the same command again goes on from what is there"
    return RegistryError(what, why=why, hint=hint)


def host_of(reference: str) -> str:
    return reference.partition("/")[0]


def tls_verify(reference: str) -> str:
    """Plain HTTP is for loopback only, as with docker and podman."""
    host = host_of(reference).partition(":")[0]
    if host == "localhost":
        return "false"
    try:
        return "false" if ipaddress.ip_address(host).is_loopback else "true"
    except ValueError:
        return "true"

"""Push an image and read it back; pull one by digest, verify it and load it.

skopeo transfers and logs in: it reads $REGISTRY_AUTH_FILE, what `skopeo login` and `podman login` wrote
($XDG_RUNTIME_DIR/containers/auth.json) and what `docker login` wrote (~/.docker/config.json).
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_images.build import tell
from spark_images.cache import Cache
from spark_images.errors import RegistryError, UsageError
from spark_images.imageconfig import PLAN_LABEL
from spark_images.images import Image
from spark_images.oci import Layout, read_layout, verify_blobs
from spark_images.process import capture, stream
from spark_images.project import Project
from spark_images.targets import Target
from spark_images.units import format_size

SLOWEST_BYTES_PER_S = 100_000  # a transfer that is slower on the whole has hung
_GRACE_S = 30  # skopeo ends itself at its time-out; only if it does not, we do

_HOST = r"(?:localhost(?::\d+)?|[A-Za-z0-9-]+:\d+|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::\d+)?)"
_NAMES = r"(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)"
_ABSENT = re.compile(r"manifest unknown|name unknown|reading manifest .*not found", re.DOTALL)
_TLS = re.compile(r"x509|certificate|tls: |HTTP response to HTTPS client")
_REFUSED = re.compile(
    r"unauthorized|(?<!permission )denied|authentication required|invalid username/password"
    r"|(?:StatusCode:|status code from registry|HTTP status:) 40[13]"
)
_SILENT = re.compile(
    r"connection (?:refused|reset)|no such host|server misbehaving|timeout|deadline exceeded|unreachable|no route|EOF"
)


def push(project: Project, image: Image, target: Target, base: str, *, cache: Cache, registry: str) -> str:
    """Push the image of today's plan as `registry/<image>:<plan_id[:12]>` and read it back; its reference by digest.

    registry: `HOST[:PORT][/NAME…]`. A tag that holds another image is never moved: RegistryError. What was done goes
    into the plan's newest record. Raises UsageError when the image is not built, CanonicalError when it is damaged.
    """
    if not re.fullmatch(f"{_HOST}{_NAMES}*", registry):
        raise UsageError(
            f"`{registry}` is not HOST/NAME in lower case",
            hint="name the registry without a scheme, e.g. `ghcr.io/you` or `127.0.0.1:5000/you`",
        )
    plan = project.plan(image, target, base)
    place = cache.images / plan.plan_id
    if not place.exists():
        raise UsageError(f"`{image.name}` is not built at these pins", hint=f"build it: `nox -s build-{image.name}`")
    layout = read_layout(place)
    tagged = f"{registry}/{image.name}:{plan.plan_id[:12]}"
    by_digest = f"{registry}/{image.name}@{layout.manifest_digest}"
    pushed = push_layout(layout, tagged, by_digest)
    _record_push(cache, plan.plan_id, {"reference": by_digest, "tag": tagged, "pushed": pushed})
    return by_digest


def push_layout(layout: Layout, tagged: str, by_digest: str) -> bool:
    """Push under a tag that never moves and read it back by tag and by digest; False if it was there already."""
    digest = layout.manifest_digest
    there = _look(tagged)
    if there is not None and _digest(there) != digest:
        raise RegistryError(
            f"{tagged} is another image, and the tag of a plan never moves",
            why=(f"there: {_digest(there)}", f"here:  {digest}"),
            hint="`nox -s reproduce-<image>` tells which of the two the plan gives; the other one has to be deleted",
        )
    if there is None:
        verify_blobs(layout)
        size_bytes = sum(layer.size_bytes for layer in layout.layers)
        tell(f"pushing {tagged}: {len(layout.layers)} layers, {format_size(size_bytes)}")
        _copy("oci:.", f"docker://{tagged}", reference=tagged, cwd=layout.path, size_bytes=size_bytes)
    for reference in (tagged, by_digest):
        back = _look(reference)
        if back is None or _digest(back) != digest:
            raise RegistryError(
                f"{reference} is not what was pushed",
                why=(f"pushed:    {digest}", f"read back: {_digest(back) if back is not None else 'nothing'}"),
                hint="push again; if it stays so, this registry rewrites manifests and cannot keep images by digest",
            )
    tell(f"{tagged} {'is pushed' if there is None else 'is there already, nothing was pushed'}; read back as {digest}")
    return there is None


def pull(project: Project, reference: str, *, cache: Cache, engine: str | None) -> str:
    """Pull `HOST/NAME@sha256:…` into cache.images/<plan_id> and load it; the name under which the engine holds it.

    Every blob is checked against its digest. Raises RegistryError, also where it is no image of this pipeline, or where
    the cache holds another image of the same plan.
    """
    from spark_images.engine import choose_engine

    if not re.fullmatch(f"{_HOST}{_NAMES}+@sha256:[0-9a-f]{{64}}", reference):
        raise UsageError(f"`{reference}` is not HOST/NAME@sha256:…", hint="`push` prints it: a digest never moves")
    chosen = choose_engine(engine, cache=cache, buildkit_image=project.buildkit_image(os.environ), env=os.environ)
    offer = _offer(reference)
    place = cache.images / offer.plan_id
    if not place.exists():
        _download(reference, offer, cache)
    layout = read_layout(place)
    if layout.manifest_digest != offer.digest:
        raise RegistryError(
            f"the cache holds another image of plan {offer.plan_id[:12]}",
            why=(f"asked: {offer.digest}", f"here:  {layout.manifest_digest} in {place}"),
            hint=f"one of the two is not what the plan gives: `nox -s reproduce-{offer.image}` tells which",
        )
    local = f"localhost/spark-images/{offer.image}:{offer.plan_id[:12]}"  # as a build names it
    if chosen.image_id(local) != layout.config_digest:
        chosen.load(layout.path, local)
    tell(
        f"{reference} is here, and every blob is what its digest says",
        f"  plan    {offer.plan_id}",
        f"  layout  {layout.path}",
        f"  run it  {chosen.name} run --rm {local}",
    )
    return local


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """What a registry has under a digest, read before anything large is fetched."""

    digest: str
    plan_id: str
    image: str
    size_bytes: int


def _offer(reference: str) -> _Offer:
    digest = reference.rpartition("@")[2]
    manifest = _expect(reference, digest)
    try:
        parts = json.loads(manifest)
        config = _expect(reference, parts["config"]["digest"], "--config")
        labels = json.loads(config)["config"].get("Labels") or {}
        plan_id, image = labels[PLAN_LABEL], labels["org.opencontainers.image.title"]
        if not (re.fullmatch("[0-9a-f]{64}", plan_id) and re.fullmatch(_NAMES, f"/{image}")):
            raise ValueError(f"labels `{plan_id}` and `{image}`")
        size_bytes = sum(int(layer["size"]) for layer in parts["layers"])
    except (KeyError, TypeError, ValueError, AttributeError) as err:
        raise RegistryError(
            f"{reference} is no image that spark-images made",
            why=(f"its config has no usable label `{PLAN_LABEL}`",),
            hint="`podman pull` and `docker pull` take any image",
        ) from err
    return _Offer(digest=digest, plan_id=plan_id, image=image, size_bytes=size_bytes)


def _expect(reference: str, digest: str, *options: str) -> bytes:
    """The manifest, or with "--config" the config, if it is the one that the digest names."""
    data = _look(reference, *options)
    if data is None:
        raise RegistryError(f"{reference} is not there", hint="`push` prints the reference of what it pushed")
    if _digest(data) != digest:
        raise RegistryError(
            f"{_host(reference)} served something else than {reference}",
            why=(f"asked: {digest}", f"got:   {_digest(data)}"),
            hint="nothing was taken over; this registry cannot be trusted",
        )
    return data


def _download(reference: str, offer: _Offer, cache: Cache) -> None:
    place = cache.images / offer.plan_id
    with _partial(cache, offer.digest) as folder:
        tell(f"pulling {reference}: {format_size(offer.size_bytes)}")
        _copy(f"docker://{reference}", "oci:layout", reference=reference, cwd=folder, size_bytes=offer.size_bytes)
        layout = read_layout(folder / "layout")
        verify_blobs(layout)
        for left in layout.path.glob("oci-put-blob*"):  # skopeo's, of a pull that was killed
            left.unlink()
        cache.images.mkdir(parents=True, exist_ok=True)
        try:
            layout.path.rename(place)
        except OSError:
            if not place.exists():  # else a build or another pull was faster; the caller compares digests
                raise


@contextmanager
def _partial(cache: Cache, digest: str) -> Iterator[Path]:
    """The work folder of one digest, ours alone. skopeo goes on from the blobs that a stopped pull left in it.

    remove_abandoned() takes it where no process holds it. One that came wrong is removed at once.
    """
    folder = cache.work / f"pull-{digest.removeprefix('sha256:')[:12]}"
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        holder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(holder, fcntl.LOCK_EX)
            if folder.exists() and os.path.samestat(os.fstat(holder), folder.stat()):
                yield folder
                shutil.rmtree(folder)
                return
        finally:
            os.close(holder)


def _look(reference: str, *options: str) -> bytes | None:
    """The manifest's bytes as the registry serves them, None where there is none; with "--config" the config's."""
    from spark_images.download import Patience

    limit_s = Patience.from_env(os.environ).timeout_s
    command = ["skopeo", f"--command-timeout={limit_s:g}s", "inspect", "--raw", f"--tls-verify={tls_verify(reference)}"]
    ended = capture([*command, *options, f"docker://{reference}"], timeout_s=limit_s + _GRACE_S)
    if ended.status == 0:
        return ended.stdout
    if _ABSENT.search(ended.stderr):
        return None
    raise registry_error(reference, ended.stderr)


def _copy(source: str, destination: str, *, reference: str, cwd: Path, size_bytes: int) -> None:
    """Let skopeo copy from or to a reference, in `cwd`, as it would cut a layout's absolute path at a colon."""
    limit_s = 600 + size_bytes // SLOWEST_BYTES_PER_S
    command = ["skopeo", f"--command-timeout={limit_s}s", "copy", "--preserve-digests", "--retry-times=2"]
    command += [
        f"--src-tls-verify={tls_verify(reference)}",
        f"--dest-tls-verify={tls_verify(reference)}",
        source,
        destination,
    ]
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        if line.startswith("Copying"):
            tell(f"  {line}")

    if stream(command, on_line, cwd=cwd, timeout_s=limit_s + _GRACE_S, echo=tell) == 0:
        return
    said = "\n".join(lines)
    if destination.startswith("oci:") and "no space left on device" in said:
        from spark_images.store import disk_full_error

        raise disk_full_error(cwd, size_bytes)
    raise registry_error(reference, said)


def registry_error(reference: str, said: str) -> RegistryError:
    """The error that skopeo's words mean. Queries of addresses are left out: they may hold a signature or a token."""
    host = _host(reference)
    fatal = re.findall(r'level=fatal msg="((?:[^"\\]|\\.)*)"', said) or said.strip().splitlines()[-2:]
    why = [re.sub(r'^Error parsing image name "[^"]*": ', "", line.replace('\\"', '"')) for line in fatal]
    why = [part for line in why for part in re.sub(r"(https?://[^\s\"?]*)\?[^\s\"]*", r"\1?…", line).split("\\n")]
    text = "\n".join(why)
    if "igest did not match" in text:
        what = f"{host} served a blob that is not what its digest says"
        hint = "its storage is damaged: delete the image there and push it again from where it was built"
    elif _TLS.search(text):
        what = f"{host} cannot be trusted: it has no TLS that this machine accepts"
        hint = f"put its CA into `/etc/containers/certs.d/{host}/ca.crt`; only a registry on loopback may do without"
    elif _REFUSED.search(text):
        insecure = "" if tls_verify(reference) == "true" else "--tls-verify=false "
        what = f"{host} does not let you in, or not there"
        hint = f"log in: `skopeo login {insecure}{host}` (a login by podman or docker counts too), and look at the name"
    elif _SILENT.search(text):
        what = f"{host} does not answer"
        hint = f"is the address right, and does the registry run? `curl -i https://{host}/v2/` shows what is there"
    else:
        what = f"{host} did not do what was asked"
        hint = "the lines above are skopeo's and the registry's; the same command again goes on from what is there"
    return RegistryError(what, why=why, hint=hint)


def _record_push(cache: Cache, plan_id: str, data: dict[str, object]) -> None:
    """Into the newest record of the plan; an image that was pulled has none."""
    from spark_images.record import Outcome, append_to_record, read_records

    for view in reversed(read_records(cache.records)):
        if view.plan_id == plan_id and view.outcome is Outcome.BUILT:
            append_to_record(view.folder, "push", {**data, "when": datetime.now(UTC).isoformat(timespec="seconds")})
            return


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _host(reference: str) -> str:
    return reference.partition("/")[0]


def tls_verify(reference: str) -> str:
    """Plain HTTP is for loopback only, as with docker and podman."""
    host = _host(reference).partition(":")[0]
    if host == "localhost":
        return "false"
    try:
        return "false" if ipaddress.ip_address(host).is_loopback else "true"
    except ValueError:
        return "true"

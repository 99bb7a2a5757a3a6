"""Pinned container images: into the store blob by blob, and out of it as OCI layouts.

skopeo brings them (it knows registries, mirrors and logins). Its `dir:` form keeps every manifest as it was served,
also with Docker's media types, which its `oci:` form would convert and so change the digest.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from spark_images.cache import Cache
from spark_images.download import Patience
from spark_images.errors import ContentError, RouteError
from spark_images.layout_writer import write_index
from spark_images.loopback import is_loopback
from spark_images.pins import ImagePin
from spark_images.store import Store, digest_of
from spark_images.watched import run_watched
from spark_images.workfolder import settle, work_folder

_OCI_FORMS = {
    "application/vnd.docker.distribution.manifest.v2+json": "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.container.image.v1+json": "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "application/vnd.oci.image.layer.v1.tar+gzip",
}


def fetch_image(
    pin: ImagePin, *, store: Store, platform: str | None = None, patience: Patience | None = None
) -> tuple[str, ...]:
    """Bring an image into the store; returns the digests of all it consists of, manifests first.

    platform: "linux/arm64": of an index only this platform's image; None: all of them. Raises RouteError when the
    registry does not answer or does not have it, ContentError when it lacks the platform or serves something else.
    """
    patience = patience or Patience.from_env(os.environ)
    stop = threading.Event()
    # Not the manifest's own digest: that lock is add_file's.
    key = f"sha256:{hashlib.sha256(f'image {pin.digest} {platform}'.encode()).hexdigest()}"
    with store.incoming(key) as incoming, incoming.folder() as folder:
        if (here := _complete(pin, store, platform)) is not None:
            return here

        def skopeo(*arguments: str) -> bytes:
            command, stall_s = ("skopeo", *arguments), patience.timeout_s
            try:
                ended = run_watched(command, folder=folder, stall_s=stall_s, stop=stop, env=os.environ)
            except RouteError as err:
                raise _no_route(pin, err.what) from None
            if ended.status != 0:
                raise _no_route(pin, ended.stderr)
            return ended.stdout

        loopback = is_loopback(pin.ref.partition("/")[0])
        if not store.has(pin.digest):
            raw = folder / "manifest"
            insecure = ("--tls-verify=false",) if loopback else ()
            raw.write_bytes(skopeo("inspect", "--raw", *insecure, _reference(pin, pin.digest)))
            if (found := digest_of(raw)) != pin.digest:
                why = (f"expected {pin.digest}", f"got {found}", f"from {pin.ref}")
                raise ContentError(f"the manifest of pin `{pin.name}` is not what the pin names", why=why)
            store.add_file(raw, pin.digest)
        for digest in [d for d, media in _manifests(pin, store, pin.digest, platform) if not _is_index(media)]:
            name = digest.removeprefix("sha256:")
            image = folder / name
            insecure = ("--src-tls-verify=false",) if loopback else ()
            copy = ("copy", "--preserve-digests", "--retry-times=3", *insecure)
            skopeo(*copy, _reference(pin, digest), f"dir:{image}")
            (image / "manifest.json").rename(image / name)
            for blob in image.iterdir():
                if len(blob.name) == len(name):
                    store.add_file(blob, f"sha256:{blob.name}")
        complete = _complete(pin, store, platform)
        assert complete is not None
        return complete


def image_layout(pin: ImagePin, store: Store, dest: Path, *, platform: str | None = None) -> str:
    """Make `dest` an OCI layout of hard links into the store; returns the digest that its index.json names.

    With a platform that is this platform's manifest, else the pin's own digest. The image must have been fetched.
    """
    manifests = list(_manifests(pin, store, pin.digest, platform))
    digest, media = manifests[-1] if platform is not None else manifests[0]
    blobs = dest / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    for blob in _blobs(pin, store, digest, platform):
        store.link(blob, blobs / blob.removeprefix("sha256:"))
    descriptor = {"mediaType": media, "digest": digest, "size": store.path(digest).stat().st_size}
    write_index(dest, descriptor)
    return digest


def cached_image(pin: ImagePin, store: Store, *, platform: str, cache: Cache) -> Path:
    """The layout of one platform's image below cache.roots, made of links into the store, which must have it."""
    made = cache.roots / f"{pin.digest.removeprefix('sha256:')}-{platform.replace('/', '-')}"
    if not made.is_dir():
        with work_folder(cache, pin.name) as folder:
            image_layout(pin, store, folder / "layout", platform=platform)
            _in_oci_form(folder / "layout")
            settle(folder / "layout", made)
    return made


def _in_oci_form(layout: Path) -> None:
    """Where the manifest is in Docker's form, name it and its parts as OCI does: podman builds from nothing else."""
    (descriptor,) = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"]
    if descriptor["mediaType"] not in _OCI_FORMS:
        return
    blobs = layout / "blobs" / "sha256"
    manifest = json.loads((blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes())
    for part in (manifest, manifest["config"], *manifest["layers"]):
        part["mediaType"] = _OCI_FORMS.get(part["mediaType"], part["mediaType"])
    data = json.dumps(manifest, separators=(",", ":")).encode()
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    descriptor.update(mediaType=manifest["mediaType"], digest=f"sha256:{digest}", size=len(data))
    write_index(layout, descriptor)


def image_blobs(pin: ImagePin, store: Store) -> set[str]:
    """The digests of the image's parts, as far as the manifests that are in the store tell: what `prune` must keep."""
    named, ahead = {pin.digest}, [pin.digest]
    while ahead:
        digest = ahead.pop()
        if store.has(digest):
            manifest = _read(store, digest)
            children = [str(child["digest"]) for child in manifest.get("manifests", ())]
            blobs = [manifest["config"], *manifest["layers"]] if "layers" in manifest else []
            named.update(children, (str(blob["digest"]) for blob in blobs))
            ahead += children
    return named


def _reference(pin: ImagePin, digest: str) -> str:
    name, colon, tag = pin.ref.rpartition(":")
    repository = name if colon and "/" not in tag else pin.ref  # a colon before a slash is a port's
    return f"docker://{repository.partition('@')[0]}@{digest}"


def _no_route(pin: ImagePin, said: str) -> RouteError:
    last = said.strip().splitlines()[-1:] or ["skopeo failed without a word"]
    return RouteError(
        f"the image of pin `{pin.name}` cannot be had from {pin.ref}",
        why=(f"{pin.digest}", *last),
        hint=f"check the network and the login: `skopeo login {pin.ref.partition('/')[0]}`",
    )


def _is_index(media: str) -> bool:
    return "index" in media or "manifest.list" in media


def _manifests(pin: ImagePin, store: Store, digest: str, platform: str | None) -> Iterator[tuple[str, str]]:
    """(digest, media type) of the manifest and, where it is an index, of those that it leads to."""
    manifest = _read(store, digest)
    children = manifest.get("manifests")
    yield (
        digest,
        str(manifest.get("mediaType") or f"application/vnd.oci.image.{'index' if children else 'manifest'}.v1+json"),
    )
    if children is None:
        return
    wanted = [child for child in children if platform in (None, _platform(child))]
    if not wanted:
        there = sorted({_platform(child) for child in children})
        raise ContentError(
            f"the image of pin `{pin.name}` is not for {platform}", why=(f"it is for {', '.join(there)}",)
        )
    for child in wanted:
        yield str(child["digest"]), str(child["mediaType"])


def _platform(descriptor: dict[str, Any]) -> str:
    platform = descriptor.get("platform", {})
    return f"{platform.get('os')}/{platform.get('architecture')}"


def _complete(pin: ImagePin, store: Store, platform: str | None) -> tuple[str, ...] | None:
    """All digests of the image, if all of them are in the store."""
    try:
        digests = _blobs(pin, store, pin.digest, platform)
    except FileNotFoundError:
        return None
    return digests if all(store.has(digest) for digest in digests) else None


def _blobs(pin: ImagePin, store: Store, digest: str, platform: str | None) -> tuple[str, ...]:
    """All that the manifest leads to, each once, manifests first. FileNotFoundError for one that is not here."""
    found = [manifest for manifest, _ in _manifests(pin, store, digest, platform)]
    for manifest in map(partial(_read, store), tuple(found)):
        if "layers" in manifest:
            found += [str(blob["digest"]) for blob in (manifest["config"], *manifest["layers"])]
    return tuple(dict.fromkeys(found))


def _read(store: Store, digest: str) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads(store.path(digest).read_bytes())
    return manifest

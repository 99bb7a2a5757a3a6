"""A repository of a registry over HTTP: manifests, blobs, tags, referrers by the OCI distribution specification 1.1.

Ours, over requests, because no kept program or library does what push has to do. skopeo sends a blob in one request,
begins it anew after every break (a 500 MiB layer never gets through a proxy that cuts at 60 s or answers 413), says
nothing machine-readable about what it skipped, and knows no referrers; oras-py has no resumable upload and no referrers
either; crane and cosign are Go programs that Debian 12 does not have. What they would take from us is this module.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urljoin, urlsplit

from spark_images.download import (
    PASSING,
    Patience,
    Sessions,
    TransferError,
    explain,
    new_session,
    persist,
    without_credentials,
)
from spark_images.errors import InterruptedByUser, RegistryError
from spark_images.loopback import is_loopback
from spark_images.registry.answers import Missing, retry_after_s, said_by
from spark_images.registry.credentials import find_credentials
from spark_images.registry.login import Login
from spark_images.registry.manifest import INDEX, MANIFEST, Manifest, digest_of
from spark_images.registry.reference import Repository

if TYPE_CHECKING:
    import requests

_DOCKER = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_ACCEPT = ", ".join((MANIFEST, INDEX, *_DOCKER))
_CERTS = ("/etc/containers/certs.d", "/etc/docker/certs.d")

Result = TypeVar("Result")


class Client:
    """A repository, from any thread. It asks again while that may help, and no longer than `patience`."""

    def __init__(
        self, repository: Repository, *, env: Mapping[str, str] = os.environ, stop: threading.Event | None = None
    ) -> None:
        self.repository = repository
        self.host = host = repository.host
        self.patience = Patience.from_env(env)
        self.stop = stop or threading.Event()
        at = "registry-1.docker.io" if host == "docker.io" else host
        self._root = f"{'http' if is_loopback(host) else 'https'}://{at}/v2/"
        self.login = Login(at, lambda: find_credentials(host, repository.name, env), self.patience.timeout_s)
        self.session = Sessions(self._new_session)
        self._certificate = next((str(file) for folder in _CERTS for file in Path(folder, host).glob("*.crt")), None)
        self._answered = False

    def at(self, wanted: str) -> str:
        """The whole reference of a tag or a digest."""
        return self.repository.at(wanted)

    def _new_session(self) -> requests.Session:
        session = new_session()
        session.auth = self.login
        if self._certificate:
            session.verify = self._certificate
        return session

    def once(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | io.RawIOBase | None = None,
    ) -> requests.Response:
        """One request, whatever it is answered; TransferError where it is not. url: below the repository, or whole."""
        import requests
        import urllib3

        whole = urljoin(f"{self._root}{self.repository.name}/", url)
        if urlsplit(whole).scheme == "http" and not is_loopback(urlsplit(whole).netloc):
            raise RegistryError(f"{self.host} asks for data on `{without_credentials(whole)}`, which has no TLS")
        try:
            response = self.session().request(
                method,
                whole,
                headers={"Accept-Encoding": "identity", **(headers or {})},
                data=data,
                timeout=self.patience.timeout_s,
                allow_redirects=method in ("GET", "HEAD"),
            )
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError) as err:
            if self.stop.is_set():
                raise InterruptedByUser("stopped") from None
            failed = explain(err, timeout_s=self.patience.timeout_s)
            if "refused" in str(failed) and not self._answered:
                failed.passing = False  # there is no registry; one that was there a moment ago may be restarting
            raise failed from err
        self._answered = True
        return response

    def ask(
        self,
        method: str,
        url: str,
        *,
        good: tuple[int, ...] = (200,),
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
    ) -> requests.Response:
        """A request that is repeated while it fails in passing. Missing for 404, RegistryError for all else."""

        def attempt() -> requests.Response:
            response = self.once(method, url, headers=headers, data=data)
            self.check(response, good)
            return response

        return self.persist(attempt)

    def persist(self, attempt: Callable[[], Result]) -> Result:
        """`attempt` until it returns or patience ends; what it could not do is a RegistryError."""
        try:
            return persist(attempt, patience=self.patience, stop=self.stop)
        except TransferError as err:
            if self.stop.is_set():
                raise InterruptedByUser("stopped") from None
            cause = err.__cause__
            raise self.error(str(err)) from (None if isinstance(cause, TransferError) else cause)  # it says the same

    def check(self, response: requests.Response, good: tuple[int, ...]) -> None:
        """Missing, TransferError or RegistryError for an answer whose status is none of `good`."""
        status = response.status_code
        if status in good:
            return
        code, words = said_by(response)
        asked = f"{response.request.method} {without_credentials(response.url)}"
        text = f"{asked}: {status} {response.reason or ''}".strip() + (f": {words}" if words else "")
        if status == 404:
            raise Missing(code)
        if status in (401, 403):
            raise self.refused(text)
        failed = TransferError(text, passing=status in PASSING or status >= 500, after_s=retry_after_s(response))
        if not failed.passing:
            raise self.error(text)
        raise failed

    def refused(self, text: str) -> RegistryError:
        return RegistryError(
            f"{self.host} refuses access",
            why=(text,),
            hint=f"log in: `docker login {self.host}` or `podman login {self.host}`, and look at the name",
        )

    def error(self, text: str) -> RegistryError:
        """The error for what a registry did or did not do, from one line about it."""
        hint = "the same command again goes on from what is there"
        what = f"{self.host} did not do what was asked"
        if re.search(r"no space left|quota|\b507\b|disk full|'Err': 28\b", text, re.IGNORECASE):
            what, hint = f"{self.host} has no room left", f"make room on the registry; {hint}"
        elif text.startswith("TLS"):
            what = f"{self.host} cannot be trusted: it has no TLS that this machine accepts"
            hint = f"put its CA into `{_CERTS[0]}/{self.host}/ca.crt`; only a registry on loopback may do without"
        elif re.match(r"connection refused|the host's name|nothing arrived|the connection broke", text):
            what = f"{self.host} does not answer"
            hint = f"is the address right, and does the registry run? `curl -i {self._root}` shows what is there"
        return RegistryError(what, why=(text,), hint=hint)

    # Manifests and tags

    def manifest(self, wanted: str) -> Manifest | None:
        """The manifest of a tag or digest, None where there is none. Its bytes have the digest that was asked for."""

        def attempt() -> Manifest | None:
            response = self.once("GET", f"manifests/{wanted}", headers={"Accept": _ACCEPT})
            try:
                self.check(response, (200,))
            except Missing as missing:
                if missing.code in ("", "MANIFEST_UNKNOWN", "NAME_UNKNOWN", "NOT_FOUND", "UNKNOWN"):
                    self._be_registry(response)
                    return None
                raise self.error(f"{wanted}: {missing.code}") from None
            found = Manifest(
                media_type=response.headers.get("Content-Type", "").partition(";")[0], data=response.content
            )
            stated = response.headers.get("Docker-Content-Digest", found.digest)
            if stated != found.digest:
                raise TransferError(f"{wanted} is {found.digest}, but the header says {stated}", passing=True)
            return found

        found = self.persist(attempt)
        if found is not None and wanted.startswith("sha256:") and found.digest != wanted:
            raise RegistryError(
                f"{self.host} served something else than {self.at(wanted)}",
                why=(f"asked: {wanted}", f"got:   {found.digest}"),
                hint="nothing was taken over; this registry cannot be trusted",
            )
        return found

    def put_manifest(self, wanted: str, manifest: Manifest) -> requests.Response:
        """Store a manifest under a tag or its digest. Missing where the registry says that it lacks a blob of it."""

        def attempt() -> requests.Response:
            headers = {"Content-Type": manifest.media_type}
            response = self.once("PUT", f"manifests/{wanted}", headers=headers, data=manifest.data)
            code, words = said_by(response)
            if response.status_code in (400, 404) and "BLOB_UNKNOWN" in (code + words).upper():
                raise Missing(code)
            if response.status_code == 404:
                raise self.error(f"PUT {without_credentials(response.url)}: 404 {words}")
            self.check(response, (200, 201, 202))
            stated = response.headers.get("Docker-Content-Digest", manifest.digest)
            if stated != manifest.digest:
                raise TransferError(f"{wanted} was sent as {manifest.digest}; the answer says {stated}", passing=True)
            return response

        return self.persist(attempt)

    def delete_manifest(self, digest: str) -> bool:
        """Delete a manifest, with the tags that name it; False where it was not there."""
        try:
            self.ask("DELETE", f"manifests/{digest}", good=(200, 202, 204))
        except Missing:
            return False
        except RegistryError as err:
            if ": 405" not in err.render() and "UNSUPPORTED" not in err.render():  # 405 alone may stand in a digest
                raise
            raise RegistryError(
                f"{self.host} does not let anybody delete images",
                why=err.why,
                hint="distribution allows it with `storage.delete.enabled: true`",
            ) from None
        return True

    def tags(self) -> tuple[str, ...]:
        """Every tag, sorted; () where there is no such repository."""
        found: list[str] = []
        url = "tags/list"
        while url:
            try:
                response = self.ask("GET", url)
            except Missing:
                break
            found += response.json().get("tags") or ()
            url = response.links.get("next", {}).get("url", "")
        return tuple(sorted(set(found)))

    # Blobs

    def has_blob(self, digest: str, size_bytes: int, *, of: str = "") -> bool:
        """Whether a complete blob of this size is there, or in the repository `of` this host.

        Where a disk was full when distribution noted a blob, it answers 500 for that one ever after, until it is sent
        again: then it is not there either.
        """
        statuses: list[int] = []

        def attempt() -> requests.Response:
            response = self.once("HEAD", f"{self._root}{of or self.repository.name}/blobs/{digest}")
            statuses.append(response.status_code)
            self.check(response, (200,))
            return response

        try:
            response = self.persist(attempt)
        except Missing:
            return False
        except RegistryError:
            if statuses and set(statuses) == {500}:
                return False
            raise
        return response.headers.get("Content-Length", str(size_bytes)) == str(size_bytes)

    def blob(self, digest: str) -> bytes:
        """A small blob, checked; RegistryError where it is missing or something else."""
        try:
            data = self.ask("GET", f"blobs/{digest}").content
        except Missing:
            raise RegistryError(
                f"{self.at(digest)} is not there",
                hint="the image is incomplete: push it again from where it was built",
            ) from None
        if digest_of(data) != digest:
            raise RegistryError(
                f"{self.host} served a blob that is not what its digest says",
                why=(f"asked: {digest}", f"got:   {digest_of(data)}"),
                hint="its storage is damaged: delete the image there and push it again from where it was built",
            )
        return data

    def put_blob(self, data: bytes) -> None:
        """Store a small blob in one request; large ones are upload.py's."""
        digest = digest_of(data)
        if self.has_blob(digest, len(data)):
            return

        def attempt() -> None:
            begun = self.once("POST", "blobs/uploads/")
            self.check(begun, (202,))
            location = urljoin(begun.url, begun.headers["Location"])
            url = f"{location}{'&' if '?' in location else '?'}digest={digest}"
            headers = {"Content-Type": "application/octet-stream"}
            self.check(self.once("PUT", url, headers=headers, data=data), (201, 204))

        try:
            self.persist(attempt)
        except (Missing, KeyError) as err:
            raise self.error(f"{self.repository}: it takes no uploads") from err

    def blob_url(self, digest: str) -> str:
        return f"{self._root}{self.repository.name}/blobs/{digest}"

    def _be_registry(self, response: requests.Response) -> None:
        """A web server that knows no /v2/ at all answers 404 as well."""
        if said_by(response)[0] or response.headers.get("Docker-Distribution-Api-Version"):
            return
        if self.once("GET", self._root).status_code not in (200, 401):
            raise self.error(f"GET {self._root}: 404; there is no registry at this address")

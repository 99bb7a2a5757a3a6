"""Getting in: what a registry challenges for (Basic, or a token for a scope) becomes the header that it wants.

Tokens are never judged by our clock: one is used until the registry answers 401, so neither a short life nor a clock
that is wrong on either side matters.
"""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from requests.auth import AuthBase

from spark_images.download import without_credentials
from spark_images.errors import RegistryError
from spark_images.loopback import is_loopback
from spark_images.registry.credentials import Credentials

if TYPE_CHECKING:
    import requests

ATTEMPTS = 3  # a token may have expired before it was used, once; more often, and something is wrong
_SCHEME = re.compile(r"(?:^|,)\s*(\w+)\s+(?=\w+=)")
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s,]+))')


class Login(AuthBase):
    """Authorises requests to one host, from any thread. find: asked once, when the host first wants a login."""

    def __init__(self, host: str, find: Callable[[], Credentials], timeout_s: float) -> None:
        self.host, self._find, self._timeout_s = host, find, timeout_s
        self._lock = threading.Lock()
        self._header = ""
        self._scopes: dict[
            str, None
        ] = {}  # every scope that was asked for: a token for the last alone loses the others
        self._credentials: Credentials | None = None

    def __repr__(self) -> str:
        return f"Login({self.host!r})"

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if urlsplit(request.url or "").netloc != self.host:
            return request  # a registry may send uploads elsewhere; its login is for itself
        if self._header:
            request.headers["Authorization"] = self._header
        body: Any = request.body
        position = body.tell() if hasattr(body, "tell") else None

        def on_response(response: requests.Response, **options: Any) -> requests.Response:
            return self._again(response, position, options)

        request.register_hook("response", on_response)  # type: ignore[no-untyped-call]
        return request

    def _again(
        self, response: requests.Response, position: int | None, options: Mapping[str, Any]
    ) -> requests.Response:
        """Send the request once more with what the challenge asks for, as long as that is something new."""
        for _ in range(ATTEMPTS):
            if response.status_code != 401 or urlsplit(response.url).netloc != self.host:
                break  # also after a redirect to a blob store: that one never gets our login
            sent = response.request.headers.get("Authorization", "")
            header = self._answer(response, sent)
            if not header or header == sent:
                break
            response.content  # noqa: B018 - the connection is free again only when the body was read
            response.close()
            request = response.request.copy()
            request.headers["Authorization"] = header
            body: Any = request.body
            if position is not None:
                body.seek(position)
            response = response.connection.send(request, **options)
            response.request = request
        return response

    def _answer(self, response: requests.Response, sent: str) -> str:
        scheme, parameters = read_challenge(response.headers.get("WWW-Authenticate", ""))
        with self._lock:
            if scheme == "bearer" and parameters.get("scope") in (None, *self._scopes) and sent != self._header:
                return self._header  # another thread was here meanwhile
            if self._credentials is None:
                self._credentials = self._find()
            if scheme == "basic":
                if not self._credentials.user:
                    return ""
                pair = f"{self._credentials.user}:{self._credentials.password}"
                self._header = f"Basic {base64.b64encode(pair.encode()).decode()}"
            elif scheme == "bearer":
                self._scopes.update(dict.fromkeys(filter(None, [parameters.get("scope")])))
                token = self._token(parameters, self._credentials)
                self._header = f"Bearer {token}" if token else ""
            return self._header

    def _token(self, parameters: Mapping[str, str], credentials: Credentials) -> str:
        import requests

        realm = parameters.get("realm", "")
        parts = urlsplit(realm)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.netloc)):
            raise RegistryError(
                f"{self.host} sends logins to `{without_credentials(realm)}`, which has no TLS",
                hint="nothing was sent there; the registry's token address has to be an https one",
            )
        asked: list[tuple[str, str]] = [("scope", scope) for scope in self._scopes]
        if service := parameters.get("service"):
            asked.append(("service", service))
        try:
            if credentials.identity_token:
                form = [*asked, ("grant_type", "refresh_token"), ("client_id", "spark-images")]
                form.append(("refresh_token", credentials.identity_token))
                answer = requests.post(realm, data=form, auth=_Nobody(), timeout=self._timeout_s)
            else:
                pair = (credentials.user, credentials.password) if credentials else None
                answer = requests.get(realm, params=asked, auth=pair or _Nobody(), timeout=self._timeout_s)
        except requests.RequestException as err:
            raise RegistryError(
                f"{self.host} sends logins to {parts.netloc}, which does not answer",
                why=(type(err).__name__,),
                hint="the same command again goes on from what is there",
            ) from None  # the exception names the address with its query
        if answer.status_code in (401, 403):
            return ""  # what the registry then says to the empty token is what the user is told
        try:
            said = answer.json()
            token = said.get("token") or said.get("access_token") if answer.ok else None
        except ValueError:
            token = None
        if not isinstance(token, str) or not token:
            raise RegistryError(
                f"{parts.netloc} gives no token for {self.host}", why=(f"it answered {answer.status_code}",)
            )
        return token


class _Nobody(AuthBase):
    """No login, also where ~/.netrc has one for the host."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        return request


def read_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Scheme in lower case and parameters of the challenge to answer; ("", {}) where there is none.

    A server may send several, which arrive as one header: a token for a scope is preferred to the password itself.
    """
    parts = _SCHEME.split(header)[1:]  # scheme, parameters, scheme, parameters, …
    found = {
        scheme.lower(): {name.lower(): quoted or bare for name, quoted, bare in _PARAMETER.findall(rest)}
        for scheme, rest in zip(parts[::2], parts[1::2], strict=True)
    }
    return next(((scheme, found[scheme]) for scheme in ("bearer", "basic") if scheme in found), ("", {}))

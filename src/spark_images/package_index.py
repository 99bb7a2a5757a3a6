"""Python package indexes by the simple API (PEP 503 HTML, PEP 691 JSON), with the user's pip configuration.

Nothing else is asked of an index, because mirrors serve nothing else.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from spark_images.download import Patience, Sessions, TransferError, explain, new_session, persist, without_credentials
from spark_images.errors import ConfigError, ContentError, HostProgramError, MissingError, RouteError
from spark_images.process import capture
from spark_images.wheel_tags import tag_ranks

if TYPE_CHECKING:
    import requests

PIP_TIMEOUT_S = 60  # it only reads files; a cold Python on a busy machine takes seconds
PYPI = "https://pypi.org/simple/"


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """A file that an index offers. sha256 and size_bytes are None where the index does not say; HTML has no sizes."""

    project: str
    version: str
    filename: str
    url: str
    sha256: str | None  # 64 hex digits
    size_bytes: int | None
    uploaded: datetime | None = None  # UTC; HTML has no times
    yanked: bool = False  # withdrawn by its project, for new uses


@dataclass(frozen=True, kw_only=True)
class PipConfig:
    """What pip's configuration says about reaching indexes. indexes: simple API roots, in the order they are asked."""

    indexes: tuple[str, ...] = (PYPI,)
    cert: str | None = None
    client_cert: str | None = None
    proxy: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    timeout_s: float | None = None
    attempts: int | None = None


def read_pip_config(env: Mapping[str, str] = os.environ) -> PipConfig:
    """The configuration that pip itself reports: its files, and PIP_* variables of `env`."""
    pip: tuple[str, ...]
    if importlib.util.find_spec("pip") is not None:
        pip = (sys.executable, "-m", "pip")
    elif found := shutil.which("pip3") or shutil.which("pip"):
        pip = (found,)
    else:
        raise HostProgramError(
            "pip is not installed, so its configuration cannot be read", hint="`apt-get install python3-pip`"
        )
    command = (*pip, "--disable-pip-version-check", "config", "list")
    ended = capture(command, env=env, timeout_s=PIP_TIMEOUT_S)
    if ended.status != 0:
        raise HostProgramError("pip cannot read its configuration", why=tuple(ended.stderr.strip().splitlines()[-3:]))
    return parse_pip_config(ended.stdout.decode())


def parse_pip_config(listing: str) -> PipConfig:
    """The same from the text of `pip config list`; variables go before `[download]`, and that before `[global]`."""
    values: dict[str, str] = {}
    for section in ("global.", "download.", ":env:."):
        for line in listing.splitlines():
            key, _, literal = line.partition("=")
            if key.startswith(section):
                values[key.removeprefix(section).removeprefix("default-")] = str(ast.literal_eval(literal))
    for key in values.keys() & {"timeout", "retries"}:
        if not re.fullmatch(r"\d+(\.\d+)?", values[key]):
            raise ConfigError(f"pip's configuration: `{key}`: expected a number, got `{values[key]}`")
    indexes = (values.get("index-url", PYPI), *values.get("extra-index-url", "").split())
    return PipConfig(
        indexes=tuple(dict.fromkeys(url.rstrip("/") + "/" for url in indexes)),
        cert=values.get("cert"),
        client_cert=values.get("client-cert"),
        proxy=values.get("proxy"),
        trusted_hosts=tuple(values.get("trusted-host", "").split()),
        timeout_s=float(values["timeout"]) if "timeout" in values else None,
        attempts=int(float(values["retries"])) + 1 if "retries" in values else None,
    )


class PackageIndex:
    """The indexes of a pip configuration. Pages are read once; may be used from several threads."""

    def __init__(self, config: PipConfig, *, patience: Patience, stop: threading.Event | None = None) -> None:
        self.config = config
        self.patience = patience
        self._stop = stop or threading.Event()
        self.session = Sessions(lambda: _session_of(config))  # for the indexes and the files they point to
        self._lock = threading.Lock()
        self._pages: dict[tuple[str, str], tuple[IndexFile, ...]] = {}

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ, *, stop: threading.Event | None = None) -> PackageIndex:
        """As pip would reach them: its time-out and retries count too, unless SPARK_IMAGES_TIMEOUT_S says otherwise."""
        config = read_pip_config(env)
        patience = Patience.from_env(env)
        if config.timeout_s is not None and not env.get("SPARK_IMAGES_TIMEOUT_S"):
            patience = replace(patience, timeout_s=config.timeout_s)
        if config.attempts is not None:
            patience = replace(patience, attempts=config.attempts)
        return cls(config, patience=patience, stop=stop)

    def find_files(self, project: str) -> tuple[IndexFile, ...]:
        """Every file of the project on every index. MissingError if none has it, RouteError if one cannot be asked."""
        found: list[IndexFile] = []
        for index in self.config.indexes:
            found += self._page(index, project)
        if not found:
            raise MissingError(f"no package index has the project `{project}`", why=self._asked())
        return tuple(found)

    def find_file(self, project: str, filename: str) -> IndexFile:
        """The file on the first index that has it. RouteError names what was asked, why not, and the nearest names."""
        failed: list[str] = []
        names: list[str] = []
        for index in self.config.indexes:
            try:
                files = self._page(index, project)
            except RouteError as err:
                failed += err.why
                continue
            for file in files:
                if file.filename == filename:
                    return file
            names += [file.filename for file in files]
        nearest = difflib.get_close_matches(filename, names, n=3)
        raise (RouteError if failed else MissingError)(
            f"no package index has the file `{filename}` of `{project}`",
            why=(*self._asked(), *failed),
            hint=f"nearest names: {', '.join(f'`{name}`' for name in nearest)}" if nearest else "",
        )

    def find_sdist(self, project: str, version: str) -> IndexFile:
        """The source distribution of one version."""
        files = self.find_files(project)
        for file in files:
            if _same_version(file.version, version) and file.filename.endswith((".tar.gz", ".zip")):
                return file
        versions = sorted({file.version for file in files if file.filename.endswith((".tar.gz", ".zip"))})
        nearest = difflib.get_close_matches(version, versions, n=3)
        raise MissingError(
            f"no package index has an sdist of `{project}` {version}",
            why=self._asked(),
            hint=f"nearest versions: {', '.join(f'`{name}`' for name in nearest)}" if nearest else "",
        )

    def _asked(self) -> tuple[str, ...]:
        return tuple(f"asked: {without_credentials(index)}" for index in self.config.indexes)

    def _page(self, index: str, project: str) -> tuple[IndexFile, ...]:
        with self._lock:
            known = self._pages.get((index, project))
        if known is None:
            known = self._read_page(index, project)
            with self._lock:
                self._pages[index, project] = known
        return known

    def _read_page(self, index: str, project: str) -> tuple[IndexFile, ...]:
        import pypi_simple
        import requests

        client = pypi_simple.PyPISimple(_split_credentials(index)[0], session=self.session())
        timeout_s = self.patience.timeout_s

        def ask() -> pypi_simple.ProjectPage | None:
            try:
                return client.get_project_page(project, timeout=timeout_s)
            except pypi_simple.NoSuchProjectError:
                return None
            except requests.HTTPError as err:
                status = err.response.status_code
                reason = f"{status} {err.response.reason or ''}".strip()
                raise TransferError(reason, passing=status >= 500 or status in (408, 429)) from err
            except requests.RequestException as err:
                raise explain(err, timeout_s=timeout_s) from err
            except (pypi_simple.UnsupportedContentTypeError, pypi_simple.UnsupportedRepoVersionError) as err:
                raise TransferError(f"no simple API here: {err}", passing=False) from err

        try:
            page = persist(ask, patience=self.patience, stop=self._stop)
        except TransferError as err:
            shown = without_credentials(index)
            what = f"the package index {shown} does not answer for `{project}`"
            raise RouteError(what, why=(f"{shown}: {err}",)) from err
        return tuple(
            IndexFile(
                project=package.project or project,
                version=package.version or "",
                filename=package.filename,
                url=package.url,
                sha256=package.digests.get("sha256"),
                size_bytes=package.size,
                uploaded=package.upload_time and package.upload_time.astimezone(UTC),
                yanked=package.is_yanked,
            )
            for package in (page.packages if page else ())
        )


def select_wheel(
    files: Iterable[IndexFile], *, project: str, version: str, platform: str, python: str | None
) -> IndexFile:
    """The wheel that pip would take on this platform with glibc 2.36; ContentError lists what there is when none fits.

    platform: "linux/amd64" or "linux/arm64". python: "3.11" for CPython 3.11; None takes only wheels for any Python 3.
    """
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    rank = tag_ranks(platform, python)
    fitting: list[tuple[int, tuple[int, str] | tuple[()], IndexFile]] = []
    there: list[str] = []
    for file in files:
        if not file.filename.endswith(".whl") or not _same_version(file.version, version):
            continue
        try:
            _, _, build, wheel_tags = parse_wheel_filename(file.filename)
        except InvalidWheelFilename:
            continue
        there.append(file.filename)
        best = max((rank[tag] for tag in wheel_tags if tag in rank), default=None)
        if best is not None:
            fitting.append((best, build, file))
    if not fitting:
        raise ContentError(
            f"no wheel of `{project}` {version} is for {platform}" + (f" and Python {python}" if python else ""),
            why=[f"there is `{name}`" for name in there] or ["there is no wheel of this version"],
        )
    return max(fitting, key=lambda item: item[:2])[2]


def _same_version(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def _split_credentials(url: str) -> tuple[str, tuple[str, str] | None]:
    parts = urlsplit(url)
    login, _, host = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    return urlunsplit(parts._replace(netloc=host)), (unquote(user), unquote(password)) if login else None


def _session_of(config: PipConfig) -> requests.Session:
    import urllib3
    from requests.adapters import HTTPAdapter
    from requests.auth import HTTPBasicAuth
    from requests.utils import get_netrc_auth

    logins = {}
    for index in config.indexes:
        url, login = _split_credentials(index)
        if login is not None:
            logins[urlsplit(url).netloc] = login

    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        """An index's login also opens the files on its host; elsewhere netrc counts, as for pip."""
        url = request.url or ""
        login = logins.get(urlsplit(url).netloc) or get_netrc_auth(url)
        return HTTPBasicAuth(*login)(request) if login else request

    class Unverified(HTTPAdapter):
        """For hosts that the user's `trusted-host` exempts from the check of certificates."""

        def cert_verify(self, conn: object, url: str, verify: object, cert: object) -> None:
            super().cert_verify(conn, url, False, cert)  # type: ignore[no-untyped-call]

    session = new_session()
    session.auth = sign
    if config.cert:
        session.verify = config.cert
    if config.client_cert:
        session.cert = config.client_cert
    if config.proxy:
        session.proxies = {"http": config.proxy, "https": config.proxy}
        session.trust_env = False  # or requests lets the environment's proxies win; netrc is read by `sign`
    if config.trusted_hosts:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # as pip does: the user has decided
    for host in config.trusted_hosts:
        session.mount(f"https://{host}/", Unverified())
        if ":" not in host:
            session.mount(f"https://{host}:", Unverified())
    return session

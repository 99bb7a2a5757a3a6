"""Which versions of a pin there are, oldest first, and what pins.yaml has to say for one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from spark_images.cache import Cache
from spark_images.errors import ContentError, RouteError
from spark_images.pins import (
    ArchivePin,
    DebsPin,
    FileContent,
    GitPin,
    ImagePin,
    IndexRoute,
    Pin,
    RequirementsPin,
    SdistPin,
    SdistRoute,
    WheelsPin,
)
from spark_images.store import Store

if TYPE_CHECKING:
    from spark_images.package_index import IndexFile, PackageIndex


@dataclass(frozen=True, kw_only=True)
class Release:
    """One version of a pin, as its upstream offers it.

    name: what people call it, and what stands after `PIN=` on a command line. missing: why it cannot be had, if so.
    """

    name: str
    project: str = ""  # on the package index: of an sdist pin, a package of a wheels pin, what carries a git pin's tree
    version: str = ""
    commit: str = ""
    moment: datetime | None = None  # of a snapshot
    released: datetime | None = None  # UTC; None where upstream does not say
    withdrawn: bool = False
    missing: str = ""

    @property
    def identity(self) -> str:
        """What tells it from all other releases of its pin, on a command line as well."""
        return self.commit or (f"{self.project}=={self.version}" if self.project else self.name)


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """How upstreams are asked: one package index for all questions, what arrives goes into the cache."""

    cache: Cache
    index: PackageIndex

    @classmethod
    def from_env(cls, cache: Cache) -> Upstream:
        """As pip and git reach them."""
        from spark_images.package_index import PackageIndex

        return cls(cache=cache, index=PackageIndex.from_env(os.environ))

    # --- which there are ---------------------------------------------------------------------------------------------

    def releases(self, pin: Pin, *, project: str = "", now: datetime) -> tuple[Release, ...]:
        """All releases of a pin, oldest first; those that cannot be had say so.

        project: the package of a wheels pin, or what carries the tree of a git pin. Empty where the kind of pin has no
        upstream that could be asked. Raises RouteError.
        """
        match pin:
            case GitPin():
                return self.sdists(project) if project else self._tags(pin)
            case SdistPin():
                return self.sdists(pin.project)
            case WheelsPin():
                return self._wheels(project or pin.packages[0].partition("==")[0])
            case ImagePin():
                return self._image_tags(pin)
            case DebsPin():
                return _midnights(pin.snapshot, now)
            case RequirementsPin():
                return _midnights(pin.exclude_newer, now)
            case ArchivePin():
                return ()
            case _:
                assert_never(pin)

    def sdists(self, project: str) -> tuple[Release, ...]:
        """The versions of a project; one without an sdist, as a few releases are, says so."""
        by_version: dict[Version, list[IndexFile]] = {}
        for file in self.index.find_files(project):
            if version := _version(file.version):
                by_version.setdefault(version, []).append(file)
        found = []
        for version, files in sorted(by_version.items()):
            sdists = [file for file in files if file.filename.endswith(".tar.gz")]
            found.append(_of_index(version, sdists or files, missing="" if sdists else "the index has no sdist of it"))
        return tuple(found)

    def _wheels(self, project: str) -> tuple[Release, ...]:
        by_version: dict[Version, list[IndexFile]] = {}
        for file in self.index.find_files(project):
            if file.filename.endswith(".whl") and (version := _version(file.version)):
                by_version.setdefault(version, []).append(file)
        return tuple(_of_index(version, files) for version, files in sorted(by_version.items()))

    def _tags(self, pin: GitPin) -> tuple[Release, ...]:
        """The refs that the pin follows: tags in their natural order, or the tip of a branch."""
        from spark_images.git_history import list_refs

        if not pin.follow:
            return ()
        refs = list_refs(pin.url, pin.follow, cache=self.cache)
        return tuple(Release(name=name, commit=refs[name]) for name in sorted(refs, key=natural))

    def _image_tags(self, pin: ImagePin) -> tuple[Release, ...]:
        """The tags of the same form as the pin's: `26.01-py3` has 26.02-py3 beside it, not `26.02-py3-igpu`."""
        from spark_images.registry.client import Client
        from spark_images.registry.reference import parse_reference

        reference = parse_reference(pin.ref)
        form = re.sub(r"\d+", r"\\d+", re.escape(reference.tag))
        client = Client(reference.repository)
        tags = client.tags()
        return tuple(Release(name=name) for name in sorted(tags, key=natural) if re.fullmatch(form, name))

    def released(self, pin: Pin, release: Release) -> datetime | None:
        """When a release came out, asking further where the list of releases does not say; None if nobody tells."""
        if release.released is not None:
            return release.released
        if isinstance(pin, GitPin) and release.commit:
            from spark_images.git_history import time_of

            return time_of(pin.url, release.commit, cache=self.cache)
        if isinstance(pin, ImagePin):
            return self._created(f"{pin.ref.rpartition(':')[0]}:{release.name}")
        if not release.project:
            return None
        files = [file for file in self.index.find_files(release.project) if file.version == release.version]
        return _last_modified(files[0], self.index) if files else None

    def _created(self, text: str) -> datetime | None:
        """When an image was made, as its configuration says."""
        import json

        from spark_images.registry.client import Client
        from spark_images.registry.reference import parse_reference

        reference = parse_reference(text)
        client = Client(reference.repository)
        wanted = reference.wanted
        for _ in range(2):  # an index, and an image of it
            manifest = client.manifest(wanted)
            if manifest is None:
                return None
            document = manifest.document()
            if "config" in document:
                config = json.loads(client.blob(document["config"]["digest"]))
                created = str(config.get("created", ""))
                return datetime.fromisoformat(created[:19]).replace(tzinfo=UTC) if created else None
            wanted = document["manifests"][0]["digest"]
        return None

    def sdist_digest(self, release: Release) -> str:
        """The sha256 that the index gives for a release's sdist: 64 hex digits."""
        return _sha256(self.index.find_sdist(release.project, release.version))

    # --- what it has of one -----------------------------------------------------------------------------------------

    def fetch_sdist(self, pin: str, release: Release) -> Path:
        """The release's sdist, in the store. RouteError, ContentError."""
        return self._fetch(pin, self.index.find_sdist(release.project, release.version))

    def fetch_wheel(self, pin: str, release: Release, *, platform: str) -> Path:
        """The release's wheel for a platform ("linux/arm64") and any Python, in the store. RouteError, ContentError."""
        from spark_images.package_index import select_wheel

        files = self.index.find_files(release.project)
        for python in (None, "3.12", "3.11", "3.10", "3.13"):
            try:
                file = select_wheel(
                    files, project=release.project, version=release.version, platform=platform, python=python
                )
            except ContentError:
                continue
            return self._fetch(pin, file)
        raise RouteError(f"no wheel of {release.project} {release.version} is for {platform}")

    def _fetch(self, pin: str, file: IndexFile) -> Path:
        from spark_images.fetch import fetch

        content = FileContent(
            pin=pin,
            label=file.filename,
            digest=f"sha256:{_sha256(file)}",
            size_bytes=file.size_bytes,
            routes=(IndexRoute(project=file.project, filename=file.filename),),
        )
        store = Store(self.cache.store)
        fetch((content,), store=store, index=self.index, quiet=True)
        return store.path(content.digest)


def carrier(pin: GitPin) -> SdistRoute | None:
    """The sdist that carries the tree of a git pin, if one does."""
    return next((route for route in pin.routes if isinstance(route, SdistRoute)), None)


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """A key by which b999 comes before b1000 and 1.10-rc before 1.10.1; digits before letters."""
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part)


def is_prerelease(release: Release) -> bool:
    """Whether a version says of itself that it is none yet: `0.21.0rc1`, `v1.2-beta`."""
    version = _version(release.version or release.name.removeprefix("v"))
    return version.is_prerelease if version else bool(re.search(r"(?i)\d-?(rc|alpha|beta|dev|pre)", release.name))


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _of_index(version: Version, files: Iterable[IndexFile], *, missing: str = "") -> Release:
    files = list(files)
    times = [file.uploaded for file in files if file.uploaded]
    return Release(
        name=files[0].version,
        project=canonicalize_name(files[0].project),
        version=files[0].version,
        released=min(times) if times else None,
        withdrawn=all(file.yanked for file in files),
        missing=missing,
    )


def _last_modified(file: IndexFile, index: PackageIndex) -> datetime | None:
    """When the server of a file got it; indexes in HTML do not say when something was uploaded."""
    import requests

    try:
        with index.session().head(file.url, allow_redirects=True, timeout=index.patience.timeout_s) as response:
            stamp = response.headers.get("Last-Modified", "") if response.ok else ""
    except requests.RequestException:
        return None
    return parsedate_to_datetime(stamp).astimezone(UTC) if stamp else None


def _midnights(since: datetime, now: datetime) -> tuple[Release, ...]:
    """Moments of an archive that can be named at any time: the pin's own and every midnight (UTC) after it."""
    first, last = (moment.replace(hour=0, minute=0, second=0, microsecond=0) for moment in (since, now))
    days = (last - first).days
    moments = [since, *(first + timedelta(days=day) for day in range(1, days + 1))]
    return tuple(Release(name=f"{moment:%Y-%m-%dT%H:%M:%SZ}", moment=moment, released=moment) for moment in moments)


def _sha256(file: IndexFile) -> str:
    if file.sha256 is None:
        raise ContentError(f"the package index gives no sha256 for `{file.filename}`, so it cannot be pinned")
    return file.sha256

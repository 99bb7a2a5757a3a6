"""From pins and locks to contents: what to fetch and every place that is known to have it. Pure."""

from __future__ import annotations

from spark_images.locks import LockedDeb, LockedWheel
from spark_images.pins import ArchivePin, DebsPin, FileContent, GitPin, IndexRoute, SdistPin, TreeContent, UrlRoute


def tree_content(pin: GitPin) -> TreeContent:
    """The source tree of a git pin."""
    return TreeContent(
        pin=pin.name, label=f"{pin.name} {pin.version}", digest=pin.tree, paths=pin.paths, routes=pin.routes
    )


def archive_content(pin: ArchivePin) -> FileContent:
    """The file of an archive pin; its label is the last part of the first address."""
    label = pin.routes[0].url.rpartition("/")[2] or pin.name
    return FileContent(pin=pin.name, label=label, digest=f"sha256:{pin.sha256}", size_bytes=None, routes=pin.routes)


def sdist_content(pin: SdistPin) -> FileContent:
    """The sdist's file, under the name that PEP 625 gives it."""
    filename = f"{pin.project.replace('-', '_')}-{pin.version}.tar.gz"
    return FileContent(
        pin=pin.name,
        label=filename,
        digest=f"sha256:{pin.sha256}",
        size_bytes=None,
        routes=(IndexRoute(project=pin.project, filename=filename),),
    )


def wheel_content(pin: str, wheel: LockedWheel) -> FileContent:
    """One wheel of the lock behind the pin of that name."""
    return FileContent(
        pin=pin,
        label=wheel.filename,
        digest=f"sha256:{wheel.sha256}",
        size_bytes=wheel.size_bytes,
        routes=(IndexRoute(project=wheel.project, filename=wheel.filename),),
    )


def deb_content(pin: DebsPin, deb: LockedDeb) -> FileContent:
    """One .deb of the lock behind the pin, by each of the pin's routes."""
    return FileContent(
        pin=pin.name,
        label=deb.path.rpartition("/")[2],
        digest=f"sha256:{deb.sha256}",
        size_bytes=deb.size_bytes,
        routes=tuple(UrlRoute(url=deb_url(pin, route, archive=deb.archive, path=deb.path)) for route in pin.routes),
    )


def deb_url(pin: DebsPin, route: str, *, archive: str, path: str) -> str:
    """The address of a file below an archive's root by one of the pin's routes."""
    # as snapshot archives write a moment
    return route.format(archive=archive, path=path, snapshot=f"{pin.snapshot:%Y%m%dT%H%M%SZ}")

"""What pins.yaml has to say for one release of a pin. Trees are fetched, as only so their digest is known."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from spark_images.cache import Cache
from spark_images.download import Patience
from spark_images.errors import MissingError
from spark_images.files import sync
from spark_images.pins import ArchivePin, DebsPin, GitPin, ImagePin, Pin, RequirementsPin, SdistPin, WheelsPin
from spark_images.pins_edit import Path as KeyPath
from spark_images.store import Store
from spark_images.upstream import Release, Upstream, carrier
from spark_images.workfolder import work_folder

if TYPE_CHECKING:
    from spark_images.tree import SourceTree

NO_COMMIT = "0" * 40  # what a pin names as its commit where nobody knows the one of a tree


def values_of(pin: Pin, release: Release, *, upstream: Upstream) -> dict[KeyPath, str | None]:
    """The values for pins_edit.edit_pin. Trees are fetched, as only so their digest is known.

    Raises RouteError where the release is missing or cannot be had, ContentError where it is no tree.
    """
    if release.missing:
        raise MissingError(f"{release.name} of `{pin.name}` cannot be had: {release.missing}")
    match pin:
        case GitPin():
            return _carried(pin, release, upstream) if release.project else _committed(pin, release, upstream)
        case SdistPin():
            return _sdist_values(pin, release, upstream)
        case WheelsPin():
            return _package_values(pin, release)
        case ImagePin():
            ref = f"{pin.ref.rpartition(':')[0]}:{release.name}"
            return {("ref",): ref, ("digest",): _digest_of_tag(ref), ("unverified",): None}
        case DebsPin():
            return {("snapshot",): release.name}
        case RequirementsPin():
            return {("exclude-newer",): release.name}
        case ArchivePin():
            raise ValueError(f"nobody knows releases of `{pin.name}`")
        case _:
            assert_never(pin)


def _committed(pin: GitPin, release: Release, upstream: Upstream) -> dict[KeyPath, str | None]:
    from spark_images.git_history import commit_time
    from spark_images.git_tree import tree_from_git

    stall_s = Patience.from_env(os.environ).timeout_s
    with work_folder(upstream.cache, "tree") as work:
        tree = tree_from_git(pin.url, release.commit, work=work, stall_s=stall_s, stop=threading.Event())
        committed = commit_time(work / "repository", release.commit)
        digest = _keep(tree, pin, work, upstream.cache)
    return {
        ("version",): release.name,
        ("commit",): release.commit,
        ("committed",): committed.isoformat().replace("+00:00", "Z"),
        ("tree",): digest,
        ("routes",): "[git]",  # what carried the old tree does not carry this one
        ("unverified",): None,
    }


def _carried(pin: GitPin, release: Release, upstream: Upstream) -> dict[KeyPath, str | None]:
    """A tree that came in another project's sdist: its commit is not known, its content is."""
    from spark_images.tree import tree_from_archive

    route = carrier(pin)
    assert route is not None  # whoever names a release by its carrier has looked
    archive = upstream.fetch_sdist(pin.name, release)
    with work_folder(upstream.cache, "tree") as work:
        digest = _keep(
            tree_from_archive(archive, route.path, work=work, source=archive.name), pin, work, upstream.cache
        )
    sdist = f"{release.project}=={release.version}"
    return {
        ("version",): release.version,
        ("commit",): NO_COMMIT,
        ("tree",): digest,
        ("routes",): f"[{{sdist: {sdist}, path: {route.path}}}]",
        ("unverified",): f"the tree in the sdist of {sdist}; nobody knows of which commit it is",
    }


def _keep(tree: SourceTree, pin: GitPin, work: Path, cache: Cache) -> str:
    """Put the tree into the store; its digest."""
    path = work / "tree.tar"
    with tree, path.open("wb") as out:
        digest = tree.write(out, paths=pin.paths)
    sync(path)
    Store(cache.store).add_file(path, digest)
    return digest


def _sdist_values(pin: SdistPin, release: Release, upstream: Upstream) -> dict[KeyPath, str | None]:
    values: dict[KeyPath, str | None] = {
        ("version",): release.version,
        ("sha256",): upstream.sdist_digest(release),
        ("unverified",): None,
    }
    if pin.released is not None and (released := upstream.released(pin, release)) is not None:
        values[("released",)] = f"{released:%Y-%m-%dT%H:%M:%SZ}"
    return values


def _package_values(pin: WheelsPin, release: Release) -> dict[KeyPath, str | None]:
    projects = [package.partition("==")[0] for package in pin.packages]
    place = projects.index(release.project)
    values: dict[KeyPath, str | None] = {("packages", place): f"{release.project}=={release.version}"}
    if pin.version == pin.packages[place].partition("==")[2]:  # as its version the pin carries this package's
        values[("version",)] = release.version
    return values


def _digest_of_tag(text: str) -> str:
    from spark_images.registry.client import Client
    from spark_images.registry.reference import parse_reference

    reference = parse_reference(text)
    client = Client(reference.repository)
    manifest = client.manifest(reference.wanted)
    if manifest is None:
        raise MissingError(f"there is no image {text}")
    return manifest.digest

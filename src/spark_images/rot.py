"""Whether every route to every pinned content is alive and still serves it, and what would be lost next."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import assert_never

from spark_images.cache import Cache
from spark_images.contents import archive_content, deb_content, sdist_content, tree_content, wheel_content
from spark_images.download import Patience, TransferError, check_status, explain, persist, without_credentials
from spark_images.errors import ConfigError, ContentError, MissingError, RegistryError, RouteError, UsageError
from spark_images.locks import read_debs_lock, read_wheels_lock
from spark_images.package_index import PackageIndex
from spark_images.pins import (
    ArchivePin,
    ArchiveRoute,
    Content,
    DebsPin,
    FileContent,
    FileRoute,
    GitPin,
    GitRoute,
    ImagePin,
    IndexRoute,
    RequirementsPin,
    SdistPin,
    SdistRoute,
    TreeRoute,
    UrlRoute,
    WheelsPin,
)
from spark_images.project import Project

AT_ONCE = 8  # routes that are asked at the same time


class Health(Enum):
    """What a route said."""

    SERVES = "serves"  # it has the content: its digest, commit or size is the pinned one's
    ANSWERS = "answers"  # it has something at this place; only fetching tells whether it is the content
    GONE = "gone"
    OTHER = "other content"
    SILENT = "does not answer"


ALIVE = (Health.SERVES, Health.ANSWERS)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One route of one content, asked now."""

    pin: str
    label: str
    route: str
    health: Health
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class PinHealth:
    """A pin's contents by how many of their routes are alive."""

    pin: str
    contents: int
    lost: tuple[str, ...]  # none is
    last: tuple[str, ...]  # one is left, of more or of one
    single: int  # of those, how many never had more than one
    changed: tuple[str, ...]  # a route serves something else
    dead: tuple[Seen, ...]


def check_routes(project: Project, *, cache: Cache, names: Sequence[str] = ()) -> tuple[PinHealth, ...]:
    """Ask every route of the named pins (default: all). Raises ConfigError for a missing lock."""
    asking = _Asking(cache)
    wanted = [pin.name for pin in project.pins.chosen(names)]
    tasks = [task for name in wanted for task in asking.tasks(project, name)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        seen = list(pool.map(asking.ask, tasks))
    return tuple(_summary(name, [one for one in seen if one.pin == name]) for name in wanted)


def _summary(pin: str, seen: Sequence[Seen]) -> PinHealth:
    by_content: dict[str, list[Seen]] = {}
    for one in seen:
        by_content.setdefault(one.label, []).append(one)
    alive = {label: sum(one.health in ALIVE for one in routes) for label, routes in by_content.items()}
    last = tuple(label for label, count in alive.items() if count == 1)
    return PinHealth(
        pin=pin,
        contents=len(by_content),
        lost=tuple(label for label, count in alive.items() if not count),
        last=last,
        single=sum(len(by_content[label]) == 1 for label in last),
        changed=tuple(dict.fromkeys(one.label for one in seen if one.health is Health.OTHER)),
        dead=tuple(one for one in seen if one.health not in ALIVE),
    )


@dataclass(frozen=True, kw_only=True)
class _Task:
    pin: str
    label: str
    content: Content | None
    route: FileRoute | TreeRoute | ImagePin


class _Asking:
    """Asks routes, from several threads."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.index = PackageIndex.from_env(os.environ)
        self.patience = Patience.from_env(os.environ)

    def tasks(self, project: Project, name: str) -> Iterator[_Task]:
        pin = project.pins[name]
        if isinstance(pin, ImagePin):
            yield _Task(pin=name, label=pin.ref, content=None, route=pin)
            return
        for content in _contents(project, name):
            for route in content.routes:
                yield _Task(pin=name, label=content.label, content=content, route=route)

    def ask(self, task: _Task) -> Seen:
        shown, why = _shown(task.route), ""
        try:
            health = self._health(task)
        except MissingError as err:
            health, why = Health.GONE, err.what
        except ContentError as err:
            health, why = Health.OTHER, err.what
        except (RouteError, RegistryError) as err:
            health, why = Health.SILENT, "; ".join((err.what, *err.why[:1]))
        except TransferError as err:
            why = str(err)
            health = Health.GONE if why.startswith(("404", "410")) else Health.SILENT
        return Seen(pin=task.pin, label=task.label, route=shown, health=health, why=why)

    def _health(self, task: _Task) -> Health:
        content, route = task.content, task.route
        match route:
            case UrlRoute():
                size = content.size_bytes if isinstance(content, FileContent) else None
                return self._head(route.url, size)
            case IndexRoute():
                assert content is not None
                file = self.index.find_file(route.project, route.filename)
                if file.sha256 is not None and f"sha256:{file.sha256}" != content.digest:
                    raise ContentError(f"the index says sha256:{file.sha256[:12]}…, the pin {content.digest[:19]}…")
                self._head(file.url, None)
                return Health.SERVES
            case SdistRoute():
                self._head(self.index.find_sdist(route.project, route.version).url, None)
                return Health.ANSWERS
            case ArchiveRoute():
                return self._head(route.url, None)
            case GitRoute():
                from spark_images.git_history import has_commit

                if not has_commit(route.url, route.commit, cache=self.cache):
                    raise MissingError(f"the repository does not have the commit {route.commit[:12]}")
                return Health.SERVES
            case ImagePin():
                return _ask_registry(route)
            case _:
                assert_never(route)

    def _head(self, url: str, size_bytes: int | None) -> Health:
        """TransferError where the server does not have it, ContentError where it has another size."""
        import requests

        timeout_s = self.patience.timeout_s

        def ask() -> str:
            try:
                with self.index.session().head(url, allow_redirects=True, timeout=timeout_s) as response:
                    check_status(response)
                    return response.headers.get("Content-Length", "")
            except requests.RequestException as err:
                raise explain(err, timeout_s=timeout_s) from err

        length = persist(ask, patience=self.patience, stop=threading.Event())
        if size_bytes is not None and length.isdigit():
            if int(length) != size_bytes:
                raise ContentError(f"it has {length} bytes, the pin {size_bytes}")
            return Health.SERVES
        return Health.ANSWERS


def _ask_registry(pin: ImagePin) -> Health:
    from spark_images.registry.client import Client
    from spark_images.registry.reference import parse_reference

    if Client(parse_reference(pin.ref).repository).manifest(pin.digest) is None:
        raise MissingError(f"the registry does not have {pin.digest[:19]}… any more")
    return Health.SERVES


def _contents(project: Project, name: str) -> Iterable[Content]:
    pin = project.pins[name]
    match pin:
        case GitPin():
            return (tree_content(pin),)
        case ArchivePin():
            return (archive_content(pin),)
        case SdistPin():
            sources = _sources(project, pin) if pin.lock else ()
            return (sdist_content(pin), *sources)
        case WheelsPin() | RequirementsPin():
            wheels = read_wheels_lock(project.root / pin.lock, pin).wheels
            return tuple(wheel_content(name, wheel) for wheel in wheels)
        case DebsPin():
            return tuple(deb_content(pin, deb) for deb in read_debs_lock(project.root / pin.lock, pin).debs)
        case ImagePin():
            return ()
        case _:
            assert_never(pin)


def _sources(project: Project, pin: SdistPin) -> tuple[Content, ...]:
    try:
        return tuple(content for _, content in project.sources_lock(pin.name).contents)
    except UsageError as err:  # a release that nobody has read
        raise ConfigError(err.what, hint=err.hint) from err


def _shown(route: FileRoute | TreeRoute | ImagePin) -> str:
    match route:
        case UrlRoute() | ArchiveRoute():
            return without_credentials(route.url)
        case IndexRoute():
            return f"package index: {route.filename}"
        case SdistRoute():
            return f"package index: sdist of {route.project} {route.version}"
        case GitRoute():
            return f"git {without_credentials(route.url)} at {route.commit[:12]}"
        case ImagePin():
            return route.ref
        case _:
            assert_never(route)

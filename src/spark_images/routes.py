"""One content, its routes in order: what each kind of route does, and what its failure means."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, assert_never, cast

from spark_images.download import (
    OtherSizeError,
    Patience,
    Sessions,
    Transfer,
    TransferError,
    download,
    without_credentials,
)
from spark_images.errors import ContentError, HostProgramError, InterruptedByUser, MissingError, RouteError
from spark_images.files import room_on
from spark_images.git_tree import tree_from_git
from spark_images.package_index import PackageIndex
from spark_images.pins import (
    ArchiveRoute,
    Content,
    FileContent,
    FileRoute,
    GitRoute,
    IndexRoute,
    SdistRoute,
    TreeContent,
    TreeRoute,
    UrlRoute,
)
from spark_images.store import Incoming, Store
from spark_images.tree import SourceTree, tree_from_archive

if TYPE_CHECKING:
    import requests

Route = TypeVar("Route", FileRoute, TreeRoute)


class Routes:
    """Brings contents into the store, from several threads at once.

    index: needed where a content has a route by a package index. note: shows a line to the user, from any thread.
    transfers: what is on its way now.
    """

    def __init__(
        self,
        store: Store,
        *,
        patience: Patience,
        index: PackageIndex | None,
        stop: threading.Event,
        note: Callable[[str], None],
    ) -> None:
        self.store, self.patience, self.index, self.stop, self.note = store, patience, index, stop, note
        self.transfers: list[Transfer] = []
        self._session = Sessions()

    def bring(self, content: Content) -> bool:
        """Bring one content; False if another process brought it meanwhile. RouteError, ContentError, DiskFullError."""
        with self.store.incoming(content.digest, stop=self.stop) as incoming:
            if incoming.present:
                return False
            match content:
                case FileContent():
                    self._in_order(content, content.routes, lambda route: self._bring_file(content, route, incoming))
                case TreeContent():
                    self._in_order(content, content.routes, lambda route: self._bring_tree(content, route, incoming))
                case _:
                    assert_never(content)
            incoming.commit()
        return True

    def _in_order(self, content: Content, routes: Sequence[Route], bring: Callable[[Route], None]) -> None:
        failed: list[str] = []
        missing = bool(routes)
        for place, route in enumerate(routes, start=1):
            try:
                return bring(route)
            except (TransferError, RouteError, HostProgramError) as err:
                if self.stop.is_set():
                    raise InterruptedByUser("stopped") from err
                failed.append(f"{_describe(route)}: {_reason(err)}")
                missing = missing and isinstance(err, MissingError)
                if place < len(routes):
                    self.note(f"`{content.pin}`: {failed[-1]}")
                    self.note(f"  trying route {place + 1} of {len(routes)}: {_describe(routes[place])}")
        raise (MissingError if missing else RouteError)(
            f"no route to `{content.label}` of pin `{content.pin}` is left",
            why=failed or ("the pin states none",),
            hint="check the network, the proxy and pip's configuration, or add a route to the pin; "
            "then run the same command again: what has arrived is kept",
        )

    # --- files ------------------------------------------------------------------------------------------------------

    def _bring_file(self, content: FileContent, route: FileRoute, incoming: Incoming) -> None:
        match route:
            case UrlRoute():
                url, session = route.url, self._session()
            case IndexRoute():
                found = self._index().find_file(route.project, route.filename)
                if found.sha256 is not None and f"sha256:{found.sha256}" != content.digest:
                    raise _other_content(content, content.digest, f"sha256:{found.sha256}", found.url)
                url, session = found.url, self._index().session()
            case _:
                assert_never(route)
        self._download(content, session, url, incoming, expected=content.digest, size_bytes=content.size_bytes)

    def _download(
        self,
        content: Content,
        session: requests.Session,
        url: str,
        incoming: Incoming,
        *,
        expected: str | None,
        size_bytes: int | None,
    ) -> None:
        """Fill `incoming` and check its digest; with expected=None there is nothing to check, nor to go on from."""
        with self._transfer(content.label, size_bytes) as transfer:
            incoming.open(resume=expected is not None)
            while True:
                try:
                    download(
                        session, url, incoming, size_bytes=size_bytes,
                        transfer=transfer, patience=self.patience, stop=self.stop,
                    )  # fmt: skip
                except OtherSizeError as err:
                    incoming.discard()
                    size = f"a file of {err.size_bytes} bytes, where {size_bytes} are expected"
                    raise _other_content(content, incoming.digest, size, url) from err
                found = incoming.found()
                if expected in (None, found):
                    return
                if not transfer.resumed:
                    incoming.discard()
                    raise _other_content(content, incoming.digest, found, url)
                incoming.open(resume=False)  # the bytes of an earlier attempt may be to blame: once more from the start
                transfer.resumed = False

    @contextmanager
    def _transfer(self, label: str, size_bytes: int | None) -> Iterator[Transfer]:
        transfer = Transfer(label, size_bytes)
        self.transfers.append(transfer)
        try:
            yield transfer
        finally:
            self.transfers.remove(transfer)

    def _index(self) -> PackageIndex:
        assert self.index is not None
        return self.index

    # --- source trees -----------------------------------------------------------------------------------------------

    def _bring_tree(self, content: TreeContent, route: TreeRoute, incoming: Incoming) -> None:
        with incoming.folder() as work, room_on(work):
            try:
                with self._tree(content, route, work) as tree:
                    incoming.open(resume=False)
                    found = tree.write(cast("BinaryIO", incoming), paths=content.paths, without=content.without)
            except ContentError as err:
                raise ContentError(
                    f"pin `{content.pin}`: {err.what}", why=(*err.why, f"from {_describe(route)}")
                ) from err
        if found != content.digest:
            incoming.discard()
            hint = (
                "if the pin is new, its `tree` may be of other `paths`; if it is not, upstream has changed this content"
            )
            raise _other_content(content, content.digest, found, _describe(route), hint=hint)

    def _tree(self, content: TreeContent, route: TreeRoute, work: Path) -> SourceTree:
        match route:
            case GitRoute():
                with self._transfer(content.label, None):
                    stall_s = self.patience.timeout_s
                    return tree_from_git(route.url, route.commit, work=work, stall_s=stall_s, stop=self.stop)
            case ArchiveRoute():
                key = f"sha256:{hashlib.sha256(route.url.encode()).hexdigest()}"
                with self.store.incoming(key, stop=self.stop) as archive:
                    self._download(content, self._session(), route.url, archive, expected=None, size_bytes=None)
                    return _tree_of(archive, route.url, route.path, work)
            case SdistRoute():
                sdist = self._index().find_sdist(route.project, route.version)
                key = sdist.sha256 or hashlib.sha256(sdist.url.encode()).hexdigest()
                with self.store.incoming(f"sha256:{key}", stop=self.stop) as archive:
                    if archive.present:
                        path = self.store.path(archive.digest)
                        return tree_from_archive(path, route.path, work=work, source=f"`{sdist.filename}`")
                    expected = archive.digest if sdist.sha256 else None
                    session, size = self._index().session(), sdist.size_bytes
                    self._download(content, session, sdist.url, archive, expected=expected, size_bytes=size)
                    return _tree_of(archive, sdist.filename, route.path, work)
            case _:
                assert_never(route)


def _tree_of(archive: Incoming, name: str, path: str, work: Path) -> SourceTree:
    try:
        return tree_from_archive(archive.path, path, work=work, source=f"`{without_credentials(name)}`")
    finally:
        archive.discard()  # the tree is what is kept


def _other_content(content: Content, expected: str, found: str, where: str, *, hint: str = "") -> ContentError:
    return ContentError(
        f"`{content.label}` of pin `{content.pin}` is not what the pin names",
        why=(f"expected {expected}", f"got {found}", f"from {without_credentials(where)}"),
        hint=hint or "nothing was built from it; find out why upstream changed before you change the pin",
    )


def _reason(err: Exception) -> str:
    if isinstance(err, RouteError | HostProgramError):
        return "; ".join(part for part in (err.what, *err.why, err.hint) if part)
    return str(err)


def _describe(route: FileRoute | TreeRoute) -> str:
    match route:
        case UrlRoute():
            return without_credentials(route.url)
        case IndexRoute():
            return f"package index, `{route.filename}`"
        case GitRoute():
            return f"git {without_credentials(route.url)} at {route.commit[:12]}"
        case ArchiveRoute():
            return without_credentials(route.url)
        case SdistRoute():
            return f"package index, sdist of `{route.project}` {route.version}"
        case _:
            assert_never(route)

"""What a layer changes in the file system below it, without the several ways in which engines say the same."""

from __future__ import annotations

import copy
import hashlib
import tarfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field

from spark_images.layers import CHUNK, parents, whiteout


class Content:
    """The bytes of a regular file where they lie; hard links of one file share one."""

    __slots__ = ("_offset", "_read_at", "_sha256", "size")

    def __init__(self, read_at: Callable[[int, int], bytes], offset: int, size: int) -> None:
        """read_at: offset and most bytes -> bytes."""
        self._read_at, self._offset, self.size = read_at, offset, size
        self._sha256 = b""

    def read(self, start: int, size: int) -> bytes:
        """At most so many of the bytes from `start` on; none at the end."""
        return self._read_at(self._offset + start, min(size, self.size - start))

    def sha256(self) -> bytes:
        """Read on the first call only."""
        if not self._sha256:
            digest = hashlib.sha256()
            for start in range(0, self.size, CHUNK):
                digest.update(self.read(start, CHUNK))
            self._sha256 = digest.digest()
        return self._sha256


@dataclass(slots=True, eq=False)
class Entry:
    """One entry of a layer. info: in canonical form, a hard link's as its target's; content: of regular files."""

    info: tarfile.TarInfo
    content: Content | None = None

    def says_the_same(self, other: Entry) -> bool:
        """Type, mode, owner, link, extended attributes and content are equal. The time is not compared."""
        if _metadata(self.info) != _metadata(other.info):
            return False
        if self.content is None or other.content is None or self.content is other.content:
            return True
        return self.content.size == other.content.size and self.content.sha256() == other.content.sha256()


@dataclass(slots=True)
class _Node:
    entry: Entry | None = None  # None: a folder that no layer has an entry for
    children: dict[str, _Node] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        return self.entry is None or self.entry.info.isdir()


@dataclass(slots=True)
class LayerContents:
    """A layer's entries by path, of two with one path the later, and what it hides of the layers below."""

    entries: dict[str, Entry]
    deleted: set[str]
    opaque: set[str]  # folders of which nothing below is seen

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> LayerContents:
        """Sort entries and whiteouts."""
        contents = cls({}, set(), set())
        for entry in entries:
            if cut := whiteout(entry.info.name):
                path, opaque = cut
                (contents.opaque if opaque else contents.deleted).add(path)
            else:
                contents.entries[entry.info.name] = entry
        return contents


class FileSystem:
    """What the layers so far have made; only the entries that it was given."""

    def __init__(self) -> None:
        self._root = _Node()

    def entry(self, path: str) -> Entry | None:
        """The entry at a path."""
        node = self._find(path)
        return node.entry if node else None

    def apply(self, layer: LayerContents, *, unchanged: Set[str] = frozenset()) -> list[str]:
        """Become what the layer makes of it. Returns the paths that are gone and that no entry replaces, topmost only.

        unchanged: paths of entries that say what is there already.
        """
        present = set(layer.entries)
        for path in layer.entries if layer.deleted or layer.opaque else ():
            present.update(parents(path))
        gone: list[str] = []
        for path in sorted(layer.opaque):
            node = self._find(path)
            for name in sorted(node.children) if node else ():
                self._hide(f"{path}/{name}".lstrip("/"), present, gone)
        for path in sorted(layer.deleted):
            self._hide(path, present, gone)
        for path, entry in sorted(layer.entries.items()):  # parents before what is in them
            if path not in unchanged:
                self._put(path, entry)
        return gone

    def _find(self, path: str) -> _Node | None:
        node: _Node | None = self._root
        for part in path.split("/") if path else ():
            node = node.children.get(part) if node else None
        return node

    def _hide(self, path: str, present: set[str], gone: list[str]) -> None:
        """Take away what lies at a path; of a folder that the layer makes anew only what it does not have in it."""
        node = self._find(path)
        if node is None:
            return
        if path not in present:
            folder, _, name = path.rpartition("/")
            parent = self._find(folder)
            assert parent is not None  # the node was found through it
            del parent.children[name]
            gone.append(path)
        elif node.is_folder:
            for name in sorted(node.children):
                self._hide(f"{path}/{name}", present, gone)

    def _put(self, path: str, entry: Entry) -> None:
        node = self._root
        *folders, name = path.split("/")
        for folder in folders:
            node = node.children.setdefault(folder, _Node())
        old = node.children.get(name)
        if old is not None and old.is_folder and entry.info.isdir():
            old.entry = entry
        else:
            node.children[name] = _Node(entry)


def resolve_links(
    infos: Iterable[tarfile.TarInfo], content_of: Callable[[tarfile.TarInfo], Content]
) -> Iterator[Entry]:
    """The entries of one layer, hard links as further names of their file; KeyError names a target not in it."""
    files: dict[str, Entry] = {}
    for info in infos:
        if info.islnk():
            target = files[info.linkname]
            named = copy.copy(target.info)
            named.name = info.name
            files[info.name] = entry = Entry(named, target.content)
        elif info.isreg():
            files[info.name] = entry = Entry(info, content_of(info))
        else:
            entry = Entry(info)
        yield entry


def changes(layer: LayerContents, below: FileSystem, *, epoch: int) -> list[Entry]:
    """The shortest layer that turns `below` into what the given one makes of it, in the canonical order.

    Entries that say what is there already are left out, opaque folders are written as whiteouts of what they hide, and
    whiteouts of nothing are left out. Of a file with several names the first holds the content.
    `below` becomes the result.
    """
    files: dict[Content, list[Entry]] = defaultdict(list)
    found: list[Entry] = []
    for path, entry in sorted(layer.entries.items(), key=lambda item: _order(item[0])):
        if entry.content is not None:
            files[entry.content].append(entry)
        elif not _is_there(entry, below.entry(path)):
            found.append(entry)
    for names in files.values():
        there = [below.entry(entry.info.name) for entry in names]
        one_file_below = len({old.content for old in there if old}) == 1
        if not (one_file_below and all(map(_is_there, names, there))):
            found += [names[0], *(_link(entry, names[0]) for entry in names[1:])]
    gone = below.apply(layer, unchanged=layer.entries.keys() - {entry.info.name for entry in found})
    found += [Entry(_whiteout_of(path, epoch)) for path in gone]
    return sorted(found, key=lambda entry: _order(entry.info.name))


def _is_there(entry: Entry, old: Entry | None) -> bool:
    return old is not None and entry.says_the_same(old)


def _order(path: str) -> str:
    """Folders before what is in them, and whiteouts before their siblings, as the OCI image spec wants it."""
    return f"/{path}".replace("/.wh.", "\0\0").replace("/", "\0")


def _link(entry: Entry, target: Entry) -> Entry:
    """A further name; it repeats the attributes, as Docker's chown of the name takes a file's capabilities away."""
    link = copy.copy(target.info)
    link.name, link.linkname = entry.info.name, target.info.name
    link.type, link.size = tarfile.LNKTYPE, 0
    return Entry(link)


def _whiteout_of(path: str, epoch: int) -> tarfile.TarInfo:
    folder, slash, name = path.rpartition("/")
    info = tarfile.TarInfo(f"{folder}{slash}.wh.{name}")
    info.mtime = epoch
    return info


def _metadata(info: tarfile.TarInfo) -> tuple[object, ...]:
    device = (info.devmajor, info.devminor) if info.ischr() or info.isblk() else ()
    return info.type, info.mode, info.uid, info.gid, info.linkname, device, info.pax_headers

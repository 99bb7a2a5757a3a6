"""Root file systems from verified .debs, without running anything of them, without root and without emulation.

The .debs' files are merged (debian_tree.py) and what maintainer scripts would do is made by hand (debian_setup.py).
`Replaces` and diversions are not applied: two packages with different files at one path are an error, so that none
wins unseen. In one release of Debian only packages that exclude one another, or divert, have such files.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from spark_images.cache import Cache
from spark_images.debian_setup import Folder, User, set_up
from spark_images.debian_tree import Slice, Tree, complete, merge, unpack
from spark_images.errors import ConfigError
from spark_images.locks import LockedDeb
from spark_images.tarform import open_canonical
from spark_images.workfolder import settle, work_folder

ROOT_FORM = "root/2"  # to be raised whenever the same .debs become other bytes
ROOT_ENV = (("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),)


def root_key(
    debs: Iterable[LockedDeb],
    *,
    arch: str,
    epoch: int,
    slim: bool,
    users: Sequence[User],
    folders: Sequence[Folder] = (),
) -> str:
    """64 hex digits that name a root: equal keys, equal bytes. The order of the .debs does not matter."""
    identity = {
        "form": ROOT_FORM,
        "debs": sorted({deb.sha256 for deb in debs}),
        "arch": arch,
        "epoch": epoch,
        "slim": slim,
        "users": [list(user) for user in users],
        "folders": [list(folder) for folder in folders],
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def assemble_root(
    debs: Sequence[tuple[LockedDeb, Path]],
    *,
    arch: str,
    epoch: int,
    output_tar: BinaryIO,
    slim: bool = False,
    users: Sequence[User] = (),
    folders: Sequence[Folder] = (),
    scratch: Path | None = None,
) -> None:
    """Write the root that the .debs make as one canonical tar; the same bytes on every run and machine.

    epoch: every file's time, seconds since 1970. slim: without documentation (copyright files stay), translations and
    rare character sets. users: accounts, each with a home folder. folders: further ones with their owners.
    scratch: where to unpack; TMPDIR if None.
    Raises ContentError for a file that is no .deb, ConfigError for packages that do not go together.
    """
    chosen = _checked(debs, arch)
    key = root_key((deb for deb, _ in chosen), arch=arch, epoch=epoch, slim=slim, users=users, folders=folders)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="debs-") as folder:
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:  # lzma works without the interpreter's lock
            packages = list(pool.map(lambda one: unpack(*one, epoch=epoch, scratch=Path(folder)), chosen))
        tree = merge(packages, slim=slim)
        set_up(tree, packages, key=key, users=users, folders=folders, epoch=epoch)
        complete(tree, epoch=epoch)
        _write(tree, output_tar)


def cached_root(
    name: str,
    debs: Sequence[tuple[LockedDeb, Path]],
    *,
    arch: str,
    epoch: int,
    slim: bool,
    users: Sequence[User],
    folders: Sequence[Folder] = (),
    cache: Cache,
) -> Path:
    """The OCI layout of a root, made if the cache has none. Killed at any point, or run twice at once, it does no harm.

    name: what the stage calls the root; for the work folder only. Raises as assemble_root does, and DiskFullError.
    """
    from spark_images.oci import CANONICAL_FORM, write_root_layout

    key = root_key((deb for deb, _ in debs), arch=arch, epoch=epoch, slim=slim, users=users, folders=folders)
    # Another compressor makes another layout of the same root.
    made = cache.roots / hashlib.sha256(f"{key} {CANONICAL_FORM}".encode()).hexdigest()
    if made.is_dir():
        return made
    with work_folder(cache, name) as scratch:
        tar, layout = scratch / "root.tar", scratch / "layout"
        with tar.open("wb") as file:
            assemble_root(
                debs,
                arch=arch,
                epoch=epoch,
                output_tar=file,
                slim=slim,
                users=users,
                folders=folders,
                scratch=scratch,
            )
        write_root_layout(tar, architecture=arch, env=ROOT_ENV, epoch=epoch, output=layout)
        settle(layout, made)
    return made


def _checked(debs: Sequence[tuple[LockedDeb, Path]], arch: str) -> list[tuple[LockedDeb, Path]]:
    """Each .deb once, by name; ConfigError for a foreign architecture or two versions of one package."""
    chosen: dict[str, tuple[LockedDeb, Path]] = {}
    for deb, path in debs:
        if deb.arch not in (arch, "all"):
            raise ConfigError(f"package `{deb.package}` is for `{deb.arch}`, but the root is for `{arch}`")
        there, _ = chosen.setdefault(deb.package, (deb, path))
        if there.sha256 != deb.sha256:
            raise ConfigError(
                f"a root cannot hold two versions of `{deb.package}`: {there.version} and {deb.version}",
                hint="make the lock anew with `./noxw -s lock`",
            )
    return [chosen[package] for package in sorted(chosen)]


def _write(tree: Tree, output: BinaryIO) -> None:
    """Entries sorted by name; of hard links the first by name holds the content."""
    first: dict[Slice, str] = {}
    opened: dict[Path, BinaryIO] = {}
    with ExitStack() as stack, open_canonical(output) as tar:
        for name in sorted(tree):
            info, content = tree[name].info, tree[name].content
            match content:
                case Slice(path, offset) if content not in first:
                    first[content] = name
                    if path not in opened:
                        opened[path] = stack.enter_context(path.open("rb"))
                    opened[path].seek(offset)
                    tar.addfile(info, opened[path])
                case Slice():
                    hard_link = copy.copy(info)
                    hard_link.type, hard_link.linkname, hard_link.size = tarfile.LNKTYPE, first[content], 0
                    tar.addfile(hard_link)
                case bytes():
                    tar.addfile(info, io.BytesIO(content))
                case None:
                    tar.addfile(info)

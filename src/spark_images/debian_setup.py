"""What Debian's maintainer scripts would do in a root, by hand: accounts, links, folders, the packages' records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from spark_images.debian_tree import MERGED, Package, Tree, folder, link, placed, text
from spark_images.errors import ConfigError

User: TypeAlias = tuple[str, int, int, str]  # name, uid, gid, home
Folder: TypeAlias = tuple[str, int, int]  # path, uid, gid

# What update-alternatives would choose: the link, and the programs for it in order of priority.
_ALTERNATIVES = (
    ("awk", ("gawk", "mawk")),
    ("cc", ("gcc", "tcc")),
    ("c++", ("g++",)),
    ("sh", ("bash",)),  # dash ships the link itself
    ("which", ("which.debianutils",)),
)
_FOLDERS = (  # as base-files' postinst has them
    *(("dev", 0o755), ("etc", 0o755), ("home", 0o755), ("media", 0o755), ("mnt", 0o755), ("opt", 0o755)),
    *(("proc", 0o755), ("root", 0o700), ("run", 0o755), ("run/lock", 0o1777), ("srv", 0o755), ("sys", 0o755)),
    *(("tmp", 0o1777), ("usr/bin", 0o755), ("usr/lib", 0o755), ("usr/sbin", 0o755), ("var/tmp", 0o1777)),
    *((f"usr/local/{name}", 0o755) for name in ("bin", "etc", "include", "lib", "sbin", "share", "src")),
)
_PASSWD = b"root:*:0:0:root:/root:/bin/bash\nnobody:*:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
_GROUP = b"root:*:0:\nnogroup:*:65534:\n"


def set_up(
    tree: Tree,
    packages: Sequence[Package],
    *,
    key: str,
    users: Sequence[User],
    folders: Sequence[Folder],
    epoch: int,
) -> None:
    """Make a bootable-in-a-container root of merged packages. What a package ships is left as it is.

    There is no ld.so.cache: the loader finds Debian's library folders without. /etc/spark-images/root holds the key.
    """
    for name, mode in _FOLDERS:
        tree.setdefault(name, folder(name, mode, epoch=epoch))
    for name in MERGED:
        if f"usr/{name}" in tree or _has_files(tree, f"usr/{name}"):
            tree[name] = link(name, f"usr/{name}", epoch=epoch)
    for name, target in (("var/run", "/run"), ("var/lock", "/run/lock")):
        if not _has_files(tree, name):
            tree[name] = link(name, target, epoch=epoch)
    for name, programs in _ALTERNATIVES:
        program = next((program for program in programs if f"usr/bin/{program}" in tree), None)
        if program is not None:
            tree.setdefault(f"usr/bin/{name}", link(f"usr/bin/{name}", program, epoch=epoch))
    for name, data in (
        *_accounts(tree, users),
        *_configuration(tree),
        *_records(tree, packages),
        ("etc/spark-images/root", f"{key}\n".encode()),
    ):
        tree.setdefault(name, text(name, data, epoch=epoch))
    for place, uid, gid in (*((home, uid, gid) for _, uid, gid, home in users), *folders):
        path = place.strip("/")
        tree[path] = folder(path, 0o755, (uid, gid), epoch=epoch)


def _has_files(tree: Tree, folder: str) -> bool:
    return any(path.startswith(f"{folder}/") for path in tree)


def _accounts(tree: Tree, users: Sequence[User]) -> Iterable[tuple[str, bytes]]:
    """passwd and group: base-passwd's masters where that package is there, and the users, who cannot log in."""
    masters = "usr/share/base-passwd/passwd.master", "usr/share/base-passwd/group.master"
    passwd, group = (
        tree[name].read() if name in tree else default for name, default in zip(masters, (_PASSWD, _GROUP), strict=True)
    )
    if "usr/bin/bash" not in tree:
        passwd = passwd.replace(b":/bin/bash\n", b":/bin/sh\n")
    for name, uid, gid, home in users:
        for line in passwd.decode().splitlines():
            if line.split(":")[0] == name or line.split(":")[2] == str(uid):
                raise ConfigError(f"the user `{name}` ({uid}) is in the root already: `{line}`")
        passwd += f"{name}:*:{uid}:{gid}::{home}:/bin/sh\n".encode()
        group += f"{name}:*:{gid}:\n".encode()
    return (("etc/passwd", passwd), ("etc/group", group))


def _configuration(tree: Tree) -> Iterable[tuple[str, bytes]]:
    """Files that postinst scripts make from what their package ships."""
    if "usr/share/libc-bin/nsswitch.conf" in tree:  # without it glibc asks DNS for `localhost`
        yield "etc/nsswitch.conf", tree["usr/share/libc-bin/nsswitch.conf"].read()
    certificates = sorted(
        name for name in tree if name.startswith("usr/share/ca-certificates/") and name.endswith(".crt")
    )
    if certificates:
        yield "etc/ssl/certs/ca-certificates.crt", b"".join(tree[name].read() for name in certificates)


def _records(tree: Tree, packages: Sequence[Package]) -> Iterable[tuple[str, bytes]]:
    """What scanners (trivy, syft) read where there is no dpkg database: one control file and checksums per package."""
    for package in packages:
        record = f"var/lib/dpkg/status.d/{package.deb.package}"
        yield record, package.control.rstrip(b"\n") + b"\n"
        sums = []
        for line in package.md5sums.decode(errors="surrogateescape").splitlines():
            digest, _, path = line.partition("  ")
            if placed(path) in tree:
                sums.append(f"{digest}  {placed(path)}\n")
        yield f"{record}.md5sums", "".join(sums).encode(errors="surrogateescape")

"""Which wheels fit a platform and a Python, and which of them fits best. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from spark_images.platforms import MACHINES

if TYPE_CHECKING:
    from packaging.tags import Tag

GLIBC_MINOR = 36  # Debian 12, the oldest system that the images stand on
OLDEST_MINOR = {"x86_64": 5, "aarch64": 17}  # 2.x of the oldest glibc with a tag
LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}  # PEP 600


def glibc_platform(platform: str) -> str:
    """The platform as wheels name it: "aarch64-manylinux_2_36" for "linux/arm64"."""
    return f"{MACHINES[platform.removeprefix('linux/')]}-manylinux_2_{GLIBC_MINOR}"


@cache
def tag_ranks(platform: str, python: str | None) -> dict[Tag, int]:
    """Every tag that fits, the better the higher, in pip's order.

    platform: "linux/amd64" or "linux/arm64". python: "3.11" for CPython 3.11; None takes only wheels for any Python 3.
    """
    from packaging.tags import compatible_tags, cpython_tags

    machine = MACHINES[platform.removeprefix("linux/")]
    platforms: list[str] = []
    for minor in range(GLIBC_MINOR, OLDEST_MINOR[machine] - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in LEGACY:
            platforms.append(f"{LEGACY[minor]}_{machine}")
    platforms.append(f"linux_{machine}")
    tags: list[Tag] = []
    if python is None:
        tags += compatible_tags((3,), None, platforms)
    else:
        major, minor_text = python.split(".")
        release = (int(major), int(minor_text))
        tags += cpython_tags(release, [f"cp{major}{minor_text}"], platforms)
        tags += compatible_tags(release, f"cp{major}{minor_text}", platforms)
    return {tag: place for place, tag in enumerate(reversed(tags))}


def is_wheel_of(filename: str, *, project: str, version: str, platforms: tuple[str, ...], python: str | None) -> bool:
    """Whether the file is a wheel of this version that fits every one of the platforms."""
    from packaging.utils import InvalidWheelFilename, canonicalize_version, parse_wheel_filename

    try:
        name, found, _, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    of_version = name == project and canonicalize_version(found) == canonicalize_version(version)
    return of_version and all(tags & tag_ranks(platform, python).keys() for platform in platforms)


def is_sdist_of(filename: str, *, project: str, version: str) -> bool:
    """Whether the file is a source distribution of this version."""
    from packaging.utils import InvalidSdistFilename, canonicalize_version, parse_sdist_filename

    try:
        name, found = parse_sdist_filename(filename)
    except InvalidSdistFilename:
        return False
    return name == project and canonicalize_version(found) == canonicalize_version(version)

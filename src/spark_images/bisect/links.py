"""Where upstream shows what lies between two versions."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path

from spark_images.bisect.candidate import Candidate
from spark_images.errors import SparkImagesError
from spark_images.pins import GitPin, Pin, SdistPin
from spark_images.repin import ToRelease
from spark_images.upstream import Upstream

_HOSTED = re.compile(r"https?://(?:github|gitlab)\.com/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


def compare_link(pin: Pin, one: Candidate, other: Candidate, *, upstream: Upstream) -> str:
    """The address of a comparison on GitHub or GitLab; of a project's history on the index where that is all; or ""."""
    moves = (one.moves[0], other.moves[0])
    if not all(isinstance(move, ToRelease) for move in moves):
        return ""
    first, second = (move.release for move in moves if isinstance(move, ToRelease))
    if isinstance(pin, GitPin) and first.commit and second.commit:
        hosted = _HOSTED.match(pin.url)
        return f"{hosted[0].removesuffix('.git')}/compare/{first.commit[:12]}...{second.commit[:12]}" if hosted else ""
    project = second.project
    if not project or not isinstance(pin, GitPin | SdistPin):
        return ""
    try:
        hosted_at = source_address(upstream.fetch_sdist(pin.name, second))
    except (SparkImagesError, OSError):
        hosted_at = ""  # a link is a help, and the search has its answer
    if hosted_at:
        return f"{hosted_at}/compare/v{first.version}...v{second.version}"
    return f"https://pypi.org/project/{project}/#history"


def source_address(sdist: Path) -> str:
    """The repository that an sdist's metadata names, if GitHub or GitLab holds it; else ""."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO"):
                text = archive.extractfile(member)
                lines = text.read().decode(errors="replace").splitlines() if text else []
                urls = [line for line in lines if line.startswith(("Project-URL:", "Home-page:"))]
                found = [match[0] for line in urls if (match := _HOSTED.search(line))]
                return found[0].removesuffix(".git") if found else ""
    return ""

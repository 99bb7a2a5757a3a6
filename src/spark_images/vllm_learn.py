"""The verb `learn`: read releases of vLLM from their sdists into images/vllm-knowledge.json."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from spark_images.cache import Cache
from spark_images.errors import ContentError, UpstreamError, UsageError
from spark_images.files import write_text
from spark_images.pins import FileContent, IndexRoute
from spark_images.project import Project
from spark_images.terminal import tell
from spark_images.vllm.history import Knowledge, read_knowledge, to_text
from spark_images.vllm.names import Names, read_names

_LARGEST = 4 << 20  # of one Python file; vLLM's largest has 0.5 MiB


def learn(project: Project, releases: Sequence[str], *, sdists: Path | None, cache: Cache) -> None:
    """Read the named releases anew, or those of images/compat.yaml that the file lacks, and write the file.

    sdists: a folder with vllm-<release>.tar.gz; without it they come from the package index. Raises UpstreamError for
    a release that says something in a way that nobody has seen yet; what was read before it is written all the same.
    """
    path = project.root / "images" / "vllm-knowledge.json"
    knowledge = read_knowledge(path) if path.exists() else Knowledge((), {})
    listed = {str(one): one for one in project.required_facts.vllm.releases}
    if unknown := [release for release in releases if release not in listed]:
        raise UsageError(
            f"nothing is known of vllm {', '.join(unknown)}", hint="add it to `releases` of images/compat.yaml first"
        )
    for release in releases or [text for text, version in listed.items() if version not in knowledge.releases]:
        sdist = sdists / f"vllm-{release}.tar.gz" if sdists is not None else _download(release, cache)
        if not sdist.is_file():
            raise UsageError(f"there is no file `{sdist}`", hint="without `--sdists` it comes from the package index")
        try:
            names = read_sdist(sdist, release)
        except UpstreamError as err:
            raise UpstreamError(f"vllm {release}: {err.what}", why=err.why, hint=err.hint) from err
        knowledge = knowledge.with_release(listed[release], names)
        write_text(path, to_text(knowledge))
        tell(f"vllm {release}: {len(names.variables)} variables, {len(names.flags)} flags")
    tell(f"{path.relative_to(project.root)}: {len(knowledge.releases)} releases, {path.stat().st_size // 1000} kB")


def read_sdist(sdist: Path, release: str) -> Names:
    """What the release in a source distribution knows. It is read in place. Raises ContentError, UpstreamError."""
    files: dict[str, str] = {}
    top = f"vllm-{release}"
    try:
        with tarfile.open(sdist, "r|gz") as tar:
            for member in tar:
                folder, _, path = member.name.partition("/")
                if folder != top:
                    raise ContentError(f"`{sdist}` is not the source of vllm {release}: it holds `{member.name}`")
                if member.isreg() and path.startswith("vllm/") and path.endswith(".py") and member.size <= _LARGEST:
                    stream = tar.extractfile(member)
                    assert stream is not None
                    files[path] = stream.read().decode(errors="replace")
    except (tarfile.TarError, zlib.error, EOFError, OSError) as err:
        raise ContentError(f"`{sdist}` cannot be read") from err
    return read_names(files)


def _download(release: str, cache: Cache) -> Path:
    """The sdist in the store, brought by the package index where it is not there yet."""
    from spark_images.fetch import fetch
    from spark_images.package_index import PackageIndex
    from spark_images.store import Store

    store = Store(cache.store)
    index = PackageIndex.from_env()
    found = index.find_sdist("vllm", release)
    if found.sha256 is None:
        raise ContentError(f"the index states no sha256 of `{found.filename}`", hint="name a folder with `--sdists`")
    content = FileContent(
        pin="vllm",
        label=found.filename,
        digest=f"sha256:{found.sha256}",
        size_bytes=found.size_bytes,
        routes=(IndexRoute(project="vllm", filename=found.filename),),
    )
    fetch((content,), store=store, index=index)
    return store.path(content.digest)

"""The sources of a vLLM release: what its CMake fetches for CUDA, and whether that is what is written down. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from spark_images.cmake.fetches import Fetch, find_fetches
from spark_images.compat.facts import HandOver
from spark_images.compat.release import Source
from spark_images.errors import UpstreamError

# setup.py passes the device; the others are what torch's CMake package finds where it is built for CUDA.
CUDA = {"VLLM_TARGET_DEVICE": "cuda", "CUDA_FOUND": "TRUE", "HIP_FOUND": "FALSE", "PYTORCH_FOUND_HIP": "FALSE"}
PROJECTS = "cmake/external_projects/"


def release_fetches(files: Mapping[str, str]) -> tuple[Fetch, ...]:
    """What a release fetches when it is compiled for CUDA, in the order of its CMake files.

    files: path -> text of every CMake file in its tree. Raises UpstreamError for what is not understood.
    """
    reading = find_fetches(files, variables=CUDA)
    for path in sorted(path for path in files if path.startswith(PROJECTS)):
        if path not in reading.files:
            raise UpstreamError(
                f"{path}: nothing includes it for CUDA",
                hint="see what has become of it, then teach src/spark_images/vllm/external_sources.py",
            )
        if not any(fetch.place.startswith(f"{path}:") for fetch in reading.fetches):
            raise UpstreamError(
                f"{path}: fetches nothing that is understood, unlike all others in its folder",
                hint="read the file; then teach src/spark_images/cmake/fetches.py how it gets its source",
            )
    return reading.fetches


def refuse_differences(fetches: Sequence[Fetch], sources: Sequence[Source], *, release: str) -> None:
    """Raise UpstreamError, with every difference, where a release fetches something else than images/compat.yaml says.

    release: "vllm 0.20.2", for the message.
    """
    found = {fetch.name.replace("_", "-"): fetch for fetch in fetches}
    stated = {source.name: source for source in sources}
    differences = [
        f"{found[name].place}: fetches `{name}`, which is not stated" for name in found.keys() - stated.keys()
    ]
    for name, source in stated.items():
        fetch = found.get(name)
        if fetch is None:
            differences.append(f"`{name}` is stated ({source.source}), and nothing fetches it")
        else:
            differences += [f"{fetch.place}: {difference}" for difference in _differences(name, fetch, source)]
    if differences:
        raise UpstreamError(
            f"{release} fetches other sources than are written down of it",
            why=sorted(differences),
            hint="correct `vllm.sources` in images/compat.yaml",
        )


def normal_url(url: str) -> str:
    """The same for every way to write a repository's address; hosts and GitHub's names know no case."""
    return url.removesuffix("/").removesuffix(".git").lower()


def _differences(name: str, fetch: Fetch, source: Source) -> Iterator[str]:
    for what, is_, stated in (
        ("url", normal_url(fetch.url), normal_url(source.url)),
        ("ref", fetch.ref, source.ref),
        ("folder", fetch.folder, source.folder),
    ):
        if is_ != stated:
            yield f"{what} of `{name}` is `{is_}`, stated is `{stated}`"
    if fetch.submodules is not None and {*fetch.submodules} != {*source.submodules}:
        is_, stated = (" ".join(sorted(names)) or "none" for names in (fetch.submodules, source.submodules))
        yield f"submodules of `{name}` are `{is_}`, stated are `{stated}`"
    if source.hand_over is HandOver.ENVIRONMENT and source.variable not in fetch.environment:
        known = " ".join(fetch.environment) or "none"
        yield f"`{source.variable}` does not hand over `{name}`; variables that do: {known}"
    if source.hand_over is HandOver.FETCHCONTENT and not fetch.fetchcontent_options:
        yield f"`{name}` ignores FETCHCONTENT_SOURCE_DIR_*, by which it is handed over"

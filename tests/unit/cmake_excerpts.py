"""The CMake files of releases of vLLM, as far as they have to do with what they fetch: tests/golden/vllm_cmake."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden" / "vllm_cmake"
RELEASES = tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


def cmake_files(release: str) -> dict[str, str]:
    """Path -> text, as release_fetches wants them."""
    files = {}
    for part in (FOLDER / f"{release}.txt").read_text().split("#=== ")[1:]:
        path, _, text = part.partition("\n")
        files[path] = text
    return files

"""What releases of vLLM fetch, by excerpts of their own CMake files, against images/compat.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cmake_excerpts import RELEASES, cmake_files

from spark_images.compat.facts import HandOver
from spark_images.compat.file import read_facts
from spark_images.compat.release import Source, vllm_release
from spark_images.errors import UpstreamError
from spark_images.vllm.external_sources import refuse_differences, release_fetches

FACTS = read_facts(Path(__file__).parents[2] / "images" / "compat.yaml")
FILES = cmake_files("0.20.2")
FETCHES = release_fetches(FILES)
SOURCES = vllm_release(FACTS.vllm, "0.20.2").sources


def test_the_excerpts_span_what_is_built() -> None:
    assert {"0.17.1", "0.19.1", "0.20.2", "0.28.0", "0.33.0"} <= {*RELEASES}


@pytest.mark.parametrize("release", RELEASES)
def test_a_release_fetches_what_is_written_down_of_it(release: str) -> None:
    fetches = release_fetches(cmake_files(release))
    refuse_differences(fetches, vllm_release(FACTS.vllm, release).sources, release=release)


def test_the_oldest_release_in_short() -> None:
    assert [(fetch.name, fetch.ref[:8]) for fetch in release_fetches(cmake_files("0.17.1"))] == [
        ("cutlass", "v4.2.1"),
        ("triton_kernels", "v3.6.0"),
        ("flashmla", "692917b1"),
        ("qutlass", "830d2c45"),
        ("vllm-flash-attn", "140c00c0"),
    ]


def test_a_newer_release_hands_two_sources_over_by_their_variables_only() -> None:
    """FetchContent_Populate in its direct form, values behind variables, another triton for ROCm."""
    fetches = {fetch.name: fetch for fetch in release_fetches(cmake_files("0.33.0"))}
    assert {name for name, fetch in fetches.items() if not fetch.fetchcontent_options} == {"deepgemm", "qutlass"}
    deepgemm, triton = fetches["deepgemm"], fetches["triton_kernels"]
    assert deepgemm.ref == "0820030756945b2daec208e8e8255268360f337d"
    assert deepgemm.submodules == ("third-party/cutlass", "third-party/deep_jit")
    assert deepgemm.environment == ("DEEPGEMM_SRC_DIR",)
    assert (triton.url, triton.ref) == ("https://github.com/triton-lang/triton.git", "v3.5.1")
    assert (triton.environment, triton.definitions) == (("TRITON_KERNELS_SRC_DIR",), ())


def test_what_only_cpus_need_is_not_fetched() -> None:
    assert "ComputeLibrary" in FILES["cmake/cpu_extension.cmake"]
    assert {"arm_compute", "onednn"}.isdisjoint(fetch.name for fetch in FETCHES)


# --- releases that nobody has seen ------------------------------------------------------------------------------------


def the_error(files: dict[str, str]) -> str:
    with pytest.raises(UpstreamError) as caught:
        release_fetches(files)
    return str(caught.value)


def test_a_new_file_that_fetches_in_another_way_is_an_error() -> None:
    top = FILES["CMakeLists.txt"]
    files = {
        **FILES,
        "CMakeLists.txt": f"{top}include(cmake/external_projects/new.cmake)\n",
        "cmake/external_projects/new.cmake": "set(NEW 1)\n",
    }
    assert the_error(files).startswith("cmake/external_projects/new.cmake: fetches nothing that is understood")


def test_a_new_file_that_nothing_includes_is_an_error() -> None:
    files = {**FILES, "cmake/external_projects/new.cmake": "set(NEW 1)\n"}
    assert the_error(files) == "cmake/external_projects/new.cmake: nothing includes it for CUDA"


def test_a_declaration_in_another_form_is_an_error_with_its_place() -> None:
    path = "cmake/external_projects/flashmla.cmake"
    text = FILES[path].replace(
        "GIT_REPOSITORY https://github.com/vllm-project/FlashMLA", "URL https://example.org/f.zip"
    )
    assert the_error({**FILES, path: text}) == f"{path}:13: `URL` of `flashmla` is not understood"


# --- differences ------------------------------------------------------------------------------------------------------


def changed(name: str, **changes: object) -> tuple[Source, ...]:
    return tuple(replace(source, **changes) if source.name == name else source for source in SOURCES)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sources", "difference"),
    [
        (changed("cutlass", ref="v4.2.1"), "CMakeLists.txt:30: ref of `cutlass` is `v4.4.2`, stated is `v4.2.1`"),
        (
            changed("flashmla", url="https://github.com/deepseek-ai/FlashMLA"),
            "url of `flashmla` is `https://github.com/vllm-",
        ),
        (changed("triton-kernels", folder=""), "folder of `triton-kernels` is `python/triton_kernels/triton_kernels`,"),
        (
            changed("deepgemm", submodules=()),
            "submodules of `deepgemm` are `third-party/cutlass third-party/fmt`, stated are `none`",
        ),
        (
            changed("qutlass", variable="QUTLASS_DIR"),
            "`QUTLASS_DIR` does not hand over `qutlass`; variables that do: QUTLASS_SRC",
        ),
        (SOURCES[1:], "CMakeLists.txt:30: fetches `cutlass`, which is not stated"),
        ((*SOURCES, replace(SOURCES[0], name="new", source="x:1")), "`new` is stated (x:1), and nothing fetches it"),
    ],
)
def test_a_difference_to_what_is_written_down_is_an_error(sources: tuple[Source, ...], difference: str) -> None:
    with pytest.raises(UpstreamError, match=r"vllm 0\.20\.2 fetches other sources") as caught:
        refuse_differences(FETCHES, sources, release="vllm 0.20.2")
    assert len(caught.value.why) == 1
    assert difference in caught.value.why[0]


def test_a_source_that_ignores_fetchcontents_options_cannot_be_handed_over_by_them() -> None:
    fetches = release_fetches(cmake_files("0.33.0"))
    sources = tuple(
        replace(source, hand_over=HandOver.FETCHCONTENT, variable="") if source.name == "qutlass" else source
        for source in vllm_release(FACTS.vllm, "0.33.0").sources
    )
    with pytest.raises(UpstreamError) as caught:
        refuse_differences(fetches, sources, release="vllm 0.33.0")
    assert "`qutlass` ignores FETCHCONTENT_SOURCE_DIR_*" in caught.value.why[0]

"""Which releases go together, by the facts of the project's own images/compat.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from values import GB10

from spark_images.compat.check import Fit, Refusal, check, cuda_choice, series, torch_fit
from spark_images.compat.facts import HandOver
from spark_images.compat.file import read_facts
from spark_images.compat.release import flashinfer_release, ngc_base, ranges, vllm_release
from spark_images.errors import UsageError
from spark_images.pins import ImagePin
from spark_images.pins_file import read_pins
from spark_images.targets import Target, read_targets

IMAGES = Path(__file__).parents[2] / "images"
FACTS = read_facts(IMAGES / "compat.yaml")
RTX50, HOPPER, CPU = (target for target in read_targets(IMAGES / "targets.yaml") if target.name != "gb10")


def the_refusal(refusals: tuple[Refusal, ...]) -> Refusal:
    assert len(refusals) == 1, refusals
    return refusals[0]


# --- releases ---------------------------------------------------------------------------------------------------------


def test_a_release_says_what_it_needs_and_where_that_stands() -> None:
    release = vllm_release(FACTS.vllm, "0.20.2")
    assert (release.torch.value, release.torch.source) == ("2.11.0", "requirements/cuda.txt:7 of vllm 0.20.0")
    assert (release.torch_floor.value, release.flashinfer.value) == ("2.10", "0.6.8.post1")
    assert str(release.python.value) == "<3.15,>=3.10"
    assert release.gcc is None
    names = [source.name for source in release.sources]
    assert names == ["cutlass", "vllm-flash-attn", "flashmla", "qutlass", "triton-kernels", "deepgemm"]


def test_a_value_holds_until_the_release_that_changes_it() -> None:
    releases = [vllm_release(FACTS.vllm, version) for version in ("0.30.0", "0.31.0", "0.32.0")]
    scripts = [release.use_existing_torch.value for release in releases]
    assert scripts == ["use_existing_torch.py", "tools/use_existing_torch.py", "tools/use_existing_torch.py"]
    assert [release.gcc and release.gcc.value for release in releases] == ["11.3", "11.3", "13"]


def test_setuptools_rust_is_a_build_requirement_from_0_22_on() -> None:
    old, new = (vllm_release(FACTS.vllm, version).build_requirements.value for version in ("0.21.0", "0.22.0"))
    assert set(new) - set(old) == {"setuptools-rust>=1.9.0"}


def test_a_repository_that_moved_is_named_at_its_place_of_that_release() -> None:
    def of(version: str) -> str:
        sources = vllm_release(FACTS.vllm, version).sources
        return next(source.url for source in sources if source.name == "deepgemm").split("/")[-2]

    owners = [of(version) for version in ("0.20.0", "0.27.1", "0.28.0", "0.33.0")]
    assert owners == ["deepseek-ai", "vllm-project", "deepseek-ai", "vllm-project"]


def test_a_source_has_a_commit_or_says_that_its_tags_commit_is_not_known() -> None:
    sources = {source.name: source for source in vllm_release(FACTS.vllm, "0.20.2").sources}
    assert (sources["cutlass"].ref, sources["cutlass"].commit[:8]) == ("v4.4.2", "da5e086d")
    assert (sources["triton-kernels"].ref, sources["triton-kernels"].commit) == ("v3.6.0", "")
    assert sources["flashmla"].commit == sources["flashmla"].ref == "a6ec2ba7bd0a7dff98b3f4d3e6b52b159c48d78b"


def test_the_tree_of_flash_attention_is_never_handed_over_by_its_variable() -> None:
    """From 0.20 on it installs a symlink into the build tree."""
    for version in FACTS.vllm.releases:
        sources = {source.name: source for source in vllm_release(FACTS.vllm, str(version)).sources}
        assert sources["vllm-flash-attn"].hand_over is HandOver.FETCHCONTENT
        assert sources["qutlass"].hand_over is HandOver.ENVIRONMENT  # from 0.24 on it ignores the other way


def test_an_unknown_release_names_the_nearest_and_what_to_do() -> None:
    with pytest.raises(UsageError) as caught:
        vllm_release(FACTS.vllm, "0.29.1")
    assert caught.value.render() == (
        "error: nothing is known of vllm 0.29.1\n"
        "  known are 0.16.0 to 0.33.0; nearest: `0.29.0` and `0.30.0`\n\n"
        "hint: take one of these, or read its sdist and add it to images/compat.yaml, as docs/adding-a-pin.md says"
    )


def test_a_newer_release_goes_by_the_newest_entries_where_the_caller_allows_it() -> None:
    with pytest.raises(UsageError, match=r"nothing is known of vllm 0\.34\.0") as caught:
        vllm_release(FACTS.vllm, "0.34.0")
    assert caught.value.hint.startswith("take `0.33.0`, or read its sdist and add it to images/compat.yaml")
    release = vllm_release(FACTS.vllm, "0.34.0", allow_unknown=True)
    assert release.torch == vllm_release(FACTS.vllm, "0.33.0").torch


def test_an_older_release_is_refused_even_then() -> None:
    with pytest.raises(UsageError, match=r"nothing is known of vllm 0\.14\.1"):
        vllm_release(FACTS.vllm, "0.14.1", allow_unknown=True)


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(UsageError, match="`main` is no version of vllm"):
        vllm_release(FACTS.vllm, "main")


def test_versions_are_compared_as_versions() -> None:
    assert vllm_release(FACTS.vllm, "0.20.02").torch.value == "2.11.0"
    assert flashinfer_release(FACTS.flashinfer, "0.6.18").cutlass.value == "v4.5.0"  # not between 0.6.11 and 0.6.3


def test_a_month_of_the_base_image_is_known_with_and_without_its_suffix() -> None:
    assert ngc_base(FACTS, "26.01-py3") == ngc_base(FACTS, "26.01")
    assert ngc_base(FACTS, "26.01").torch.startswith("2.10.0a0+")
    with pytest.raises(UsageError, match=r"nothing is known of the base image `27\.01`") as caught:
        ngc_base(FACTS, "27.01")
    assert "25.09 to 26.10" in caught.value.hint


def test_every_release_of_vllm_finds_its_flashinfer_and_its_torch_among_what_is_known() -> None:
    for version in FACTS.vllm.releases:
        release = vllm_release(FACTS.vllm, str(version))
        flashinfer_release(FACTS.flashinfer, release.flashinfer.value)
        assert release.torch.value in dict(FACTS.torch)


def test_ranges_have_no_gaps() -> None:
    assert ranges("abdfg", "abcdefg") == "a to b, d, f to g"
    assert ranges("", "abc") == ""


# --- torch ------------------------------------------------------------------------------------------------------------


def test_an_alpha_of_nvidia_counts_as_its_series() -> None:
    assert [series(torch) for torch in ("2.10.0a0+a36e1d39eb", "2.10.0", "2.9.1")] == [(2, 10), (2, 10), (2, 9)]
    assert torch_fit(FACTS.vllm, vllm_release(FACTS.vllm, "0.17.1"), "2.10.0a0") is Fit.GOOD


# --- what goes together -----------------------------------------------------------------------------------------------


def test_what_is_known_to_go_together_is_not_refused() -> None:
    flashinfer = "0.6.8.post1"
    assert check(FACTS, vllm="0.20.2", flashinfer=flashinfer, target=GB10, base="ngc", ngc_tag="26.01") == ()
    assert check(FACTS, vllm="0.20.2", flashinfer=flashinfer, target=GB10, base="debian", cuda="13.0", gcc="12.2") == ()


def test_a_base_whose_torch_is_too_old_is_refused_with_both_ways_out() -> None:
    refusal = the_refusal(check(FACTS, vllm="0.23.0", target=GB10, base="ngc", ngc_tag="26.01"))
    assert refusal == Refusal(
        what="vllm 0.23.0 needs torch 2.11 or newer, and base ngc 26.01 has torch 2.10.0a0+a36e1d39eb.nv26.01.42222806",
        source="CMakeLists.txt:1082 of vllm 0.23.0",
        instead="base ngc 26.02 to 26.03 or vllm 0.17.0 to 0.22.1",
    )


@pytest.mark.parametrize(
    ("tag", "first", "last"),
    [("26.01", "0.17.0", "0.22.1"), ("26.06", "0.27.0", "0.33.0")],
)
def test_each_base_has_its_window_of_releases(tag: str, first: str, last: str) -> None:
    fit = [str(v) for v in FACTS.vllm.releases if not check(FACTS, vllm=str(v), base="ngc", ngc_tag=tag, target=GB10)]
    known = [str(version) for version in FACTS.vllm.releases]
    assert fit == known[known.index(first) : known.index(last) + 1]


def test_a_torch_newer_than_the_release_was_written_for_is_allowed_only_where_nvidia_ships_it() -> None:
    unproven = the_refusal(check(FACTS, vllm="0.21.0", base="ngc", ngc_tag="26.05"))
    assert not unproven.certain
    assert "vllm 0.21.0 is written for torch 2.11.0, and base ngc 26.05 has torch 2.12.0a0" in unproven.what
    assert check(FACTS, vllm="0.20.2", base="ngc", ngc_tag="26.05") == ()  # 0.20.1 is NVIDIA's own image of that month
    assert check(FACTS, vllm="0.31.0", base="ngc", ngc_tag="26.10") == ()


def test_a_torch_far_older_than_what_the_release_was_written_for_is_not_proven_by_its_abi_alone() -> None:
    assert not the_refusal(check(FACTS, vllm="0.33.0", base="ngc", ngc_tag="26.02")).certain


def test_another_flashinfer_than_the_release_asks_for_is_refused_unless_nvidia_ships_them_together() -> None:
    refusal = the_refusal(check(FACTS, vllm="0.20.2", flashinfer="0.6.6"))
    assert refusal.what == "vllm 0.20.2 asks for flashinfer 0.6.8.post1 exactly, and this is 0.6.6"
    assert refusal.source == "requirements/cuda.txt:12 of vllm 0.20.0"
    assert refusal.instead == "flashinfer 0.6.8.post1 or vllm 0.18.0 to 0.19.1"
    assert check(FACTS, vllm="0.17.1", flashinfer="0.6.7", allow_unknown=True) == ()


@pytest.mark.parametrize(("target", "has"), [(GB10, "for CPUs only"), (HOPPER, "built for CUDA 12.8")])
def test_on_debian_the_wheel_of_torch_must_have_the_builds_cuda(target: Target, has: str) -> None:
    refusal = the_refusal(check(FACTS, vllm="0.19.1", base="debian", cuda="13.0", target=target))
    assert f"torch 2.10.0 on PyPI for {target.platform} is {has}" in refusal.what
    assert refusal.instead == "vllm 0.20.0 to 0.33.0, or base ngc"


def test_on_debian_a_torch_whose_wheels_nobody_has_read_is_not_proven() -> None:
    refusal = the_refusal(check(FACTS, vllm="0.20.2", torch="2.11.1", base="debian", target=GB10, cuda="13.0"))
    assert (refusal.what, refusal.certain) == ("nothing is known of the wheels of torch 2.11.1 on PyPI", False)


def test_the_compiler_of_debian_12_is_too_old_for_the_newest() -> None:
    refusal = the_refusal(check(FACTS, vllm="0.33.0", base="debian", cuda="13.0", gcc="12.2", target=GB10))
    assert refusal.what == "vllm 0.33.0 needs GCC 13 or newer, and base debian has 12.2"
    assert refusal.instead.endswith("or vllm 0.16.0 to 0.31.0")
    assert check(FACTS, vllm="0.33.0", gcc="14.2") == ()


@pytest.mark.parametrize(("vllm", "python"), [("0.33.0", "3.10"), ("0.19.1", "3.14")])
def test_a_python_outside_the_releases_range_is_refused(vllm: str, python: str) -> None:
    refusal = the_refusal(check(FACTS, vllm=vllm, python=python))
    assert refusal.what.endswith(f"this build has {python}")
    assert "pyproject.toml:34" in refusal.source


def test_a_cuda_that_cannot_compile_for_the_target_is_refused() -> None:
    refusal = the_refusal(check(FACTS, cuda="12.8", target=GB10))
    assert refusal.what == "CUDA 12.8 does not compile for `12.1a`, the GPU of target `gb10`"
    assert refusal.instead == "CUDA 12.9 or newer"
    assert check(FACTS, cuda="12.8", target=RTX50) == check(FACTS, cuda="13", target=GB10) == ()


def test_a_target_whose_gpu_nobody_has_looked_at_is_not_proven_and_one_without_is_refused() -> None:
    blackwell = replace(GB10, name="b200", compute_capability="10.0a", cuda_architecture="100a-real")
    unproven = the_refusal(check(FACTS, vllm="0.20.2", target=blackwell))
    assert "vllm 0.20.2 wants the GPU of target `b200`" in unproven.what
    assert not unproven.certain
    assert the_refusal(check(FACTS, vllm="0.20.2", target=CPU)).certain


def test_everything_that_speaks_against_a_combination_is_said_at_once() -> None:
    refusals = check(FACTS, vllm="0.19.1", flashinfer="0.6.4", python="3.14", base="debian", cuda="12.8", target=GB10)
    assert [refusal.what.partition(",")[0] for refusal in refusals] == [
        "vllm 0.19.1 asks for flashinfer 0.6.6 exactly",
        "vllm 0.19.1 needs Python <3.14",
        "the wheel of torch 2.10.0 on PyPI for linux/arm64 is for CPUs only",
        "CUDA 12.8 does not compile for `12.1a`",
    ]


@pytest.mark.parametrize("of", ["torch", "cuda", "python", "gcc"])
def test_a_text_that_is_no_version_is_refused(of: str) -> None:
    with pytest.raises(UsageError, match="`latest` is no version of"):
        check(FACTS, **{of: "latest"})  # type: ignore[arg-type]


def test_an_unknown_release_is_an_error_and_no_refusal_among_others() -> None:
    with pytest.raises(UsageError, match=r"vllm 1\.0"):
        check(FACTS, vllm="1.0")
    with pytest.raises(UsageError, match=r"flashinfer 0\.6\.1"):
        check(FACTS, vllm="0.20.2", flashinfer="0.6.1")


# --- llama.cpp chooses its CUDA ---------------------------------------------------------------------------------------


def test_llamacpp_for_rtx50_takes_cuda_12_8() -> None:
    refusal = the_refusal(check(FACTS, image="llamacpp", cuda="13.0", target=RTX50))
    assert refusal.instead == f"CUDA {cuda_choice(FACTS, 'llamacpp', RTX50)}" == "CUDA 12.8"
    assert "mul_mat_q" in refusal.what
    assert check(FACTS, image="llamacpp", cuda="12.8", target=RTX50) == ()


def test_no_other_image_and_no_other_target_is_bound_by_it() -> None:
    assert check(FACTS, image="vllm", cuda="13.0", target=RTX50) == ()
    for target in (GB10, HOPPER, CPU):
        assert cuda_choice(FACTS, "llamacpp", target) == ""
        assert check(FACTS, image="llamacpp", cuda="13.0", target=target) == ()


def test_what_the_pinned_base_is_said_to_provide_is_what_is_known_of_its_month() -> None:
    pin = read_pins(IMAGES.parent / "pins.yaml")["ngc-pytorch"]
    assert isinstance(pin, ImagePin)
    provides, known = dict(pin.provides), ngc_base(FACTS, pin.ref.rpartition(":")[2])
    assert known.torch.startswith(provides["torch"])
    assert (provides["triton"], provides["cuda"], provides["python"]) == (known.triton, known.cuda, known.python)

"""What builds are told, by the facts of the project's own images/compat.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from spark_images.compat.build import (
    COMPONENTS_FOR,
    flashinfer_variables,
    in_serving_set,
    left_out,
    local_sources,
    patches_for,
    traps_of,
    vllm_components,
    vllm_variables,
)
from spark_images.compat.facts import Variable
from spark_images.compat.file import read_facts
from spark_images.compat.release import VllmRelease, flashinfer_release, vllm_release
from spark_images.cuda_arch import Capability, Run, best_run, parse_arch, parse_torch_list
from spark_images.errors import ConfigError
from spark_images.shipped import read_shipped

REPOSITORY = Path(__file__).parents[2]
FACTS = read_facts(REPOSITORY / "images" / "compat.yaml")
GB10, RTX50, HOPPER = Capability(12, 1), Capability(12, 0), Capability(9, 0)
EVERY_RELEASE = [str(version) for version in FACTS.vllm.releases]


def release(version: str) -> VllmRelease:
    return vllm_release(FACTS.vllm, version)


def values(variables: tuple[Variable, ...]) -> dict[str, str]:
    assert len({variable.name for variable in variables}) == len(variables)
    return {variable.name: variable.value for variable in variables}


def of_vllm(version: str, gpu: Capability = GB10) -> dict[str, str]:
    return values(vllm_variables(FACTS.vllm, release(version), gpu=gpu, cuda="13.0.88"))


def of_flashinfer(version: str, *, at_run_time: bool, gpu: Capability = GB10) -> dict[str, str]:
    known = flashinfer_release(FACTS.flashinfer, version)
    return values(flashinfer_variables(FACTS.flashinfer, known, gpu=gpu, at_run_time=at_run_time))


# --- the architectures of a compile -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "spelling"), [("0.18.1", "12.1a"), ("0.19.0", "12.0f"), ("0.19.1", "12.0f"), ("0.20.0", "12.1a")]
)
def test_gb10_is_spelled_as_the_release_understands_it(version: str, spelling: str) -> None:
    assert of_vllm(version)["TORCH_CUDA_ARCH_LIST"] == spelling


@pytest.mark.parametrize("version", ["0.19.0", "0.19.1"])
def test_0_19_is_compiled_as_what_its_fp8_kernels_ask_for(version: str) -> None:
    """enable_sm120_only compares __CUDA_ARCH__ with 1200, and that release passes the spelling on to every kernel."""
    assert parse_arch(of_vllm(version)["TORCH_CUDA_ARCH_LIST"]).capability == Capability(12, 0)


@pytest.mark.parametrize("version", EVERY_RELEASE)
@pytest.mark.parametrize("gpu", [GB10, RTX50, HOPPER])
def test_what_a_gpu_is_spelled_as_runs_on_it(version: str, gpu: Capability) -> None:
    """sm_120a, what 12.0a gives, does not load on GB10."""
    assert best_run(parse_torch_list(of_vllm(version, gpu)["TORCH_CUDA_ARCH_LIST"]), gpu) is Run.NATIVE


def test_a_gpu_that_nobody_has_looked_at_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"vllm 0\.20\.2 for compute capability 10\.0") as caught:
        of_vllm("0.20.2", Capability(10, 0))
    assert "12.1, 12.0, 9.0" in caught.value.hint
    with pytest.raises(ConfigError, match=r"flashinfer 0\.6\.6 for compute capability 10\.0"):
        of_flashinfer("0.6.6", at_run_time=True, gpu=Capability(10, 0))


def test_the_version_gets_no_suffix_for_the_cuda_of_the_build() -> None:
    assert of_vllm("0.20.2")["VLLM_MAIN_CUDA_VERSION"] == "13.0"


def test_jobs_are_no_variable_of_a_plan() -> None:
    assert "MAX_JOBS" not in of_vllm("0.20.2").keys() | of_flashinfer("0.7.2.post1", at_run_time=True).keys()
    assert of_vllm("0.20.2")["NVCC_THREADS"] == "1"


# --- FlashInfer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.6.3", "0.7.2.post1"])
@pytest.mark.parametrize(("gpu", "spelling"), [(GB10, "12.1a"), (RTX50, "12.0f"), (HOPPER, "9.0a")])
def test_flashinfer_is_told_the_same_architecture_at_build_and_at_run_time(
    version: str, gpu: Capability, spelling: str
) -> None:
    for at_run_time in (False, True):
        assert of_flashinfer(version, at_run_time=at_run_time, gpu=gpu)["FLASHINFER_CUDA_ARCH_LIST"] == spelling


def test_downloads_at_run_time_are_forbidden_where_the_release_knows_how() -> None:
    assert "FLASHINFER_NO_DOWNLOAD" not in of_flashinfer("0.6.6", at_run_time=True)
    assert of_flashinfer("0.6.8.post1", at_run_time=True)["FLASHINFER_NO_DOWNLOAD"] == "1"
    assert "FLASHINFER_NO_DOWNLOAD" not in of_flashinfer("0.6.8.post1", at_run_time=False)


@pytest.mark.parametrize(
    ("version", "hooks"),
    [
        ("0.6.8.post1", {}),
        ("0.6.14", {"BUILD_NVEP": "0"}),
        ("0.6.18", {"BUILD_NVEP": "0", "FLASHINFER_BUILD_NO_PIP": "1"}),
    ],
)
def test_build_hooks_that_call_pip_are_switched_off_as_far_as_the_release_lets_them(
    version: str, hooks: dict[str, str]
) -> None:
    told = of_flashinfer(version, at_run_time=False)
    assert {name: value for name, value in told.items() if name != "FLASHINFER_CUDA_ARCH_LIST"} == hooks


def test_where_a_hook_cannot_be_switched_off_a_trap_says_so() -> None:
    def traps(version: str) -> set[str]:
        known = flashinfer_release(FACTS.flashinfer, version).version
        return {trap.name for trap in traps_of(FACTS.flashinfer.traps, known, GB10)}

    assert "build-hook-calls-pip" in traps("0.6.16.post3")
    assert "build-hook-calls-pip" not in traps("0.6.13") | traps("0.6.18")


def attention(name: str, *, q: str = "bf16", kv: str = "bf16", head: int = 128, end: str) -> str:
    """As flashinfer.jit.attention names its modules."""
    return f"{name}_dtype_q_{q}_dtype_kv_{kv}_dtype_o_{q}_head_dim_qk_{head}_head_dim_vo_{head}_posenc_0_{end}"


STATE = "i_bf16_w_bf16_a_f32_si_i64_d_64_ds_128_nt_1_cs_i32_na_i32"
PLAIN = "use_swa_False_use_logits_cap_False"
SERVED = [
    attention("batch_decode_with_kv_cache", kv="e4m3", end=PLAIN).replace("o_bf16", "o_bf16_dtype_idx_i32"),
    attention("batch_prefill_with_kv_cache", end=f"{PLAIN}_f16qk_False").replace("o_bf16", "o_bf16_dtype_idx_i32"),
    attention("single_decode_with_kv_cache", end=PLAIN),
    attention("single_prefill_with_kv_cache", kv="e4m3", end=f"{PLAIN}_f16qk_False"),
    f"selective_state_update_s_bf16_{STATE}",
    *("spdlog", "cascade", "comm", "vllm_comm", "fmha_cudnn_gen", "fp4_gemm_cutlass_sm120", "mxfp8_gemm_cutlass_sm120"),
    *("fp4_kv_dequant", "fp4_kv_quant", "fp4_quantization_121", "fused_moe_120", "gemm", "gemm_sm120", "quantization"),
    *("gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul", "norm", "page", "rope", "sampling", "topk"),
]
NOT_SERVED = [
    attention("batch_decode_with_kv_cache", q="f16", kv="f16", end=PLAIN),
    attention("batch_decode_with_kv_cache", kv="f16", end=PLAIN),
    attention("batch_prefill_with_kv_cache", head=64, end=f"{PLAIN}_f16qk_False"),
    attention("single_decode_with_kv_cache", end="use_swa_True_use_logits_cap_False"),
    attention("single_prefill_with_kv_cache", end="use_swa_False_use_logits_cap_True_f16qk_False"),
    attention("batch_prefill_with_attention_sink_kv_cache", head=64, end="use_swa_True"),
    attention("batch_attention_with_kv_cache", end="use_logits_soft_cap_false_use_profiler_false"),
    "batch_mla_attention_dtype_q_bf16_dtype_kv_bf16_dtype_o_bf16_dtype_idx_i32_head_dim_ckv_512_head_dim_kpe_64",
    "xqa_input_bf16_kv_cache_bf16_output_bf16_page_size_16_head_dim_128_head_group_ratio_1_use_sliding_window_False",
    f"selective_state_update_s_f32_{STATE}",
]


@pytest.mark.parametrize("module", SERVED)
def test_the_serving_set_holds_what_requests_call(module: str) -> None:
    assert in_serving_set(FACTS.flashinfer, module)


@pytest.mark.parametrize("module", NOT_SERVED)
def test_the_serving_set_leaves_variants_of_attention_and_state_space_out(module: str) -> None:
    assert not in_serving_set(FACTS.flashinfer, module)


# --- local sources ----------------------------------------------------------------------------------------------------


def trees(known: VllmRelease) -> dict[str, str]:
    return {source.name: f"/src/{source.name}" for source in known.sources}


@pytest.mark.parametrize("version", EVERY_RELEASE)
def test_every_source_of_a_release_is_handed_over_once(version: str) -> None:
    told = local_sources(release(version), trees(release(version)))
    arguments = [arg for arg in told.cmake_args[1:] if not arg.startswith("-DCUTLASS_")]
    paths = [variable.value for variable in told.variables] + [arg.partition("=")[2] for arg in arguments]
    assert sorted(path.removeprefix("/src/").partition("/")[0] for path in paths) == sorted(trees(release(version)))
    assert told.cmake_args[0] == "-DFETCHCONTENT_FULLY_DISCONNECTED=ON"


def test_sources_are_handed_over_in_the_ways_that_the_release_honours() -> None:
    told = local_sources(release("0.20.2"), trees(release("0.20.2")))
    assert values(told.variables) == {
        "VLLM_CUTLASS_SRC_DIR": "/src/cutlass",
        "FLASH_MLA_SRC_DIR": "/src/flashmla",
        "QUTLASS_SRC_DIR": "/src/qutlass",
        "TRITON_KERNELS_SRC_DIR": "/src/triton-kernels/python/triton_kernels/triton_kernels",
        "DEEPGEMM_SRC_DIR": "/src/deepgemm",
    }
    assert told.cmake_args[1:] == (
        "-DFETCHCONTENT_SOURCE_DIR_VLLM-FLASH-ATTN=/src/vllm-flash-attn",
        "-DCUTLASS_INCLUDE_DIR=/src/cutlass/include",
        "-DCUTLASS_TOOLS_UTIL_INCLUDE_DIR=/src/cutlass/tools/util/include",
    )


def test_a_missing_source_a_strange_one_and_a_path_that_cmake_args_would_split_are_refused() -> None:
    known = release("0.19.1")
    with pytest.raises(ConfigError, match=r"vllm 0\.19\.1 also fetches `flashmla`, `qutlass`"):
        local_sources(known, {name: path for name, path in trees(known).items() if name not in ("flashmla", "qutlass")})
    with pytest.raises(ConfigError, match=r"vllm 0\.19\.1 does not take `deepgemm`"):
        local_sources(known, {**trees(known), "deepgemm": "/src/deepgemm"})
    for path in ("/src/my cutlass", "src/cutlass"):
        with pytest.raises(ConfigError, match=f"`{path}` is not an absolute path without blanks"):
            local_sources(known, {**trees(known), "cutlass": path})


# --- what is left out, and what is then there -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "gpu", "names"),
    [
        ("0.16.0", GB10, ["cutlass-mla"]),
        ("0.20.2", GB10, ["fa3", "cutlass-mla"]),
        ("0.24.0", GB10, ["fa3"]),
        ("0.20.2", HOPPER, []),
    ],
)
def test_what_a_gpu_never_calls_is_left_out_of_its_compile(version: str, gpu: Capability, names: list[str]) -> None:
    parts = left_out(FACTS.vllm, release(version), gpu)
    assert [part.component for part in parts] == names
    assert all(part.units and part.saves for part in parts)


def test_a_patch_is_for_its_range_of_releases_and_ends_with_the_one_that_needs_it_no_more() -> None:
    patch = replace(FACTS.vllm.patches[0], releases=SpecifierSet(">=0.20"), until=Version("0.22.1"), major=12)
    found = [version for version in EVERY_RELEASE if patch.is_for(Version(version), 12)]
    assert found == ["0.20.0", "0.20.1", "0.20.2", "0.21.0", "0.22.0"]
    assert not patch.is_for(Version("0.21.0"), 9)
    assert replace(patch, major=None).is_for(Version("0.21.0"), 9)


def test_patch_that_mends_something_is_applied_also_where_all_kernels_are_wanted() -> None:
    needless = FACTS.vllm.patches[0]
    mends = replace(needless, name="mends", leaves_out=None)
    facts = replace(FACTS.vllm, patches=(needless, mends))
    assert patches_for(facts, release("0.20.2"), GB10) == (needless, mends)
    assert patches_for(facts, release("0.20.2"), GB10, all_kernels=True) == (mends,)


def test_every_patch_says_why_and_where_that_is_written() -> None:
    assert [patch.name for patch in FACTS.vllm.patches if not (patch.because and patch.source)] == []


def test_a_compile_holds_what_was_measured_for_0_20_2() -> None:
    """cuobjdump over the libraries of a whole compile: sm_120 and sm_89, sm_80, sm_75 with PTX (FA3 is among them)."""
    found = {part.name: [str(code) for code in part.codes] for part in vllm_components(FACTS.vllm, release("0.20.2"))}
    assert found["scaled-mm-c2x"] == ["sm_89", "compute_89"]
    assert found["marlin-moe"] == found["fa2"] == ["sm_80", "compute_80"]
    assert found["cutlass-sm120"] == ["sm_120f"]
    everything = {part.name: part for part in vllm_components(FACTS.vllm, release("0.20.2"), all_kernels=True)}
    assert everything.keys() - found.keys() == {"fa3", "cutlass-mla"}
    assert [str(code) for code in everything["fa3"].codes] == ["sm_75", "compute_75"]
    assert not everything["fa3"].called


def test_a_library_is_where_the_profile_says_that_its_files_are() -> None:
    """So what is written down for the releases without a profile is right for the one that has one."""
    (profile,) = read_shipped(REPOSITORY / "images" / "vllm", "gb10")
    known = release(str(profile.release))
    units = [unit.unit for unit in profile.units]
    counted = {part.name: part.modules for part in vllm_components(FACTS.vllm, known, all_kernels=True, units=units)}
    for part in vllm_components(FACTS.vllm, known, all_kernels=True):
        assert {library for library, _ in counted[part.name]} == {library for library, _ in part.modules}
        assert all(count is None for _, count in part.modules)
    # As its own wheel has them: FA2 and FA3 as a whole, the others among code for more architectures.
    assert (counted["fa2"], counted["fa3"]) == ((("_vllm_fa2_C", 52),), (("_vllm_fa3_C", 192),))
    assert (counted["marlin-moe"], counted["marlin-fp8"]) == ((("_moe_C", 15),), (("_C", 5), ("_moe_C", 5)))
    assert (counted["qutlass"], counted["cutlass-sm120"]) == ((("_C", 6),), (("_C", 1), ("_C_stable_libtorch", 9)))
    assert counted["base"] == (("_C", 27), ("_C_stable_libtorch", 7), ("_moe_C", 8))


@pytest.mark.parametrize(
    ("version", "libraries"),
    [
        ("0.18.1", {"_C", "_moe_C", "_vllm_fa2_C"}),
        ("0.23.0", {"_C", "_C_stable_libtorch", "_moe_C", "_vllm_fa2_C"}),
        ("0.33.0", {"_C_stable_libtorch", "_moe_C_stable_libtorch", "_qutlass_C", "_vllm_fa2_C"}),
    ],
)
def test_libraries_are_those_of_the_release(version: str, libraries: set[str]) -> None:
    parts = vllm_components(FACTS.vllm, release(version))
    assert {library for part in parts for library, _ in part.modules} == libraries


def test_marlin_is_machine_code_from_0_23_on() -> None:
    def run(version: str) -> Run:
        return next(part.run for part in vllm_components(FACTS.vllm, release(version)) if part.name == "marlin-moe")

    assert (run("0.22.1"), run("0.23.0")) == (Run.JIT, Run.NATIVE)


@pytest.mark.parametrize("version", EVERY_RELEASE)
def test_whatever_is_called_runs_or_a_trap_says_that_it_does_not(version: str) -> None:
    broken = {
        part.name for part in vllm_components(FACTS.vllm, release(version)) if part.called and part.run is Run.NOT
    }
    known = {trap.name for trap in traps_of(FACTS.vllm.traps, release(version).version, COMPONENTS_FOR)}
    assert broken == ({"qutlass"} if "qutlass-does-not-load" in known else set())


@pytest.mark.parametrize("version", EVERY_RELEASE)
def test_what_the_driver_compiles_at_first_start_is_said_by_a_trap(version: str) -> None:
    by_driver = {part.name for part in vllm_components(FACTS.vllm, release(version)) if part.run is Run.JIT}
    known = {trap.name for trap in traps_of(FACTS.vllm.traps, release(version).version, COMPONENTS_FOR)}
    assert ("marlin" in by_driver) == ("driver-compiles-ptx" in known)
    assert "fa2" in by_driver
    assert {"driver-compiles-ptx", "fa2-is-ptx"} & known


@pytest.mark.parametrize(
    ("version", "gpu", "trap", "there"),
    [
        ("0.19.1", GB10, "nvfp4-illegal-instruction", True),
        ("0.20.0", GB10, "nvfp4-illegal-instruction", False),
        ("0.19.1", HOPPER, "nvfp4-illegal-instruction", False),
        ("0.19.1", HOPPER, "flash-attn-symlink", False),
        ("0.20.0", HOPPER, "flash-attn-symlink", True),
        ("0.23.0", GB10, "populate-ignores-options", False),
        ("0.24.0", GB10, "populate-ignores-options", True),
        ("0.21.0", GB10, "rust-front-end", False),
        ("0.22.0", GB10, "rust-front-end", True),
    ],
)
def test_a_trap_is_told_for_its_releases_and_gpus(version: str, gpu: Capability, trap: str, there: bool) -> None:
    found = {found.name for found in traps_of(FACTS.vllm.traps, release(version).version, gpu)}
    assert (trap in found) is there

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.cuda_arch import (
    Arch,
    Capability,
    Code,
    Kind,
    Run,
    Variant,
    best_run,
    cuda_of_driver,
    first_cuda,
    flashinfer_list,
    isa_of_driver,
    parse_arch,
    parse_torch_list,
    run_of,
)
from spark_images.errors import ConfigError

GB10, RTX50, B200, B300 = Capability(12, 1), Capability(12, 0), Capability(10, 0), Capability(10, 3)
H100, A100 = Capability(9, 0), Capability(8, 0)
CAPABILITIES = st.sampled_from([A100, Capability(8, 6), H100, B200, B300, Capability(11, 0), RTX50, GB10])
ARCHS = st.builds(Arch, CAPABILITIES, st.sampled_from(Variant)).filter(
    lambda arch: arch.variant is Variant.PLAIN or arch.capability.major >= (9 if arch.variant is Variant.EXACT else 10)
)
CODES = st.builds(Code, st.sampled_from(Kind), ARCHS)


def cubin(text: str) -> Code:
    return Code(Kind.CUBIN, parse_arch(text))


def ptx(text: str) -> Code:
    return Code(Kind.PTX, parse_arch(text))


@pytest.mark.parametrize("text", ["12.1a", "121a", "sm_121a", "compute_121a"])
def test_all_spellings_of_one_architecture_are_one(text: str) -> None:
    assert parse_arch(text) == Arch(Capability(12, 1), Variant.EXACT)


def test_the_last_digit_is_the_minor_version() -> None:
    assert [parse_arch(text).capability for text in ("90", "sm_100f", "8.6")] == [(9, 0), (10, 0), (8, 6)]


@given(ARCHS)
def test_an_architecture_is_read_back_from_both_its_texts(arch: Arch) -> None:
    assert parse_arch(str(arch)) == parse_arch(arch.number) == arch


@pytest.mark.parametrize("text", ["", "1", "12.1b", "12.1a+PTX", "sm121", "1.2.1", "native", " 12.1a", "121a-real"])
def test_what_is_no_architecture_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no CUDA architecture"):
        parse_arch(text)


@pytest.mark.parametrize(("text", "first"), [("8.9a", "9.0"), ("9.0f", "10.0")])
def test_a_suffix_that_its_generation_lacks_is_refused(text: str, first: str) -> None:
    with pytest.raises(ConfigError, match=f"the suffix came with {first}"):
        parse_arch(text)


def test_torchs_list_asks_for_ptx_only_where_it_says_so() -> None:
    codes = parse_torch_list("8.0+PTX;12.0f 12.1a")
    assert codes == (cubin("8.0"), ptx("8.0"), cubin("12.0f"), cubin("12.1a"))


def test_flashinfer_is_told_in_its_own_words() -> None:
    assert flashinfer_list([parse_arch("12.1a"), parse_arch("9.0a")]) == "12.1a 9.0a"


@pytest.mark.parametrize(
    ("code", "gpu", "run"),
    [
        (cubin("12.1a"), GB10, Run.NATIVE),
        (cubin("12.0f"), GB10, Run.NATIVE),
        (cubin("12.0"), GB10, Run.NATIVE),
        (cubin("12.0a"), GB10, Run.NOT),  # what a popular wheel holds
        (cubin("12.1a"), RTX50, Run.NOT),
        (cubin("12.1f"), RTX50, Run.NOT),
        (cubin("12.1"), RTX50, Run.NOT),
        (cubin("8.0"), Capability(8, 6), Run.NATIVE),
        (cubin("8.6"), A100, Run.NOT),
        (cubin("8.0"), GB10, Run.NOT),
        (cubin("10.0f"), B300, Run.NATIVE),
        (cubin("10.0f"), GB10, Run.NOT),
        (cubin("9.0a"), H100, Run.NATIVE),
        (ptx("8.0"), GB10, Run.JIT),
        (ptx("8.0"), Capability(7, 5), Run.NOT),
        (ptx("9.0a"), GB10, Run.NOT),  # PTX of a variant is as bound to it as its cubin
        (ptx("9.0a"), H100, Run.JIT),
        (ptx("12.0f"), GB10, Run.JIT),
        (ptx("10.0f"), GB10, Run.NOT),
    ],
)
def test_code_runs_where_nvidias_rules_let_it(code: Code, gpu: Capability, run: Run) -> None:
    assert run_of(code, gpu) is run


def test_a_module_runs_by_the_best_it_holds() -> None:
    assert best_run(parse_torch_list("8.0+PTX;12.0f"), GB10) is Run.NATIVE
    assert best_run(parse_torch_list("8.0+PTX;12.0a"), GB10) is Run.JIT
    assert best_run(parse_torch_list("12.0a;9.0a"), GB10) is Run.NOT
    assert best_run([], GB10) is Run.NOT


@given(CODES, CAPABILITIES)
def test_machine_code_never_leaves_its_generation(code: Code, gpu: Capability) -> None:
    if run_of(code, gpu) is Run.NATIVE:
        assert code.kind is Kind.CUBIN
        assert gpu.major == code.arch.capability.major


@given(CODES, CAPABILITIES)
def test_code_runs_on_the_gpu_that_it_was_compiled_for_and_on_none_before(code: Code, gpu: Capability) -> None:
    assert run_of(code, code.arch.capability) is not Run.NOT
    if gpu < code.arch.capability:
        assert run_of(code, gpu) is Run.NOT


@given(CAPABILITIES.filter(lambda made_for: made_for.major >= 10), CAPABILITIES, st.sampled_from(Kind))
def test_what_needs_less_of_a_gpu_runs_on_at_least_as_many(made_for: Capability, gpu: Capability, kind: Kind) -> None:
    runs = [run_of(Code(kind, Arch(made_for, variant)), gpu) is not Run.NOT for variant in Variant]
    plain, family, exact = runs
    assert plain >= family >= exact


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("12.1a", (12, 9)),
        ("12.0f", (12, 9)),
        ("12.0a", (12, 8)),
        ("9.0", (11, 8)),
        ("9.0a", (12, 0)),
        ("11.0", (13, 0)),
    ],
)
def test_nvcc_knows_an_architecture_from_a_release_on(text: str, cuda: tuple[int, int]) -> None:
    assert first_cuda(parse_arch(text)) == cuda


def test_of_an_architecture_that_is_not_in_the_table_nothing_is_claimed() -> None:
    assert first_cuda(parse_arch("13.0")) is None
    assert run_of(cubin("13.0f"), Capability(13, 0)) is Run.NATIVE
    assert run_of(cubin("13.0f"), Capability(13, 1)) is Run.NOT


# --- drivers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("driver", "cuda", "isa"),
    [("570", (12, 8), (8, 7)), ("580", (13, 0), (9, 0)), ("590", (13, 1), (9, 1)), ("585", (13, 0), (9, 0))],
)
def test_branch_of_the_driver_came_with_a_cuda_and_takes_its_ptx(
    driver: str, cuda: tuple[int, int], isa: tuple[int, int]
) -> None:
    assert (cuda_of_driver(driver), isa_of_driver(driver)) == (cuda, isa)


@pytest.mark.parametrize("driver", ["", "450"])
def test_of_a_driver_that_is_not_in_the_table_nothing_is_claimed(driver: str) -> None:
    assert (cuda_of_driver(driver), isa_of_driver(driver)) == (None, None)

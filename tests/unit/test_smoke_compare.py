"""What judges numbers, and the checks that can be run on stand-ins: each judgment with the twin that must fail."""

from __future__ import annotations

import ctypes
import math
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import check
import cuda_kernel
import flashinfer_attention
import fp4_gemm
import numpy as np
import pytest
import triton_kernel
from check import Check, Red
from compare import product_bound, same, within


class Tensor(np.ndarray[Any, Any]):
    """As much of torch's as the comparisons use."""

    def detach(self) -> Any:
        return self

    def to(self, *_: object) -> Any:
        return self.astype(np.float64)

    def abs(self) -> Any:
        return np.abs(self)

    def clone(self) -> Any:
        return self.copy()

    def numel(self) -> int:
        return self.size


@pytest.fixture
def tensor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes stand-ins for tensors; `import torch` gives what goes with them."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float64=None, isfinite=np.isfinite))
    return lambda *rows: np.array(rows, dtype=np.float64).view(Tensor)


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "spoiling", True)


GPU = SimpleNamespace(name="NVIDIA Thing", major=12, minor=1)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Check:
    """A check that is under way on a GPU that is not there."""
    monkeypatch.setattr(Check, "gpu", lambda self, need_gib: GPU)
    return Check("toy", Namespace(compute_capability="12.1a", patience=1.0, work=tmp_path))


# --- within a bound, or the very same ---------------------------------------------------------------------------------


def test_result_within_its_bound_says_how_much_of_it_was_used(tensor: Callable[..., Any]) -> None:
    facts = within("toy", tensor([1.0, 2.5]), tensor([1.0, 2.0]), tensor([1.0, 1.0]))
    assert facts == {"what": "toy", "of_bound": 0.5, "largest_error": 0.5}


@pytest.mark.parametrize(
    ("got", "exact", "bound", "sentence"),
    [
        ([1, 4], [1, 2], [1, 1], r"1 of 2 values are beyond their bound; worst: 4 for 2, 2\.0000 times the bound"),
        ([1, 3.00001], [1, 2], [1, 1], "1 of 2 values are beyond"),
        ([math.nan, 2], [1, 2], [1, 1], "1 of 2 values are not finite"),
        ([1, 2], [1, math.nan], [1, 1], "1 of 2 numbers of the reference are not finite"),
        ([1, 2], [1, math.inf], [1, 1], "1 of 2 numbers of the reference are not finite"),
        ([1, 2], [1, 2], [1, math.inf], "1 of 2 bounds are not finite"),
        ([1, 2], [1, 2], [1, math.nan], "1 of 2 bounds are not finite"),
        ([1, 2, 2], [1, 2], [1, 1], r"the result is \(1, 3\), the reference \(1, 2\)"),
        ([1], [1, 1], [1, 1], r"the result is \(1, 1\), the reference \(1, 2\)"),
        ([1, 2], [1, 2], [1], r"its bound \(1, 1\)"),
    ],
)
def test_result_beyond_its_bound_or_without_one_is_red(
    tensor: Callable[..., Any], got: list[float], exact: list[float], bound: list[float], sentence: str
) -> None:
    with pytest.raises(Red, match=f"toy: .*{sentence}"):
        within("toy", tensor(got), tensor(exact), tensor(bound))


@pytest.mark.filterwarnings("ignore:invalid value")  # numpy's word on 0 / 0
def test_bound_of_nothing_is_red(tensor: Callable[..., Any]) -> None:
    with pytest.raises(Red, match="nan times the bound"):
        within("toy", tensor([1.0]), tensor([1.0]), tensor([0.0]))


@pytest.mark.parametrize(("off", "beyond"), [(0.9, False), (1.1, True)])
def test_bound_of_a_product_is_its_rounding_and_what_sums_lose(
    tensor: Callable[..., Any], off: float, beyond: bool
) -> None:
    a, b = tensor([2.0, -2.0]), tensor([3.0], [3.0])
    exact = a @ b  # 0: only the sums of 6 and -6 can lose anything
    bound = product_bound(a, b, exact, rounding=2**-8, accumulation=2**-4)
    got = exact + off * 12 * 2**-4
    if beyond:
        with pytest.raises(Red):
            within("toy", got, exact, bound)
    else:
        within("toy", got, exact, bound)


@pytest.mark.parametrize("got", [[1, 2, 4], [1, 2, math.nan]])
def test_numbers_that_are_not_the_same_are_red(tensor: Callable[..., Any], got: list[float]) -> None:
    same("toy", [1, 2, 3], [1, 2, 3])
    same("toy", tensor([1, 2, 3]), tensor([1, 2, 3]))
    for one, right in ((got, [1, 2, 3]), (tensor(got), tensor([1, 2, 3]))):
        with pytest.raises(Red, match=r"toy: 1 of 3 values are wrong; number 2 is \w+(\.0)?, not 3"):
            same("toy", one, right)
    with pytest.raises(Red, match=r"the result is \(1, 3\), not \(3, 1\)"):
        same("toy", tensor([1, 2, 3]), tensor([1], [2], [3]))


@pytest.mark.usefixtures("spoiled")
@pytest.mark.parametrize("bound", [1.0, 2**-20, 1e-30])
def test_spoiled_result_is_red_whatever_its_bound(tensor: Callable[..., Any], bound: float) -> None:
    exact = tensor([0.0 if bound == 1e-30 else 1.0, 2.0])
    with pytest.raises(Red, match="1 of 2 values are beyond"):
        within("toy", given := exact.copy(), exact, tensor([bound, bound]))
    assert (given == exact).all()  # the caller's own is left alone
    for numbers in ([7, 8], exact):
        with pytest.raises(Red, match=r"1 of 2 values are wrong; number 0"):
            same("toy", numbers, numbers)


# --- the checks on stand-ins ------------------------------------------------------------------------------------------


@pytest.fixture
def computing(monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc, and a GPU that computes what it must."""

    def launch(gpu: object, code: bytes, seed: int) -> tuple[list[int], int]:
        numbers = [cuda_kernel.mixed(at, seed) for at in range(cuda_kernel.COUNT)]
        return numbers, sum(numbers)

    monkeypatch.setattr(cuda_kernel, "find", lambda program: "nvcc" if program == "nvcc" else None)
    monkeypatch.setattr(cuda_kernel, "find_nvrtc", lambda: None)
    monkeypatch.setattr(cuda_kernel, "by_nvcc", lambda *_, **__: b"")
    monkeypatch.setattr(cuda_kernel, "launch", launch)
    monkeypatch.setattr(fp4_gemm, "launch", lambda gpu, code: [fp4_gemm.WARP_RESULT] * 128)


@pytest.mark.usefixtures("computing")
def test_kernels_of_integers_are_green(toy: Check) -> None:
    cuda_kernel.body(toy)
    fp4_gemm.by_mma(toy, GPU)  # type: ignore[arg-type]  # all that it asks of a GPU


@pytest.mark.usefixtures("computing", "spoiled")
def test_spoiled_kernels_of_integers_are_red(toy: Check) -> None:
    with pytest.raises(Red, match=r"`mix` as nvcc made it: 1 of 65536 values are wrong; number 0 is"):
        cuda_kernel.body(toy)
    with pytest.raises(Red, match=r"mma: 1 of 128 values are wrong; number 0 is 193\.0, not 192\.0"):
        fp4_gemm.by_mma(toy, GPU)  # type: ignore[arg-type]


class FlashInfer:
    """Says from which folders kernels are loaded: those in `ahead`, else the cache, which compiles what it lacks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: set[str]) -> None:
        self.cache, self.aot, self.ahead, self.ran = folder / ".cache/flashinfer", folder / "aot", ahead, set[str]()
        self.compiles, self.second = True, list[str]()  # what a second process runs that the first did not
        monkeypatch.setattr(flashinfer_attention, "prefill", lambda *words: self.run("prefill", *words[2:]))
        monkeypatch.setattr(flashinfer_attention, "decode", lambda *words: self.run("decode"))
        module = SimpleNamespace(__version__="0", FLASHINFER_AOT_DIR=self.aot)
        monkeypatch.setattr(flashinfer_attention, "module", lambda name: module)
        monkeypatch.setattr(flashinfer_attention, "loaded", self.loaded)
        monkeypatch.setattr(Check, "finished", self.finished)
        monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(folder))

    def finished(self, *_: object, **__: object) -> SimpleNamespace:
        for kernel in self.second:
            self.run(kernel)
        return SimpleNamespace(returncode=0)

    def run(self, *kernel: str) -> dict[str, Any]:
        self.ran.add(" ".join(kernel))
        if self.compiles and " ".join(kernel) not in self.ahead:
            (self.cache / f"{' '.join(kernel)}.so").touch()
        return {}

    def loaded(self, folder: Path) -> list[str]:
        if folder == self.aot:
            return sorted(self.ran & self.ahead)
        return sorted(path.stem for path in self.cache.glob("*.so"))


def test_flashinfer_that_compiles_is_green(toy: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FlashInfer(tmp_path, monkeypatch, ahead=set())
    flashinfer_attention.body(toy)
    assert (toy.facts["compiled_now"], toy.facts["ahead_of_time"]) == (2, [])


def test_flashinfer_with_kernels_ahead_of_time_compiles_one_more(
    toy: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashinfer = FlashInfer(tmp_path, monkeypatch, ahead={"prefill", "decode"})
    flashinfer_attention.body(toy)
    assert flashinfer.ran == {"prefill", "decode", "prefill ALIBI"}
    assert (toy.facts["compiled_now"], toy.facts["ahead_of_time"]) == (1, ["decode", "prefill"])


@pytest.mark.parametrize(
    ("ahead", "sentence"), [(set(), "neither from"), ({"prefill", "decode"}, "has nothing of a kernel")]
)
def test_flashinfer_that_keeps_nothing_is_red(
    toy: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: set[str], sentence: str
) -> None:
    FlashInfer(tmp_path, monkeypatch, ahead=ahead).compiles = False
    with pytest.raises(Red, match=sentence):
        flashinfer_attention.body(toy)


def test_flashinfer_that_compiles_again_in_a_second_process_is_red(
    toy: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FlashInfer(tmp_path, monkeypatch, ahead={"prefill", "decode"}).second = ["another"]
    with pytest.raises(Red, match="a second process compiled again"):
        flashinfer_attention.body(toy)


def test_library_that_runs_in_this_process_is_told_from_one_that_lies_there(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    for name in ("used", "unused"):
        command = ["cc", "-shared", "-fPIC", "-x", "c", "-o", str(tmp_path / f"{name}.so"), "-"]
        subprocess.run(command, input=b"int one(void) { return 1; }", check=True)
    ctypes.CDLL(str(tmp_path / "used.so"))
    assert flashinfer_attention.loaded(tmp_path) == ["used"]
    assert flashinfer_attention.loaded(tmp_path / "absent") == []


# --- Triton -----------------------------------------------------------------------------------------------------------


def test_each_ptxas_of_triton_is_the_one_that_is_named_or_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in triton_kernel.PROGRAMS:
        monkeypatch.delenv(name, raising=False)
    assert triton_kernel.programs_of(tmp_path) == {}
    own, named = tmp_path / "backends/nvidia/bin", tmp_path / "named"
    own.mkdir(parents=True)
    for path in (own / "ptxas", own / "ptxas-blackwell", named):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(named))
    assert triton_kernel.programs_of(tmp_path) == {
        "TRITON_PTXAS_PATH": str(named),
        "TRITON_PTXAS_BLACKWELL_PATH": str(own / "ptxas-blackwell"),
    }
    named.chmod(0o644)
    with pytest.raises(Red, match="which is no program here"):
        triton_kernel.programs_of(tmp_path)

"""What the gate makes of a compiler's command, and what it forecasts."""

from __future__ import annotations

import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

MIB = 2**20


@pytest.fixture(scope="module")
def memgate() -> ModuleType:
    loader = SourceFileLoader("memgate", str(Path(__file__).parents[2] / "scripts/memgate"))
    spec = spec_from_loader("memgate", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("command", "unit", "kind"),
    [
        ("nvcc -O3 -c a/mmq.cu -o out/mmq.cu.o", "out/mmq.cu.o", "compile"),
        ("nvcc -x cu -c mmq.cu --output-file mmq.o", "mmq.o", "compile"),
        ("g++ -ofoo.o -c foo.cpp", "foo.o", "compile"),
        ("g++ -E foo.cpp -o /tmp/x.ii", "foo.cpp", "preprocess"),
        ("g++ a.o b.o libc.a -o program", "program", "link"),
        ("rustc --crate-name tokenizers --edition=2021 src/lib.rs --out-dir deps", "tokenizers", "compile"),
        ("nvcc --version", "", ""),
        ("g++ -dumpversion", "", ""),
        ("g++ -c -o x.o foo.cpp -###", "", ""),
    ],
)
def test_a_unit_is_named_by_its_object(memgate: ModuleType, command: str, unit: str, kind: str) -> None:
    assert memgate.unit_of(command.split()) == (unit, kind)


def job(memgate: ModuleType, unit: str, kind: str = "compile", **values: object) -> object:
    made = memgate.Job(None, kind, unit, 0.0)
    for name, value in values.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def profile(tmp_path: Path) -> str:
    (tmp_path / "profile").write_text("4000 300.0 a/long.cu.o\n9000 20.5 a/large unit.cu.o\n")
    return str(tmp_path / "profile")


def test_a_known_unit_is_expected_as_the_profile_says(memgate: ModuleType, profile: str) -> None:
    forecast = memgate.Forecast(profile, 2048 * MIB)
    large = job(memgate, "a/large unit.cu.o")
    assert (forecast.peak(large, []), forecast.seconds(large)) == (9000 * MIB, 20.5)


def test_an_unknown_unit_is_expected_at_the_prior_until_its_like_are_seen(memgate: ModuleType) -> None:
    forecast = memgate.Forecast("", 2000 * MIB)
    fresh = job(memgate, "b/new.cu.o")
    assert forecast.peak(fresh, []) == 2000 * MIB
    expected = []
    for number in range(12):
        forecast.learn(job(memgate, f"b/{number}.cu.o", peak=400 * MIB), 3.0)
        expected.append(forecast.peak(fresh, []) / MIB)
    assert expected == sorted(expected, reverse=True)
    assert expected[0] == 1600
    assert expected[-1] == 500  # a quarter above the largest seen
    assert forecast.peak(job(memgate, "c/elsewhere.cu.o"), []) == 2000 * MIB


def test_a_running_unit_that_grows_raises_what_is_expected_of_its_like(memgate: ModuleType) -> None:
    forecast = memgate.Forecast("", 100 * MIB)
    running = [job(memgate, "b/running.cu.o", peak=4000 * MIB)]
    assert forecast.peak(job(memgate, "b/new.cu.o"), running) == 5000 * MIB


def test_known_peaks_shift_with_what_this_build_shows(memgate: ModuleType, profile: str) -> None:
    forecast = memgate.Forecast(profile, 2048 * MIB)
    long = job(memgate, "a/long.cu.o", peak=4800 * MIB)
    for _ in range(4):
        forecast.learn(long, 300.0)
    assert forecast.peak(long, []) == 4000 * MIB  # four are not enough to say so
    forecast.learn(long, 300.0)
    assert forecast.peak(long, []) == 4800 * MIB


def test_preprocessing_takes_the_place_of_its_unit_in_the_order(memgate: ModuleType, profile: str) -> None:
    forecast = memgate.Forecast(profile, 2048 * MIB)
    assert forecast.seconds(job(memgate, "/src/long.cu", "preprocess")) == 300.0


@pytest.mark.parametrize(
    ("now", "peak", "need"),
    [(0, 0, 1000), (700, 700, 1000), (1200, 1200, 1380), (600, 900, 1000), (200, 900, 300), (10, 900, 225)],
    ids=["fresh", "growing", "beyond what was expected", "at its peak", "past its peak", "at its end"],
)
def test_a_compiler_past_its_peak_gives_room_to_others(memgate: ModuleType, now: int, peak: int, need: float) -> None:
    assert job(memgate, "a.o", expected=1000, now=now, peak=peak).need == pytest.approx(need)  # type: ignore[attr-defined]


@pytest.mark.parametrize("root", ["v1", "v2"])
def test_use_is_what_the_kernel_cannot_drop(memgate: ModuleType, tmp_path: Path, root: str) -> None:
    if root == "v2":
        (tmp_path / "memory.current").write_text("1000\n")
        (tmp_path / "memory.max").write_text("5000\n")
        (tmp_path / "memory.stat").write_text("anon 500\nfile 380\nshmem 30\nslab_reclaimable 20\n")
        (tmp_path / "memory.events").write_text("oom 9\noom_kill 2\n")
    else:
        (tmp_path / "memory.usage_in_bytes").write_text("1000\n")
        (tmp_path / "memory.oom_control").write_text("under_oom 0\noom_kill 2\n")
        (tmp_path / "memory.stat").write_text("hierarchical_memory_limit 5000\ntotal_cache 400\ntotal_shmem 30\n")
    cgroup = memgate.Cgroup(str(tmp_path))
    assert (cgroup.limit, cgroup.used(), cgroup.kills()) == (5000, 630, 2)


def test_the_smallest_limit_on_the_path_counts(memgate: ModuleType, tmp_path: Path) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    (inner / "memory.current").write_text("0\n")
    (inner / "memory.max").write_text("max\n")
    (tmp_path / "outer" / "memory.max").write_text("7000\n")
    assert memgate.Cgroup(str(inner)).limit == 7000


def test_a_kernel_that_lists_no_children_is_asked_for_all_parents(
    memgate: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen(["sh", "-c", "sleep 20; :"]) as shell:
        try:
            while len(memgate.tree(shell.pid)) < 2:
                pass
            listed = memgate.tree(shell.pid)
            monkeypatch.setattr(memgate, "LISTS_CHILDREN", False)
            assert memgate.tree(shell.pid) == listed
        finally:
            memgate.kill_tree(shell.pid)

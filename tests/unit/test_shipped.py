"""Profiles that ship with a release: their form, and how a first build plans by them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from values import GB10, HELLO, toy_plan

from spark_images.allowance import GATE, allow
from spark_images.compat.build import COMPONENTS_FOR, left_out
from spark_images.compat.file import read_facts
from spark_images.compat.release import vllm_release
from spark_images.errors import ConfigError
from spark_images.profile import expected_units
from spark_images.shipped import parse_shipped, read_shipped

ROOT = Path(__file__).parents[2]
TEXT = "# peak, seconds, CPU seconds, object\n# basis: a machine\n4500 100.5 90.2 a/x.cu.o\n70 0.5 0.4 b/y.o\n"


def test_a_line_is_a_unit_and_the_basis_stands_in_a_comment() -> None:
    profile = parse_shipped(TEXT, path="p.txt", release="1.2", target="gb10")

    assert profile.basis == "a machine"
    assert [(one.unit, one.peak_mib, one.seconds, one.cpu_s) for one in profile.units] == [
        ("a/x.cu.o", 4500, 100.5, 90.2),
        ("b/y.o", 70, 0.5, 0.4),
    ]


def test_a_line_of_another_form_is_named() -> None:
    with pytest.raises(ConfigError, match=r"p\.txt:5: expected `peak_mib seconds cpu_s unit`, got `12 x`"):
        parse_shipped(TEXT + "12 x\n", path="p.txt", release="1", target="gb10")


def test_profiles_of_the_target_come_newest_release_first(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    for name in ("0.9.1-gb10.txt", "0.20.2-gb10.txt", "0.30.0-hopper.txt"):
        (tmp_path / "profiles" / name).write_text(TEXT)

    assert [str(one.release) for one in read_shipped(tmp_path, "gb10")] == ["0.20.2", "0.9.1"]
    assert read_shipped(tmp_path / "none", "gb10") == ()


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "gb10.txt").write_text(TEXT)

    with pytest.raises(ConfigError, match=r"gb10\.txt` is not called `<release>-<target>\.txt`"):
        read_shipped(tmp_path, "gb10")


def test_what_was_measured_here_counts_before_what_is_shipped() -> None:
    shipped = parse_shipped(TEXT, path="p.txt", release="1", target="gb10").units
    here = parse_shipped("5000 300 290 a/x.cu.o\n", path="here", release="1", target="gb10").units

    assert [(one.unit, one.peak_mib, one.seconds) for one in expected_units([here], [shipped])] == [
        ("a/x.cu.o", 5000, 300.0),
        ("b/y.o", 70, 0.5),
    ]


def test_leaving_fa3_out_saves_more_than_a_third_of_vllm_0_20_2() -> None:
    profile = read_shipped(ROOT / "images/vllm", "gb10")[0]
    facts = read_facts(ROOT / "images/compat.yaml").vllm
    parts = left_out(facts, vllm_release(facts, "0.20.2"), COMPONENTS_FOR)
    fa3 = next(part for part in parts if part.component == "fa3")

    saved = [unit for unit in profile.units if fnmatchcase(unit.unit, fa3.units)]

    assert (str(profile.release), len(saved), round(sum(unit.cpu_s for unit in saved))) == ("0.20.2", 194, 14713)
    assert round(profile.cpu_s) == 41954
    assert fa3.saves.startswith("35 %")


def test_the_serving_set_of_flashinfer_is_shipped_whole() -> None:
    profile = read_shipped(ROOT / "images/flashinfer", "gb10")[0]

    assert len(profile.units) == 200
    assert all(unit.unit.startswith("/build/aot/cached_ops/") for unit in profile.units)


def test_a_first_build_knows_the_units_of_the_release() -> None:
    image = replace(HELLO, path=str(ROOT / "images/vllm/image.yaml"), scripts=(GATE,))

    first = allow(image, GB10, toy_plan(), (), asked_bytes=None, limit=False, env={})

    assert len(first.profile.units) == 359
    assert max(unit.peak_mib for unit in first.profile.units) == 9557

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


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """The folder of an image without profiles, beside targets."""
    targets = "gb10: {platform: linux/arm64, cpu-architecture: armv9-a, description: one}\n"
    (tmp_path / "targets.yaml").write_text(targets + targets.replace("gb10", "hopper"))
    (tmp_path / "app/profiles").mkdir(parents=True)
    return tmp_path / "app"


@pytest.mark.parametrize(
    "line", ["12 x", "100 1.2.3 4 a.o", "100 1 . a.o", "1.5 1 1 a.o", "-1 1 1 a.o", "1 1 1 a.o b", ""]
)
def test_a_line_of_another_form_is_named(line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_shipped(TEXT + line + "\n", path="p.txt", release="1", target="gb10")
    assert caught.value.what == f"p.txt:5: expected `peak_mib seconds cpu_s unit`, got `{line}`"
    assert caught.value.hint


def test_profiles_of_the_target_come_newest_release_first(image: Path) -> None:
    for name in ("0.9.1-gb10.txt", "0.20.2-gb10.txt", "0.30.0-hopper.txt"):
        (image / "profiles" / name).write_text(TEXT)

    assert [str(one.release) for one in read_shipped(image, "gb10")] == ["0.20.2", "0.9.1"]
    assert read_shipped(image / "none", "gb10") == ()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("gb10.txt", "is not called `<release>-<target>.txt`"),
        ("0.20.2x-gb10.txt", "is named for `0.20.2x`, which is no version of a release"),
        ("0.20-x-gb10.txt", "is named for the target `x-gb10`, and there is none of this name"),
        ("0.20.2-gb01.txt", "is named for the target `gb01`, and there is none of this name"),
    ],
)
def test_a_file_of_another_name_is_refused(image: Path, name: str, what: str) -> None:
    (image / "profiles" / name).write_text(TEXT)

    with pytest.raises(ConfigError) as caught:
        read_shipped(image, "gb10")
    assert caught.value.what == f"`{image}/profiles/{name}` {what}"
    assert caught.value.hint.startswith("rename it by the release and the target that it was measured for")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"# basis: a machine\n70 0.5 0.4 a.o\n70 0.5 0.4 \xff.o\n", "3: expected text in UTF-8"),
        (b"", "1: expected a line `# basis: …`, and there is none"),
        (b"70 0.5 0.4 a.o\n", "1: expected a line `# basis: …`, and there is none"),
        (b"# basis: \n70 0.5 0.4 a.o\n", "1: expected a line `# basis: …`, and there is none"),
        (b"# basis: a machine\n", "1: expected a line `peak_mib seconds cpu_s unit` for each unit, and there is none"),
    ],
)
def test_a_file_that_says_less_than_it_must_is_refused(image: Path, content: bytes, what: str) -> None:
    (image / "profiles/1.0-gb10.txt").write_bytes(content)

    with pytest.raises(ConfigError) as caught:
        read_shipped(image, "gb10")
    assert caught.value.what == f"{image}/profiles/1.0-gb10.txt:{what}"
    assert caught.value.hint


def test_what_was_measured_here_counts_before_what_is_shipped() -> None:
    shipped = parse_shipped(TEXT, path="p.txt", release="1", target="gb10").units
    here = parse_shipped("# basis: here\n5000 300 290 a/x.cu.o\n", path="here", release="1", target="gb10").units

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

"""The verb `recipe`, on the committed recipes in a small project."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import small_project
from recipe_values import IMAGE
from small_project import make_project
from test_report import ENGINE

from spark_images.cache import Cache
from spark_images.errors import ConfigError, UsageError
from spark_images.project import Project
from spark_images.recipe import recipe
from spark_images.record import Outcome, Result
from spark_images.record_writer import RecordWriter, append_to_record

IMAGES = Path(__file__).parents[2] / "images"
RELEASE = "0.20.2"
PIN = f"vllm: {{kind: sdist, name: vllm, version: {RELEASE}, sha256: {'ab' * 32}}}\n"
NO_OPTIONS = {
    "form": None,
    "release": None,
    "reference": None,
    "engine": "docker",
    "listen": "127.0.0.1",
    "models": "huggingface",
    "as_json": False,
}


@dataclass(frozen=True)
class Said:
    out: str
    err: str


Run = Callable[..., Said]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with the committed recipes and a pin of vllm, but no image.yaml of it."""
    root = make_project(tmp_path / "project").root
    (root / "images/vllm").mkdir()
    shutil.copy(IMAGES / "vllm/recipes.yaml", root / "images/vllm")
    shutil.copy(IMAGES / "vllm-knowledge.json", root / "images")
    (root / "pins.yaml").write_text(small_project.PINS + PIN)
    return root


@pytest.fixture
def run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("COLUMNS", "80")

    def call(name: str | None = None, image: str = "vllm", **options: Any) -> Said:
        recipe(Project(root), image, name, cache=Cache(tmp_path / "cache"), **{**NO_OPTIONS, **options})
        return Said(*capsys.readouterr())

    return call


def pushed(tmp_path: Path, reference: str, *, release: str = RELEASE, image: str = "vllm", hour: int = 0) -> None:
    """A record of an image that was built and pushed."""
    with RecordWriter.start(
        Cache(tmp_path / "cache").records,
        plan_id="3f2a" * 16,
        image=image,
        target="gb10",
        base="debian",
        plan={"pins": {image: f"{release} {'ab' * 32}"}},
        command=[],
        engine=ENGINE,
        host={},
        now=datetime(2026, 11, 21, hour, tzinfo=UTC),
    ) as writer:
        writer.finish(Result(outcome=Outcome.BUILT, seconds=1.0))
    append_to_record(writer.folder, "push", {"reference": reference})


def test_without_a_name_all_recipes_are_listed_in_80_columns(run: Run) -> None:
    lines = run().out.splitlines()

    assert max(map(len, lines)) <= 80
    assert any(line.startswith("nemotron-3-super-120b-nvfp4 0.17.1 to 0.23.0,") for line in lines)
    assert lines[-1] == f"What stands to the right holds for vllm {RELEASE}."


def test_list_says_what_nobody_has_seen_on_the_machine(run: Run) -> None:
    seen = {line.split()[0]: line.split()[-1] for line in run().out.splitlines() if line and line[0].isalpha()}

    assert seen["qwen3-coder-next-fp8"] == "yes"
    assert seen["gpt-oss-120b"] == "no"
    assert seen["two-lanes"] == "part"


def test_list_as_json_has_the_same_recipes(run: Run) -> None:
    listed = {one["name"]: one for one in json.loads(run(as_json=True).out)}

    assert listed["qwen3-6-35b-a3b-nvfp4"]["now"] is None
    assert listed["gpt-oss-120b"]["model"] == "openai/gpt-oss-120b"
    assert [server["name"] for server in listed["two-lanes"]["now"]["servers"]] == [
        "two-lanes-coder",
        "two-lanes-quick",
    ]


def test_named_recipe_is_described_with_its_sources(run: Run) -> None:
    text = run("two-lanes").out

    assert text.startswith("two-lanes: A coder and a quick model")
    assert "seen on a GB10: by nobody that we know" in text
    assert "https://github.com/vllm-project/vllm/issues/55827" in text


def test_recipe_that_does_not_hold_for_the_pin_is_described_as_such(run: Run) -> None:
    assert f"not for vllm {RELEASE}" in run("qwen3-6-35b-a3b-nvfp4").out


def test_form_goes_to_stdout_and_notes_to_stderr(run: Run) -> None:
    said = run("gpt-oss-120b", form="docker", reference=IMAGE)

    assert said.out.startswith("docker run \\\n")
    assert "unverified: nobody that we know has run openai/gpt-oss-120b so on a GB10" in said.err
    assert "unverified" not in said.out


def test_image_is_the_last_one_that_was_pushed_with_this_release(run: Run, tmp_path: Path) -> None:
    pushed(tmp_path, "registry.example/old@sha256:" + "01" * 32, hour=1)
    pushed(tmp_path, "registry.example/new@sha256:" + "02" * 32, hour=2)
    pushed(tmp_path, "registry.example/next@sha256:" + "03" * 32, hour=3, release="0.21.0")
    pushed(tmp_path, "registry.example/other@sha256:" + "04" * 32, hour=4, image="llamacpp")

    assert "registry.example/new@sha256:0202" in run("gpt-oss-120b", form="docker").out
    assert "registry.example/next@sha256:0303" in run("gpt-oss-120b", form="docker", release="0.21.0").out


def test_image_that_nobody_pushed_has_to_be_named(run: Run) -> None:
    with pytest.raises(UsageError) as caught:
        run("gpt-oss-120b", form="docker")

    assert caught.value.what.startswith(f"no image `vllm` with vllm {RELEASE} was pushed from here")
    assert "name one with `--image`" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("gpt-os-120b", {}, "no recipe is called `gpt-os-120b`"),
        ("gpt-oss-120b", {"image": "vlm"}, "image `vlm` has no recipes"),
        ("gpt-oss-120b", {"release": "0.22.0"}, "recipe `gpt-oss-120b` does not hold for vllm 0.22.0"),
        ("gpt-oss-120b", {"release": "0.15.0"}, "nobody has read what vllm 0.15.0 knows"),
        ("gpt-oss-120b", {"reference": "registry.example/vllm:latest"}, "is not HOST/NAME@sha256:"),
        ("gpt-oss-120b", {"reference": IMAGE, "listen": "here; rm"}, "expected an address"),
        ("gpt-oss-120b", {"reference": IMAGE, "models": "a b"}, "expected the name of a volume, or a folder"),
    ],
)
def test_what_there_is_not_is_refused(run: Run, name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(name, **{"form": "docker", **options})

    assert said in caught.value.what


def test_nearest_recipe_is_offered(run: Run) -> None:
    with pytest.raises(UsageError) as caught:
        run("gpt-os-120b")

    assert caught.value.hint == "did you mean `gpt-oss-120b`?"


def test_without_a_pin_the_release_has_to_be_named(run: Run, root: Path) -> None:
    (root / "pins.yaml").write_text(small_project.PINS)

    with pytest.raises(UsageError, match="no pin says which release of vllm image `vllm` has"):
        run("gpt-oss-120b", form="docker", reference=IMAGE)
    assert run("gpt-oss-120b", form="docker", reference=IMAGE, release=RELEASE).out


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("VLLM_NVFP4_MOE_BACKEND: marlin", "no release of vllm from 0.16.0 to"),
        ("VLLM_LOGGING_LVL: INFO", "did you mean `VLLM_LOGGING_LEVEL`?"),
    ],
)
def test_environment_of_the_image_is_looked_up_as_well(run: Run, root: Path, env: str, said: str) -> None:
    text = small_project.IMAGE.replace("runtime:\n", f"runtime:\n  env: {{{env}}}\n")
    (root / "images/vllm/image.yaml").write_text(text)

    with pytest.raises(ConfigError) as caught:
        run()

    assert said in caught.value.what
    assert "images/vllm/image.yaml: runtime.env: " in caught.value.what


def test_environment_of_another_base_is_looked_up_as_well(run: Run, root: Path) -> None:
    text = small_project.IMAGE.partition("runtime:\n")
    runtime = "".join(
        f"    {line}\n" for line in f"runtime:\n  env: {{VLLM_NVFP4_MOE_BACKEND: marlin}}\n{text[2]}".splitlines()
    )
    (root / "images/vllm/image.yaml").write_text(f"{''.join(text)}bases:\n  ngc:\n{runtime}")

    with pytest.raises(ConfigError, match=r"no release of vllm from 0\.16\.0 to .* \(base `ngc`\)"):
        run()


def test_traps_of_the_release_are_said_beside_the_form(run: Run, root: Path) -> None:
    shutil.copy(IMAGES / "compat.yaml", root / "images")

    said = run("gpt-oss-120b", form="docker", reference=IMAGE)

    assert "trap driver-compiles-ptx: Marlin and FA2 hold PTX for 8.0 only" in said.err
    assert "  keep CUDA_CACHE_PATH on a volume" in said.err
    assert "trap" not in said.out


def test_environment_that_the_release_knows_passes(run: Run, root: Path) -> None:
    text = small_project.IMAGE.replace("runtime:\n", "runtime:\n  env: {VLLM_NVFP4_GEMM_BACKEND: marlin}\n")
    (root / "images/vllm/image.yaml").write_text(text)

    assert run().out

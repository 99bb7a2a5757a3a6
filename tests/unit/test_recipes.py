from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from spark_images.errors import ConfigError
from spark_images.recipes.read import LanesRecipe, ModelRecipe, Recipe, free_gib, read_recipes, releases_of
from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge

IMAGES = Path(__file__).parents[2] / "images"
CHECKER = Checker(read_knowledge(IMAGES / "vllm-knowledge.json"))
COMMITTED = read_recipes(IMAGES / "vllm/recipes.yaml", CHECKER)
TEXT = """\
schema: 1
large:
  about: takes half of the machine
  model: owner/large
  weights-gib: 50
  settings:
    - releases: ">=0.17.1,<0.24"
      memory-share: 0.5
      max-model-len: 131072
      reasoning-parser: nemotron_v3
      tool-call-parser: qwen3_coder
      flags: {kv-cache-dtype: fp8, enable-prefix-caching: "true"}
      env: {VLLM_NVFP4_GEMM_BACKEND: marlin, NCCL_DEBUG: INFO}
      seen-on-gb10: somebody
      notes:
        - {text: a remark, source: a page}
small:
  about: leaves room
  model: owner/small
  weights-gib: 10
  settings:
    - {releases: ">=0.20", memory-share: 0.3, max-model-len: 32768}
both:
  about: side by side
  lanes:
    - {name: one, recipe: large, memory-share: 0.5, max-model-len: 65536}
    - {name: two, recipe: small, memory-share: 0.3, max-model-len: 32768}
"""


def read(tmp_path: Path, text: str = TEXT) -> tuple[Recipe, ...]:
    path = tmp_path / "recipes.yaml"
    path.write_text(text)
    return read_recipes(path, CHECKER)


def mistake(tmp_path: Path, old: str, new: str) -> str:
    """`line: key: mistake`, the only one of the file with one text in it replaced."""
    assert TEXT.count(old) == 1, old
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, TEXT.replace(old, new))
    assert not caught.value.why, caught.value.why
    return caught.value.what.removeprefix(f"{tmp_path}/recipes.yaml:")


def test_recipe_is_read_as_it_stands(tmp_path: Path) -> None:
    large, small, both = read(tmp_path)

    assert isinstance(large, ModelRecipe)
    (setting,) = large.settings
    assert setting.flags == (("--kv-cache-dtype", "fp8"), ("--enable-prefix-caching", "true"))
    assert setting.env == (("VLLM_NVFP4_GEMM_BACKEND", "marlin"), ("NCCL_DEBUG", "INFO"))
    assert (setting.memory_share, setting.max_model_len, setting.seen_on_gb10) == (0.5, 131072, "somebody")
    assert [(note.text, note.source) for note in setting.notes] == [("a remark", "a page")]
    assert isinstance(both, LanesRecipe)
    assert [(lane.name, lane.recipe) for lane in both.lanes] == [("one", large), ("two", small)]


def test_lanes_hold_where_all_of_them_do(tmp_path: Path) -> None:
    *_, both = read(tmp_path)

    held = releases_of(both, CHECKER.knowledge.releases)

    assert (str(held[0]), str(held[-1])) == ("0.20.0", "0.23.0")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "memory-share: 0.5\n",
            "memory-shar: 0.5\n      memory-share: 0.5\n",
            "8: large.settings[0].memory-shar: unknown key; did you mean `memory-share`?",
        ),
        ("nemotron_v3", "nemotron_v4", "10: large.settings[0].reasoning-parser: vllm 0.17.1 does not know"),
        (
            ">=0.17.1,<0.24",
            ">=0.17,<0.24",
            "10: large.settings[0].reasoning-parser: vllm 0.17.0 does not know `nemotron_v3`, which exists in 0.17.1",
        ),
        ("qwen3_coder", "qwen3_codr", "11: large.settings[0].tool-call-parser: vllm 0.17.1 does not know `qwen3_codr`"),
        (
            "kv-cache-dtype",
            "kv-cache-type",
            "12: large.settings[0].flags.kv-cache-type: no release of vllm from 0.16.0 to",
        ),
        (
            "kv-cache-dtype: fp8",
            "linear-backend: marlin",
            "12: large.settings[0].flags.linear-backend: vllm 0.17.1 has no such flag, which exists in 0.22.0 to",
        ),
        (
            "kv-cache-dtype: fp8",
            "kv-cache-dtype: fp9",
            "12: large.settings[0].flags.kv-cache-dtype: vllm 0.17.1 does not",
        ),
        ("kv-cache-dtype: fp8", "swap-space: 4", "12: large.settings[0].flags.swap-space: it frees nothing where CPU"),
        ("kv-cache-dtype: fp8", "port: 80", "12: large.settings[0].flags.port: the form that is printed sets it"),
        ("kv-cache-dtype: fp8", "seed: $(id)", "12: large.settings[0].flags.seed: expected a word without blanks"),
        (
            "<0.24",
            "<0.25",
            "13: large.settings[0].env.VLLM_NVFP4_GEMM_BACKEND: vllm 0.24.0 has no such variable, which exists in",
        ),
        (
            "VLLM_NVFP4_GEMM_BACKEND: marlin",
            "VLLM_NVFP4_MOE_BACKEND: marlin",
            "13: large.settings[0].env.VLLM_NVFP4_MOE_BACKEND: no release of vllm from 0.16.0 to",
        ),
        (
            "NCCL_DEBUG: INFO",
            "PYTORCH_ALLOC_CONF: expandable_segments:True",
            "13: large.settings[0].env.PYTORCH_ALLOC_CONF: machines of this kind were reset hard with it",
        ),
        (">=0.17.1,<0.24", "soon", "7: large.settings[0].releases: expected a range of releases"),
        (">=0.17.1,<0.24", "<0.16", "7: large.settings[0].releases: none of the releases that were read"),
        ("memory-share: 0.5\n", "memory-share: 1.2\n", "8: large.settings[0].memory-share: expected a part of the mem"),
        ("memory-share: 0.5\n", "memory-share: 0.95\n", "6: large.settings: memory-share 0.95 is more than a GB10 can"),
        ("memory-share: 0.5\n", "memory-share: 0.4\n", "6: large.settings: memory-share 0.4 is too small for `large`"),
        ("model: owner/small", "model: small", "19: small.model: expected a model as Hugging Face names it"),
        ("recipe: large", "recipe: larg", "26: both.lanes[0].recipe: expected a recipe above this one,"),
        (
            "recipe: small, memory-share: 0.3",
            "recipe: small, memory-share: 0.08",
            "27: both.lanes[1].memory-share: mem",
        ),
        ("recipe: small, memory-share: 0.3", "recipe: small, memory-share: 0.4", "25: both.lanes: their memory-shares"),
        ("name: two", "name: one", "25: both.lanes: two of them have one name"),
        (
            '">=0.20", memory',
            '">=0.24", memory',
            "25: both.lanes: there is no release for which all of them hold",
        ),
        (
            "    - {releases",
            '    - {releases: ">=0.30", memory-share: 0.3, max-model-len: 1024}\n    - {releases',
            "21: small.settings: two of them hold for vllm 0.30.0",
        ),
    ],
)
def test_mistake_is_named_with_its_line_and_its_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert mistake(tmp_path, old, new).startswith(said)


def test_all_mistakes_come_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, TEXT.replace("nemotron_v3", "x").replace("owner/small", "y").replace("name: two", "name: one"))

    assert len(caught.value.why) == 3


def test_what_is_left_counts_what_stands_beside_the_shares() -> None:
    assert free_gib((0.45, 0.36)) == pytest.approx(7.5, abs=0.1)
    assert free_gib((0.5, 0.4)) < 0


def test_committed_recipes_are_those_that_were_asked_for() -> None:
    models = " ".join(recipe.model for recipe in COMMITTED if isinstance(recipe, ModelRecipe))

    for part in (
        "Nemotron-3-Super-120B-A12B-NVFP4",
        "Qwen3.5-",
        "Qwen3.6-",
        "Qwen3-Coder-Next-AWQ",
        "Qwen3-Coder-Next-FP8",
        "gpt-oss-120b",
        "GLM-4.7-Flash-FP8",
    ):
        assert part in models
    assert any(isinstance(recipe, LanesRecipe) and len(recipe.lanes) == 2 for recipe in COMMITTED)


def test_committed_recipes_say_where_each_setting_comes_from() -> None:
    silent = [
        recipe.name
        for recipe in COMMITTED
        if isinstance(recipe, ModelRecipe) and not all(setting.notes for setting in recipe.settings)
    ]

    assert silent == []


def test_most_committed_recipes_hold_for_the_release_that_is_built_first() -> None:
    lacking = [
        recipe.name for recipe in COMMITTED if Version("0.20.2") not in releases_of(recipe, CHECKER.knowledge.releases)
    ]

    assert lacking == ["qwen3-6-35b-a3b-nvfp4"]  # 0.24.0 is the first that loads it

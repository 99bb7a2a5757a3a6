"""What `recipe` prints, for the committed recipe with two lanes in all forms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_images.recipe import FORMS, render
from spark_images.recipes.read import read_recipes
from spark_images.recipes.server import Place, plan_servers
from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge

REPOSITORY = Path(__file__).parents[2]
RECIPES = Path(__file__).parent / "recipes"
ACCEPT = "SPARK_IMAGES_ACCEPT_GOLDEN"
CHECKER = Checker(read_knowledge(REPOSITORY / "images" / "vllm-knowledge.json"))
FILES = {
    "docker": "two-lanes.sh",
    "compose": "two-lanes.compose.yaml",
    "kubernetes": "two-lanes.kubernetes.yaml",
    "systemd": "two-lanes.service",
}


@pytest.mark.parametrize("form", FORMS)
def test_form_is_printed_as_before(form: str) -> None:
    recipes = {recipe.name: recipe for recipe in read_recipes(REPOSITORY / "images/vllm/recipes.yaml", CHECKER)}
    serving = plan_servers(recipes["two-lanes"], "0.20.2", CHECKER)
    text = render(serving, Place(image="registry.example/vllm@sha256:" + "1f" * 32), form)
    golden = RECIPES / FILES[form]
    if os.environ.get(ACCEPT) == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text)
    assert text == golden.read_text(), (
        f"accept it with `{ACCEPT}=1 pytest {Path(__file__).relative_to(REPOSITORY)}` and commit the file"
    )

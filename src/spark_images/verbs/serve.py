"""How an image is served from: recipe."""

from __future__ import annotations

import argparse

from spark_images.verbs.base import Verbs, cache_of_user, project_of


def add(verbs: Verbs) -> None:
    """Add the verbs of this module."""
    recipe = verbs.add(
        "recipe",
        _recipe,
        "List an image's recipes; describe one; print what to run of it.",
        "./noxw -s recipe-vllm -- gpt-oss-120b --as compose",
    )
    recipe.add_argument("image", help="a folder below images/ with recipes.yaml")
    recipe.add_argument("name", nargs="?", metavar="RECIPE", help="describe this one (default: list them all)")
    forms = ("docker", "compose", "kubernetes", "systemd")
    recipe.add_argument("--as", dest="form", choices=forms, help="print what to run, in this form")
    recipe.add_argument(
        "--image", dest="reference", metavar="HOST/NAME@sha256:…", help="what is run (default: the last one pushed)"
    )
    recipe.add_argument("--release", metavar="VERSION", help="of what the image serves with (default: the pin's)")
    recipe.add_argument(
        "--engine",
        choices=("podman", "docker"),
        default="docker",
        help="what runs it, for docker and systemd (default: %(default)s)",
    )
    recipe.add_argument(
        "--listen",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="of the host, where the server answers (default: %(default)s)",
    )
    recipe.add_argument(
        "--models", default="huggingface", metavar="VOLUME|FOLDER", help="what holds the models (default: %(default)s)"
    )
    recipe.add_argument("--json", action="store_true", help="print the recipes as JSON")


def _recipe(options: argparse.Namespace) -> int:
    from spark_images.recipe import recipe

    recipe(
        project_of(options),
        options.image,
        options.name,
        cache=cache_of_user(),
        form=options.form,
        release=options.release,
        reference=options.reference,
        engine=options.engine,
        listen=options.listen,
        models=options.models,
        as_json=options.json,
    )
    return 0

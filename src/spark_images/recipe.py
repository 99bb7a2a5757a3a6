"""The verb `recipe`: list the recipes of an image, describe one, or print what to run."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from spark_images import forms
from spark_images.cache import Cache
from spark_images.compat.build import COMPONENTS_FOR, traps_of
from spark_images.compat.facts import Trap
from spark_images.compat.release import ranges
from spark_images.errors import UsageError, did_you_mean
from spark_images.pins import SdistPin
from spark_images.project import Project
from spark_images.recipes.read import LanesRecipe, ModelRecipe, Recipe, read_recipes, releases_of
from spark_images.recipes.server import Place, Serving, plan_servers
from spark_images.terminal import print_table, tell
from spark_images.together import require_env
from spark_images.vllm.check import Checker
from spark_images.vllm.history import read_knowledge

FORMS = ("docker", "compose", "kubernetes", "systemd")
_BY_DIGEST = re.compile(r"[a-z0-9][\w.:/-]*@sha256:[0-9a-f]{64}")


def recipe(
    project: Project,
    image: str,
    name: str | None,
    *,
    cache: Cache,
    form: str | None,
    release: str | None,
    reference: str | None,
    engine: str,
    listen: str,
    models: str,
    as_json: bool,
) -> None:
    """Write to stdout: all recipes; with a name that one; with a form as well, what to run of it.

    release: default is the image's pin. reference: the image by digest; default is the one that was pushed last.
    Raises ConfigError for mistakes in the recipes and in the image's environment, UsageError for what there is not or
    what does not go together.
    """
    checker = Checker(read_knowledge(project.root / "images" / "vllm-knowledge.json"))
    recipes = read_recipes(_file(project, image), checker)
    pinned = release or _pinned(project, image)
    if pinned:
        checker.knowledge.version(pinned)
        refuse_unknown_env(project, image, pinned, checker)
    if name is None:
        shown = [recipe_data(one, checker, pinned) for one in recipes]
        if as_json:
            print(json.dumps(shown, indent=1, ensure_ascii=False))
        else:
            show_recipes(shown, pinned)
        return
    chosen = next((one for one in recipes if one.name == name), None)
    if chosen is None:
        known = [one.name for one in recipes]
        raise UsageError(
            f"no recipe is called `{name}`", hint=did_you_mean(name, known) or f"known: {', '.join(known)}"
        )
    if form is None:
        data = recipe_data(chosen, checker, pinned)
        if as_json:
            print(json.dumps(data, indent=1, ensure_ascii=False))
        else:
            _show_recipe(data)
        return
    if not pinned:
        what = f"no pin says which release of vllm image `{image}` has"
        raise UsageError(what, hint="name the release with `--release`")
    serving = plan_servers(chosen, pinned, checker)
    place = Place(
        image=_reference(reference, image, pinned, cache),
        engine=engine,
        listen=_address(listen),
        models=_models(models),
    )
    sys.stdout.write(render(serving, place, form))
    traps = traps_of(project.facts.vllm.traps, Version(pinned), COMPONENTS_FOR) if project.facts else ()
    _tell(serving, form, [trap for trap in traps if trap.at_run_time])


def refuse_unknown_env(project: Project, image: str, release: str, checker: Checker) -> None:
    """Raise ConfigError where an image sets what the release lacks; a folder without image.yaml sets nothing."""
    for found in project.images:
        for _, base in project.variants(found) if found.name == image else ():
            require_env(found, base, release, checker)


def render(serving: Serving, place: Place, form: str) -> str:
    """What to run, in one of FORMS."""
    from spark_images.recipes.commands import shell_script, systemd_units

    match form:
        case "docker":
            return shell_script(serving, place)
        case "systemd":
            units = systemd_units(serving, place)
            return "\n".join(f"# /etc/systemd/system/{name}\n{text}" for name, text in units)
        case "compose":
            from spark_images.recipes.manifests import compose_file

            return compose_file(serving, place)
        case "kubernetes":
            from spark_images.recipes.manifests import kubernetes_manifests

            return kubernetes_manifests(serving, place)
        case _:
            raise UsageError(f"`{form}` is no form", hint=f"known: {', '.join(FORMS)}")


def recipe_data(recipe: Recipe, checker: Checker, release: str) -> dict[str, Any]:
    """A recipe as JSON-able data; `now` is what holds for `release`, None where nothing does or none is named."""
    releases = checker.knowledge.releases
    holds = [str(one) for one in releases_of(recipe, releases)]
    data: dict[str, Any] = {
        "name": recipe.name,
        "about": recipe.about,
        "releases": ranges(releases_of(recipe, releases), releases),
        "release": release or None,
        "now": _now(recipe, release, checker) if release in holds else None,
    }
    if isinstance(recipe, LanesRecipe):
        return data
    return {
        **data,
        "model": recipe.model,
        "weights_gib": recipe.weights_gib,
        "settings": [str(s.releases) for s in recipe.settings],
    }


def _now(recipe: Recipe, release: str, checker: Checker) -> dict[str, Any]:
    serving = plan_servers(recipe, release, checker)
    lanes = [recipe] if isinstance(recipe, ModelRecipe) else [lane.recipe for lane in recipe.lanes]
    found = [lane.setting(checker.knowledge.version(release)) for lane in lanes]
    return {
        "servers": [
            {
                "name": server.name,
                "model": server.model,
                "memory_gib": round(server.memory_gib, 1),
                "command": list(server.command),
                "env": dict(server.env),
                "seen_on_gb10": (setting.seen_on_gb10 if setting else "") or None,
            }
            for server, setting in zip(serving.servers, found, strict=True)
        ],
        "notes": [{"text": note.text, "source": note.source} for note in serving.notes],
    }


def show_recipes(shown: Sequence[Mapping[str, Any]], release: str) -> None:
    """Print recipe_data() of all recipes as a table that fits into 80 columns."""
    rows = []
    for one in shown:
        servers = one["now"]["servers"] if one["now"] else []
        seen = [server["seen_on_gb10"] is not None for server in servers]
        rows.append(
            (
                one["name"],
                one["releases"],
                "+".join(f"{server['memory_gib']:.0f}" for server in servers),
                "+".join(_argument(server["command"], "--max-model-len") for server in servers),
                "" if not servers else "yes" if all(seen) else "in part" if any(seen) else "no",
            )
        )
    print_table(("recipe", "vllm", "GiB", "tokens", "seen on a GB10"), rows, right=("GiB", "tokens"), whole=("recipe",))
    if release:
        print(f"\nWhat stands to the right holds for vllm {release}.")


def _show_recipe(data: Mapping[str, Any]) -> None:
    print(f"{data['name']}: {data['about']}", f"vllm {data['releases']}", sep="\n")
    if data["now"] is None:
        print(f"not for vllm {data['release']}" if data["release"] else "no release is named")
        return
    for server in data["now"]["servers"]:
        print(f"\n{server['name']}, {server['memory_gib']} GiB")
        print(f"seen on a GB10: {server['seen_on_gb10'] or 'by nobody that we know'}")
        print(" ".join(server["command"]))
    for note in data["now"]["notes"]:
        print(f"\n- {note['text']}\n  [{note['source']}]")


def _argument(command: Sequence[str], name: str) -> str:
    return command[command.index(name) + 1]


def _file(project: Project, image: str) -> Path:
    path = project.root / "images" / image / "recipes.yaml"
    if not path.is_file():
        known = sorted(found.parent.name for found in project.root.glob("images/*/recipes.yaml"))
        raise UsageError(
            f"image `{image}` has no recipes", hint=did_you_mean(image, known) or f"these have: {', '.join(known)}"
        )
    return path


def _pinned(project: Project, image: str) -> str:
    """The release in the pin that is called like the image; "" where there is none."""
    return next((pin.version for pin in project.pins.pins if pin.name == image and isinstance(pin, SdistPin)), "")


def _reference(reference: str | None, image: str, release: str, cache: Cache) -> str:
    if reference is None:
        reference = _pushed(image, release, cache)
    if not reference:
        raise UsageError(
            f"no image `{image}` with vllm {release} was pushed from here, so nobody knows where it is",
            hint=f"`./noxw -s push-{image} -- --registry HOST/NAME` prints its reference; or name one with `--image`",
        )
    if not _BY_DIGEST.fullmatch(reference):
        raise UsageError(
            f"`{reference}` is not HOST/NAME@sha256:…", hint="a tag may become another image; `push` prints the digest"
        )
    return reference


def _pushed(image: str, release: str, cache: Cache) -> str:
    """The reference of the newest push of this image whose plan pins the release."""
    from spark_images.record import read_records

    for view in reversed(read_records(cache.records)):
        pushes = view.appended("push") if view.image == image else ()
        pin = str(view.plan.get("pins", {}).get(image, ""))
        if pushes and pin.partition(" ")[0] == release:
            return str(pushes[-1].get("reference", ""))
    return ""


def _address(listen: str) -> str:
    if not re.fullmatch(r"[0-9.]{7,15}|\[[0-9a-f:.]+\]", listen):
        raise UsageError(f"`--listen {listen}`: expected an address, as `127.0.0.1` or `0.0.0.0`")
    return listen


def _models(models: str) -> str:
    if forms.NAME.read(models) is None and forms.ABSOLUTE_PATH.read(models) is None:
        raise UsageError(f"`--models {models}`: expected the name of a volume, or a folder of the host")
    return models


def _tell(serving: Serving, form: str, traps: Iterable[Trap]) -> None:
    tell(f"recipe `{serving.recipe}` for vllm {serving.release}, as {form}")
    for model in serving.unverified:
        tell(f"unverified: nobody that we know has run {model} so on a GB10")
    for trap in traps:
        tell(f"trap {trap.name}: {trap.what}", f"  {trap.instead}")
    for note in serving.notes:
        tell(f"- {note.text}", f"  [{note.source}]")

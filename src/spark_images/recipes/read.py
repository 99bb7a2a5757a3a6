"""images/<name>/recipes.yaml: known ways to serve models, each with the releases for which it holds and its sources.

Whatever it names is looked up in every release for which it is said to hold: a variable, flag, parser or backend that
one of them lacks is a mistake of the file, with the releases that have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from spark_images import forms
from spark_images.document import Item, Section, reading
from spark_images.vllm.check import Checker

# What a GB10 has for models: the smallest total that vLLM was seen to report on one (119.67 GiB in
# https://www.devashish.me/p/two-qwen3-models-on-one-dgx-spark; 121.63 GiB in https://github.com/rwlove/home-ops/pull/13221).
MACHINE_GIB = 119.67
# A GB10 froze within 20 s with less available.
FLOOR_GIB = 4.0
# What a server takes besides its share: 5.6 GiB on the host's side were measured on this machine, in
# https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/118.
BESIDE_GIB = 5.6

# What no recipe may hold, with the reason.
_NEVER = {
    "enable-sleep-mode": "it frees nothing where CPU and GPU share one memory",
    "cpu-offload-gb": "it frees nothing where CPU and GPU share one memory",
    "swap-space": "it frees nothing where CPU and GPU share one memory",
    "host": "the form that is printed sets it",
    "port": "the form that is printed sets it",
    "model": "`model` of the recipe is it",
    "served-model-name": "the names of recipe and lane are it",
    "gpu-memory-utilization": "`memory-share` is it",
    "max-model-len": "a key of its own is it",
    "reasoning-parser": "a key of its own is it",
    "tool-call-parser": "a key of its own is it",
    "enable-auto-tool-choice": "`tool-call-parser` sets it",
    "fail-on-environ-validation": "it is set wherever the release has it",
    "api-key": "no secret belongs in a recipe",
}


@dataclass(frozen=True)
class Note:
    """Something to know, and where it is written."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a model is served with some releases of vLLM."""

    releases: SpecifierSet
    memory_share: float  # of the machine's memory: --gpu-memory-utilization
    max_model_len: int  # tokens
    reasoning_parser: str  # "" for none
    tool_call_parser: str
    flags: tuple[tuple[str, str], ...]  # name with its dashes -> value, `true` and `false` for those without one
    env: tuple[tuple[str, str], ...]
    seen_on_gb10: str  # where somebody says that it ran on one; "" where nobody does
    notes: tuple[Note, ...]


@dataclass(frozen=True, kw_only=True)
class ModelRecipe:
    """One model."""

    name: str
    about: str
    model: str  # as Hugging Face names it
    weights_gib: float  # in memory
    settings: tuple[Setting, ...]

    def setting(self, release: Version) -> Setting | None:
        """What holds for a release."""
        return next((setting for setting in self.settings if release in setting.releases), None)


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One of several servers on a machine. memory_share and max_model_len are its own, not those of its recipe."""

    name: str
    recipe: ModelRecipe
    memory_share: float
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class LanesRecipe:
    """Several models side by side; they start one after another, in this order."""

    name: str
    about: str
    lanes: tuple[Lane, ...]
    notes: tuple[Note, ...]


Recipe = ModelRecipe | LanesRecipe


def read_recipes(path: Path, checker: Checker) -> tuple[Recipe, ...]:
    """Every recipe of a file, in its order. Raises ConfigError with every mistake in it."""
    with reading(path, if_missing="recipes stand there") as top:
        top.value("schema", forms.schema(1))
        models: list[ModelRecipe] = []
        recipes: list[Recipe] = []
        for name in top.names(forms.NAME):
            section = top.section(name)
            if section.has("lanes"):
                recipes.append(_read_lanes(name, section, models, checker))
            else:
                models.append(_read_model(name, section, checker))
                recipes.append(models[-1])
        return tuple(recipes)


def free_gib(shares: tuple[float, ...]) -> float:
    """What is left of a GB10's memory beside servers with these shares; less than nothing where they do not fit."""
    return MACHINE_GIB * (1 - sum(shares)) - BESIDE_GIB * len(shares) - FLOOR_GIB


def releases_of(recipe: Recipe, releases: tuple[Version, ...]) -> tuple[Version, ...]:
    """Those for which a recipe holds; one with lanes where all of them do."""
    parts = [recipe] if isinstance(recipe, ModelRecipe) else [lane.recipe for lane in recipe.lanes]
    return tuple(release for release in releases if all(part.setting(release) is not None for part in parts))


def _specifiers(text: str) -> SpecifierSet | None:
    try:
        return SpecifierSet(text) if text else None
    except InvalidSpecifier:
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _share(text: str) -> float | None:
    number = _number(text)
    return number if number is not None and number < 1 else None


_NO_RANGE = SpecifierSet("<0")  # stands for a text that is none: no name is looked up for it
_RANGE = forms.Form("a range of releases, as `>=0.20,<0.24`", _specifiers, _NO_RANGE)
_MODEL = forms.matching("a model as Hugging Face names it, `owner/name`", r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SHARE = forms.Form("a part of the memory, as `0.45`", _share, 0.5)
_GIB = forms.Form("a number of GiB", _number, 1.0)
_TOKENS = forms.Form(
    "a number of tokens from 1024 to 16777216",
    lambda text: int(text) if text.isdecimal() and 1024 <= int(text) <= 1 << 24 else None,
    1024,
)
_PARSER = forms.matching("a parser's name", r"[A-Za-z0-9][\w.-]*")
_FLAG = forms.matching(
    "a flag without the dashes in front, as `kv-cache-dtype` or `speculative-config.method`", r"[a-z][a-z0-9-]*[\w.-]*"
)
_VALUE = forms.matching("a word without blanks, quotes or `$`", r"[A-Za-z0-9_./:=,+@%*{}\[\]-]+", most=300)


def _read_model(name: str, section: Section, checker: Checker) -> ModelRecipe:
    recipe = ModelRecipe(
        name=name,
        about=section.value("about", forms.TEXT),
        model=section.value("model", _MODEL),
        weights_gib=section.value("weights-gib", _GIB),
        settings=tuple(_read_setting(item, checker) for item in section.items("settings", "settings by release")),
    )
    for release in checker.knowledge.releases:
        if sum(release in setting.releases for setting in recipe.settings) > 1:
            section.refuse("settings", f"two of them hold for vllm {release}")
            break
    for setting in recipe.settings:
        if text := _too_much(recipe, setting.memory_share):
            section.refuse("settings", text)
    return recipe


def _too_much(recipe: ModelRecipe, share: float) -> str:
    if free_gib((share,)) < 0:
        return f"memory-share {share:g} is more than a GB10 can give: {_explain((share,))}"
    if recipe.weights_gib >= share * MACHINE_GIB:
        has = (
            f"{share:g} of {MACHINE_GIB:g} GiB is {share * MACHINE_GIB:.1f}, and its weights are {recipe.weights_gib:g}"
        )
        return f"memory-share {share:g} is too small for `{recipe.name}`: {has}"
    return ""


def _explain(shares: tuple[float, ...]) -> str:
    parts = " + ".join(f"{share * MACHINE_GIB:.1f}" for share in shares)
    rest = f"{BESIDE_GIB:g} beside each and {FLOOR_GIB:g} for the host"
    return f"{parts} GiB, {rest} are {MACHINE_GIB - free_gib(shares):.1f} of {MACHINE_GIB:g} GiB"


def _read_setting(item: Item, checker: Checker) -> Setting:
    section = item.section()
    specifiers = section.value("releases", _RANGE)
    releases = [str(release) for release in checker.knowledge.releases if release in specifiers]
    if not releases and specifiers is not _NO_RANGE:
        first, *_, last = checker.knowledge.releases
        section.refuse("releases", f"none of the releases that were read, {first} to {last}, is in it")
    setting = Setting(
        releases=specifiers,
        memory_share=section.value("memory-share", _SHARE),
        max_model_len=section.value("max-model-len", _TOKENS),
        reasoning_parser=section.optional("reasoning-parser", _PARSER, ""),
        tool_call_parser=section.optional("tool-call-parser", _PARSER, ""),
        flags=_read_flags(section.section("flags", optional=True), checker, releases),
        env=_read_env(section.section("env", optional=True), checker, releases),
        seen_on_gb10=section.optional("seen-on-gb10", forms.TEXT, ""),
        notes=tuple(_read_notes(section)),
    )
    for key, value in (("reasoning-parser", setting.reasoning_parser), ("tool-call-parser", setting.tool_call_parser)):
        refusals = (checker.flag(release, f"--{key}", value) for release in releases if value)
        if text := next(filter(None, refusals), ""):
            section.refuse(key, text)
    return setting


def _read_flags(section: Section, checker: Checker, releases: list[str]) -> tuple[tuple[str, str], ...]:
    flags = []
    for name in section.names(_FLAG):
        value = section.value(name, _VALUE)
        refusals = (checker.flag(release, f"--{name}", value) for release in releases)
        if text := _NEVER.get(name, "") or next(filter(None, refusals), ""):
            section.refuse(name, text)
        flags.append((f"--{name}", value))
    return tuple(flags)


def _read_env(section: Section, checker: Checker, releases: list[str]) -> tuple[tuple[str, str], ...]:
    env = []
    for name in section.names(forms.ENV_NAME):
        value = section.value(name, _VALUE)
        refusals = (checker.variable(release, name, value) for release in releases)
        if text := next(filter(None, refusals), ""):
            section.refuse(name, text)
        if "expandable_segments" in value:
            section.refuse(name, "machines of this kind were reset hard with it")
        env.append((name, value))
    return tuple(env)


def _read_notes(section: Section) -> Iterator[Note]:
    for item in section.items("notes"):
        note = item.section()
        yield Note(note.value("text", forms.TEXT), note.value("source", forms.TEXT))


def _read_lanes(name: str, section: Section, models: list[ModelRecipe], checker: Checker) -> LanesRecipe:
    known = forms.one_of(*(model.name for model in models), what="a recipe above this one,")
    by_name = {model.name: model for model in models}
    lanes = []
    for item in section.items("lanes", "lanes"):
        entry = item.section()
        of, share = by_name.get(entry.value("recipe", known)), entry.value("memory-share", _SHARE)
        lane, length = entry.value("name", forms.NAME), entry.value("max-model-len", _TOKENS)
        if of is not None:
            lanes.append(Lane(name=lane, recipe=of, memory_share=share, max_model_len=length))
            if text := _too_much(of, share):
                entry.refuse("memory-share", text)
    shares = tuple(lane.memory_share for lane in lanes)
    recipe = LanesRecipe(
        name=name,
        about=section.value("about", forms.TEXT),
        lanes=tuple(lanes),
        notes=tuple(_read_notes(section)),
    )
    if len({lane.name for lane in lanes}) < len(lanes):
        section.refuse("lanes", "two of them have one name")
    if free_gib(shares) < 0:
        section.refuse("lanes", f"their memory-shares add up to more than a GB10 can give: {_explain(shares)}")
    alone = [releases_of(lane.recipe, checker.knowledge.releases) for lane in lanes]
    if lanes and all(alone) and not releases_of(recipe, checker.knowledge.releases):
        section.refuse("lanes", "there is no release for which all of them hold")
    return recipe

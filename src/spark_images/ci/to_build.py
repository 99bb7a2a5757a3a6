"""The verb `matrix`: what is to be built, as JSON, as a forge's outputs, and as a table for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_images.cache import Cache
from spark_images.ci.image_jobs import SINCE, TARGETS
from spark_images.ci.login import REGISTRY, with_login
from spark_images.ci.matrix import AMD64, ARM64, Entry, Variant, chosen_builder, in_waves, wave_documents
from spark_images.ci.results import say
from spark_images.ci.since import changed_since, plan_of
from spark_images.ci.standing import Standing, standings_of
from spark_images.ci.summary import aligned, rows_markdown
from spark_images.ci.variants import only, variants_of
from spark_images.ci.workflows import variable_of
from spark_images.errors import SparkImagesError, UsageError
from spark_images.project import Project

RUNNERS = {ARM64: "SPARK_IMAGES_RUNNER_ARM64", AMD64: "SPARK_IMAGES_RUNNER_AMD64"}
ONLY_RUNNER = "self-hosted"  # where no variable names one: the label that GitHub gives every such runner; a Spark
GPU_RUNNERS = "SPARK_IMAGES_GPU_RUNNER_"  # and the target's name in capitals


@dataclass(frozen=True, kw_only=True)
class ToBuild:
    """waves: a matrix for each of the build jobs that follow one another; gpu: for the job on GPUs."""

    waves: tuple[dict[str, list[dict[str, str]]], ...]
    gpu: dict[str, list[dict[str, str]]]
    rows: tuple[tuple[str, ...], ...]  # what of every variant, for people

    def document(self) -> dict[str, object]:
        return {"waves": list(self.waves), "gpu": self.gpu}


def find_to_build(
    project: Project,
    *,
    env: Mapping[str, str],
    cache: Cache,
    images: list[str],
    every: bool,
    registry: str | None,
    since: str | None,
) -> ToBuild:
    """What is to be built now. registry, since: $SPARK_IMAGES_REGISTRY and $SPARK_IMAGES_SINCE if None, "" for neither.

    Raises UsageError where no runner can build what is wanted, RegistryError where the registry refuses.
    """
    registry = env.get(REGISTRY, "") if registry is None else registry
    since = env.get(SINCE, "") if since is None else since
    wanted = only(project, variants_of(project, every=every), images, env.get(TARGETS, ""))
    labels = {platform: env.get(name, "") for platform, name in RUNNERS.items()}
    if not any(labels.values()):
        labels = {ARM64: ONLY_RUNNER}
    entries: list[Entry] = []
    rows: dict[str, tuple[str, ...]] = {}
    for variant in wanted:
        entry = _entry(project, variant, labels, env)
        if isinstance(entry, str):
            rows[variant.key] = (variant.title, "", "", entry)
        else:
            entries.append(entry)
    plans = ((entry.variant.image, entry.plan_id) for entry in entries)
    there = standings_of(registry, plans, with_login(env)) if registry else {}
    changed = entries
    if since:
        builders = {entry.variant.key: entry.builder for entry in entries}
        kept = changed_since(since, project, [entry.variant for entry in entries], builders, cache)
        changed = [entry for entry in entries if entry.variant in kept]
    building = [entry for entry in changed if not _is_done(entry, there)]
    for entry in entries:
        why = "to be built" if entry in building else "in the registry" if entry in changed else "not changed"
        rows[entry.variant.key] = (entry.variant.title, entry.plan_id[:12], f"{entry.builder} on {entry.runner}", why)
    number = len(in_waves(variants_of(project)))
    gpu = [{**entry.document(), "runner": entry.gpu_runner} for entry in entries if entry.gpu_runner]
    return ToBuild(
        waves=tuple(wave_documents(building, number)),
        gpu={"include": gpu if registry else []},
        rows=tuple(rows[variant.key] for variant in wanted),
    )


def print_to_build(to_build: ToBuild, env: Mapping[str, str]) -> None:
    """JSON to stdout, a table to the log and the forge's page, and one output for each job to $GITHUB_OUTPUT."""
    print(json.dumps(to_build.document(), indent=1))
    headings = ("image", "plan", "built by", "")
    table = rows_markdown("What to build", headings, to_build.rows, none="Nothing.")
    say(table, tuple(aligned(to_build.rows)), env)
    if outputs := env.get("GITHUB_OUTPUT"):
        with Path(outputs).open("a", encoding="utf-8") as file:
            for name, matrix in _outputs(to_build):
                # An empty matrix is an error on GitHub: the workflows skip a job whose matrix reads `{"include":[]}`.
                file.write(f"{name}={json.dumps(matrix, separators=(',', ':'))}\n")


def _is_done(entry: Entry, standings: Mapping[tuple[str, str], Standing]) -> bool:
    """Pushed, and promoted unless that is left to the job on its GPU."""
    there = standings.get((entry.variant.image, entry.plan_id))
    return bool(there and there.digest and (there.moved or entry.gpu_runner))


def _outputs(to_build: ToBuild) -> Sequence[tuple[str, dict[str, list[dict[str, str]]]]]:
    return [*((f"wave-{number}", wave) for number, wave in enumerate(to_build.waves)), ("gpu", to_build.gpu)]


def _entry(project: Project, variant: Variant, labels: Mapping[str, str], env: Mapping[str, str]) -> Entry | str:
    """The entry of a variant; a sentence where it cannot be built now, which is said and keeps no other from it."""
    builder = chosen_builder(variant, labels)
    if not builder:
        names = " or ".join(f"${RUNNERS[platform]}" for platform in variant.builders)
        raise UsageError(
            f"no runner can build {variant.title}",
            why=[f"it is compiled on {' or '.join(variant.builders)}, and {names} names no runner"],
            hint=f"name one, or leave the target out of ${TARGETS}",
        )
    try:
        sources = project.sources_of(project.image(variant.image).on(variant.base))
        if sources:
            sources.require_trees()
        plan_id = plan_of(project, variant, builder)
    except SparkImagesError as err:
        return f"cannot be built: {err.what}"
    gpu_runner = env.get(GPU_RUNNERS + variable_of(variant.target), "") if variant.gpu else ""
    return Entry(variant=variant, builder=builder, runner=labels[builder], plan_id=plan_id, gpu_runner=gpu_runner)

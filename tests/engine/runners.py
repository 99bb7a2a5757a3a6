"""The pipeline on machines that only share what a test lets them share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from pipeline import Pipeline, share_roots

from spark_images.bench.machines import Machine
from spark_images.cache import Cache
from spark_images.engine import choose_engine


@dataclass(frozen=True)
class Runner(Pipeline):
    """A clone of the project as one machine has it."""

    inside: tuple[str, ...] = ()

    def command(self, *arguments: str) -> list[str]:
        return [*self.inside, *super().command(*arguments)]

    def digest(self) -> str:
        """Of the one image that was built or pulled here."""
        from spark_images.oci import read_layout

        (place,) = (self.cache / "images").iterdir()
        return read_layout(place).manifest_digest

    def with_env(self, **more: str) -> Runner:
        return replace(self, env={**self.env, **more})

    def drop(self, engine: str, buildkit_image: str) -> None:
        """Remove what builds here left in an engine, caches included."""
        cache = Cache(self.cache)
        choose_engine(engine, cache=cache, buildkit_image=buildkit_image, env=self.env).drop_caches()


def runner_on(machine: Machine, pipeline: Pipeline) -> Runner:
    return Runner(pipeline.project, dict(machine.env), pipeline.image, machine.inside)


def runner_beside(pipeline: Pipeline, cache: Path) -> Runner:
    """One with a cache of its own on this network; what was fetched and made of .debs it shares, as it costs time."""
    share_roots(cache)
    return Runner(pipeline.project, {**pipeline.env, "SPARK_IMAGES_CACHE": str(cache)}, pipeline.image)

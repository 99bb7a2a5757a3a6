"""What executes a build: podman, or Docker with BuildKit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_images.engine.base import BUILDER
from spark_images.errors import EngineError, UsageError, did_you_mean

if TYPE_CHECKING:
    from spark_images.cache import Cache
    from spark_images.engine.base import Engine

NAMES = ("docker", "podman")  # in order of preference: where a Docker daemon runs its owner works with it


def able_engine(chosen: Engine, *, named: bool, cache: Cache, env: Mapping[str, str]) -> Engine:
    """The engine that builds: the chosen one, prepared, or podman where only Docker's BuildKit cannot be had.

    Which one builds makes no difference to the image. named: whether the user named the engine; then there is no other.
    Raises EngineError.
    """
    from spark_images.engine.podman import PodmanEngine
    from spark_images.terminal import tell

    try:
        chosen.prepare()
        return chosen
    except EngineError as err:
        other = PodmanEngine(cache, env=env)
        if named or chosen.name == other.name or env.get(BUILDER):
            raise
        try:
            other.prepare()
        except EngineError:
            raise err from None
        tell(f"{err.what}: podman builds instead", *(f"  {line}" for line in err.why))
        return other


def choose_engine(name: str | None, *, cache: Cache, env: Mapping[str, str], buildkit_image: str = "") -> Engine:
    """The engine of that name; with None docker where its daemon answers, else podman.

    buildkit_image: what BuildKit runs from, where docker is to build. Takes milliseconds: one request to a socket, one
    look along PATH. Raises UsageError for an unknown name, EngineError with what was tried where nothing answers.
    """
    from spark_images.engine.buildkit import BuildKitEngine
    from spark_images.engine.podman import PodmanEngine

    if name is None and env.get(BUILDER):
        name = "docker"  # podman knows no builders
    if name is not None and name not in NAMES:
        hint = did_you_mean(name, NAMES) or "leave it out to take the one that answers"
        raise UsageError(f"unknown engine `{name}`", why=["engines are `docker` and `podman`"], hint=hint)
    tried = []
    for engine in (BuildKitEngine(cache, buildkit_image, env=env), PodmanEngine(cache, env=env)):
        if name in (None, engine.name):
            try:
                engine.answer()
                return engine
            except EngineError as err:
                tried.append(err)
    if len(tried) == 1:
        raise tried[0]
    said = [line for err in tried for line in (f"tried {err.what}", *(f"  {why}" for why in err.why))]
    hints = [err.hint for err in tried if err.hint and "doctor" not in err.hint]
    raise EngineError(
        "no build engine answers", why=said, hint="; ".join([*hints, "`./noxw -s doctor` says how to get one"])
    )

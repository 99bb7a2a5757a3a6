"""The history of readable tags in the registry itself: every move an artifact under a tag of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from spark_images.exact_json import exact_json
from spark_images.registry.artifacts import Artifact, artifact_manifest, content_of, put_artifact
from spark_images.registry.client import Client
from spark_images.registry.history import ARTIFACT_TYPE, TAG, Move, in_order, read_move

AT_ONCE = 8  # requests for small documents


def read_history(client: Client, tags: Iterable[str] | None = None) -> tuple[Move, ...]:
    """Every move of readable tags, oldest first. tags: of the repository, where they are known already."""
    found = [tag for tag in (client.tags() if tags is None else tags) if TAG.fullmatch(tag)]

    def read(tag: str) -> Move | None:
        manifest = client.manifest(tag)
        if manifest is None or manifest.document().get("artifactType") != ARTIFACT_TYPE:
            return None
        try:
            return read_move(json.loads(content_of(client, manifest)), tag)
        except ValueError:
            return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return in_order(move for move in pool.map(read, found) if move)


def stands_already(moves: Sequence[Move], move: Move) -> bool:
    """Whether the newest entry of the target is this move: whoever wrote it was stopped before the tags moved."""
    of_target = [entry for entry in moves if entry.target == move.target]
    return bool(of_target) and replace(of_target[-1], number=0, when=move.when, left="", because="") == replace(
        move, number=0, left="", because=""
    )


def write_down(client: Client, move: Move) -> None:
    """Add a move to the history, under a tag of its own."""
    artifact = Artifact(artifact_type=ARTIFACT_TYPE, media_type=ARTIFACT_TYPE, data=exact_json(move.document()))
    name = artifact_manifest(artifact, None, embed=True).digest.removeprefix("sha256:")[:12]
    tag = f"history-{move.number:06}-{name}"
    put_artifact(client, artifact, tag=tag, embed=True)

"""What a registry says of plans: which are there, which were promoted; asked with the client that push and pull use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_images.registry.client import Client
from spark_images.registry.ledger import read_history
from spark_images.registry.reference import Repository, parse_registry

AT_ONCE = 8  # plans that are asked for


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a registry stands with a plan. digest: of the image; "" where it is not there."""

    repository: Repository
    plan_id: str
    digest: str = ""
    moved: bool = False  # whether readable tags were ever moved to it; who moved them back had a reason

    @property
    def reference(self) -> str:
        """By digest where it is there."""
        return self.repository.at(self.digest or self.plan_id[:12])


def standings_of(
    registry: str, plans: Iterable[tuple[str, str]], env: Mapping[str, str]
) -> dict[tuple[str, str], Standing]:
    """Of many (image, plan_id) at once. RegistryError where the registry refuses."""
    wanted = tuple(dict.fromkeys(plans))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = pool.map(lambda plan: standing_of(registry, plan[0], plan[1], env), wanted)
        return dict(zip(wanted, found, strict=True))


def standing_of(registry: str, image: str, plan_id: str, env: Mapping[str, str]) -> Standing:
    """Of one plan of an image. RegistryError where the registry refuses."""
    repository = parse_registry(registry, image)
    client = Client(repository, env=env)
    manifest = client.manifest(plan_id[:12])
    if manifest is None:
        return Standing(repository=repository, plan_id=plan_id)
    moved = any(move.plan_id == plan_id for move in read_history(client))
    return Standing(repository=repository, plan_id=plan_id, digest=manifest.digest, moved=moved)

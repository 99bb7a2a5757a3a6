"""What CI jobs leave in a registry for people: an artifact under a tag of its own each, and the old ones deleted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from spark_images.errors import RegistryError
from spark_images.registry.artifacts import Artifact, put_artifact
from spark_images.registry.client import Client
from spark_images.registry.reference import tag_of
from spark_images.terminal import tell

NAME = "ci-results"  # of the repository, beside those of the images
_TYPE = "application/vnd.spark-images.ci-results.v1.tar+gzip"
_TAG = re.compile(r"(?P<job>.+)-(?P<run>\d+)-(?P<attempt>\d+)")


def put_results(client: Client, job: str, *, run: str, attempt: str, data: bytes) -> str:
    """Store a folder, as .tar.gz, of a run of a job; its tag. run, attempt: as the forge counts them."""
    tag = tag_of(*job.split(), run, attempt)
    artifact = Artifact(
        artifact_type=_TYPE,
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
        data=data,
    )
    put_artifact(client, artifact, tag=tag)
    return tag


def prune_results(client: Client, *, keep: int, delete: bool) -> None:
    """Say which results go, delete them if told to: all but those of the newest runs, so many of each job."""
    try:
        tags = client.tags()
    except RegistryError as err:  # some refuse what is not there; and who may see the images may not see these
        tell(f"{client.repository} is passed over: {err.what}", *(f"  {line}" for line in err.why))
        return
    if not spare_results(tags, keep=keep):
        return
    there = {tag: manifest for tag in tags if (manifest := client.manifest(tag))}
    ours = [tag for tag, manifest in there.items() if manifest.document().get("artifactType") == _TYPE]
    gone = spare_results(ours, keep=keep)
    if not gone:
        return
    for tag in gone:
        print(f"{NAME}:{tag}  delete")
    if not delete:
        tell(f"{client.repository}: {len(gone)} of {len(tags)} results would go; `--delete` does it")
        return
    stay = {manifest.digest for tag, manifest in there.items() if tag not in gone}
    for digest in {there[tag].digest for tag in gone} - stay:
        client.delete_manifest(digest)
    tell(f"{client.repository}: {len(gone)} of {len(tags)} results are deleted")


def spare_results(tags: Iterable[str], *, keep: int) -> tuple[str, ...]:
    """The tags beyond the newest `keep` of each job; what has another form is nobody's here, and stays."""
    jobs: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tag in tags:
        if found := _TAG.fullmatch(tag):
            jobs[found["job"]].append((int(found["run"]), int(found["attempt"]), tag))
    return tuple(tag for runs in jobs.values() for *_, tag in sorted(runs)[:-keep])

"""What CI jobs leave in a registry for people: an artifact under a tag of its own each, and the old ones deleted."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from spark_images.registry.artifacts import Artifact, put_artifact
from spark_images.registry.client import Client
from spark_images.registry.reference import tag_of
from spark_images.terminal import tell

NAME = "ci-results"  # of the repository, beside those of the images
_TAG = re.compile(r"(?P<job>.+)-(?P<run>\d+)-(?P<attempt>\d+)")


def put_results(client: Client, job: str, *, run: str, attempt: str, data: bytes) -> str:
    """Store a folder, as .tar.gz, of a run of a job; its tag. run, attempt: as the forge counts them."""
    tag = tag_of(*job.split(), run, attempt)
    artifact = Artifact(
        artifact_type="application/vnd.spark-images.ci-results.v1.tar+gzip",
        media_type="application/vnd.oci.image.layer.v1.tar+gzip",
        data=data,
    )
    put_artifact(client, artifact, tag=tag)
    return tag


def prune_results(client: Client, *, keep: int, delete: bool) -> None:
    """Say which results go, delete them if told to: all but those of the newest runs, so many of each job."""
    tags = client.tags()
    gone = spare_results(tags, keep=keep)
    if not gone:
        return
    for tag in gone:
        print(f"{NAME}:{tag}  delete")
    if not delete:
        tell(f"{client.repository}: {len(gone)} of {len(tags)} results would go; `--delete` does it")
        return
    digests = {tag: manifest.digest for tag in tags if (manifest := client.manifest(tag))}
    stay = {digest for tag, digest in digests.items() if tag not in gone}
    for digest in {digests[tag] for tag in gone if tag in digests} - stay:
        client.delete_manifest(digest)
    tell(f"{client.repository}: {len(gone)} of {len(tags)} results are deleted")


def spare_results(tags: Iterable[str], *, keep: int) -> tuple[str, ...]:
    """The tags beyond the newest `keep` of each job; what has another form is nobody's here, and stays."""
    jobs: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for tag in tags:
        if found := _TAG.fullmatch(tag):
            jobs[found["job"]].append((int(found["run"]), int(found["attempt"]), tag))
    return tuple(tag for runs in jobs.values() for *_, tag in sorted(runs)[:-keep])

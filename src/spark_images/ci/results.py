"""What is left of a job for people: a summary on the forge's page, and a folder with record, SBOM and reports."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from spark_images.ci.summary import Summary, markdown, plain
from spark_images.errors import SparkImagesError
from spark_images.files import write_text
from spark_images.record import Outcome, RecordView, read_records
from spark_images.report import layer_lines, layers_of
from spark_images.report_layers import draw_layers
from spark_images.report_memory import memory_data, step_lines
from spark_images.terminal import tell
from spark_images.units import format_duration, format_size
from spark_images.verdict import latest_verdicts
from spark_images.verdicts import kept_verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_images.cache import Cache
    from spark_images.ci.job import Job

FOLDER = "ci-results"  # in the workspace; git does not see it


def keep_results(job: Job, plan_id: str) -> None:
    """Fill job.results, say the summary in the log and, where the forge has one, on the job's page."""
    if plan_id:
        _of_plan(job.summary, plan_id, job.cache, job.results)
    write_text(job.results / "summary.md", markdown(job.summary) + "\n")
    if job.registry and job.env.get("GITHUB_RUN_ID"):
        _publish(job)
    say(markdown(job.summary), plain(job.summary), job.env)


def _publish(job: Job) -> None:
    """The folder as an artifact in the registry: what forges keep of jobs differs, and goes after some weeks."""
    from spark_images.registry.client import Client
    from spark_images.registry.job_results import NAME, put_results
    from spark_images.registry.reference import parse_registry

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        tar.add(job.results, arcname=".")
    client = Client(parse_registry(job.registry, NAME), env=job.env)
    run, attempt = job.env["GITHUB_RUN_ID"], job.env.get("GITHUB_RUN_ATTEMPT") or "1"
    try:
        tag = put_results(client, job.summary.title, run=run, attempt=attempt, data=packed.getvalue())
    except SparkImagesError as err:  # the job is as good or bad as it was; what is lost is said
        tell(f"::warning::these results stay on the runner, in {job.results}: {err.what}")
        return
    job.summary.facts.append(("these results", client.at(tag)))


def say(text: str, lines: tuple[str, ...], env: Mapping[str, str]) -> None:
    """To the log, and to $GITHUB_STEP_SUMMARY: Gitea shows that from 1.27 on."""
    tell("", *lines)
    if page := env.get("GITHUB_STEP_SUMMARY"):
        with Path(page).open("a", encoding="utf-8") as file:  # other steps of the job write there as well
            file.write(text + "\n")


def _of_plan(summary: Summary, plan_id: str, cache: Cache, folder: Path) -> None:
    records = [record for record in read_records(cache.records) if record.plan_id == plan_id]
    digest = ""
    if records:
        digest = _of_record(summary, records[-1], cache, folder)
    layout = cache.images / plan_id
    if not digest and layout.is_dir():
        from spark_images.oci import read_layout

        digest = read_layout(layout).manifest_digest
        summary.facts.append(("digest", digest))
    for gate, verdict in latest_verdicts(kept_verdicts(cache, plan_id), digest).items():
        summary.verdicts.append((gate.value, verdict.colour.value, verdict.evidence))
    sbom = cache.sboms / f"{digest.removeprefix('sha256:')}.json"
    if digest and sbom.is_file():
        shutil.copyfile(sbom, folder / "sbom.cdx.json")


def _of_record(summary: Summary, record: RecordView, cache: Cache, folder: Path) -> str:
    """Facts of the newest attempt, and its files; the digest of what it built, "" if nothing."""
    kept = folder / "record"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(record.folder, kept, ignore=shutil.ignore_patterns("build"))
    for path in sorted(record.folder.glob("*.xml")):
        shutil.copyfile(path, folder / f"junit-{path.name}")
    summary.facts.append(("record", record.id))
    summary.pictures += [step_lines(step) for step in memory_data([record], record.id).get("steps", ())]
    if record.result is None:
        return ""
    outcome = "built in" if record.result.outcome is Outcome.BUILT else f"{record.result.outcome.value} after"
    summary.facts.append((outcome, format_duration(record.result.seconds)))
    if record.result.peak_mib:
        summary.facts.append(("peak memory", format_size(record.result.peak_mib << 20)))
    if record.result.layers:
        summary.facts.append(("size", f"{format_size(record.result.size_bytes)} in {len(record.result.layers)} layers"))
        summary.pictures.append(layer_lines("to pull", layers_of(record)))
        write_text(folder / "layers.svg", draw_layers(record))
    if record.result.digest:
        summary.facts.append(("digest", record.result.digest))
    return record.result.digest

"""Verdicts on images, kept: in the newest record of the build, or beside the records for an image that came by pull."""

from __future__ import annotations

from pathlib import Path

from spark_images.cache import Cache
from spark_images.files import read_json
from spark_images.record import last_built_from, read_records
from spark_images.record_writer import append_to_record
from spark_images.verdict import RECORD_KIND, Verdict, read_verdict


def keep_verdict(cache: Cache, plan_id: str, verdict: Verdict) -> Path:
    """Write a verdict down; the file. Where no record is named in it, the record that holds it is the evidence."""
    if record := last_built_from(read_records(cache.records), plan_id):
        return append_to_record(
            record.folder, RECORD_KIND, {**verdict.document(), "record": verdict.record or record.id}
        )
    folder = _elsewhere(cache, plan_id)
    folder.mkdir(parents=True, exist_ok=True)
    return append_to_record(folder, RECORD_KIND, verdict.document())


def kept_verdicts(cache: Cache, plan_id: str) -> tuple[Verdict, ...]:
    """Every verdict on images of a plan that was given on this machine."""
    records = [record for record in read_records(cache.records) if record.plan_id == plan_id]
    found = [data for record in records for data in record.appended(RECORD_KIND)]
    found += [data for path in sorted(_elsewhere(cache, plan_id).glob("*.json")) if (data := read_json(path))]
    return tuple(verdict for data in found if (verdict := read_verdict(data)))


def _elsewhere(cache: Cache, plan_id: str) -> Path:
    return cache.verdicts / plan_id

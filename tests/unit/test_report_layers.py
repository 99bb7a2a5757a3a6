"""Layers of images that were built, and what changed between two of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spark_images.errors import UsageError
from spark_images.record import LayerRecord, Outcome, RecordView, Result, read_records
from spark_images.record_writer import RecordWriter
from spark_images.report_layers import report_changes, report_layers

NOW = datetime(2026, 11, 21, 13, 56, 7, tzinfo=UTC)


def built(records: Path, digest: str, minutes: int, plan: str, *, base: str = "debian", mib: int = 26) -> str:
    layers = (("root file system", "r", 6), ("COPY --from=compile /out/app/ /", f"{digest}-app", mib))
    with RecordWriter.start(
        records, plan_id=plan * 64, image="app", target="gb10", base=base, plan={"pins": {"app": plan}}, command=[],
        engine=None, host={}, now=NOW + timedelta(minutes=minutes),
    ) as writer:  # fmt: skip
        writer.finish(
            Result(
                outcome=Outcome.BUILT,
                seconds=1,
                digest=digest,
                layers=tuple(LayerRecord(what=what, digest=name, size_bytes=size << 20) for what, name, size in layers),
            )
        )
    return writer.id


@pytest.fixture
def records(tmp_path: Path) -> tuple[RecordView, ...]:
    built(tmp_path, "sha256:1", 0, "a")
    built(tmp_path, "sha256:2", 1, "b", mib=30)
    built(tmp_path, "sha256:9", 2, "c", base="ngc")
    built(tmp_path, "sha256:2", 3, "b", mib=30)
    return read_records(tmp_path)


def changes(records: tuple[RecordView, ...], *named: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    report_changes(records, named, as_json=True, svg=None)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_the_newest_image_is_compared_with_the_last_other_digest_of_its_variant(
    records: tuple[RecordView, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    said = changes(records, capsys=capsys)
    assert (said["old"], said["new"]) == (records[0].id, records[3].id)
    assert [(layer["name"], layer["pulled_bytes"] >> 20) for layer in said["layers"]] == [
        ("root file system", 0),
        ("app", 30),
    ]
    assert said["differences"] == ["pin `app`: was a, is b"]


def test_two_records_are_compared_in_the_order_in_which_they_are_named(
    records: tuple[RecordView, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    said = changes(records, records[3].id, records[0].id, capsys=capsys)
    assert (said["old"], said["new"]) == (records[3].id, records[0].id)


def test_people_read_what_is_pulled_and_what_of_the_plan_changed(
    records: tuple[RecordView, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_changes(records, (), as_json=False, svg=tmp_path / "x.svg")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"app gb10-debian {'b' * 12}, after {'a' * 12}: 30 MiB of 36 MiB to pull"
    assert lines[-1] == "pin `app`: was a, is b"
    assert any(line.split() == ["app", "26", "MiB", "->", "30", "MiB", "30", "MiB"] for line in lines)
    assert "pin `app`: was a, is b" in (tmp_path / "x.svg").read_text()


def test_an_image_with_one_digest_has_nothing_to_be_compared_with(records: tuple[RecordView, ...]) -> None:
    with pytest.raises(UsageError, match="one digest only"):
        report_changes(records, (records[2].id,), as_json=False, svg=None)


def test_layers_are_drawn_and_named_by_what_is_copied(
    records: tuple[RecordView, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_layers(records, ("app",), as_json=False, svg=tmp_path / "x.svg")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "app gb10-debian: 36 MiB by layer"
    assert lines[2].split() == ["30", "MiB", "83%", "#" * 20, "app"]
    assert ">30 MiB, 83%<" in (tmp_path / "x.svg").read_text()


def test_what_built_no_image_has_no_layers() -> None:
    with pytest.raises(UsageError, match="no attempt built any image"):
        report_layers((), (), as_json=False, svg=None)

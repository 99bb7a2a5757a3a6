import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from rich.console import Console

from spark_images.buildlog import Step
from spark_images.engine.base import EngineFacts
from spark_images.record import LayerRecord, Outcome, RecordView, RecordWriter, Result, append_to_record, read_records
from spark_images.report import print_report, report_data, show_report

NOW = datetime(2026, 11, 21, 13, 56, 7, tzinfo=UTC)
ENGINE = EngineFacts(name="podman", version="4.3.1", builder="buildah 1.28.2", runtime="runc", cgroup="v1")
COMPILE = Step(name="compile", stage="compile", status=0, seconds=1808.0, limit_mib=49152, peak_mib=47000)
BUILT = Result(
    outcome=Outcome.BUILT,
    seconds=1850.5,
    steps=(COMPILE,),
    digest="sha256:3f2a9c0d" + "ab" * 28,
    layers=(
        LayerRecord(what="runtime-root", digest="sha256:" + "00" * 32, size_bytes=30 << 20),
        LayerRecord(what="COPY /out/cuda /", digest="sha256:" + "01" * 32, size_bytes=600 << 20),
        LayerRecord(what="COPY [/out/llamacpp] /", digest="sha256:" + "02" * 32, size_bytes=70 << 20),
    ),
)


def record(records: Path, result: Result, *, hours: int, tests: tuple[int, int] | None = None) -> None:
    with RecordWriter.start(
        records,
        plan_id="3f2a" * 16,
        image="llamacpp",
        target="gb10",
        base="debian",
        plan={},
        command=[],
        engine=ENGINE,
        host={},
        now=NOW + timedelta(hours=hours),
    ) as writer:
        writer.finish(result)
    if tests:
        append_to_record(writer.folder, "tests", {"passed": tests[0], "failures": ["f"] * tests[1]})


@pytest.fixture
def records(tmp_path: Path) -> tuple[RecordView, ...]:
    record(tmp_path, Result(outcome=Outcome.INTERRUPTED, seconds=100.0), hours=0)
    record(tmp_path, BUILT, hours=1, tests=(11, 1))
    record(tmp_path, Result(outcome=Outcome.FAILED, seconds=7.0, steps=(COMPILE,)), hours=2)
    return read_records(tmp_path)


def shown(records: tuple[RecordView, ...], *, width: int = 80) -> list[str]:
    stream = io.StringIO()
    show_report(report_data(records), Console(file=stream, width=width))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_table_fits_eighty_columns_and_loses_nothing(records: tuple[RecordView, ...]) -> None:
    lines = shown(records)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("11-21 14:56"))
    assert " ".join(row.split()) == "11-21 14:56 llamacpp podman built 30:50 45.9 700 3f2a9c0d 11/12"
    assert any(line.split() == ["gb10-debian"] for line in lines)
    assert any(line.startswith("11-21 13:56") and "interrupted" in line for line in lines)


def test_wide_terminal_has_one_line_per_attempt(records: tuple[RecordView, ...]) -> None:
    lines = shown(records, width=120)
    assert sum("llamacpp gb10-debian" in line and "podman" in line for line in lines) == 3


def test_size_of_the_newest_image_is_divided_over_its_layers(records: tuple[RecordView, ...]) -> None:
    lines = shown(records)
    start = lines.index("llamacpp gb10-debian: 700.0 MiB by layer")
    assert [line.split(maxsplit=3) for line in lines[start + 1 : start + 4]] == [
        ["30.0", "4%", "#", "runtime-root"],
        ["600.0", "86%", "#" * 21, "COPY /out/cuda /"],
        ["70.0", "10%", "##", "COPY [/out/llamacpp] /"],
    ]


def test_nothing_built_says_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_report((), as_json=False)
    assert capsys.readouterr().out == "Nothing was built yet. Begin with `nox -s build-llamacpp`.\n"


def test_json_is_one_document_with_exact_numbers(
    records: tuple[RecordView, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(records, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert [attempt["outcome"] for attempt in data["attempts"]] == ["interrupted", "built", "failed"]
    built = data["attempts"][1]
    assert (built["seconds"], built["peak_mib"], built["size_bytes"]) == (1850.5, 47000, 700 << 20)
    assert (built["digest"], built["started"]) == (BUILT.digest, "2026-11-21T14:56:07+00:00")
    assert built["tests"]["passed"] == 11
    assert [layer["what"] for layer in data["images"][0]["layers"]][1:] == [
        "COPY /out/cuda /",
        "COPY [/out/llamacpp] /",
    ]


def test_empty_json_is_still_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_report((), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"attempts": [], "images": []}


def test_tests_that_another_version_wrote_are_left_out(records: tuple[RecordView, ...], tmp_path: Path) -> None:
    append_to_record(records[1].folder, "tests", {"passed": 12})
    (line,) = (line for line in shown(read_records(tmp_path), width=120) if " built " in line)
    assert line.endswith("3f2a9c0d")

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_images.buildlog import Step
from spark_images.engine.base import EngineFacts
from spark_images.record import LayerRecord, Outcome, RecordView, Result, read_records
from spark_images.record_writer import RecordWriter, append_to_record
from spark_images.report import MOST, print_report

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
        LayerRecord(what="COPY --from=compile /out/cuda/ /", digest="sha256:" + "01" * 32, size_bytes=600 << 20),
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


Shown = Callable[..., list[str]]


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    def lines(records: tuple[RecordView, ...], *, width: int = 80) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        print_report(records, as_json=False)
        return capsys.readouterr().out.splitlines()

    return lines


def test_table_fits_eighty_columns_and_loses_nothing(records: tuple[RecordView, ...], shown: Shown) -> None:
    lines = shown(records)
    assert max(map(len, lines)) <= 80
    row = next(line for line in lines if line.startswith("11-21 14:56"))
    assert " ".join(row.split()) == "11-21 14:56 llamacpp podman built 30:50 45.9 700 3f2a9c0d 11/12"
    assert any(line.split() == ["gb10-debian"] for line in lines)
    assert any(line.startswith("11-21 13:56") and "interrupted" in line for line in lines)


def test_wide_terminal_has_one_line_per_attempt(records: tuple[RecordView, ...], shown: Shown) -> None:
    lines = shown(records, width=120)
    assert sum("llamacpp gb10-debian" in line and "podman" in line for line in lines) == 3


def test_of_many_attempts_the_newest_are_shown(tmp_path: Path, shown: Shown) -> None:
    for hours in range(MOST + 2):
        record(tmp_path, Result(outcome=Outcome.FAILED, seconds=7.0), hours=hours)
    lines = shown(read_records(tmp_path))
    assert lines[0] == "2 older attempts are left out; `--json` has all"
    assert sum("failed" in line for line in lines) == MOST


def test_size_of_the_newest_image_is_divided_over_its_layers(records: tuple[RecordView, ...], shown: Shown) -> None:
    lines = shown(records)
    start = lines.index("llamacpp gb10-debian: 700 MiB by layer")
    assert [" ".join(line.split()) for line in lines[start + 1 : start + 4]] == [
        "30 MiB 4% # runtime-root",
        f"600 MiB 86% {'#' * 21} cuda",
        "70 MiB 10% ## COPY [/out/llamacpp] /",
    ]


def test_nothing_built_says_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    print_report((), as_json=False)
    assert capsys.readouterr().out == "Nothing was built yet. Begin with `./noxw -s build-llamacpp`.\n"


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
        "COPY --from=compile /out/cuda/ /",
        "COPY [/out/llamacpp] /",
    ]


def test_empty_json_is_still_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_report((), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"attempts": [], "images": []}


def test_tests_that_another_version_wrote_are_left_out(
    records: tuple[RecordView, ...], tmp_path: Path, shown: Shown
) -> None:
    append_to_record(records[1].folder, "tests", {"passed": 12})
    (line,) = (line for line in shown(read_records(tmp_path), width=120) if " built " in line)
    assert line.endswith("3f2a9c0d")

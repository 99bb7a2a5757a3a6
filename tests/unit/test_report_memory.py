import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_images import cli
from spark_images.engine.base import EngineFacts
from spark_images.errors import UsageError
from spark_images.record import Outcome, RecordView, Result, read_records
from spark_images.record_writer import RecordWriter
from spark_images.report_memory import memory_data, print_memory_report

NOW = datetime(2026, 11, 21, 13, 56, 7, tzinfo=UTC)
ENGINE = EngineFacts(name="podman", version="4.3.1", builder="buildah 1.28.2", runtime="runc", cgroup="v1")
DEEP = "csrc/flash_attn/CMakeFiles/_vllm_fa2_C.dir/src/template-instances/a-very-long-name-of-a-unit_"
BEGIN = ("STEP 1/1: RUN /spark/scripts/step compile x", "[spark] step compile begin limit_mib=8192 jobs=2")
SAMPLES = tuple(
    f"[spark] step compile sample memory_mib={1000 * number} compilers={number} elapsed_s={2 * number}"
    for number in range(1, 8)
)
UNITS = tuple(
    f"[spark] unit {DEEP}{number}.cu.o peak_mib={100 * number} seconds={100 - number} cpu_s=1 expected_mib=50 tries=1"
    for number in range(1, 13)
)
CUT = (
    "[spark] gate a.o again reason=oom peak_mib=700 cap_mib=8192",
    "[spark] gate a.o again reason=short peak_mib=7 cap_mib=8192",
)


def attempt(records: Path, *lines: str, minutes: int = 0, image: str = "llamacpp") -> str:
    with RecordWriter.start(
        records,
        plan_id="3f2a" * 16,
        image=image,
        target="gb10",
        base="debian",
        plan={},
        command=[],
        engine=ENGINE,
        host={},
        now=NOW + timedelta(minutes=minutes),
    ) as writer:
        for line in lines:
            writer.line(line)
        writer.finish(Result(outcome=Outcome.BUILT, seconds=9, steps=writer.reader.steps))
    return writer.id


def printed(
    records: Path, named: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.setenv("COLUMNS", "80")
    print_memory_report(read_records(records), named, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_terminal_shows_peak_cap_chart_and_the_largest_and_longest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = attempt(tmp_path, *BEGIN, *SAMPLES, *UNITS, *CUT)
    lines = printed(tmp_path, None, capsys, monkeypatch)
    assert lines[0] == "llamacpp gb10-debian, 11-21 13:56 UTC, podman, built"
    assert lines[1] == "compile: peak 6.8 GiB of 8 GiB in 0:14, compilers at once: 7"
    assert lines[2] == "  units measured: 12; killed for memory: 1, stopped before that: 1"
    assert lines[3].startswith("6.8 GiB |")
    assert f"chart: {tmp_path / name / 'memory.svg'}" in lines
    hungriest, longest = (
        lines.index("    peak  expected    time tries  hungriest"),
        lines.index("    peak  expected    time tries  longest"),
    )
    tables = lines[hungriest + 1 : hungriest + 11], lines[longest + 1 : longest + 6]
    assert [line.split()[0] for line in tables[0]] == [str(100 * number) for number in range(12, 2, -1)]
    assert [line[-7:] for line in tables[1]] == [f"_{number}.cu.o" for number in range(1, 6)]
    assert all(len(line) <= 80 for table in tables for line in table)
    assert "`gib-per-job: 1.25` suits images/llamacpp/image.yaml:" in lines


def test_chart_of_a_killed_build_is_drawn_when_asked_for(tmp_path: Path) -> None:
    name = attempt(tmp_path, *BEGIN, *SAMPLES)
    (tmp_path / name / "memory.svg").unlink()
    assert memory_data(read_records(tmp_path), None)["chart"] == str(tmp_path / name / "memory.svg")
    assert (tmp_path / name / "memory.svg").exists()


def test_newest_attempt_that_ran_a_step_is_meant(tmp_path: Path) -> None:
    first = attempt(tmp_path, *BEGIN, *SAMPLES)
    other = attempt(tmp_path, *BEGIN, *SAMPLES, minutes=1, image="vllm")
    attempt(tmp_path, "--> Using cache 0123", minutes=2)
    records = read_records(tmp_path)
    assert memory_data(records, None)["record"] == other
    assert memory_data(records, "llamacpp")["record"] == first


def test_record_is_found_by_its_id_or_either_end_of_it(tmp_path: Path) -> None:
    first = attempt(tmp_path, *BEGIN, *SAMPLES)
    attempt(tmp_path, *BEGIN, *SAMPLES, minutes=1)
    records = read_records(tmp_path)
    assert {memory_data(records, name)["record"] for name in (first, first[-4:], first[:14])} == {first}


@pytest.mark.parametrize(("named", "says"), [("lamacpp", "did you mean `llamacpp`?"), ("zzz", "noxw -s report")])
def test_unknown_name_is_refused_with_the_nearest(tmp_path: Path, named: str, says: str) -> None:
    attempt(tmp_path, *BEGIN, *SAMPLES)
    with pytest.raises(UsageError) as refused:
        memory_data(read_records(tmp_path), named)
    assert says in refused.value.hint


def test_beginning_that_fits_several_records_is_refused(tmp_path: Path) -> None:
    names = [attempt(tmp_path, *BEGIN, minutes=minute) for minute in (0, 1)]
    with pytest.raises(UsageError) as refused:
        memory_data(read_records(tmp_path), "2026")
    assert sorted(refused.value.why) == names


@pytest.mark.parametrize("named", [None, "llamacpp"])
def test_attempts_that_ran_nothing_are_said_to_have_nothing(
    tmp_path: Path, named: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(tmp_path)
    (line,) = printed(tmp_path, named, capsys, monkeypatch)
    assert line.startswith("No attempt of `llamacpp` ran a step" if named else "No attempt ran a step")


def test_nothing_built_says_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    no_records: tuple[RecordView, ...] = ()
    print_memory_report(no_records, None, as_json=False)
    assert capsys.readouterr().out == "Nothing was built yet. Begin with `./noxw -s build-llamacpp`.\n"


def test_build_without_a_gate_says_that_no_unit_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(tmp_path, *BEGIN, *SAMPLES)
    assert printed(tmp_path, None, capsys, monkeypatch)[-1].startswith("units: none was measured")


def test_proposal_knows_what_earlier_attempts_measured(tmp_path: Path) -> None:
    attempt(tmp_path, *BEGIN, *SAMPLES, UNITS[11])
    attempt(tmp_path, *BEGIN, *SAMPLES, UNITS[0], minutes=1)
    assert memory_data(read_records(tmp_path), None)["gib_per_job"]["gib"] == 1.25


def test_command_line_has_it_as_text_and_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPARK_IMAGES_CACHE", str(tmp_path))
    name = attempt(tmp_path / "records", *BEGIN, *SAMPLES, *UNITS)
    assert cli.main(["report", "memory", "llamacpp"]) == 0
    assert capsys.readouterr().out.startswith("llamacpp gb10-debian")
    assert cli.main(["report", "memory", name, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["units"][0]["peak_mib"] == 1200
    assert data["steps"][0]["samples"][0] == {"elapsed_s": 2.0, "memory_mib": 1000, "compilers": 1}
    assert cli.main(["report"]) == 0
    assert "when, UTC" in capsys.readouterr().out

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from spark_images.buildlog import Step, UnitMeasured
from spark_images.engine.base import EngineFacts
from spark_images.errors import BuildError
from spark_images.record import (
    LayerRecord,
    Outcome,
    Result,
    expected_seconds,
    last_built,
    last_built_from,
    measured_units,
    read_records,
)
from spark_images.record_writer import RecordWriter, append_to_record

NOW = datetime(2026, 11, 21, 13, 56, 7, tzinfo=UTC)
PLAN_ID = "3f2a" * 16
ENGINE = EngineFacts(name="podman", version="4.3.1", builder="buildah 1.28.2", runtime="runc", cgroup="v1")
RESULT = Result(
    outcome=Outcome.BUILT,
    seconds=1850.5,
    steps=(
        Step(name="prove", stage="compile", cached=True),
        Step(name="compile", stage="compile", status=0, seconds=1808.0, limit_mib=49152, peak_mib=47000),
    ),
    digest="sha256:" + "ab" * 32,
    layers=(LayerRecord(what="COPY /out/cuda /", digest="sha256:" + "01" * 32, size_bytes=700_000_000),),
)


LOG = (
    "STEP 1/1: RUN /spark/scripts/step compile x",
    "[spark] step compile begin limit_mib=8192 jobs=2",
    "[spark] step compile sample memory_mib=3000 compilers=2 elapsed_s=2",
    "[spark] unit a.o peak_mib=412 seconds=31.2 cpu_s=30.9 expected_mib=400 tries=1",
    "[spark] gate b%20c.o again reason=oom peak_mib=7000 cap_mib=8192",
    "[spark] step compile sample memory_mib=8000 compilers=1 elapsed_s=4",
    "[spark] unit b%20c.o peak_mib=8000 seconds=31.2 cpu_s=30.9 expected_mib=400 tries=2",
)
A = UnitMeasured(step="compile", unit="a.o", peak_mib=412, seconds=31.2, cpu_s=30.9, expected_mib=400, tries=1)


def start(
    records: Path, *, now: datetime = NOW, image: str = "llamacpp", target: str = "gb10", plan_id: str = PLAN_ID
) -> RecordWriter:
    return RecordWriter.start(
        records,
        plan_id=plan_id,
        image=image,
        target=target,
        base="debian",
        plan={"scripts": {"step": "00"}},
        command=["build", "llamacpp", "--memory", "48GiB"],
        engine=ENGINE,
        host={"cores": 20},
        now=now,
    )


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    with start(tmp_path / "records") as record:
        record.line("STEP 1/2: FROM build-root\n")
        record.line("ü\udcff")
        record.finish(RESULT)
    (view,) = read_records(tmp_path / "records")
    assert view.id == record.id
    assert (view.image, view.target, view.base, view.plan_id) == ("llamacpp", "gb10", "debian", PLAN_ID)
    assert (view.started, view.engine, view.outcome) == (NOW, "podman", Outcome.BUILT)
    assert view.command == ("build", "llamacpp", "--memory", "48GiB")
    assert view.plan == {"scripts": {"step": "00"}}
    assert view.result == RESULT
    assert (view.result.peak_mib, view.result.size_bytes) == (47000, 700_000_000)
    assert record.log.read_text() == "STEP 1/2: FROM build-root\nü?\n"


def test_folder_is_named_by_time_variant_and_plan(tmp_path: Path) -> None:
    berlin = datetime.fromisoformat("2026-11-21T14:56:07+01:00")
    record = start(tmp_path, now=berlin)
    assert record.id.startswith("20261121T135607Z-llamacpp-gb10-debian-3f2a3f2a3f2a-")


def test_record_says_what_it_is_before_anything_runs(tmp_path: Path) -> None:
    record = start(tmp_path)
    assert {file.name for file in record.folder.iterdir()} == {"started.json", "plan.json", "log.txt"}
    started = json.loads((record.folder / "started.json").read_text())
    assert started["engine"]["builder"] == "buildah 1.28.2"
    assert started["host"] == {"cores": 20}
    assert started["pid"] == os.getpid()


def test_attempt_is_running_while_its_process_lives(tmp_path: Path) -> None:
    start(tmp_path)
    (view,) = read_records(tmp_path)
    assert (view.outcome, view.result) == (Outcome.RUNNING, None)


def test_attempt_that_was_killed_is_interrupted_and_its_log_is_there(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]; from test_record import start\n"
        "with start(Path(sys.argv[1])) as record:\n"
        "    record.line('[1/9] Building'); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path), str(Path(__file__).parent), *sys.path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert [view.outcome for view in read_records(tmp_path)] == [Outcome.RUNNING]
        child.send_signal(signal.SIGKILL)
        child.wait()
    (view,) = read_records(tmp_path)
    assert (view.outcome, view.result) == (Outcome.INTERRUPTED, None)
    assert (view.folder / "log.txt").read_text() == "[1/9] Building\n"


def test_process_number_that_another_process_got_does_not_keep_a_record_running(tmp_path: Path) -> None:
    record = start(tmp_path)
    started = json.loads((record.folder / "started.json").read_text())
    boot, _, ticks = started["process"].partition("/")
    started["process"] = f"{boot}/{int(ticks) - 1}"
    (record.folder / "started.json").write_text(json.dumps(started))
    assert read_records(tmp_path)[0].outcome is Outcome.INTERRUPTED


def test_failure_is_recorded_as_the_terminal_showed_it(tmp_path: Path) -> None:
    with pytest.raises(BuildError), start(tmp_path):
        raise BuildError("build of `x` failed", hint="look")
    (view,) = read_records(tmp_path)
    assert view.result is not None
    assert (view.outcome, view.result.error) == (Outcome.FAILED, "error: build of `x` failed\n\nhint: look")


def test_attempt_that_breaks_off_keeps_its_steps_and_its_diagnosis(tmp_path: Path) -> None:
    record = start(tmp_path)
    for line in LOG:
        record.line(line)
    record.diagnosis = {"kind": "out_of_memory"}
    with pytest.raises(BuildError), record:
        raise BuildError("build of `x` ran out of memory")
    (view,) = read_records(tmp_path)
    assert view.result is not None
    assert [(step.name, step.units, step.killed) for step in view.result.steps] == [("compile", 2, 1)]
    assert view.result.diagnosis == {"kind": "out_of_memory"}


def test_units_are_kept_as_they_come(tmp_path: Path) -> None:
    record = start(tmp_path)
    for line in LOG[:4]:
        record.line(line)
    (view,) = read_records(tmp_path)  # it runs still, or was killed here
    assert view.units == (A,)
    for line in LOG[4:]:
        record.line(line)
    (view,) = read_records(tmp_path)
    assert [(unit.unit, unit.peak_mib, unit.tries) for unit in view.units] == [("a.o", 412, 1), ("b%20c.o", 8000, 2)]
    assert json.loads((record.folder / "units.jsonl").read_text().splitlines()[0]) == {
        **{"step": "compile", "unit": "a.o", "peak_mib": 412, "seconds": 31.2, "cpu_s": 30.9},
        **{"expected_mib": 400, "tries": 1},
    }


def test_line_says_what_it_means(tmp_path: Path) -> None:
    record = start(tmp_path)
    assert [record.line(line) for line in LOG][3] == A


def test_half_a_line_of_a_killed_writer_costs_only_that_unit(tmp_path: Path) -> None:
    record = start(tmp_path)
    for line in LOG[:4]:
        record.line(line)
    with (record.folder / "units.jsonl").open("a") as units:
        units.write('[]\n{"unit": "b.o"}\n{"step": "compile", "unit": "c.o", "peak')
    (view,) = read_records(tmp_path)
    assert view.units == (A,)


def test_record_without_units_or_log_has_none(tmp_path: Path) -> None:
    record = start(tmp_path)
    record.log.unlink()
    (view,) = read_records(tmp_path)
    assert (view.units, view.read_log().steps) == ((), ())


@pytest.mark.parametrize("error", [None, BuildError("build of `x` failed"), KeyboardInterrupt()])
def test_memory_is_drawn_however_the_attempt_ends(tmp_path: Path, error: BaseException | None) -> None:
    with suppress(BuildError, KeyboardInterrupt), start(tmp_path) as record:
        for line in LOG:
            record.line(line)
        if error:
            raise error
        record.finish(RESULT)
    drawn = ElementTree.parse(record.folder / "memory.svg").getroot()
    words = " ".join(drawn.itertext())
    assert "llamacpp-gb10-debian" in words
    assert "2026-11-21 13:56 UTC" in words
    assert "peak 7.8 GiB of 8 GiB" in words


def test_nothing_is_drawn_where_no_step_ran(tmp_path: Path) -> None:
    with start(tmp_path) as record:
        record.line(LOG[0])
        record.finish(RESULT)
    assert not (record.folder / "memory.svg").exists()


def test_log_is_read_again_for_its_timeline(tmp_path: Path) -> None:
    with start(tmp_path) as record:
        for line in LOG:
            record.line(line)
        record.finish(RESULT)
    (view,) = read_records(tmp_path)
    assert [point.memory_mib for point in view.read_log().timeline("compile").points] == [3000, 8000]


def test_units_of_an_image_come_newest_first_and_by_target(tmp_path: Path) -> None:
    for minutes, image, target in (
        (1, "llamacpp", "gb10"),
        (2, "llamacpp", "hopper"),
        (3, "vllm", "gb10"),
        (4, "llamacpp", "gb10"),
    ):
        with start(tmp_path, now=NOW + timedelta(minutes=minutes), image=image, target=target) as record:
            record.line(LOG[0])
            record.line(LOG[1])
            record.line(f"[spark] unit {minutes}.o peak_mib=1 seconds=1 cpu_s=1 expected_mib=1 tries=1")
    same, others = measured_units(read_records(tmp_path), "llamacpp", "gb10")
    assert [[unit.unit for unit in units] for units in same] == [["4.o"], ["1.o"]]
    assert [[unit.unit for unit in units] for units in others] == [["2.o"]]


def test_ctrl_c_is_recorded_as_interrupted(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), start(tmp_path):
        raise KeyboardInterrupt
    assert read_records(tmp_path)[0].outcome is Outcome.INTERRUPTED


def test_result_that_was_written_is_not_replaced_by_a_later_error(tmp_path: Path) -> None:
    record = start(tmp_path)
    record.finish(RESULT)
    with pytest.raises(ValueError, match="after"), record:
        raise ValueError("after")
    assert read_records(tmp_path)[0].result == RESULT
    with pytest.raises(FileExistsError):
        record.finish(RESULT)


def test_what_is_appended_is_numbered_and_nothing_is_replaced(tmp_path: Path) -> None:
    record = start(tmp_path)
    paths = [append_to_record(record.folder, "tests", {"passed": n, "failures": []}) for n in range(12)]
    assert [path.name for path in paths[:3]] == ["tests.json", "tests-2.json", "tests-3.json"]
    append_to_record(record.folder, "tests-extra", {})
    (view,) = read_records(tmp_path)
    assert [entry["passed"] for entry in view.appended("tests")] == list(range(12))


def test_what_is_no_record_is_left_out(tmp_path: Path) -> None:
    assert read_records(tmp_path / "nowhere") == ()
    with start(tmp_path) as whole:
        whole.finish(RESULT)
    name = "20261121T135607Z-llamacpp-gb10-debian-0123456789ab-00"
    (tmp_path / f"{name}01").mkdir()
    for suffix, text in (("02", "{"), ("03", "[]"), ("04", '{"plan_id": 1}'), ("05", '{"process": "", "pid": null}')):
        (tmp_path / f"{name}{suffix}").mkdir()
        (tmp_path / f"{name}{suffix}" / "started.json").write_text(text)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert [view.id for view in read_records(tmp_path)] == [whole.id]


def test_half_a_result_counts_as_none(tmp_path: Path) -> None:
    record = start(tmp_path)
    (record.folder / "result.json").write_text('{"outcome": "built", "seconds": 1')
    assert read_records(tmp_path)[0].result is None


def test_result_of_a_later_version_is_read_as_far_as_it_is_known(tmp_path: Path) -> None:
    with start(tmp_path) as record:
        record.finish(RESULT)
    data = json.loads((record.folder / "result.json").read_text())
    data["colour"] = data["steps"][0]["colour"] = data["layers"][0]["colour"] = "green"
    (record.folder / "result.json").write_text(json.dumps(data))
    assert read_records(tmp_path)[0].result == RESULT


def _attempt(records: str) -> str:
    with start(Path(records)) as record:
        record.finish(RESULT)
        return record.id


def test_attempts_at_the_same_second_get_records_of_their_own(tmp_path: Path) -> None:
    with ProcessPoolExecutor(8) as pool:
        ids = list(pool.map(_attempt, [str(tmp_path)] * 64))
    assert len(set(ids)) == 64
    assert sorted(ids) == [view.id for view in read_records(tmp_path)]
    assert len(list(tmp_path.iterdir())) == 64


def test_name_that_is_taken_is_not_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["aaaa", "0" * 8, "0" * 8, "aaaa", "0" * 8, "0" * 8, "bbbb", "0" * 8, "0" * 8])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(tokens))
    first, second = start(tmp_path), start(tmp_path)
    assert (first.id[-4:], second.id[-4:]) == ("aaaa", "bbbb")
    assert {folder.name for folder in tmp_path.iterdir()} == {first.id, second.id}


def finished(records: Path, result: Result, *, minutes: int, image: str = "llamacpp") -> None:
    with start(records, now=NOW + timedelta(minutes=minutes), image=image) as record:
        record.finish(result)


def test_a_plan_is_found_by_its_newest_build_also_after_other_plans_were_built(tmp_path: Path) -> None:
    finished(tmp_path, RESULT, minutes=1)
    finished(tmp_path, RESULT, minutes=2)
    finished(tmp_path, Result(outcome=Outcome.FAILED, seconds=3), minutes=3)
    with start(tmp_path, now=NOW + timedelta(minutes=4), plan_id="f" * 64) as record:
        record.finish(RESULT)
    records = read_records(tmp_path)
    assert last_built_from(records, records[0].plan_id) == records[1]
    assert last_built_from(records, "0" * 64) is None


def test_last_built_is_the_newest_that_succeeded_for_the_variant(tmp_path: Path) -> None:
    finished(tmp_path, RESULT, minutes=1)
    finished(tmp_path, Result(outcome=Outcome.BUILT, seconds=2), minutes=2)
    finished(tmp_path, Result(outcome=Outcome.FAILED, seconds=3), minutes=3)
    finished(tmp_path, Result(outcome=Outcome.BUILT, seconds=4), minutes=4, image="vllm")
    records = read_records(tmp_path)
    view = last_built(records, "llamacpp", "gb10", "debian")
    assert view is not None
    assert view.result is not None
    assert view.result.seconds == 2
    assert last_built(records, "llamacpp", "hopper", "debian") is None


def test_expected_seconds_are_those_of_the_last_run_that_finished_the_step(tmp_path: Path) -> None:
    def ran(seconds: float, *, status: int | None = 0, cached: bool = False) -> Result:
        step = Step(name="compile", stage="compile", seconds=seconds, status=status, cached=cached)
        return Result(outcome=Outcome.FAILED, seconds=0, steps=(step,))

    finished(tmp_path, ran(1000), minutes=1)
    finished(tmp_path, ran(1200), minutes=2)
    finished(tmp_path, ran(0, status=None, cached=True), minutes=3)
    finished(tmp_path, ran(30, status=1), minutes=4)
    finished(tmp_path, ran(70), minutes=5, image="vllm")
    records = read_records(tmp_path)
    assert expected_seconds(records, "llamacpp", "compile") == 1200
    assert expected_seconds(records, "llamacpp", "fetch") is None

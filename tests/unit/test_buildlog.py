from pathlib import Path

import pytest

from spark_images.buildlog import (
    Cached,
    Event,
    GateAgain,
    GateFailed,
    Instruction,
    LogReader,
    Step,
    StepBegun,
    StepEnded,
    UnitBuilt,
    UnitMeasured,
)
from spark_images.timeline import Cut, Mark

LOGS = Path(__file__).parent.parent / "golden" / "logs"


def read(name: str) -> tuple[LogReader, list[Event]]:
    reader = LogReader()
    events = [reader.feed(line) for line in (LOGS / name).read_text().splitlines(keepends=True)]
    return reader, [event for event in events if event is not None]


def fed(*lines: str) -> LogReader:
    reader = LogReader()
    for line in lines:
        reader.feed(line)
    return reader


@pytest.mark.parametrize("engine", ["podman", "buildkit"])
def test_both_engines_tell_the_same_story(engine: str) -> None:
    _, events = read(f"ok-{engine}.log")
    story = [event for event in events if isinstance(event, StepBegun | StepEnded)]
    assert story == [
        StepBegun(step="prove", stage="compile", limit_mib=300, jobs=2),
        StepEnded(step="prove", status=0, elapsed_s=0, peak_mib=1, oom_kills=0),
        StepBegun(step="compile", stage="compile", limit_mib=300, jobs=2),
        StepEnded(step="compile", status=0, elapsed_s=3, peak_mib=1, oom_kills=0),
    ]


@pytest.mark.parametrize("engine", ["podman", "buildkit"])
def test_ninja_is_counted_for_the_step_that_runs_it(engine: str) -> None:
    reader, events = read(f"ok-{engine}.log")
    units = [event for event in events if isinstance(event, UnitBuilt)]
    assert [(unit.step, unit.done, unit.total) for unit in units] == [("compile", n, 4) for n in (1, 2, 3, 4)]
    assert units[-1].text == "Linking CXX executable toy"
    assert (reader.steps[1].done, reader.steps[1].total) == (4, 4)


@pytest.mark.parametrize("engine", ["podman", "buildkit"])
def test_steps_keep_what_they_needed(engine: str) -> None:
    reader, _ = read(f"ok-{engine}.log")
    prove, compile_ = reader.steps
    assert prove == Step(name="prove", stage="compile", status=0, limit_mib=300, jobs=2, peak_mib=1)
    assert (compile_.name, compile_.status, compile_.seconds, compile_.peak_mib) == ("compile", 0, 3.0, 1)
    assert reader.current is None


@pytest.mark.parametrize("engine", ["podman", "buildkit"])
def test_cached_steps_are_named(engine: str) -> None:
    reader, events = read(f"cached-{engine}.log")
    assert [event.step for event in events if isinstance(event, Cached) and event.step] == ["prove", "compile"]
    assert [(step.name, step.cached, step.status) for step in reader.steps] == [
        ("prove", True, None),
        ("compile", True, None),
    ]
    assert reader.current is None


def test_podman_instructions_have_stage_and_place() -> None:
    _, events = read("ok-podman.log")
    instructions = [event for event in events if isinstance(event, Instruction)]
    assert [(i.stage, i.number, i.count, i.step) for i in instructions] == [
        ("compile", 1, 3, ""),
        ("compile", 2, 3, "prove"),
        ("compile", 3, 3, "compile"),
        ("stage-1", 1, 2, ""),
        ("stage-1", 2, 2, ""),
    ]


def test_podman_single_stage_has_no_bracket() -> None:
    event = LogReader().feed("STEP 1/2: FROM build-root AS compile")
    assert event == Instruction(stage="compile", number=1, count=2, text="FROM build-root AS compile", step="")


def test_buildkits_own_work_has_no_stage() -> None:
    event = LogReader().feed("#3 [internal] load .dockerignore")
    assert event == Instruction(stage="", number=0, count=0, text="[internal] load .dockerignore", step="")


def test_buildkit_steps_that_run_at_once_are_kept_apart() -> None:
    reader = fed(
        "#6 [compile 2/3] RUN /spark/scripts/step compile /spark/scripts/compile_toy",
        "#7 [wheels 2/3] RUN /spark/scripts/step wheels /spark/scripts/build_wheels",
        "#6 0.1 [spark] step compile begin limit_mib=8192 jobs=2",
        "#7 0.1 [spark] step wheels begin limit_mib=8192 jobs=2",
        "#6 9.0 [3/370] Building CUDA object a.o",
        "",
        "#7 [wheels 2/3] RUN /spark/scripts/step wheels /spark/scripts/build_wheels",
        "#7 9.1 [1/2] Building CXX object b.o",
        "#7 9.2 [spark] step wheels end status=0 elapsed_s=9 peak_mib=100 oom_kills=0",
        "#7 DONE 9.3s",
    )
    compile_, wheels = reader.steps
    assert (compile_.done, compile_.total, compile_.status) == (3, 370, None)
    assert (wheels.done, wheels.total, wheels.status) == (1, 2, 0)
    assert reader.current == compile_


def test_buildkits_repetition_of_the_last_lines_is_not_read_twice() -> None:
    reader, events = read("oom_compiler-buildkit.log")
    assert sum(isinstance(event, StepEnded) for event in events) == 2
    assert sum(isinstance(event, UnitBuilt) for event in events) == 3
    assert reader.steps[1].oom_kills == 1


def test_peak_and_its_compilers_come_from_the_largest_sample_and_the_end() -> None:
    reader = fed(
        "STEP 1/1: RUN /spark/scripts/step compile x",
        "[spark] step compile begin limit_mib=8192 jobs=6",
        "[spark] step compile sample memory_mib=7000 compilers=6 elapsed_s=10",
        "[spark] step compile sample memory_mib=900 compilers=1 elapsed_s=12",
    )
    assert (reader.steps[0].peak_mib, reader.steps[0].peak_compilers, reader.steps[0].seconds) == (7000, 6, 12.0)
    assert (reader.steps[0].memory_mib, reader.steps[0].compilers) == (900, 1)
    reader.feed("[spark] step compile end status=0 elapsed_s=13.5 peak_mib=7400 oom_kills=0")
    assert (reader.steps[0].peak_mib, reader.steps[0].seconds) == (7400, 13.5)


GATED = (
    "STEP 1/1: RUN /spark/scripts/step compile x",
    "[spark] step compile begin limit_mib=8192 jobs=6",
    "[spark] step compile sample memory_mib=7000 compilers=6 elapsed_s=10",
)


def gated(line: str) -> tuple[Event | None, LogReader]:
    reader = fed(*GATED)
    return reader.feed(line), reader


def test_unit_is_read_and_counted() -> None:
    event, reader = gated("[spark] unit src/a.cu.o peak_mib=412 seconds=31.2 cpu_s=30.9 expected_mib=400 tries=2")
    assert event == UnitMeasured(
        step="compile", unit="src/a.cu.o", peak_mib=412, seconds=31.2, cpu_s=30.9, expected_mib=400, tries=2
    )
    assert reader.steps[0].units == 1


@pytest.mark.parametrize(
    ("said", "cut", "counted"),
    [
        ("again reason=oom", Cut.KILLED, (1, 0)),
        ("again reason=killed", Cut.KILLED, (1, 0)),
        ("again reason=short", Cut.STOPPED, (0, 1)),
    ],
)
def test_compiler_that_runs_again_is_counted_by_its_reason(said: str, cut: Cut, counted: tuple[int, int]) -> None:
    event, reader = gated(f"[spark] gate src/a.cu.o {said} peak_mib=7900 cap_mib=8192")
    assert event == GateAgain(step="compile", unit="src/a.cu.o", cut=cut, peak_mib=7900, cap_mib=8192)
    assert (reader.steps[0].killed, reader.steps[0].stopped) == counted
    assert reader.timeline("compile").marks == (Mark(elapsed_s=10, cut=cut, unit="src/a.cu.o"),)


def test_compiler_that_is_too_large_alone_is_an_event_of_its_own() -> None:
    event, reader = gated("[spark] gate src/a.cu.o failed reason=oom peak_mib=8100 cap_mib=8192")
    assert event == GateFailed(step="compile", unit="src/a.cu.o", peak_mib=8100, cap_mib=8192)
    assert reader.steps[0].killed == 1
    assert [mark.cut for mark in reader.timeline("compile").marks] == [Cut.FAILED]


def test_gate_of_a_real_build_is_read() -> None:
    reader, events = read("gate_again-podman.log")
    assert [event.unit for event in events if isinstance(event, UnitMeasured)] == [
        "more.o",
        "src/CMakeFiles/ggml-cuda.dir/mmq.cu.o",
    ]
    assert (reader.steps[0].units, reader.steps[0].killed, reader.steps[0].stopped) == (2, 0, 1)
    assert len(reader.timeline("compile").points) == 13


def test_units_of_buildkit_steps_that_run_at_once_are_kept_apart() -> None:
    reader = fed(
        "#6 [compile 2/3] RUN /spark/scripts/step compile x",
        "#7 [wheels 2/3] RUN /spark/scripts/step wheels x",
        "#6 0.1 [spark] step compile begin limit_mib=8192 jobs=2",
        "#7 0.1 [spark] step wheels begin limit_mib=8192 jobs=2",
        "#6 9.0 [spark] unit a.o peak_mib=412 seconds=1 cpu_s=1 expected_mib=400 tries=1",
        "#7 9.0 [spark] step wheels sample memory_mib=7000 compilers=6 elapsed_s=10",
    )
    assert [(step.name, step.units) for step in reader.steps] == [("compile", 1), ("wheels", 0)]
    assert [len(reader.timeline(step.name).points) for step in reader.steps] == [0, 1]


@pytest.mark.parametrize(
    "line",
    [
        "[spark] unit a.o peak_mib=412 seconds=31.2",
        "[spark] unit a b.o peak_mib=412 seconds=1 cpu_s=1 expected_mib=400 tries=1",
        "[spark] unit a.o peak_mib=-1 seconds=1 cpu_s=1 expected_mib=400 tries=1",
        "[spark] gate a.o again",
        "[spark] gate a.o failed reason=killed peak_mib=8100 cap_mib=8192",
        "[spark] gate 3 gates were killed; `ninja` goes on",
        "echo [spark] gate a.o failed reason=oom peak_mib=8100 cap_mib=8192",
    ],
)
def test_other_words_of_the_gate_mean_nothing(line: str) -> None:
    event, reader = gated(line)
    assert event is None
    assert (reader.steps[0].units, reader.steps[0].killed, reader.steps[0].stopped) == (0, 0, 0)


def test_step_without_an_end_stays_current() -> None:
    reader, _ = read("oom_nvcc-podman.log")
    assert reader.current is not None
    assert (reader.current.name, reader.current.status, reader.current.peak_mib) == ("compile", None, 395)


def test_colours_and_progress_bars_are_cleaned_away() -> None:
    reader = fed("#6 [compile 2/2] RUN x", "#6 1.0  10%\r 50%\r\x1b[1m\x1b[31merror:\x1b[0m no\x1b[K\r\n")
    assert reader.text == "error: no"
    assert reader.vertex == "6"
    assert reader.printed


@pytest.mark.parametrize(
    "line",
    [
        "[spark] step compile begin limit_mib=8192 jobs=two",
        "[spark] step compile",
        "[spark] proved: no network, memory capped at 300 MiB",
        " [spark] step compile end status=0",
        "echo [spark] step compile end status=0",
        "[1/2",
        "",
    ],
)
def test_other_lines_mean_nothing(line: str) -> None:
    reader = fed("STEP 1/1: RUN /spark/scripts/step compile x")
    assert reader.feed(line) is None
    assert reader.steps == ()

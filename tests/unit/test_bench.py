"""What benches decide: which build was cold, how a number stands against its promise, what the rows say."""

import io
import json
import re
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spark_images.bench import data
from spark_images.bench import run as bench
from spark_images.bench.base import HEADING, Bench, Measured, NotMeasured, Promise, Row, Subject, Verdict
from spark_images.bench.compiling import (
    OBJECTS,
    CacheCounts,
    CacheUse,
    cache_counts,
    compiled,
    read_samples,
    sample_dockerfile,
)
from spark_images.bench.run import choose, fails, measure
from spark_images.buildlog import Step
from spark_images.cache import Cache
from spark_images.engine.base import EngineFacts
from spark_images.errors import CheckError, InterruptedByUser, RouteError, UsageError
from spark_images.oci import read_layout, write_root_layout
from spark_images.project import Project
from spark_images.record import Outcome, RecordView, Result, read_records
from spark_images.record_writer import RecordWriter

SECONDS = Promise(bound=1.5, unit="s", at_most=True)
TIMES = Promise(bound=8, unit="times", at_most=False)
ENGINE = EngineFacts(name="podman", version="4.3.1", builder="buildah 1.28.2", runtime="runc", cgroup="v1")
SUBJECT = Subject(project=Project(Path("/nowhere")), cache=Cache(Path("/nowhere")))
REPOSITORY = Path(__file__).parents[2]


def counters(*, direct: int, preprocessed: int = 0, misses: int) -> list[str]:
    return [
        "[370/370] Linking CXX executable bin/llama-server\n",
        f"ccache cache_miss {misses}\n",
        f"ccache direct_cache_hit {direct}\n",
        f"ccache preprocessed_cache_hit {preprocessed}\n",
    ]


# --- cold or warm -----------------------------------------------------------------------------------------------------


def test_cache_counts_are_the_same_from_podman_and_from_buildkit() -> None:
    lines = counters(direct=3, preprocessed=2, misses=339)
    from_buildkit = [f"#9 1808.{number} {line}" for number, line in enumerate(lines)]

    assert cache_counts(lines) == cache_counts(from_buildkit) == CacheCounts(hits=5, misses=339)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_log_without_all_counters_does_not_tell(missing: int) -> None:
    lines = counters(direct=0, misses=344)
    del lines[missing]

    assert cache_counts(lines) is None


@pytest.mark.parametrize(
    ("hits", "misses", "use"),
    [
        (0, 344, CacheUse.COLD),
        (0, 0, CacheUse.COLD),  # every compile was told to ignore the cache
        (59, 285, CacheUse.COLD),  # the rest of a build that broke off: too quick, if anything
        (172, 172, CacheUse.MIXED),
        (250, 94, CacheUse.MIXED),
        (343, 1, CacheUse.WARM),
        (344, 0, CacheUse.WARM),
    ],
)
def test_what_compilers_had_to_do_makes_a_build_cold_or_warm(hits: int, misses: int, use: CacheUse) -> None:
    assert CacheCounts(hits=hits, misses=misses).use is use


def record(records: Path, step: Step, log: list[str], *, outcome: Outcome = Outcome.BUILT) -> RecordView:
    with RecordWriter.start(
        records,
        plan_id="3f2a" * 16,
        image="llamacpp",
        target="gb10",
        base="debian",
        plan={"inputs": {"trees/llama-cpp.tar": "sha256:ab"}},
        command=[],
        engine=ENGINE,
        host={},
        now=datetime(2026, 11, 21, tzinfo=UTC),
    ) as writer:
        for line in log:
            writer.line(line)
        writer.finish(Result(outcome=outcome, seconds=9.0, steps=(step,)))
    return read_records(records)[-1]


def test_a_record_tells_how_long_it_compiled_and_with_what_cache(tmp_path: Path) -> None:
    step = Step(name="compile", stage="compile", status=0, seconds=1808.0, jobs=2)

    found = compiled(record(tmp_path, step, counters(direct=0, misses=344)))

    assert found is not None
    assert (found.use, found.step.seconds, found.engine) == (CacheUse.COLD, 1808.0, "podman")
    assert found.inputs == {"trees/llama-cpp.tar": "sha256:ab"}


def test_a_build_whose_log_has_no_counters_is_neither_cold_nor_warm(tmp_path: Path) -> None:
    step = Step(name="compile", stage="compile", status=0, seconds=1808.0)

    found = compiled(record(tmp_path, step, ["[1/370] Building CXX object a.o"]))

    assert found is not None
    assert found.use is CacheUse.UNKNOWN


@pytest.mark.parametrize(
    "step",
    [
        Step(name="compile", stage="compile", status=1, seconds=703.0),
        Step(name="compile", stage="compile", cached=True),
        Step(name="compile", stage="compile", seconds=99.0),
        Step(name="prove", stage="compile", status=0, seconds=1.0),
    ],
    ids=["failed", "from the engine's cache", "broken off", "another step"],
)
def test_only_compile_steps_that_ran_to_their_end_count(tmp_path: Path, step: Step) -> None:
    assert compiled(record(tmp_path, step, counters(direct=0, misses=344))) is None


# --- the sample -------------------------------------------------------------------------------------------------------


def test_samples_are_read_with_and_without_an_engines_prefix() -> None:
    log = [
        "sample ggml/a.cu.o wall_s=6.712 user_s=3.900 system_s=0.260",
        "#8 61.20 sample ggml/b.c.o wall_s=9.090 user_s=5.500 system_s=0.293\r\n",
        "a sample of something else",
    ]

    samples = read_samples(log)

    assert {name: (one.wall_s, round(one.cpu_s, 3)) for name, one in samples.items()} == {
        "ggml/a.cu.o": (6.712, 4.16),
        "ggml/b.c.o": (9.09, 5.793),
    }


def test_the_sample_is_configured_as_the_image_is() -> None:
    dockerfile = (REPOSITORY / "images/llamacpp/gb10-debian.Dockerfile").read_text()

    text = sample_dockerfile(dockerfile, epoch=1790820708)

    arguments = re.search(r"compile_llamacpp (.+)", dockerfile)
    assert arguments is not None
    assert f"/spark/scripts/compile_sample {' '.join(OBJECTS)} -- {arguments[1]}\n" in text
    assert "ARG SOURCE_DATE_EPOCH=1790820708\n" in text


# --- promises and rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("promise", "value", "verdict"),
    [
        (SECONDS, 1.49, Verdict.MET),
        (SECONDS, 1.5, Verdict.MISSED),
        (TIMES, 8.0, Verdict.MET),
        (TIMES, 7.99, Verdict.MISSED),
    ],
)
def test_a_promise_is_met_below_a_bound_or_from_it_on(promise: Promise, value: float, verdict: Verdict) -> None:
    assert promise.judge(value) is verdict


def one(outcome: Measured | Exception) -> Bench:
    def run(subject: Subject) -> Measured:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return Bench(name="toy", promise=SECONDS, measure=run)


def test_what_is_not_measured_is_not_met_and_fails_only_where_it_was_asked_for() -> None:
    row = measure(one(NotMeasured("`llamacpp` is not built")), SUBJECT)

    assert row.verdict is Verdict.UNKNOWN
    assert row.facts == ("`llamacpp` is not built",)
    assert fails(row, named=True)
    assert not fails(row, named=False)


def test_an_error_in_a_bench_is_a_row_of_its_own_and_fails() -> None:
    row = measure(one(RouteError("no route", hint="check the network")), SUBJECT)

    assert row.verdict is Verdict.FAILED
    assert row.facts[0] == "error: no route"
    assert fails(row, named=False)


def test_an_interrupt_ends_all_benches() -> None:
    with pytest.raises(InterruptedByUser):
        measure(one(InterruptedByUser("stopped")), SUBJECT)


def test_rows_stand_under_their_heading() -> None:
    row = measure(one(Measured(value=0.93184, facts=("median of five",))), SUBJECT)

    line, *facts = row.lines()

    assert line.index("0.93 s") == HEADING.index("measured")
    assert line.index("below 1.5 s") == HEADING.index("promised")
    assert line.index("met") == HEADING.index("verdict")
    assert facts[0].strip() == "median of five"
    assert "load of the machine" in facts[1]


def test_every_bench_fits_its_columns() -> None:
    starts = [HEADING.index(word) for word in ("measured", "promised", "verdict")]
    for each in bench.BENCHES:
        line = Row(bench=each, verdict=Verdict.MISSED, value=1234.5).lines()[0]

        assert [line[start - 1] for start in starts] == [" ", " ", " "], line


def test_no_names_mean_every_bench_and_names_keep_the_order() -> None:
    names = [
        "unchanged",
        "render",
        "canonical",
        "fetch",
        "pull",
        "cross",
        "warm",
        "remote-cache",
        "memory",
        "tree",
        "replay",
    ]
    assert [each.name for each in choose([])] == names
    assert [each.name for each in choose(["warm", "render"])] == ["render", "warm"]


def test_an_unknown_bench_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"no bench `unchnged` \(did you mean `unchanged`\?\)"):
        choose(["unchnged"])


def test_a_missed_promise_ends_in_an_error_after_all_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benches = (one(Measured(value=2.0)), Bench(name="next", promise=TIMES, measure=lambda _: Measured(value=9.0)))
    monkeypatch.setattr(bench, "BENCHES", benches)

    with pytest.raises(CheckError, match="1 of 2 promises") as failed:
        bench.bench(SUBJECT.project, cache=SUBJECT.cache, names=[])

    assert failed.value.why == ("toy: MISSED",)
    assert "next " in capsys.readouterr().out


# --- what is measured -------------------------------------------------------------------------------------------------


def test_the_layer_to_rewrite_is_the_tree_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "LAYER_BYTES", 100_000)
    tree = tmp_path / "root.tar"
    with tarfile.open(tree, "w") as tar:
        binary = tarfile.TarInfo("usr/bin/cc")
        binary.size = 30_000
        tar.addfile(binary, io.BytesIO(b"\x7fELF" + bytes(29_996)))
        link = tarfile.TarInfo("usr/bin/gcc")
        link.type, link.linkname = tarfile.LNKTYPE, "usr/bin/cc"
        tar.addfile(link)
    source = write_root_layout(tree, architecture="amd64", env=(), epoch=0, output=tmp_path / "root")

    files = data.write_raw(source, tmp_path / "raw", architecture="amd64")

    raw = read_layout(tmp_path / "raw")
    with tarfile.open(raw.blob(raw.layers[0].digest), "r:") as tar:
        entries = {info.name: info.linkname for info in tar}
    assert list(entries) == [f"{number}/usr/bin/{name}" for number in range(4) for name in ("cc", "gcc")][:7]
    assert entries["2/usr/bin/gcc"] == "2/usr/bin/cc"
    assert files == 4
    assert json.loads((tmp_path / "raw/index.json").read_text())["manifests"][0]["digest"] == raw.manifest_digest

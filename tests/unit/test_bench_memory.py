"""Benches of the gate: their cgroups, their builds, what they compile or replay, and how they judge it."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_images.bench import cgroup
from spark_images.bench.base import NotMeasured
from spark_images.bench.cgroup import Cgroup, capped, parents
from spark_images.bench.memory import HUNGRIEST, Comparison, Source, sources, write_sources
from spark_images.bench.ninja import Attempt, Compile, Gate, build, ninja_file, program, write_profile
from spark_images.bench.replay import CAPS_GIB, REPLAY, bound_s, measured_vllm, minutes, scaled, stand_in_for
from spark_images.bench.tree import read_ways
from spark_images.errors import CheckError
from spark_images.schedule import Unit
from spark_images.units import MIB

MEMGATE = Path(__file__).parents[2] / "scripts/memgate"


@pytest.fixture
def group() -> Iterator[Cgroup]:
    try:
        with capped(64 * MIB) as made:
            yield made
    except NotMeasured as reason:
        pytest.skip(str(reason))


@pytest.fixture
def needs_ninja(group: Cgroup) -> None:
    if shutil.which("ninja") is None:
        pytest.skip("needs `ninja`; `apt-get install ninja-build`")


def shell(unit: str, script: str) -> Compile:
    return Compile(unit=unit, command=("sh", "-c", script))


# --- cgroups ----------------------------------------------------------------------------------------------------------

EATS_100_MIB = ("python3", "-c", "bytearray(100 * 2**20)")


def test_what_is_in_the_cgroup_dies_above_the_cap(group: Cgroup) -> None:
    done = subprocess.run(group.inside(EATS_100_MIB), check=False)

    assert done.returncode == -9
    assert group.oom_kills() == 1


def test_what_is_beside_the_cgroup_does_not_die(group: Cgroup) -> None:
    assert subprocess.run(EATS_100_MIB, check=False).returncode == 0
    assert group.oom_kills() == 0


def test_a_cgroup_ends_with_all_that_is_in_it_also_after_an_interrupt(group: Cgroup) -> None:
    made: list[Cgroup] = []
    sleepers = []

    def be_interrupted() -> None:
        with capped(64 * MIB) as one:
            made.append(one)
            command = one.inside(["sh", "-c", "sleep 60 & echo in; wait"])
            sleepers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            assert sleepers[0].stdout is not None
            assert sleepers[0].stdout.readline() == b"in\n"
            assert len(one.members.read_text().split()) == 2
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()

    assert sleepers[0].wait(5) == -9
    assert not made[0].folder.exists()


def test_what_a_killed_bench_left_is_removed_and_what_a_running_one_has_is_not(group: Cgroup) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = group.folder.with_name(f"spark-images-bench-{ended.pid}-1")
    left.mkdir()

    with capped(64 * MIB):
        assert not left.exists()
        assert group.folder.exists()


def write_tree(root: Path, own: str, delegated: tuple[str, ...]) -> Path:
    """A host with cgroup version 2; the folder where it is mounted."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"0::{own}\n")
    (root / "proc/self/mountinfo").write_text("30 23 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw\n")
    top = root / "sys/fs/cgroup"
    (top / own.lstrip("/")).mkdir(parents=True)
    for folder in delegated:
        (top / folder / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (top / own.lstrip("/") / "cgroup.subtree_control").write_text("\n")
    return top


def test_version_2_offers_the_nearest_parent_whose_children_have_memory(tmp_path: Path) -> None:
    top = write_tree(tmp_path, "/user.slice/me/run.scope", delegated=(".", "user.slice/me"))

    assert parents(tmp_path) == ((top / "user.slice/me", 2), (top, 2))


def test_version_2_takes_the_swap_as_well(tmp_path: Path) -> None:
    (tmp_path / "memory.swap.max").write_text("max\n")

    Cgroup(tmp_path, 2).limit(3 * MIB)

    assert (tmp_path / "memory.max").read_text() == str(3 * MIB)
    assert (tmp_path / "memory.swap.max").read_text() == "0"


def test_version_2_tells_its_kills(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 5\noom_group_kill 0\n")

    assert Cgroup(tmp_path, 2).oom_kills() == 5


def test_without_a_place_for_a_cgroup_the_reason_and_the_remedy_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "parents", lambda root: ())

    with pytest.raises(NotMeasured, match=r"needs a memory cgroup .* `systemd-run") as refused, capped(MIB):
        pass

    assert "Delegate=yes" in str(refused.value)


# --- builds -----------------------------------------------------------------------------------------------------------


def test_the_ninja_file_keeps_the_order_and_what_shells_would_change() -> None:
    gate = Gate(program=Path("/memgate"), slots=2, unit_mib=100)
    text = ninja_file([shell("b.o", "echo $HOME >b.o"), shell("a.o", "true")], gate)

    assert "  command = /memgate $compile\n" in text
    assert text.index("build b.o") < text.index("build a.o")
    assert "  compile = sh -c 'echo $$HOME >b.o'\n" in text


@pytest.mark.usefixtures("needs_ninja")
def test_a_failed_unit_is_counted_and_does_not_stop_the_others(tmp_path: Path) -> None:
    compiles = [shell("one.o", "exit 3"), shell("in/two.o", "echo >in/two.o"), shell("three.o", "echo >three.o")]

    attempt = build(compiles, tmp_path / "out", jobs=1, cap_bytes=64 * MIB)

    assert attempt.failed == 1
    assert attempt.oom_kills == 0
    assert attempt.told == f"{attempt.seconds:.1f} s, 1 units failed"


@pytest.mark.usefixtures("needs_ninja")
def test_a_build_is_inside_the_cap(tmp_path: Path) -> None:
    attempt = build([Compile(unit="a.o", command=EATS_100_MIB)], tmp_path / "out", jobs=1, cap_bytes=64 * MIB)

    assert attempt.oom_kills == 1
    assert attempt.failed == 1


@pytest.mark.usefixtures("needs_ninja")
def test_outside_the_cap_only_what_goes_in_itself_is_counted(tmp_path: Path) -> None:
    outside = Compile(unit="a.o", command=("python3", "-c", "bytearray(100 * 2**20); open('a.o', 'w')"))
    inside = Compile(unit="b.o", command=("sh", "-c", 'echo $$ >"$MEMBERS"; exec "$@"', "sh", *EATS_100_MIB))

    attempt = build([outside, inside], tmp_path / "out", jobs=1, cap_bytes=64 * MIB, outside=True)

    assert (attempt.failed, attempt.oom_kills) == (1, 1)
    assert (tmp_path / "out/a.o").exists()


@pytest.mark.usefixtures("needs_ninja")
def test_a_build_that_does_not_end_in_time_is_ended_and_lacks_its_units(tmp_path: Path) -> None:
    attempt = build([shell("a.o", "sleep 30; echo >a.o")], tmp_path / "out", jobs=1, cap_bytes=64 * MIB, timeout_s=0.5)

    assert attempt.failed == 1
    assert attempt.seconds < 15


@pytest.mark.usefixtures("needs_ninja")
def test_the_gate_tells_what_each_unit_took(tmp_path: Path) -> None:
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("needs `g++`; `apt-get install g++`")
    compiles = write_sources([Source(name="moe/tiny", limit=100, rows=1)], tmp_path / "src", compiler)
    gate = Gate(program=MEMGATE, slots=1, unit_mib=200)

    attempt = build(compiles, tmp_path / "out", jobs=1, cap_bytes=512 * MIB, gate=gate)

    assert attempt.failed == 0, attempt.said
    (unit,) = attempt.units
    assert unit.name == "moe/tiny.o"
    assert 5 < unit.peak_mib < 200


def test_a_profile_is_written_as_the_gate_reads_it(tmp_path: Path) -> None:
    units = (Unit(name="a/x.cu.o", seconds=31.2, peak_mib=412), Unit(name="b/y.o", seconds=0.5, peak_mib=9))

    assert write_profile(units, tmp_path / "profile").read_text() == "412 31.2 a/x.cu.o\n9 0.5 b/y.o\n"


def test_a_missing_program_is_named_with_its_package() -> None:
    with pytest.raises(NotMeasured, match="needs `no-such-compiler`; `apt-get install some-package`"):
        program("no-such-compiler", "some-package")


# --- real compilers ---------------------------------------------------------------------------------------------------


def test_the_load_begins_with_its_hungriest_and_differs_by_ten_times() -> None:
    load = list(sources(1))
    rows = [source.rows for source in load]

    assert len(load) == 20
    assert load[HUNGRIEST].rows == max(rows) > 10 * min(rows)
    assert min(rows[:4]) > max(rows[4:])
    assert [source.name for source in sources(2)][:8] == [f"moe/grouped{number}" for number in range(8)]


def attempt(seconds: float, *, failed: int = 0) -> Attempt:
    return Attempt(seconds=seconds, failed=failed, oom_kills=failed)


# Two slots; the oracle runs both large ones beside the small: 20 s.
UNITS_BEHIND_THE_GATE = (
    *(Unit(name=f"large{number}", seconds=10, peak_mib=600) for number in range(2)),
    *(Unit(name=f"small{number}", seconds=5, peak_mib=60) for number in range(4)),
)
COMPARISON = Comparison(
    slots=2,
    cap_mib=900,
    fixed={1: attempt(40), 2: attempt(21, failed=2)},
    unknown=attempt(30),
    known=replace(attempt(22), units=UNITS_BEHIND_THE_GATE, cpu_s=38.8),
)


def test_the_gate_is_compared_with_the_quickest_job_count_that_did_not_fail() -> None:
    measured = COMPARISON.measured()

    assert measured.value == pytest.approx(40 / 22)
    assert measured.facts == (
        "6 C++ files, peaks 60 to 600 MiB, cap 900 MiB, 2 slots",
        "-j1, safe by the largest peak: 40.0 s",
        "-j2: 21.0 s, 2 units failed, 2 killed for memory",
        "memgate that knows no file: 30.0 s",
        "memgate with the profile that this gave: 22.0 s",
        "oracle, a simulated schedule of the units as they were measured in that: 20.0 s",
        "each compiler had 97% of a core",
    )


def test_on_a_busy_machine_nothing_is_said() -> None:
    busy = replace(COMPARISON, known=replace(COMPARISON.known, cpu_s=20.0))

    with pytest.raises(NotMeasured, match="had 50% of a core each"):
        busy.measured()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (replace(COMPARISON, unknown=attempt(30, failed=1)), "units failed behind the gate"),
        (replace(COMPARISON, known=replace(COMPARISON.known, failed=1)), "units failed behind the gate"),
        (replace(COMPARISON, known=replace(COMPARISON.known, seconds=23.1)), "more than 1.15 times the oracle"),
        (replace(COMPARISON, fixed={1: attempt(40), 2: attempt(25)}), "the cap was no hindrance"),
        (replace(COMPARISON, fixed={1: attempt(40, failed=1), 2: attempt(2, failed=2)}), "every job count failed"),
    ],
)
def test_a_broken_promise_beside_the_ratio_is_an_error_with_all_facts(changed: Comparison, said: str) -> None:
    with pytest.raises(CheckError) as raised:
        changed.measured()

    assert said in raised.value.what
    assert len(raised.value.why) == 7


# --- replay -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs `cc`; `apt-get install gcc`")
    made = tmp_path_factory.mktemp("stand-in") / "standin"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", made, REPLAY / "standin.c"], check=True)
    return made


def test_a_stand_in_takes_the_time_and_the_memory_of_its_unit(stand_in: Path, tmp_path: Path) -> None:
    compiles = stand_in_for(Unit(name="a/x.cu.o", seconds=0.5, peak_mib=80), stand_in)
    (tmp_path / "a").mkdir()

    # Started by a small process: a child's largest size is at first that of the process which forked it.
    measure = "import resource as r, subprocess as s, sys; s.run(sys.argv[1:]).check_returncode(); "
    measure += "print(r.getrusage(r.RUSAGE_CHILDREN).ru_maxrss)"
    command = [sys.executable, "-IS", "-c", measure, *compiles.command]
    peak_mib = int(subprocess.check_output(command, cwd=tmp_path)) / 1024

    assert 80 <= peak_mib <= 83
    assert (tmp_path / "a/x.cu.o").exists()


def test_a_stand_in_is_a_compile_to_the_gate(stand_in: Path, tmp_path: Path, needs_ninja: None) -> None:
    unit = Unit(name="a/x.cu.o", seconds=1.5, peak_mib=40)
    gate = Gate(program=MEMGATE, slots=1, unit_mib=50)

    done = build([stand_in_for(unit, stand_in)], tmp_path / "out", jobs=1, cap_bytes=64 * MIB, gate=gate, outside=True)

    assert [(one.name, round(one.peak_mib / 40, 1)) for one in done.units] == [("a/x.cu.o", 1.0)]


def test_a_stand_in_dies_in_the_cgroup_whose_members_it_is_told(stand_in: Path, tmp_path: Path, group: Cgroup) -> None:
    command = stand_in_for(Unit(name="x.cu.o", seconds=0.2, peak_mib=200), stand_in).command

    done = subprocess.run(command, cwd=tmp_path, env={"MEMBERS": str(group.members)}, check=False)

    assert done.returncode == -9
    assert group.oom_kills() == 1


def test_the_bound_of_the_replay_is_that_of_twenty_cores() -> None:
    units = scaled(measured_vllm(Path(__file__).parents[2]))

    assert [minutes(bound_s(units, cap_gib)) for cap_gib in CAPS_GIB] == ["35.4 min"] * 3


# --- real tree --------------------------------------------------------------------------------------------------------


def test_both_ways_are_read_behind_any_engines_prefix() -> None:
    log = [
        "#9 61.2 capped counted status=1 missing=2 seconds=60",
        "#9 90.1 [spark] unit a.o peak_mib=5 seconds=1.0 cpu_s=1.0 expected_mib=5 tries=1",
        "capped gated status=0 missing=0 seconds=91",
    ]

    ways = read_ways(log)

    assert {way: (one.missing, one.seconds) for way, one in ways.items()} == {"counted": (2, 60), "gated": (0, 91)}

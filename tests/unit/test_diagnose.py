import json
from pathlib import Path

import pytest

from spark_images.buildlog import LogReader
from spark_images.diagnose import Diagnosis, Kind, build_error, first_error
from spark_images.errors import (
    BuildError,
    DiskFullError,
    EngineError,
    IsolationError,
    OutOfMemoryError,
    SparkImagesError,
)

LOGS = Path(__file__).parent.parent / "golden" / "logs"

# Real logs of podman 4.3 and BuildKit 0.32: what failed -> (kind, how its first error line begins, file or host)
EXPECTED: dict[str, tuple[Kind, str | tuple[str, ...], str]] = {
    "bad_dockerfile": (Kind.ENGINE, ("ERROR: failed to build: ", 'Error: building at STEP "COPYY '), ""),
    "cap_not_proved": (Kind.CAP_NOT_PROVED, "[spark] cap not proved: this step may use 0 MiB", ""),
    "command_missing": (Kind.UNKNOWN, "/spark/scripts/toy_command_missing: line 3: cmake: command not found", ""),
    "compile_error": (Kind.COMPILE_ERROR, "more.cpp:2:26: error: 'b' was not declared", "more.cpp"),
    "copy_missing": (Kind.ENGINE, ("ERROR: failed to calculate checksum", 'Error: building at STEP "COPY '), ""),
    "disk_full": (Kind.DISK_FULL, "/tmp/cc", "kernel.cpp"),
    "link_error": (Kind.LINK_ERROR, "main.cpp:(.text+0xc): undefined reference to `add(int, int)'", "toy"),
    "link_missing": (Kind.LINK_ERROR, "/usr/bin/ld: cannot find -lcublas", "toy"),
    "make": (Kind.MISSING_HEADER, "<command-line>: fatal error: missing_prefix.h", "/spark/scripts/src/main.cpp"),
    "memory_error": (Kind.OUT_OF_MEMORY, "MemoryError", ""),
    "missing_header": (Kind.MISSING_HEADER, "more.cpp:1:10: fatal error: cuda_fp4.h", "more.cpp"),
    "network": (Kind.NETWORK, "curl: (6) Could not resolve host: github.com", "github.com"),
    "network_python": (Kind.NETWORK, "socket.gaierror: [Errno -3] Temporary failure in name resolution", ""),
    "not_isolated": (Kind.NOT_ISOLATED, "[spark] not isolated: network interface eth0 is up", ""),
    "oom_compiler": (Kind.OUT_OF_MEMORY, "g++: fatal error: Killed signal terminated program cc1plus", "more.cpp"),
    "oom_exec": (Kind.OUT_OF_MEMORY, "/spark/scripts/step: line 66:    11 Killed", ""),
    "oom_nvcc": (Kind.OUT_OF_MEMORY, "Killed", "sort.cu"),
    "oom_python": (Kind.OUT_OF_MEMORY, "/spark/scripts/toy_oom_python: line 4:    13 Killed", ""),
    "pid1": (Kind.OUT_OF_MEMORY, "Killed", ""),
    "python": (Kind.PYTHON_EXCEPTION, "ModuleNotFoundError: No module named 'torch'", "/build/setup.py"),
    "virtual_memory": (Kind.OUT_OF_MEMORY, "virtual memory exhausted: Cannot allocate memory", "more.cpp"),
    "wrong_arch": (Kind.WRONG_ARCH, "/spark/scripts/toy_wrong_arch: line 4: /build/llama-gen-docs: cannot execute", ""),
    "wrong_object": (Kind.WRONG_ARCH, "/usr/bin/ld: kernel_arm.o: Relocations in generic ELF", "toy"),
}
FAILED_LOGS = sorted(path.name for path in LOGS.glob("*.log") if not path.name.startswith(("ok-", "cached-")))


@pytest.mark.parametrize("name", FAILED_LOGS)
def test_real_log_leads_to_its_first_error(name: str) -> None:
    lines = (LOGS / name).read_text().splitlines()
    kind, begins, subject = EXPECTED[name.rpartition("-")[0]]
    diagnosis = first_error(lines)
    assert diagnosis.kind is kind
    reader = LogReader()
    reader.feed(lines[0])  # so that it knows the engine
    reader.feed(lines[diagnosis.line_number - 1])
    assert reader.text.startswith(begins)
    assert reader.text[:100] in "\n".join(diagnosis.excerpt)
    assert (diagnosis.file or diagnosis.host) == subject


@pytest.mark.parametrize("name", FAILED_LOGS)
def test_stage_and_step_are_named_where_a_step_failed(name: str) -> None:
    diagnosis = first_error((LOGS / name).read_text().splitlines())
    if diagnosis.kind is not Kind.ENGINE:
        assert diagnosis.stage == "compile"
        assert diagnosis.step == ("prove" if diagnosis.kind in (Kind.NOT_ISOLATED, Kind.CAP_NOT_PROVED) else "compile")


def failed_step(
    *output: str,
    end: str = "status=1 elapsed_s=9 peak_mib=100 oom_kills=0",
    after: str = "while running runtime: exit status 1",
) -> Diagnosis:
    """The diagnosis of a podman build whose step printed this. end: its last line. after: podman's last words."""
    return first_error(
        [
            "[1/2] STEP 1/2: FROM build-root AS compile",
            "[1/2] STEP 2/2: RUN /spark/scripts/step compile /spark/scripts/compile_x",
            "[spark] step compile begin limit_mib=8192 jobs=2",
            *output,
            *([f"[spark] step compile end {end}"] if end else []),
            f'Error: building at STEP "RUN x": {after}',
        ]
    )


@pytest.mark.parametrize(
    "line",
    [
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "nvcc error   : 'cudafe++' died due to signal 9 (Kill signal)",
        "c++: internal compiler error: Killed (program cc1plus)",
        "c++: fatal error: Killed signal terminated program cc1plus",
        "collect2: fatal error: ld terminated with signal 9 [Killed]",
        "clang++: error: unable to execute command: Killed",
        "/usr/bin/ld: final link failed: memory exhausted",
        "cc1plus: out of memory allocating 65536 bytes after a total of 148602880 bytes",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "make[2]: *** [Makefile:12: flash.o] Killed",
        "Killed",
        "subprocess.CalledProcessError: Command '['cmake', '--build']' returned non-zero exit status 137.",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>.",
        "/bin/sh: 1: Cannot fork: Cannot allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(line: str) -> None:
    diagnosis = failed_step("[1/9] Building CUDA object a.o", line, "ninja: build stopped: subcommand failed.")
    assert diagnosis.kind is Kind.OUT_OF_MEMORY
    assert diagnosis.excerpt[0] == line


@pytest.mark.parametrize(
    "line",
    [
        "-- Killed processes are reported by the watchdog",
        "Killing time while the cache warms",
        "  -DKilled=1",
        "src/memory.cpp: warning: 'allocate' may be out of range",
    ],
)
def test_words_that_resemble_an_out_of_memory_are_not_one(line: str) -> None:
    diagnosis = failed_step(line, "a.cpp:1:2: error: expected ';'")
    assert diagnosis.kind is Kind.COMPILE_ERROR


def test_kill_that_only_the_cgroup_counted_is_out_of_memory() -> None:
    diagnosis = failed_step(
        "[8/9] Building CUDA object b.o",
        "FAILED: [code=1] flash_fwd.o",
        "/cuda/bin/nvcc -O3 -c /build/src/flash_fwd.cu -o flash_fwd.o",
        "ninja: build stopped: subcommand failed.",
        end="status=1 elapsed_s=9 peak_mib=8190 oom_kills=1",
    )
    assert diagnosis.kind is Kind.OUT_OF_MEMORY
    assert diagnosis.line_number == 5


def test_vague_consequence_of_a_kill_is_out_of_memory() -> None:
    vague = "cc1plus: fatal error: error writing to -: Broken pipe"
    killed = failed_step(vague, end="status=1 elapsed_s=9 peak_mib=8190 oom_kills=1")
    assert killed.kind is Kind.OUT_OF_MEMORY
    assert failed_step(vague).kind is Kind.COMPILE_ERROR


def test_error_at_a_place_in_a_source_stays_one_though_something_was_killed() -> None:
    diagnosis = failed_step("a.cpp:1:2: error: expected ';'", end="status=1 elapsed_s=9 peak_mib=8190 oom_kills=1")
    assert diagnosis.kind is Kind.COMPILE_ERROR


def test_step_that_was_killed_itself_is_out_of_memory() -> None:
    assert (
        failed_step("[1/9] Building CXX object a.o", end="", after="while running runtime: exit status 137").kind
        is Kind.OUT_OF_MEMORY
    )


def test_buildkits_word_for_an_oom_kill_is_understood() -> None:
    diagnosis = first_error(
        [
            "#6 [compile 2/3] RUN /spark/scripts/step compile /spark/scripts/compile_x",
            "#6 0.1 [spark] step compile begin limit_mib=8192 jobs=2",
            "#6 9.0 [1/9] Building CXX object a.o",
            '#6 ERROR: process "/bin/sh -c x" did not complete successfully: cannot allocate memory',
            "------",
            'ERROR: failed to build: failed to solve: process "/bin/sh -c x" did not complete successfully: '
            "cannot allocate memory",
        ]
    )
    assert (diagnosis.kind, diagnosis.step) == (Kind.OUT_OF_MEMORY, "compile")


def test_errors_that_an_earlier_step_got_over_do_not_count() -> None:
    diagnosis = first_error(
        [
            "STEP 1/3: FROM build-root AS compile",
            "STEP 2/3: RUN /spark/scripts/step tools /spark/scripts/tools",
            "[spark] step tools begin limit_mib=8192 jobs=2",
            "conftest.c:3:10: fatal error: sys/mman.h: No such file or directory",
            "[spark] step tools end status=0 elapsed_s=1 peak_mib=1 oom_kills=0",
            "--> 0123456789ab",
            "STEP 3/3: RUN /spark/scripts/step compile /spark/scripts/compile_x",
            "[spark] step compile begin limit_mib=8192 jobs=2",
            "/usr/bin/ld: cannot find -lcublas",
            "[spark] step compile end status=1 elapsed_s=1 peak_mib=1 oom_kills=0",
            'Error: building at STEP "RUN x": while running runtime: exit status 1',
        ]
    )
    assert (diagnosis.kind, diagnosis.step, diagnosis.line_number) == (Kind.LINK_ERROR, "compile", 9)


def test_probes_before_ninja_do_not_count_where_ninja_names_a_failure() -> None:
    diagnosis = failed_step(
        "conftest.c:3:10: fatal error: numa.h: No such file or directory",
        "[1/2] Building CXX object a.o",
        "FAILED: [code=1] a.o",
        "g++ -c /build/src/a.cpp -o a.o",
        "/build/src/a.cpp:7:1: error: 'x' does not name a type",
        "ninja: build stopped: subcommand failed.",
    )
    assert (diagnosis.kind, diagnosis.file, diagnosis.line_number) == (Kind.COMPILE_ERROR, "/build/src/a.cpp", 8)


def test_drivers_traceback_gives_way_to_the_compilers_error() -> None:
    diagnosis = failed_step(
        'csrc/fused_moe.cu(88): error: identifier "__nv_fp4" is undefined',
        "Traceback (most recent call last):",
        '  File "/build/setup.py", line 10, in <module>',
        "    main()",
        "RuntimeError: Error compiling objects for extension",
    )
    assert (diagnosis.kind, diagnosis.file) == (Kind.COMPILE_ERROR, "csrc/fused_moe.cu")


def test_log_that_stops_in_the_middle_names_the_step_that_was_running() -> None:
    diagnosis = first_error(
        [
            "STEP 2/3: RUN /spark/scripts/step compile /spark/scripts/compile_x",
            "[spark] step compile begin limit_mib=8192 jobs=2",
            "[1/9] Building CXX object a.o",
            "[2/9] Building CXX object b.o",
            "[spark] step compile sample memory_mib=300 compilers=2 elapsed_s=2",
        ]
    )
    assert (diagnosis.kind, diagnosis.step, diagnosis.line_number) == (Kind.UNKNOWN, "compile", 4)


def test_unexplained_failure_shows_the_last_words() -> None:
    diagnosis = failed_step("configuring", "checking for sm_121a", "giving up")
    assert diagnosis.kind is Kind.UNKNOWN
    assert diagnosis.excerpt == ("configuring", "checking for sm_121a", "giving up")


def test_engine_that_wants_to_pull_asked_for_the_network() -> None:
    diagnosis = first_error(
        [
            "#2 [internal] load metadata for docker.io/library/nowhere:latest",
            '#2 ERROR: failed to do request: Head "https://registry-1.docker.io/v2/x": dial tcp: lookup registry-1',
        ]
    )
    assert (diagnosis.kind, diagnosis.host, diagnosis.step) == (Kind.NETWORK, "registry-1.docker.io", "")


def test_engine_without_room_filled_the_disk() -> None:
    diagnosis = first_error(["Error: committing container: write /var/tmp/x: no space left on device"])
    assert diagnosis.kind is Kind.DISK_FULL


def test_engine_without_room_after_a_step_that_ended_well_filled_the_disk() -> None:
    diagnosis = failed_step(end="status=0 elapsed_s=9 peak_mib=100 oom_kills=0", after="no space left on device")
    assert diagnosis.kind is Kind.DISK_FULL


def test_program_that_says_error_like_podman_is_not_podman() -> None:
    diagnosis = failed_step("Error: no such option: --fast", "a.cpp:1:2: error: expected ';'")
    assert (diagnosis.kind, diagnosis.line_number) == (Kind.COMPILE_ERROR, 5)
    assert failed_step("Error: no such option: --fast").excerpt[0] == "Error: no such option: --fast"


def test_empty_log_is_an_unknown_failure() -> None:
    diagnosis = first_error([])
    assert (diagnosis.kind, diagnosis.line_number, diagnosis.excerpt) == (Kind.UNKNOWN, 0, ())


def test_long_lines_are_cut() -> None:
    diagnosis = failed_step("a.cu(1): error: " + "x" * 5000)
    assert len(diagnosis.excerpt[0]) == 160


def test_document_is_json() -> None:
    document = first_error((LOGS / "oom_compiler-podman.log").read_text().splitlines()).document()
    assert json.loads(json.dumps(document)) == document
    assert document["kind"] == "out_of_memory"


def error_of(name: str) -> SparkImagesError:
    lines = (LOGS / name).read_text().splitlines()
    reader = LogReader()
    for line in lines:
        reader.feed(line)
    diagnosis = first_error(lines)
    step = next((step for step in reader.steps if step.name == diagnosis.step), None)
    return build_error(diagnosis, image="toy", log="~/records/1/log.txt", step=step)


def test_out_of_memory_names_peak_cap_file_and_what_to_type() -> None:
    error = error_of("oom_compiler-podman.log")
    assert isinstance(error, OutOfMemoryError)
    assert error.render() == (
        "error: build of `toy` ran out of memory in stage `compile` (step `compile`, 3 of 3)\n"
        "  g++: fatal error: Killed signal terminated program cc1plus\n"
        "  compilation terminated.\n"
        "  peak 278 MiB of 300 MiB, compilers running: 1; first killed: `more.cpp`\n"
        "  log: ~/records/1/log.txt line 16\n"
        "\n"
        "hint: give it more with `--memory 1GiB`, or free what holds memory now"
    )


@pytest.mark.parametrize(
    ("name", "kind", "hint"),
    [
        ("network-buildkit.log", BuildError, "pin what it wanted from `github.com` in pins.yaml"),
        ("disk_full-podman.log", DiskFullError, "nox -s prune"),
        ("not_isolated-podman.log", IsolationError, "--network none"),
        ("cap_not_proved-buildkit.log", IsolationError, "--no-memory-limit"),
        ("copy_missing-podman.log", EngineError, "replay.sh"),
        ("compile_error-buildkit.log", BuildError, "less +34 ~/records/1/log.txt"),
    ],
)
def test_each_kind_is_an_error_of_its_own_with_a_way_out(name: str, kind: type[SparkImagesError], hint: str) -> None:
    error = error_of(name)
    assert type(error) is kind
    assert hint in error.hint

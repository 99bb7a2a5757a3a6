import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_images.buildlog import LogReader
from spark_images.diagnose import Diagnosis, build_error, first_error
from spark_images.errors import (
    BuildError,
    DiskFullError,
    EngineError,
    IsolationError,
    KilledError,
    OutOfMemoryError,
    SparkImagesError,
)
from spark_images.signs import Kind

LOGS = Path(__file__).parent.parent / "golden" / "logs"

MMQ = "src/CMakeFiles/ggml-cuda.dir/mmq.cu.o"
# Real logs of podman 4.3 and BuildKit 0.32, with nvcc 13.0, gcc 12, rustc 1.95 and go 1.26:
# what failed -> (kind, how its first error line begins, file or host)
EXPECTED: dict[str, tuple[Kind, str | tuple[str, ...], str]] = {
    "bad_alloc": (Kind.OUT_OF_MEMORY, "terminate called after throwing an instance of 'std::bad_alloc'", ""),
    "bad_dockerfile": (Kind.ENGINE, ("ERROR: failed to build: ", 'Error: building at STEP "COPYY '), ""),
    "cap_not_proved": (Kind.CAP_NOT_PROVED, "[spark] cap not proved: this step may use 0 MiB", ""),
    "command_missing": (Kind.UNKNOWN, "/spark/scripts/toy_command_missing: line 3: cmake: command not found", ""),
    "compile_error": (Kind.COMPILE_ERROR, "more.cpp:2:26: error: 'b' was not declared", "more.cpp"),
    "compile_error_nvcc": (Kind.COMPILE_ERROR, "/t/bad.cu(1): error: incomplete type", "/t/bad.cu"),
    "copy_missing": (Kind.ENGINE, ("ERROR: failed to calculate checksum", 'Error: building at STEP "COPY '), ""),
    "disk_full": (Kind.DISK_FULL, "/tmp/cc", "kernel.cpp"),
    "disk_full_nvcc": (Kind.DISK_FULL, "<built-in>: fatal error: when writing output to /small/", "/t/small.cu"),
    "gate_again": (Kind.COMPILE_ERROR, "/t/broken.cpp:1:18: error: ", "/t/broken.cpp"),
    "gate_failed": (Kind.OUT_OF_MEMORY, "[spark] gate src/CMakeFiles/ggml-cuda.dir/mmq.cu.o failed reason=oom", MMQ),
    "killed": (Kind.KILLED, "g++: fatal error: Killed signal terminated program cc1plus", "more.cpp"),
    "link_error": (Kind.LINK_ERROR, "main.cpp:(.text+0xc): undefined reference to `add(int, int)'", "toy"),
    "link_missing": (Kind.LINK_ERROR, "/usr/bin/ld: cannot find -lcublas", "toy"),
    "make": (Kind.MISSING_HEADER, "<command-line>: fatal error: missing_prefix.h", "/spark/scripts/src/main.cpp"),
    "memory_error": (Kind.OUT_OF_MEMORY, "MemoryError", ""),
    "memory_error_numpy": (Kind.OUT_OF_MEMORY, "numpy._core._exceptions._ArrayMemoryError: ", ""),
    "memory_too_low": (Kind.OUT_OF_MEMORY, "error running container: from /usr/bin/runc creating container", ""),
    "missing_header": (Kind.MISSING_HEADER, "more.cpp:1:10: fatal error: cuda_fp4.h", "more.cpp"),
    "missing_header_nvcc": (Kind.MISSING_HEADER, "/t/missing.cu:1:10: fatal error: cute/tensor.hpp", "/t/missing.cu"),
    "network": (Kind.NETWORK, "curl: (6) Could not resolve host: github.com", "github.com"),
    "network_apt": (Kind.NETWORK, "  Temporary failure resolving 'deb.debian.org'", "deb.debian.org"),
    "network_cargo": (Kind.NETWORK, "  [6] Could not resolve hostname", "index.crates.io"),
    "network_cmake": (Kind.NETWORK, "fatal: unable to access 'https://github.com/nvidia/cutlass.git/'", "github.com"),
    "network_git": (Kind.NETWORK, "fatal: unable to access 'https://github.com/NVIDIA/cutlass/'", "github.com"),
    "network_go": (Kind.NETWORK, "main.go:2:8: golang.org/x/sys@v0.1.0: Get ", "proxy.golang.org"),
    "network_npm": (
        Kind.NETWORK,
        "npm error request to https://registry.npmjs.org/left-pad failed",
        "registry.npmjs.org",
    ),
    "network_pip": (Kind.NETWORK, "WARNING: Retrying ", ""),
    "network_python": (Kind.NETWORK, "socket.gaierror: [Errno -3] Temporary failure in name resolution", ""),
    "network_uv": (Kind.NETWORK, "  cause: failed to lookup address information", "pypi.org"),
    "network_wget": (Kind.NETWORK, "Resolving developer.download.nvidia.com", "developer.download.nvidia.com"),
    "not_isolated": (Kind.NOT_ISOLATED, "[spark] not isolated: network interface eth0 is up", ""),
    "oom_cargo": (Kind.OUT_OF_MEMORY, "  process didn't exit successfully: `rustc --crate-name big", "src/main.rs"),
    "oom_cicc": (Kind.OUT_OF_MEMORY, "nvcc error   : '\"$CICC_PATH/cicc\"' died due to signal 9", "/t/cicc.cu"),
    "oom_cmake": (Kind.OUT_OF_MEMORY, "c++: fatal error: Killed signal terminated", "CMakeFiles/toy.dir/more.cpp.o"),
    "oom_compiler": (Kind.OUT_OF_MEMORY, "g++: fatal error: Killed signal terminated program cc1plus", "more.cpp"),
    "oom_cudafe": (Kind.OUT_OF_MEMORY, "nvcc error   : 'cudafe++' died due to signal 9 (Kill signal)", "/t/front.cu"),
    "oom_exec": (Kind.OUT_OF_MEMORY, "/spark/scripts/step: line 66:    11 Killed", ""),
    "oom_go": (Kind.OUT_OF_MEMORY, "runtime: /usr/local/go/pkg/tool/linux_amd64/compile: signal: killed", ""),
    "oom_link": (Kind.OUT_OF_MEMORY, "collect2: fatal error: ld terminated with signal 9 [Killed]", "m"),
    "oom_make_recipe": (Kind.OUT_OF_MEMORY, "Killed", "tables.h"),
    "oom_nvcc": (Kind.OUT_OF_MEMORY, "Killed", "sort.cu"),
    "oom_ptxas": (Kind.OUT_OF_MEMORY, "nvcc error   : 'ptxas' died due to signal 9 (Kill signal)", "/t/big.ptx"),
    "oom_python": (Kind.OUT_OF_MEMORY, "/spark/scripts/toy_oom_python: line 4:    13 Killed", ""),
    "oom_python_child": (Kind.OUT_OF_MEMORY, "subprocess.CalledProcessError: Command ", ""),
    "oom_rust_allocation": (Kind.OUT_OF_MEMORY, "memory allocation of 2712 bytes failed", ""),
    "oom_rustc": (Kind.OUT_OF_MEMORY, "Killed", "/t/rust.rs"),
    "oom_setuptools": (Kind.OUT_OF_MEMORY, "g++: fatal error: Killed signal terminated program cc1plus", "more.cpp"),
    "pid1": (Kind.OUT_OF_MEMORY, "Killed", ""),
    "python": (Kind.PYTHON_EXCEPTION, "ModuleNotFoundError: No module named 'torch'", "/build/setup.py"),
    "python_build": (Kind.PYTHON_EXCEPTION, "KeyError: 'TORCH_CUDA_ARCH_LIST'", "/build/src/setup.py"),
    "virtual_memory": (Kind.OUT_OF_MEMORY, "virtual memory exhausted: Cannot allocate memory", "more.cpp"),
    "virtual_memory_cicc": (Kind.OUT_OF_MEMORY, "LLVM ERROR: out of memory", "/t/cicc.cu"),
    "virtual_memory_link": (Kind.OUT_OF_MEMORY, "/usr/bin/ld: /t/syms.o: error adding symbols: memory exhausted", "m"),
    "virtual_memory_nvcc": (Kind.OUT_OF_MEMORY, "/t/front.cu(28152): catastrophic error: out of memory", "/t/front.cu"),
    "virtual_memory_ptxas": (Kind.OUT_OF_MEMORY, "ptxas fatal   : Memory allocation failure", "/t/big.ptx"),
    "wrong_arch": (Kind.WRONG_ARCH, "/spark/scripts/toy_wrong_arch: line 4: /build/llama-gen-docs: cannot execute", ""),
    "wrong_arch_nvcc": (Kind.COMPILE_ERROR, "nvcc fatal   : Unsupported gpu architecture 'compute_129a'", ""),
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
    assert reader.text[:90] in "\n".join(diagnosis.excerpt)
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
        "gmake[2]: *** [CMakeFiles/x.dir/build.make:76: flash.o] Killed",
        "gmake[2]: *** [CMakeFiles/x.dir/build.make:76: flash.o] Error 137",
        "Killed",
        "subprocess.CalledProcessError: Command '['cmake', '--build']' returned non-zero exit status 137.",
        "subprocess.CalledProcessError: Command '['ninja']' died with <Signals.SIGKILL: 9>.",
        "/bin/sh: 1: Cannot fork: Cannot allocate memory",
        "OSError: [Errno 12] Cannot allocate memory",
        "subprocess.CalledProcessError: cmake --build: exit status 9",  # vLLM's driver
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you",
        "error: command '/usr/bin/g++' terminated by signal 9",
        "npm error Process exited with code 137",
        "  process didn't exit successfully: `rustc --crate-name big` (signal: 9, SIGKILL: kill)",
        "runc create failed: unable to start container process: container init was OOM-killed (memory limit too low?)",
    ],
)
def test_every_way_to_say_out_of_memory_is_understood(line: str) -> None:
    counted = "status=1 elapsed_s=9 peak_mib=8190 oom_kills=1"
    begun, stopped = "[1/9] Building CUDA object a.o", "ninja: build stopped: subcommand failed."
    diagnosis = failed_step(begun, line, stopped, end=counted)
    assert diagnosis.kind is Kind.OUT_OF_MEMORY
    assert diagnosis.excerpt[0] == line


@pytest.mark.parametrize(
    "line",
    [
        "-- Killed processes are reported by the watchdog",
        "Killing time while the cache warms",
        "  -DKilled=1",
        "src/memory.cpp: warning: 'allocate' may be out of range",
        "src/memory.cpp:3:1: warning: this loop may run out of memory [-Walloc]",
        "src/memory.cu(3): warning #20012-D: std::bad_alloc is thrown here",
        "src/memory.cpp:9:3: note: std::bad_alloc declared here",
        "[3/9] Building CXX object std::bad_alloc.o",
        "[ 33%] Building CXX object out of memory.o",
        "[spark] gate a.o again reason=oom peak_mib=8000 cap_mib=8192",
        "[spark] unit std::bad_alloc.o peak_mib=1 seconds=1 cpu_s=1 expected_mib=1 tries=1",
    ],
)
def test_words_that_resemble_an_out_of_memory_are_not_one(line: str) -> None:
    diagnosis = failed_step(line, "a.cpp:1:2: error: expected ';'")
    assert diagnosis.kind is Kind.COMPILE_ERROR


def test_failure_that_ninja_alone_reports_as_killed_is_out_of_memory() -> None:
    said = ("FAILED: [code=137] a.o", "g++ -c /src/a.cpp -o a.o", "ninja: build stopped: subcommand failed.")
    counted = failed_step(*said, end="status=1 elapsed_s=9 peak_mib=8190 oom_kills=1")
    assert (counted.kind, counted.file) == (Kind.OUT_OF_MEMORY, "/src/a.cpp")
    assert (failed_step(*said).kind, failed_step(*said).file) == (Kind.KILLED, "/src/a.cpp")


def test_kill_that_only_the_cgroup_counted_is_out_of_memory() -> None:
    diagnosis = failed_step(
        "[8/9] Building CUDA object b.o",
        "FAILED: [code=1] flash_fwd.o",
        "/cuda/bin/nvcc -O3 -c /build/src/flash_fwd.cu -o flash_fwd.o",
        "ninja: build stopped: subcommand failed.",
        end="status=1 elapsed_s=9 peak_mib=8190 oom_kills=1",
    )
    assert diagnosis.kind is Kind.OUT_OF_MEMORY
    assert (diagnosis.line_number, diagnosis.file) == (5, "/build/src/flash_fwd.cu")


@pytest.mark.parametrize("line", ["c++: fatal error: Killed signal terminated program cc1plus", "Killed", "[3/9] a.o"])
def test_kill_that_the_kernel_did_not_count_is_somebodys(line: str) -> None:
    end, after = "status=137 elapsed_s=9 peak_mib=8190 oom_kills=0", "while running runtime: exit status 137"
    assert failed_step(line, end=end, after=after).kind is Kind.KILLED


def test_kill_in_a_step_without_an_end_counts_as_one_for_memory() -> None:
    assert failed_step("Killed", end="", after="while running runtime: exit status 137").kind is Kind.OUT_OF_MEMORY


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


def test_kill_by_somebody_is_told_as_what_it_is() -> None:
    error = error_of("killed-podman.log")
    assert type(error) is KilledError
    assert error.render() == (
        "error: build of `toy` lost a process to SIGKILL in stage `compile` (step `compile`, 2 of 2)\n"
        "  g++: fatal error: Killed signal terminated program cc1plus\n"
        "  compilation terminated.\n"
        "  memgate: more.o: killed again, as often as it was tried (killed, peak_mib=22 cap_mib=1024)\n"
        "  peak 18 MiB of 1 GiB, compilers running: 1; first killed: `more.cpp`; "
        "the kernel counted no kill for want of memory there\n"
        "  log: ~/records/1/log.txt line 18\n"
        "\n"
        "hint: no limit of ours did it, but a person, a supervisor, or a daemon like earlyoom"
    )


def test_file_that_is_too_large_alone_is_named_with_its_peak_and_what_it_needs() -> None:
    error = error_of("gate_failed-podman.log")
    assert isinstance(error, OutOfMemoryError)
    assert error.render() == (
        "error: build of `toy` ran out of memory in stage `compile` (step `compile`, 2 of 2)\n"
        f"  `{MMQ}` held 277 MiB of 300 MiB and was killed, though nothing ran beside it\n"
        "  log: ~/records/1/log.txt line 11\n"
        "\n"
        "hint: this file alone needs more than 300 MiB: give the build at least `--memory 1GiB`"
    )


def test_compile_error_before_the_gate_gave_a_file_up_is_the_first_error() -> None:
    gate = "[spark] gate b.o failed reason=oom peak_mib=8100 cap_mib=8192"
    broken = ("FAILED: a.o", "g++ -c a.cpp -o a.o", "a.cpp:1:2: error: expected ';'")
    assert failed_step(*broken, gate).kind is Kind.COMPILE_ERROR
    assert failed_step(gate, *broken).file == "b.o"
    killed = ("FAILED: c.o", "g++ -c c.cpp -o c.o", "Killed")
    assert failed_step(*killed, gate).file == "b.o"  # the gate knows more


def test_kills_that_the_gate_got_over_do_not_make_another_failure_one_of_memory() -> None:
    again = "[spark] gate b.o again reason=oom peak_mib=8100 cap_mib=8192"
    vague = "cc1plus: fatal error: error writing to -: Broken pipe"
    once, twice = (f"status=1 elapsed_s=9 peak_mib=8190 oom_kills={kills}" for kills in (1, 2))
    assert failed_step(again, vague, end=once).kind is Kind.COMPILE_ERROR
    assert failed_step(again, vague, end=twice).kind is Kind.OUT_OF_MEMORY


def test_file_too_large_for_a_host_without_a_cap_is_still_named() -> None:
    gate = "[spark] gate b.o failed reason=oom peak_mib=0 cap_mib=0"
    error = build_error(failed_step(gate), image="toy", log="log.txt", step=None)
    assert error.why[0] == "`b.o` held 0 bytes and was killed, though nothing ran beside it"
    assert "--memory" in error.hint


def test_blank_in_a_units_name_comes_back() -> None:
    assert failed_step("[spark] gate my%20file.o failed reason=oom peak_mib=8100 cap_mib=8192").file == "my file.o"


def test_allocation_that_fails_far_below_the_cap_does_not_ask_for_a_higher_cap() -> None:
    error = error_of("virtual_memory_cicc-podman.log")
    assert "  peak 330 MiB of 2 GiB, compilers running: 1; first to fail: `/t/cicc.cu`\n" in error.render()
    assert "--memory" not in error.hint


def test_both_ends_of_a_long_line_are_shown() -> None:
    shown = error_of("oom_cargo-podman.log").why[0]
    assert shown.startswith("  process didn't exit successfully: `rustc --crate-name big")
    assert shown.endswith("(signal: 9, SIGKILL: kill)")


# What a build prints beside its errors; some of it resembles one.
NOISE = st.lists(
    st.sampled_from(
        [
            "",
            "-- Looking for pthread.h - not found",
            "[7/9] Building CXX object src/CMakeFiles/x.dir/out of memory.cpp.o",
            "[ 77%] Building CUDA object error.cu.o",
            "/src/a.cpp:3:1: warning: 'killed' may be used uninitialized [-Wmaybe-uninitialized]",
            '/src/a.cu(3): warning #177-D: variable "fatal" was declared but never referenced',
            "nvcc warning : incompatible redefinition for option 'compiler-bindir'",
            "cc1plus: note: unrecognized command-line option '-Wno-error=x' may have been intended",
            'Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"',
            "warning: spurious network error (2 tries remaining): Could not resolve host: index.crates.io",
            "[spark] step compile sample memory_mib=12 compilers=0 elapsed_s=3",
            "[spark] unit Killed.o peak_mib=12 seconds=1.5 cpu_s=1.4 expected_mib=10 tries=2",
            "[spark] gate other.o again reason=oom peak_mib=12 cap_mib=100",
            "[spark] gate other.o again reason=short peak_mib=12 cap_mib=100",
        ]
    ),
    max_size=4,
)


@settings(max_examples=400, deadline=None)
@given(name=st.sampled_from(FAILED_LOGS), before=NOISE, after=NOISE)
def test_noise_beside_the_error_never_changes_the_diagnosis(name: str, before: list[str], after: list[str]) -> None:
    lines = (LOGS / name).read_text().splitlines()
    plain = first_error(lines)
    assume(plain.kind not in (Kind.ENGINE, Kind.UNKNOWN) and plain.step == "compile")
    prefix = next(
        (match[0] for line in lines[plain.line_number - 1 :] if (match := re.match(r"#\d+ [\d.]+ ", line))), ""
    )
    begin = next((i for i, line in enumerate(lines) if line.endswith("jobs=2") and "step compile begin" in line), None)
    assume(begin is not None)
    assert begin is not None
    end = plain.line_number - 1 + len(plain.excerpt)
    noisy = [
        *lines[: begin + 1],
        *(prefix + line for line in before),
        *lines[begin + 1 : end],
        *(prefix + line for line in after),
        *lines[end:],
    ]
    found = first_error(noisy)
    same = ("kind", "stage", "step", "file", "host", "peak_mib", "cap_mib")
    assert [getattr(found, field) for field in same] == [getattr(plain, field) for field in same]
    assert noisy[found.line_number - 1] == lines[plain.line_number - 1]


@pytest.mark.parametrize(
    ("name", "kind", "hint"),
    [
        ("network-buildkit.log", BuildError, "pin what it wanted from `github.com` in pins.yaml"),
        ("disk_full-podman.log", DiskFullError, "./noxw -s prune"),
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

import os
import subprocess
import sys
import time
from pathlib import Path

from spark_images.holders import GpuQuestion, Held, Process, growth, largest_processes, unowned_bytes
from spark_images.units import GIB, KIB, MIB


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def held(*processes: tuple[str, int, int], unowned: dict[str, int] | None = None) -> Held:
    return Held(
        processes=tuple(Process(name=name, pid=pid, rss_bytes=size) for name, pid, size in processes),
        unowned=unowned or {},
    )


def nvidia_smi(folder: Path, script: str) -> str:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_largest_processes_come_first_and_kernel_threads_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "proc/4121/status", f"Name:\tvllm\nPid:\t4121\nVmRSS:\t{61 * 2**20} kB\n")
    put(tmp_path, "proc/77/status", "Name:\tsshd\nVmRSS:\t 8192 kB\n")
    put(tmp_path, "proc/2/status", "Name:\tkthreadd\n")
    put(tmp_path, "proc/99/comm", "gone\n")
    first, second = largest_processes(5, tmp_path)
    assert (first.name, first.pid, first.rss_bytes) == ("vllm", 4121, 61 * GIB)
    assert (second.name, second.rss_bytes) == ("sshd", 8192 * KIB)


def test_process_of_ours_is_found_with_its_memory() -> None:
    program = "import sys; b = bytearray(1 << 28); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = {process.pid: process.rss_bytes for process in largest_processes(None)}
        child.communicate()
    assert 256 * MIB < found[child.pid] < 400 * MIB


def test_what_grew_most_is_named_first_with_before_and_now() -> None:
    before = held(("sshd", 7, 8 * MIB), ("vllm", 9, 1 * GIB), ("cc1plus", 11, 1 * GIB))
    now = held(("sshd", 7, 8 * MIB), ("vllm", 9, 61 * GIB), ("cc1plus", 11, 20 * GIB), ("hog", 12, 30 * GIB))
    assert growth(before, now, ours={11}) == (
        "`vllm` (pid 9): 1 GiB -> 61 GiB",
        "`hog` (pid 12): 0 bytes -> 30 GiB",
        "`cc1plus` (pid 11, of this build): 1 GiB -> 20 GiB",
    )


def test_who_shrank_or_took_next_to_nothing_is_not_named() -> None:
    before = held(("big", 1, 30 * GIB), ("idle", 2, 1 * GIB), ("hog", 3, 0))
    now = held(("big", 1, 2 * GIB), ("idle", 2, 1 * GIB + 50 * MIB), ("hog", 3, 2 * GIB))
    assert growth(before, now) == ("`hog` (pid 3): 0 bytes -> 2 GiB",)


def test_a_number_that_another_program_got_meanwhile_is_not_taken_for_the_first() -> None:
    assert growth(held(("old", 5, 3 * GIB)), held(("new", 5, 4 * GIB))) == ("`new` (pid 5): 0 bytes -> 4 GiB",)


def test_memory_of_no_process_is_named_by_what_it_is(tmp_path: Path) -> None:
    meminfo = "MemTotal: {} kB\nMemFree: 10485760 kB\nCached: 2097152 kB\nAnonPages: 1048576 kB\nShmem: 1048576 kB\n"
    put(tmp_path, "proc/meminfo", meminfo.format(120 * 2**20))
    assert unowned_bytes(tmp_path) == {"files in memory (tmpfs)": 1 * GIB, "drivers (a GPU's among them)": 107 * GIB}
    now = held(unowned=unowned_bytes(tmp_path))
    before = held(unowned={**now.unowned, "drivers (a GPU's among them)": 2 * GIB})
    assert growth(before, now) == ("drivers (a GPU's among them): 2 GiB -> 107 GiB",)


def test_a_file_in_memory_shows_though_no_process_holds_it() -> None:
    before = unowned_bytes()["files in memory (tmpfs)"]
    file = Path(f"/dev/shm/spark-images-test-{os.getpid()}")
    try:
        file.write_bytes(bytes(48 * MIB))
        assert unowned_bytes()["files in memory (tmpfs)"] - before > 32 * MIB
    finally:
        file.unlink()


def test_gpu_processes_are_named_also_where_the_driver_does_not_say_how_much(tmp_path: Path) -> None:
    program = nvidia_smi(
        tmp_path,
        "echo '4121, /usr/bin/python3, 61440'; echo '77, a, b, [N/A]'; echo '78, VLLM::Engine, [Not Supported]'",
    )
    assert [str(one) for one in GpuQuestion(program).answer()] == [
        "`python3` (pid 4121) holds 60 GiB on the GPU",
        "`a, b` (pid 77) holds an amount that nvidia-smi does not tell on the GPU",
        "`VLLM::Engine` (pid 78) holds an amount that nvidia-smi does not tell on the GPU",
    ]


def test_an_nvidia_smi_that_fails_names_nobody(tmp_path: Path) -> None:
    complaint = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    program = nvidia_smi(tmp_path, f'echo "{complaint}"; exit 9')
    assert GpuQuestion(program).answer() == ()


def test_an_nvidia_smi_that_hangs_does_not_hold_us_up(tmp_path: Path) -> None:
    began = time.monotonic()
    question = GpuQuestion(nvidia_smi(tmp_path, "exec sleep 60"))
    assert question.answer(0.2) == ()
    assert time.monotonic() - began < 30

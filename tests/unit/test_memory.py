import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_images.errors import BudgetError
from spark_images.memory import budget, cgroup_room, has_unified_memory, host_memory, largest_processes, reserve_bytes
from spark_images.units import GIB, KIB, MIB

V1_NO_LIMIT = "9223372036854771712"
V1_MOUNT = "36 31 0:33 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory"
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def host(root: Path, *, cgroup: str, mounts: str, total_gib: int = 120, available_gib: int = 100) -> Path:
    put(
        root,
        "proc/meminfo",
        f"MemTotal: {total_gib * 2**20} kB\nMemAvailable: {available_gib * 2**20} kB\nHugePages_Total: 0\n",
    )
    put(root, "proc/self/cgroup", cgroup)
    put(root, "proc/self/mountinfo", f"22 27 0:21 / /proc rw - proc proc rw\n{mounts}\n")
    return root


def test_meminfo_of_this_machine_is_read() -> None:
    memory = host_memory()
    assert 64 * MIB < memory.available_bytes <= memory.total_bytes


def test_no_limit_anywhere_is_none(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/user.slice/me\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/user.slice/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/user.slice/me/memory.max", "max\n")
    assert cgroup_room(tmp_path) is None


def test_smallest_limit_on_a_v2_path_counts_not_the_own_one(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/user.slice/me/shell\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/user.slice/memory.max", f"{64 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/user.slice/me/memory.max", f"{8 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/user.slice/me/shell/memory.max", "max\n")
    assert cgroup_room(tmp_path) == 8 * GIB


def test_anonymous_memory_below_a_limit_is_taken_off_and_page_cache_is_not(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a/b\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{10 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/memory.stat", f"anon {7 * GIB}\nfile {2 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/b/memory.max", f"{8 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/b/memory.stat", f"anon {1 * GIB}\nfile {2 * GIB}\n")
    assert cgroup_room(tmp_path) == 3 * GIB


def test_overfull_cgroup_leaves_nothing(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{1 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/memory.stat", f"anon {2 * GIB}\n")
    assert cgroup_room(tmp_path) == 0


def test_v1_limit_of_a_parent_is_found(tmp_path: Path) -> None:
    host(tmp_path, cgroup="5:devices:/x\n4:memory:/job/run\n", mounts=V1_MOUNT)
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(6 * GIB))
    put(tmp_path, "sys/fs/cgroup/memory/job/run/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/job/run/memory.stat", f"total_rss 0\nhierarchical_memory_limit {6 * GIB}\n")
    assert cgroup_room(tmp_path) == 6 * GIB


def test_v1_limit_of_a_hidden_parent_is_found_in_memory_stat(tmp_path: Path) -> None:
    mount = V1_MOUNT.replace(" / /sys", " /docker/0123 /sys")
    host(tmp_path, cgroup="4:memory:/docker/0123\n", mounts=mount)
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/memory.stat", f"hierarchical_memory_limit {2 * GIB}\ntotal_rss {1 * GIB}\n")
    assert cgroup_room(tmp_path) == 1 * GIB


def test_hybrid_reads_memory_from_v1_and_survives_the_empty_v2(tmp_path: Path) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    host(tmp_path, cgroup="4:memory:/job\n0::/job\n", mounts=f"{unified}\n{V1_MOUNT}")
    put(tmp_path, "sys/fs/cgroup/unified/cgroup.procs", "")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(5 * GIB))
    assert cgroup_room(tmp_path) == 5 * GIB


def test_path_told_from_outside_the_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/../../outside\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/memory.max", str(4 * GIB))
    assert cgroup_room(tmp_path) == 4 * GIB


def _own_group() -> Path | None:
    for top in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        group = top / f"spark-images-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if any((group / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            return group
        group.rmdir()
    return None


def test_real_cgroup_limits_a_process_in_it() -> None:
    group = _own_group()
    if group is None:
        pytest.skip("no memory cgroup can be made here: not root, or the hierarchy is read-only")
    try:
        limit = next(file for name in ("memory.max", "memory.limit_in_bytes") if (file := group / name).exists())
        limit.write_text(str(700 * MIB))
        command = f"echo $$ >{group}/cgroup.procs && exec {sys.executable} -c "
        program = "'from spark_images.memory import cgroup_room; print(cgroup_room())'"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        room = int(subprocess.run(["sh", "-c", command + program], check=True, capture_output=True, env=env).stdout)
    finally:
        group.rmdir()
    assert 600 * MIB < room < 700 * MIB


def test_unified_memory_is_an_nvidia_driver_on_arm64(tmp_path: Path) -> None:
    assert not has_unified_memory(tmp_path, machine="aarch64")
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05\n")
    assert has_unified_memory(tmp_path, machine="aarch64")
    assert not has_unified_memory(tmp_path, machine="x86_64")


def test_reserve_is_larger_where_the_gpu_shares_the_memory_and_small_on_small_machines() -> None:
    assert reserve_bytes(119 * GIB, unified=True) == 6 * GIB
    assert reserve_bytes(64 * GIB, unified=False) == 2 * GIB
    assert reserve_bytes(8 * GIB, unified=False) == 1 * GIB


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
        held = {process.pid: process.rss_bytes for process in largest_processes(10_000)}
        child.communicate()
    assert 1 << 28 <= held[child.pid] < 1 << 29


def test_too_large_a_wish_names_who_holds_the_memory(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/\n", mounts=V2_MOUNT, available_gib=50)
    put(tmp_path, "proc/4121/status", f"Name:\tvllm\nVmRSS:\t{61 * 2**20} kB\n")
    with pytest.raises(BudgetError) as caught:
        budget(64 * GIB, root=tmp_path)
    assert caught.value.why[-1] == "`vllm` (pid 4121) holds 61 GiB"


def test_budget_of_this_machine_fits_into_it() -> None:
    assert 0 < budget(None).bytes < host_memory().total_bytes

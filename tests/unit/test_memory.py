import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_images.errors import BudgetError, UsageError
from spark_images.memory import (
    budget,
    cgroup_room,
    floor_rule,
    has_unified_memory,
    host_memory,
    reserve_bytes,
)
from spark_images.units import GIB, MIB

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


def room(root: Path) -> int:
    """The bytes that the limits leave."""
    found = cgroup_room(root)
    assert found is not None
    return found.size_bytes


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
    assert room(tmp_path) == 8 * GIB


def test_anonymous_memory_below_a_limit_is_taken_off_and_page_cache_is_not(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a/b\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{10 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/memory.stat", f"anon {7 * GIB}\nfile {2 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/b/memory.max", f"{8 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/b/memory.stat", f"anon {1 * GIB}\nfile {2 * GIB}\n")
    assert room(tmp_path) == 3 * GIB


def test_overfull_cgroup_leaves_nothing(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{1 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/memory.stat", f"anon {2 * GIB}\n")
    assert room(tmp_path) == 0


def test_files_in_memory_and_the_kernels_own_count_as_held(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{10 * GIB}\n")
    # `file` has shmem in it, and slab its two parts
    stat = {
        "anon": 1,
        "file": 5,
        "shmem": 2,
        "slab": 3,
        "slab_reclaimable": 2,
        "slab_unreclaimable": 1,
        "pagetables": 1,
    }
    put(tmp_path, "sys/fs/cgroup/a/memory.stat", "".join(f"{key} {size * GIB}\n" for key, size in stat.items()))
    assert room(tmp_path) == 5 * GIB


def test_v1_counts_files_in_memory_as_held(tmp_path: Path) -> None:
    host(tmp_path, cgroup="4:memory:/job\n", mounts=V1_MOUNT)
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(6 * GIB))
    stat = f"rss 0\ntotal_cache {3 * GIB}\ntotal_rss {1 * GIB}\ntotal_shmem {2 * GIB}\n"
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.stat", stat)
    assert room(tmp_path) == 3 * GIB


def test_a_cgroup_that_is_slowed_down_before_its_limit_leaves_only_what_is_before_that(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/a/b\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/a/memory.max", f"{10 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/memory.high", f"{6 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/a/b/memory.high", "max\n")
    assert room(tmp_path) == 6 * GIB


def test_the_limit_that_decides_is_named_with_its_cgroup_and_version(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/user.slice/me\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/user.slice/memory.max", f"{8 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/user.slice/me/memory.max", f"{9 * GIB}\n")
    assert "8 GiB left (memory.max of `/user.slice` in cgroup v2)" in budget(None, root=tmp_path).because
    put(tmp_path, "proc/self/cgroup", "4:memory:/job\n")
    put(tmp_path, "proc/self/mountinfo", f"{V1_MOUNT}\n")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(6 * GIB))
    assert "(memory.limit_in_bytes of `/job` in cgroup v1)" in budget(None, root=tmp_path).because


def test_v1_limit_of_a_parent_is_found(tmp_path: Path) -> None:
    host(tmp_path, cgroup="5:devices:/x\n4:memory:/job/run\n", mounts=V1_MOUNT)
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(6 * GIB))
    put(tmp_path, "sys/fs/cgroup/memory/job/run/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/job/run/memory.stat", f"total_rss 0\nhierarchical_memory_limit {6 * GIB}\n")
    assert room(tmp_path) == 6 * GIB


def test_v1_limit_of_a_hidden_parent_is_found_in_memory_stat(tmp_path: Path) -> None:
    mount = V1_MOUNT.replace(" / /sys", " /docker/0123 /sys")
    host(tmp_path, cgroup="4:memory:/docker/0123\n", mounts=mount)
    put(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", V1_NO_LIMIT)
    put(tmp_path, "sys/fs/cgroup/memory/memory.stat", f"hierarchical_memory_limit {2 * GIB}\ntotal_rss {1 * GIB}\n")
    assert room(tmp_path) == 1 * GIB


def test_hybrid_reads_memory_from_v1_and_survives_the_empty_v2(tmp_path: Path) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    host(tmp_path, cgroup="4:memory:/job\n0::/job\n", mounts=f"{unified}\n{V1_MOUNT}")
    put(tmp_path, "sys/fs/cgroup/unified/cgroup.procs", "")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(5 * GIB))
    assert room(tmp_path) == 5 * GIB


def test_the_smallest_of_a_v2_and_a_v1_limit_counts_where_both_have_the_controller(tmp_path: Path) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
    host(tmp_path, cgroup="4:memory:/job\n0::/job\n", mounts=f"{unified}\n{V1_MOUNT}")
    put(tmp_path, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", str(5 * GIB))
    put(tmp_path, "sys/fs/cgroup/unified/job/memory.max", str(3 * GIB))
    assert room(tmp_path) == 3 * GIB


def test_a_container_in_a_container_sees_its_own_limit_and_the_one_above(tmp_path: Path) -> None:
    mount = V2_MOUNT.replace(" / /sys", " /docker/outer /sys")
    host(tmp_path, cgroup="0::/docker/outer/podman/inner\n", mounts=mount)
    put(tmp_path, "sys/fs/cgroup/memory.max", str(4 * GIB))
    put(tmp_path, "sys/fs/cgroup/memory.stat", f"anon {3 * GIB}\n")
    put(tmp_path, "sys/fs/cgroup/podman/inner/memory.max", str(2 * GIB))
    assert room(tmp_path) == 1 * GIB


def test_path_told_from_outside_the_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/../../outside\n", mounts=V2_MOUNT)
    put(tmp_path, "sys/fs/cgroup/memory.max", str(4 * GIB))
    assert room(tmp_path) == 4 * GIB


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
        program = "'from spark_images.memory import cgroup_room; print(cgroup_room().size_bytes)'"
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        left = int(subprocess.run(["sh", "-c", command + program], check=True, capture_output=True, env=env).stdout)
    finally:
        group.rmdir()
    assert 600 * MIB < left < 700 * MIB


def test_unified_memory_is_an_nvidia_driver_on_arm64(tmp_path: Path) -> None:
    assert not has_unified_memory(tmp_path, machine="aarch64")
    put(tmp_path, "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05\n")
    assert has_unified_memory(tmp_path, machine="aarch64")
    assert not has_unified_memory(tmp_path, machine="x86_64")


def test_reserve_is_larger_where_the_gpu_shares_the_memory_and_small_on_small_machines() -> None:
    assert reserve_bytes(119 * GIB, unified=True) == 6 * GIB
    assert reserve_bytes(64 * GIB, unified=False) == 2 * GIB
    assert reserve_bytes(8 * GIB, unified=False) == 1 * GIB


def test_too_large_a_wish_names_who_holds_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # where there is no nvidia-smi
    host(tmp_path, cgroup="0::/\n", mounts=V2_MOUNT, available_gib=50)
    put(tmp_path, "proc/4121/status", f"Name:\tvllm\nVmRSS:\t{61 * 2**20} kB\n")
    with pytest.raises(BudgetError) as caught:
        budget(64 * GIB, root=tmp_path)
    assert caught.value.why[-1] == "`vllm` (pid 4121) holds 61 GiB"


def test_budget_of_this_machine_fits_into_it() -> None:
    assert 0 < budget(None).bytes < host_memory().total_bytes


def test_a_build_for_unified_memory_leaves_the_larger_reserve_and_says_why(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/\n", mounts=V2_MOUNT)
    here, unified = budget(None, root=tmp_path), budget(None, unified=True, root=tmp_path)
    assert (here.bytes, unified.bytes) == (98 * GIB, 94 * GIB)
    assert here.because.endswith("2 GiB of them stay reserved (no GPU shares this memory)")
    assert unified.because.endswith("6 GiB of them stay reserved (a GPU shares this memory)")


def test_a_budget_error_names_gpu_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '4121, /opt/VLLM::EngineCore, [N/A]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(BudgetError) as caught:
        budget(1 << 60)
    assert caught.value.why[-1] == (
        "`VLLM::EngineCore` (pid 4121) holds an amount that nvidia-smi does not tell on the GPU"
    )


def test_the_floor_is_half_of_the_reserve(tmp_path: Path) -> None:
    host(tmp_path, cgroup="0::/\n", mounts=V2_MOUNT)
    assert floor_rule({}, unified=False, root=tmp_path).floor_bytes == 1 * GIB
    assert floor_rule({}, unified=True, root=tmp_path).floor_bytes == 3 * GIB
    assert floor_rule({}, unified=True, root=tmp_path).timeout_s == 120


def test_the_floor_can_be_set() -> None:
    rule = floor_rule({"SPARK_IMAGES_FLOOR": "1.5GiB", "SPARK_IMAGES_FLOOR_TIMEOUT_S": "7.5"}, unified=False)
    assert (rule.floor_bytes, rule.timeout_s) == (1536 * MIB, 7.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SPARK_IMAGES_FLOOR", "much"),
        ("SPARK_IMAGES_FLOOR", "5"),
        ("SPARK_IMAGES_FLOOR_TIMEOUT_S", "2m"),
        ("SPARK_IMAGES_FLOOR_TIMEOUT_S", "-1"),
        ("SPARK_IMAGES_FLOOR_TIMEOUT_S", "nan"),
    ],
)
def test_a_floor_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        floor_rule({name: value}, unified=False)

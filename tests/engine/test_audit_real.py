"""The audit on what nobody here made: wheels from PyPI and code from nvcc, read by NVIDIA's own cuobjdump."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from audited import TARGET, auditor, write_image
from gpu_code import REAL_DUMP, real_fatbin
from pipeline import REPOSITORY, Pipeline

from spark_images.audit.run import Auditor
from spark_images.cache import Cache
from spark_images.cuobjdump import cuobjdump_of, list_gpu_code
from spark_images.fetch import fetch
from spark_images.pins import FileContent, IndexRoute
from spark_images.project import Project
from spark_images.store import Store

# Small, and each another case: native code for 12.x, in one library and in several; of another platform with PTX alone,
# and with architectures of one GPU.
TORCHAUDIO = (
    "torchaudio-2.11.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "bc653defca1c16154398517a1adc98d0fb7f1dd08e58ced217558d213c2c6e29",
)
TORCHVISION = (
    "torchvision-0.26.0-cp312-cp312-manylinux_2_28_aarch64.whl",
    "406557718e62fdf10f5706e88d8a5ec000f872da913bf629aab9297622585547",
)
TORCHAO = (
    "torchao-0.9.0-cp39-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.manylinux_2_28_x86_64.whl",
    "bc708910301a9f98344d43f3fe2aa6d5e1fab706d772b6df47ff05087d664145",
)
XFORMERS = (
    "xformers-0.0.35-py39-none-manylinux_2_28_x86_64.whl",
    "ccc73c7db9890224ab05f5fb60e2034f9e6c8672a10be0cf00e95cbbae3eda7c",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def real(cache: Cache) -> Auditor:
    """An auditor with this repository's knowledge and NVIDIA's cuobjdump."""
    project = Project(REPOSITORY)
    return Auditor(project=project, cache=cache, cuobjdump=cuobjdump_of(project, cache))


def wheel(cache: Cache, named: tuple[str, str]) -> Path:
    """The wheel from the index, under its own name."""
    filename, sha256 = named
    store, digest = Store(cache.store), f"sha256:{sha256}"
    routes = (IndexRoute(project=filename.partition("-")[0], filename=filename),)
    fetch(
        [FileContent(pin="test", label=filename, digest=digest, size_bytes=None, routes=routes)],
        store=store,
        quiet=True,
    )
    path = cache.root / filename
    shutil.copyfile(store.path(digest), path)
    return path


def listed(program: Path, archive: Path, folder: Path) -> Counter[str]:
    """What `cuobjdump --list-elf --list-ptx` says of every library of a wheel, counted by its own names."""
    found: Counter[str] = Counter()
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if name.endswith(".so") or ".so." in name:
                file = members.extract(name, folder)
                done = subprocess.run([program, "-lelf", "-lptx", file], capture_output=True, text=True, timeout=300)
                found.update(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))$", done.stdout, re.MULTILINE))
    return found


@pytest.mark.parametrize("named", [TORCHAUDIO, TORCHVISION, TORCHAO, XFORMERS], ids=lambda named: str(named[0])[:9])
def test_table_counts_what_cuobjdump_lists(real: Auditor, cache: Cache, named: tuple[str, str], tmp_path: Path) -> None:
    path = wheel(cache, named)
    result = real.wheel(path, TARGET)
    counted: Counter[str] = Counter()
    for row in result.document["gpu"]:
        for code, count in row["code"].items():
            kind, _, number = code.partition("_")
            counted[f"sm_{number}.ptx" if kind == "compute" else f"sm_{number.rstrip('f')}.cubin"] += count
    assert real.cuobjdump is not None
    assert counted == listed(real.cuobjdump, path, tmp_path)
    assert counted.total() > 20


def test_wheel_with_code_for_the_gpu_passes(real: Auditor, cache: Cache) -> None:
    result = real.wheel(wheel(cache, TORCHAUDIO), TARGET)
    assert result.findings == ()
    assert [(row["path"], row["modules"]["natively"]) for row in result.document["gpu"]] == [
        ("/torchaudio/lib/libtorchaudio.abi3.so", 3),
        ("/torchaudio/lib/torchaudio_prefixctc.abi3.so", 1),
    ]


def test_wheel_of_another_platform_with_ptx_alone_says_both(real: Auditor, cache: Cache) -> None:
    result = real.wheel(wheel(cache, XFORMERS), TARGET)
    assert {finding.check.id for finding in result.findings} == {
        "gpu.jit",
        "platform.foreign-elf",
        "platform.disagreement",
    }
    (row,) = result.document["gpu"]  # three of its eleven modules are without a kernel
    assert row["modules"] == {"natively": 0, "compiled by the driver at first use": 8, "not at all": 0}


def test_truncated_library_is_reported_and_never_passed(real: Auditor, cache: Cache, tmp_path: Path) -> None:
    whole = wheel(cache, XFORMERS)
    path = tmp_path / whole.name
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as copy:
        content = source.read("xformers/_C.so")
        copy.writestr("xformers/_C.so", content[: len(content) // 2])
    failed = {finding.check.id for finding in real.wheel(path, TARGET).failures}
    assert failed & {"gpu.unreadable", "platform.foreign-elf"}
    assert "gpu.unreadable" in failed or "not readable" in str(real.wheel(path, TARGET).failures)


def test_code_of_nvcc_is_described_as_the_tests_have_it(real: Auditor, tmp_path: Path) -> None:
    file = tmp_path / "real.fatbin"
    file.write_bytes(real_fatbin())
    assert real.cuobjdump is not None
    done = subprocess.run([real.cuobjdump, file], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith("arch")] == [
        line for line in REAL_DUMP.splitlines() if line.startswith("arch")
    ]
    assert list_gpu_code(real.cuobjdump, file).cubins == {"sm_80": 1, "sm_120f": 1, "sm_121a": 1}


# --- the command ------------------------------------------------------------------------------------------------------


def command(cache: Cache) -> Pipeline:
    return Pipeline(REPOSITORY, {**os.environ, "SPARK_IMAGES_CACHE": str(cache.root), "NO_COLOR": "1"})


def test_command_fails_with_its_own_status_and_writes_what_it_found(cache: Cache, tmp_path: Path) -> None:
    report = tmp_path / "audit.json"
    done = command(cache)("audit", str(wheel(cache, XFORMERS)), "--target", "gb10", "--json", str(report))
    assert done.returncode == 61, done.stderr
    assert "/xformers/_C.so        8       0          8    0  compute_80 sm_75 sm_80 sm_90a" in done.stdout
    assert re.search(r"read 77 files, 11.9 MiB in [\d.]+ s: [\d.]+ GB/s", done.stdout)
    assert "does not hold what it must; findings: 2" in done.stderr
    assert json.loads(report.read_text())["verdict"] == "failed"


def test_wheel_without_a_target_is_refused(cache: Cache) -> None:
    done = command(cache)("audit", str(wheel(cache, TORCHAUDIO)))
    assert done.returncode == 2
    assert "`--target` names one of gb10" in done.stderr


def test_image_that_skopeo_reaches_is_audited_and_its_copy_is_gone(tmp_path: Path) -> None:
    own = auditor(tmp_path / "own")
    result = own.reference(f"oci:{write_image(tmp_path)}", None)
    assert (result.subject.target.name, result.findings) == ("gb10", ())
    assert list(own.cache.work.iterdir()) == []

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

from spark_images.audit.run import Auditor, Result
from spark_images.cache import Cache
from spark_images.cuobjdump import cuobjdump_of, list_gpu_code
from spark_images.fatbin import read_fatbins
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

PAGE = REPOSITORY / "docs/audited-wheels.md"
LARGE = os.environ.get("SPARK_IMAGES_LARGE_WHEELS", "")


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


def listed(program: Path, archive: Path, folder: Path, result: Result) -> tuple[Counter[str], set[str]]:
    """What `cuobjdump --list-elf --list-ptx` says of a wheel's libraries, by its own names; which it cannot read.

    A library that is not in the audit's table must hold no kernel.
    """
    found: Counter[str] = Counter()
    unreadable, table = set(), {row["path"] for row in result.document["gpu"]}
    with zipfile.ZipFile(archive) as members:
        for name in members.namelist():
            if name.endswith(".so") or ".so." in name:
                file = members.extract(name, folder)
                done = subprocess.run([program, "-lelf", "-lptx", file], capture_output=True, text=True, timeout=1200)
                if done.returncode and "does not contain device code" not in done.stdout + done.stderr:
                    unreadable.add(f"/{name}")  # it lists what it met before
                elif f"/{name}" in table:
                    found.update(re.findall(r"\.(sm_\w+\.(?:cubin|ptx))$", done.stdout, re.MULTILINE))
                else:
                    with Path(file).open("rb") as stream:
                        assert all(entry.hollow for fatbin in read_fatbins(stream) for entry in fatbin.entries), name
    return found, unreadable


def counted(result: Result) -> Counter[str]:
    """What the audit's table counts, by cuobjdump's names."""
    found: Counter[str] = Counter()
    for row in result.document["gpu"]:
        for code, count in row["code"].items():
            kind, _, number = code.partition("_")
            found[f"sm_{number}.ptx" if kind == "compute" else f"sm_{number.rstrip('f')}.cubin"] += count
    return found


@pytest.mark.parametrize("named", [TORCHAUDIO, TORCHVISION, TORCHAO, XFORMERS], ids=lambda named: str(named[0])[:9])
def test_table_counts_what_cuobjdump_lists(real: Auditor, cache: Cache, named: tuple[str, str], tmp_path: Path) -> None:
    path = wheel(cache, named)
    result = real.wheel(path, TARGET)
    found = counted(result)
    assert real.cuobjdump is not None
    assert (found, set()) == listed(real.cuobjdump, path, tmp_path, result)
    assert found.total() > 20


# --- large wheels: the table in docs ----------------------------------------------------------------------------------

ROWS = dict(re.findall(r"^\| `(\S+\.whl)` \| `([0-9a-f]{64})` \|", PAGE.read_text(), re.MULTILINE))


def row_of(named: tuple[str, str], result: Result, found: Counter[str]) -> str:
    """A wheel's row in the table of the page."""
    modules: Counter[str] = Counter()
    for library in result.document["gpu"]:
        modules.update(library["modules"])
    judged = [str(modules[way]) for way in ("natively", "compiled by the driver at first use", "not at all")]
    code = ", ".join(f"{count} {name}" for name, count in sorted(found.items(), key=lambda item: natural(item[0])))
    checks = ", ".join(sorted({f"`{finding.check.id}`" for finding in result.findings})) or "none"
    cells = [f"`{named[0]}`", f"`{named[1]}`", str(len(result.document["gpu"])), *judged, code, checks]
    return f"| {' | '.join(cells)} |"


def natural(name: str) -> tuple[str, int, str]:
    """Sorts `sm_90a.cubin` before `sm_120.cubin`, and PTX last."""
    number, kind = name.removeprefix("sm_").split(".")
    return kind, int(re.match(r"\d+", number)[0]), number  # type: ignore[index]


def test_the_page_has_eight_wheels_or_more() -> None:
    assert len(ROWS) >= 8


@pytest.mark.skipif(not LARGE, reason="fetches gigabytes: SPARK_IMAGES_LARGE_WHEELS=check compares, =write writes")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("named", ROWS.items(), ids=lambda named: str(named[0]))
def test_large_wheels_are_as_the_page_has_them(
    real: Auditor, cache: Cache, named: tuple[str, str], tmp_path: Path
) -> None:
    path = wheel(cache, named)
    result = real.wheel(path, TARGET)
    assert real.cuobjdump is not None
    found, unreadable = listed(real.cuobjdump, path, tmp_path, result)
    assert counted(result) == found
    said = [finding.text for finding in result.findings if finding.check.id == "gpu.unreadable"]
    assert sorted(text.split(":")[0] for text in said) == sorted(unreadable)
    row = row_of(named, result, found)
    if LARGE == "write":
        kept = [row if line.startswith(f"| `{named[0]}` |") else line for line in PAGE.read_text().splitlines()]
        PAGE.write_text("\n".join(kept) + "\n")
    path.unlink()
    assert row in PAGE.read_text().splitlines()


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

"""Scripts that compile vLLM and FlashInfer: what can be said of them without a compile of an hour."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
TORCH = {
    "torch/version.py": "__version__ = '2.11.0+cu130'\ncuda: str | None = '13.0'\nhip = None\n",
    "torch/__init__.py": "raise ImportError('a library of another machine')\n",
    "torch/utils/cpp_extension.py": "import torch\nCOMMON_NVCC_FLAGS = ['-D__CUDA_NO_HALF_OPERATORS__', '--expt']\n",
    "torch/share/cmake/Torch/TorchConfig.cmake": "",
}


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, command)), cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


# --- torch_facts ------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path: Path) -> Path:
    for name, text in TORCH.items():
        path = tmp_path / "site" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "python/torch").mkdir(parents=True)
    shutil.copy(SCRIPTS / "torch_facts", tmp_path / "python/torch/__init__.py")
    return tmp_path / "site"


def ask(site: Path, program: str) -> subprocess.CompletedProcess[str]:
    folder = site.parent
    return run(
        sys.executable, "-B", "-c", program,
        cwd=folder, PYTHONPATH=f"{folder}/python:{site}", SPARK_SITE=str(site), CUDA_HOME="/build/cuda",
    )  # fmt: skip


def test_a_build_gets_its_answers_of_torch_from_the_files_of_another_machines_torch(site: Path) -> None:
    answers = ask(
        site,
        "import json, torch\n"
        "from torch.utils.cpp_extension import COMMON_NVCC_FLAGS, CUDA_HOME, ROCM_HOME\n"
        "print(json.dumps([torch.__version__, torch.version.cuda, torch.utils.cmake_prefix_path, CUDA_HOME, ROCM_HOME,"
        " COMMON_NVCC_FLAGS, torch.__file__, str(torch.bfloat16), torch.float8_e4m3fn.itemsize]))",
    )

    assert json.loads(answers.stdout) == [
        "2.11.0+cu130", "13.0", f"{site}/torch/share/cmake", "/build/cuda", None,
        ["-D__CUDA_NO_HALF_OPERATORS__", "--expt"], f"{site}/torch/__init__.py", "torch.bfloat16", 1,
    ]  # fmt: skip


def test_what_only_the_real_torch_could_answer_is_an_error(site: Path) -> None:
    done = ask(site, "import torch; torch.cuda.is_available()")

    assert done.returncode == 1
    assert "module 'torch' has no attribute 'cuda'" in done.stderr


def test_a_torch_without_the_constant_is_an_error_that_names_it(site: Path) -> None:
    (site / "torch/utils/cpp_extension.py").write_text("")

    assert "torch 2.11.0+cu130 has no COMMON_NVCC_FLAGS in utils/cpp_extension.py" in ask(site, "import torch").stderr


# --- compile_units ----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path) -> Path:
    if shutil.which("ninja") is None or shutil.which("cc") is None:
        pytest.skip("needs `ninja` and `cc`; `apt-get install ninja-build gcc`")
    lines = ["rule cc", "  command = cc -c $in -o $out", ""]
    for name in ("a.dir/cache", "a.dir/marlin", "b.dir/cache"):
        (tmp_path / f"{name.replace('/', '_')}.c").write_text(f"int {name.replace('/', '_').replace('.', '_')};\n")
        lines.append(f"build {name}.o: cc {name.replace('/', '_')}.c")
    lines += ["rule link", "  command = cc -shared -o $out $in", "build _a.so: link a.dir/cache.o a.dir/marlin.o"]
    (tmp_path / "build.ninja").write_text("\n".join((*lines, "build all: phony a.dir/cache.o", "")))
    return tmp_path


def test_only_the_objects_that_match_are_made_and_laid_out(project: Path) -> None:
    done = run(SCRIPTS / "compile_units", "out", "*/cache.o", "a.dir/cache.o", cwd=project)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "units 2 of 4" in done.stdout
    made = sorted(str(path.relative_to(project / "out")) for path in (project / "out").rglob("*.o"))
    assert made == ["objects/a.dir/cache.o", "objects/b.dir/cache.o"]
    assert not (project / "a.dir/marlin.o").exists()


def test_a_library_is_linked_of_all_its_objects(project: Path) -> None:
    done = run(SCRIPTS / "compile_units", "out", "_a.so", cwd=project)

    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "a.dir/marlin.o").exists()
    assert not (project / "b.dir/cache.o").exists()
    assert [path.name for path in (project / "out").rglob("*") if path.is_file()] == ["_a.so"]


def test_a_pattern_that_matches_nothing_lists_what_there_is_and_makes_nothing(project: Path) -> None:
    done = run(SCRIPTS / "compile_units", "out", "*/cache.o", "*flash*", cwd=project)

    assert done.returncode == 2
    assert done.stdout.splitlines() == [
        "unit _a.so",
        "unit a.dir/cache.o",
        "unit a.dir/marlin.o",
        "unit b.dir/cache.o",
        "compile_units: `*flash*` matches none of the 4 units above",
    ]
    assert not (project / "out").exists()


# --- compile_vllm -----------------------------------------------------------------------------------------------------


def test_a_whole_vllm_is_not_compiled_without_one_of_its_sources(tmp_path: Path) -> None:
    done = run(SCRIPTS / "compile_vllm", "arm64", "--lacking", "cmake/external_projects/qutlass.cmake", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (
        2,
        "compile_vllm: without cmake/external_projects/qutlass.cmake there is no whole vLLM\n",
    )


SETUP = f"""\
import pathlib, sys
sys.path.append({str(Path(__file__).parent)!r})
from wheels import make_wheel
requires = pathlib.Path("requirements/cuda.txt").read_text().split()
out = pathlib.Path(sys.argv[sys.argv.index("--dist-dir") + 1])
make_wheel(out, "vllm", files={{"vllm.py": b""}}, requires=requires)
"""
EXISTING_TORCH = """\
import pathlib
path = pathlib.Path("requirements/cuda.txt")
path.write_text("".join(line for line in path.read_text().splitlines(True) if "torch" not in line))
"""


def test_the_torch_that_is_there_is_asked_for_no_more(tmp_path: Path) -> None:
    files = {"setup.py": SETUP, "requirements/cuda.txt": "torch==2.11.0\nnumba==0.65.0\n"}
    for name, text in {**files, "use_existing_torch.py": EXISTING_TORCH}.items():
        path = tmp_path / "vllm-1.0" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("sources", "trees", "wheels/builder", "wheels/target"):
        (tmp_path / "inputs" / name).mkdir(parents=True)
    (tmp_path / "inputs/SHA256SUMS").touch()
    with tarfile.open(tmp_path / "inputs/sources/vllm-1.0.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "vllm-1.0", "vllm-1.0")
    for name, text in TORCH.items():
        path = tmp_path / "image" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    folders = {"INPUTS": "inputs", "BUILD": "build", "CUDA": "cuda", "TORCH": "image/torch", "OUT": "out"}

    done = run(
        *(SCRIPTS / "compile_vllm", {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]),
        *("--existing-torch", "use_existing_torch.py"),
        cwd=tmp_path, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", CCACHE_DIR=str(tmp_path / "ccache"),
        MEMGATE_SLOTS="1", **{f"SPARK_{name}": str(tmp_path / folder) for name, folder in folders.items()},
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    (metadata,) = (tmp_path / "out").rglob("METADATA")
    assert [line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: numba==0.65.0"
    ]
    assert (tmp_path / "build/site/torch/version.py").exists()


def test_a_word_that_the_script_does_not_know_is_refused(tmp_path: Path) -> None:
    assert run(SCRIPTS / "compile_vllm", "arm64", "--unit", "x", cwd=tmp_path).stdout == (
        "compile_vllm: `--unit` is not known\n"
    )


# --- configure_flashinfer ---------------------------------------------------------------------------------------------

AOT = """\
from dataclasses import dataclass
from pathlib import Path
import requests, torch, tvm_ffi
assert tvm_ffi.libinfo.find_include_path()

def build_jit_specs(specs, **options): raise SystemExit("FlashInfer's own compile was begun")

@dataclass
class Spec:
    name: str
    folder: Path
    @property
    def ninja_path(self): return self.folder / self.name / "build.ninja"
    def write_ninja(self):
        self.ninja_path.parent.mkdir()
        text = "nvcc --generate-dependencies-with-compile --dependency-output $out.d -c $in"
        self.ninja_path.write_text(text)

def compile_and_package_modules(out_dir, build_dir, project_root):
    names = ("norm", "single_decode_f16", "single_decode_bf16", "norm")
    build_jit_specs([Spec(name, build_dir) for name in names], verbose=False, skip_prebuilt=True)
"""


def configure(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    folder = site.parent
    for name, text in {
        "flashinfer/flashinfer/__init__.py": "raise ImportError('all of FlashInfer')\n",
        "flashinfer/flashinfer/aot.py": AOT,
        "site/tvm_ffi/__init__.py": "raise ImportError('a library of another machine')\n",
        "site/tvm_ffi/libinfo.py": "def find_include_path(): return 'include'\n",
        "aot/here": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return run(
        sys.executable, "-B", SCRIPTS / "configure_flashinfer", folder / "flashinfer", folder / "aot", *arguments,
        cwd=folder, PYTHONPATH=f"{folder}/python:{site}", SPARK_SITE=str(site),
    )  # fmt: skip


def test_modules_are_left_out_and_kept_by_name(site: Path) -> None:
    done = configure(site, "--leave", "single_*", "--keep", "*_bf16")

    aot = site.parent / "aot"
    assert (done.returncode, done.stdout) == (0, "modules 2 of 3\n"), done.stderr
    assert (aot / "modules").read_text() == "norm\nsingle_decode_bf16\n"
    assert f"subninja {aot}/norm/build.ninja\n" in (aot / "build.ninja").read_text()
    assert (aot / "norm/build.ninja").read_text() == "nvcc -MD -MF $out.d -c $in"
    assert not (aot / "single_decode_f16").exists()


def test_a_pattern_of_modules_that_are_not_there_is_refused(site: Path) -> None:
    done = configure(site, "--leave", "xqa_*")

    assert (done.returncode, done.stderr) == (1, "configure_flashinfer: no module is called xqa_*\n")

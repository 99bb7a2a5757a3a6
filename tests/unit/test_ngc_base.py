"""What lies in NVIDIA's image: a stand-in of it in a folder, with distributions that hold next to nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wheels import make_wheel

SCRIPTS = Path(__file__).parents[2] / "scripts"
PYTHON = ".".join(map(str, sys.version_info[:2]))
PROVIDED = ("torch=2.10.0a0", "triton=3.6.0", "numpy=2.1.0", "cuda=13.1.1")
KEEP = ("--keep", "torch", "triton", "numpy")
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.1, V13.1.115'\n"
PTXAS = '#!/bin/sh\n[ "$1" = -arch=sm_121a ] || { echo "unknown $1" >&2; exit 1; }\ncp "$4" "$3"\n'


class Base:
    """An installation in `folder`, as NVIDIA's image has one in /usr/local."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / f"usr/local/lib/python{PYTHON}/dist-packages"

    def has(self, *distributions: tuple[str, str, dict[str, bytes]]) -> None:
        """Install distributions: name, version, files. Each has a program of its name."""
        wheels, out = self.folder / "wheels", self.folder / "out"
        for name, version, files in distributions:
            program = f"[console_scripts]\n{name} = {name.replace('-', '_')}:main\n"
            make_wheel(wheels / "base", name, version, files=files, entry_points=program)
        subprocess.run([SCRIPTS / "install_wheels", PYTHON, wheels, out], check=True, capture_output=True)
        shutil.copytree(out / "base", self.folder, dirs_exist_ok=True)
        shutil.rmtree(out)
        shutil.rmtree(wheels)

    def gets(self, name: str, version: str, files: dict[str, bytes], *requires: str) -> None:
        """Have a wheel among those that are to be installed."""
        make_wheel(self.folder / "inputs/layers/python", name, version, files=files, requires=requires)

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        env = {"SPARK_SITE": self.site, "SPARK_INPUTS": self.folder / "inputs", "SPARK_CUDA": self.folder / "cuda"}
        return subprocess.run(
            [sys.executable, "-IB", SCRIPTS / "ngc_base", *arguments],
            env={**os.environ, **{name: str(path) for name, path in env.items()}},
            capture_output=True,
            text=True,
            check=False,
        )

    def look(self, *expected: str, arch: str = "sm_121a") -> subprocess.CompletedProcess[str]:
        ptxas = self.folder / "cuda/bin/ptxas"
        return self("look", self.folder / "facts", PYTHON, arch, ptxas, *(expected or PROVIDED))

    def clear(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self("clear", PYTHON, "flash-attn", *KEEP, *arguments)

    def prove(self) -> subprocess.CompletedProcess[str]:
        return self("prove", self.folder / "facts/facts", PYTHON, "--absent", "flash-attn")

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder / "usr/local")) for path in (self.folder / "usr").rglob("*")}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    Base(folder).has(
        ("torch", "2.10.0a0+a36e1d39eb.nv26.01", {"torch/__init__.py": b"", "torch/lib/libtorch.so": b"code"}),
        ("pytorch-triton", "3.6.0+git1", {"triton/__init__.py": b"__version__ = '3.6.0'\n"}),
        ("numpy", "2.1.0", {"numpy/__init__.py": b""}),
        ("flash-attn", "2.7.4.post1", {"flash_attn/__init__.py": b"", "flash_attn_2_cuda.so": b"code"}),
        ("attrs", "20.1", {"attr/__init__.py": b"", "attr/gone.py": b"", "attr/_vendor/x-1.dist-info/METADATA": b""}),
        ("opencv", "4.11", {"cv2/__init__.py": b"", "cv2/old.so": b""}),
    )
    for name, text in (("nvcc", NVCC), ("ptxas", PTXAS)):
        program = folder / "cuda/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return folder


@pytest.fixture
def base(installed: Path, tmp_path: Path) -> Base:
    return Base(shutil.copytree(installed, tmp_path, dirs_exist_ok=True))


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr.strip()


def test_a_base_that_is_as_pinned_is_written_down(base: Base) -> None:
    done = base.look()

    assert done.returncode == 0, done.stderr
    assert "base has torch 2.10.0a0+a36e1d39eb.nv26.01\nbase has triton 3.6.0+git1\n" in done.stdout
    facts = json.loads((base.folder / "facts/facts").read_text())
    assert {name: fact[:2] for name, fact in facts.items()} == {
        "torch": ["torch", "2.10.0a0+a36e1d39eb.nv26.01"],
        "triton": ["pytorch-triton", "3.6.0+git1"],
        "numpy": ["numpy", "2.1.0"],
        "cuda": ["nvcc", "13.1"],
    }


@pytest.mark.parametrize(
    ("expected", "what"),
    [
        ("numpy=1.26.4", "pins.yaml says that the base has numpy 1.26.4, and it has 2.1.0"),
        ("torch=2.10.0a0+other", "the base has torch 2.10.0a0+other, and it has 2.10.0a0+a36e1d39eb.nv26.01"),
        ("cuda=13.2.0", "pins.yaml says that the base has cuda 13.2.0, and it has 13.1"),
        ("torchvision=0.25.0a0", "pins.yaml says that the base has torchvision 0.25.0a0, and it has none"),
    ],
)
def test_a_base_that_is_not_as_pinned_is_refused_with_both_versions(base: Base, expected: str, what: str) -> None:
    assert what in said(base.look(expected))
    assert not (base.folder / "facts").exists()


def test_another_python_is_refused(base: Base) -> None:
    why = f"pins.yaml says that the base has Python 3.99, and it has {PYTHON}"
    assert said(base("prove", "facts", "3.99")) == f"ngc_base: {why}"


def test_a_ptxas_that_does_not_know_the_gpu_is_refused(base: Base) -> None:
    assert said(base.look(arch="sm_999a")).endswith("ptxas does not compile for sm_999a: unknown -arch=sm_999a")


def test_a_wheel_that_the_torch_of_the_base_does_not_suit_is_refused(base: Base) -> None:
    base.gets("old-friend", "1.0", {}, "torch>=2.10", "numpy<3", "torch>=9; extra == 'more'")
    assert base.look().returncode == 0
    shutil.rmtree(base.folder / "facts")
    base.gets("demanding", "1.0", {}, "torch>=2.11")

    assert said(base.look()).endswith("demanding-1.0-py3-none-any.whl asks for torch>=2.11, and the base has 2.10.0")


def test_what_is_not_wanted_goes_and_leaves_nothing_behind(base: Base) -> None:
    before = base.files()
    assert "bin/flash-attn" in before
    (base.site / "flash_attn/__pycache__").mkdir()
    (base.site / f"flash_attn/__pycache__/__init__.cpython-{PYTHON.replace('.', '')}.pyc").write_bytes(b"")
    (base.site / "flash_attn_2_cuda.so").unlink()

    done = base.clear()

    assert done.returncode == 0, done.stderr
    assert base.files() == {name for name in before if not re.search("flash.attn", name)}


def test_other_releases_and_owners_of_the_same_files_make_room(base: Base) -> None:
    base.gets("attrs", "26.1", {"attr/__init__.py": b""})
    base.gets("opencv-python-headless", "5.0", {"cv2/__init__.py": b"new"})

    done = base.clear()

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "removing attrs 20.1: attrs-26.1-py3-none-any.whl takes its place",
        "removing flash-attn 2.7.4.post1: is not wanted",
        "removing opencv 4.11: opencv_python_headless-5.0-py3-none-any.whl brings cv2/__init__.py as well",
    ]
    assert not (base.site / "cv2").exists()
    assert not (base.site / "attr").exists()
    assert (base.site / "numpy/__init__.py").exists()


@pytest.mark.parametrize(
    ("name", "files", "why"),
    [
        ("numpy", {}, "numpy has to stay, but numpy-9.0-py3-none-any.whl takes its place"),
        (
            "triton",
            {"triton/__init__.py": b"other"},
            "pytorch-triton has to stay, but triton-9.0-py3-none-any.whl brings triton/__init__.py as well",
        ),
    ],
)
def test_what_has_to_stay_is_not_replaced(base: Base, name: str, files: dict[str, bytes], why: str) -> None:
    base.gets(name, "9.0", files)
    before = base.files()

    assert said(base.clear()) == f"ngc_base: {why}"
    assert base.files() == before


def test_a_distribution_without_a_list_of_its_files_is_not_removed(base: Base) -> None:
    (base.site / "flash_attn-2.7.4.post1.dist-info/RECORD").unlink()

    assert said(base.clear()) == "ngc_base: flash-attn has no RECORD, so nobody can say what belongs to it"


def test_folders_are_made_for_volumes(base: Base) -> None:
    owner = f"{os.getuid()}:{os.getgid()}"

    assert base.clear("--folder", owner, str(base.folder / "models")).returncode == 0
    assert (base.folder / "models").is_dir()


def test_what_stayed_as_it_was_is_proved(base: Base) -> None:
    base.look()
    base.clear()
    base.has(("app", "1.0", {"app.py": b""}))

    done = base.prove()

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == ["numpy 2.1.0 is as it was", "cuda 13.1 is as it was", "flash-attn is gone"]


def test_another_release_of_torch_is_found_out(base: Base) -> None:
    base.look()
    base.clear()
    shutil.rmtree(base.site / "torch-2.10.0a0+a36e1d39eb.nv26.01.dist-info")
    base.has(("torch", "2.11.0", {"torch/__init__.py": b""}))

    why = said(base.prove())
    assert "torch was torch 2.10.0a0+a36e1d39eb.nv26.01" in why
    assert "is torch 2.11.0" in why


def test_a_file_that_somebody_overwrote_is_found_out(base: Base) -> None:
    base.look()
    base.clear()
    (base.site / "triton/__init__.py").write_text("__version__ = '3.5.0'\n")

    assert said(base.prove()).startswith("ngc_base: triton was pytorch-triton 3.6.0+git1 ")


def test_another_cuda_is_found_out(base: Base) -> None:
    base.look()
    base.clear()
    nvcc = base.folder / "cuda/bin/nvcc"
    nvcc.write_text(NVCC.replace("13.1", "13.2"))

    assert said(base.prove()) == "ngc_base: cuda was nvcc 13.1, and is nvcc 13.2"


@pytest.mark.parametrize("left", ["flash_attn.py", "flash_attn-2.8.dist-info/METADATA"])
def test_what_had_to_go_and_is_still_there_is_found_out(base: Base, left: str) -> None:
    base.look()
    base.clear()
    path = base.site / left
    path.parent.mkdir(exist_ok=True)
    path.write_text("Name: flash_attn\nVersion: 2.8\n" if left.endswith("METADATA") else "")

    assert said(base.prove()) == "ngc_base: flash-attn is still there"

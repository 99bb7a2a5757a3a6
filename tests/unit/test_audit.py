"""Every check of the audit has a twin here: an image or a wheel that was made to fail it, and it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audited import KERNELS, LIBS, SITE, TARGET, audit, distribution, executable, program
from elf_files import EM_X86_64
from gpu_code import gpu_library
from raw_layouts import file

from spark_images.audit.checks import Severity
from spark_images.audit.judge import CHECKS
from spark_images.audit.run import Result
from spark_images.compat.build import Component
from spark_images.cuda_arch import Run, parse_torch_list
from spark_images.images import Excuse

GITHUB = b"ghp_" + b"a1B2c3D4e5F6" * 3
NEWEST = b"def f[T](x: T) -> T: return x\n"  # grammar of Python 3.12
DSL = "nvidia_cutlass_dsl/python_packages/cutlass/cute/nvgpu"


def component(name: str, archs: str, **modules: int | None) -> Component:
    """One that is linked into these libraries, of which each has so many of its modules."""
    codes, in_each = parse_torch_list(archs), tuple(modules.items())
    return Component(name=name, codes=codes, run=Run.NATIVE, called=True, source="CMakeLists.txt:1", modules=in_each)


def never_called(pattern: str) -> dict[str, Any]:
    return {"never_called": (Excuse(pattern=pattern, because="nobody calls it"),)}


# check -> what makes the clean image fail it, and what the finding says. What else comes of it necessarily stands last.
TWINS: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "gpu.unreadable": ({"files": {"opt/app/k.so": gpu_library(["sm_121a"], said="")}}, "/opt/app/k.so: ", ()),
    "gpu.no-usable-code": (
        {"files": {"opt/app/k.so": gpu_library(["sm_90a"], ["sm_120a"])}},
        "/opt/app/k.so: of 2 modules none runs on 12.1: 1 sm_120a, 1 sm_90a",
        (),
    ),
    "gpu.loose-code": (
        {"files": {"opt/app/k.fatbin": gpu_library(["sm_100f"])}},
        "/opt/app/*: of 1 files none runs on 12.1: 1 sm_100f",
        (),
    ),
    "gpu.module-not-usable": (
        {"files": {KERNELS: gpu_library(["sm_121a"], ["sm_90a"], ["sm_100f"])}},
        f"/{KERNELS}: 1 natively, 2 not at all",
        (),
    ),
    "gpu.jit": (
        {"files": {KERNELS: gpu_library(["sm_121a"], ["sm_80", "compute_80"])}},
        f"/{KERNELS}: 1 of 2 modules only as PTX; the first start compiles 160 bytes of it",
        (),
    ),
    "gpu.ptx-too-new": (
        {"files": {KERNELS: gpu_library(["compute_121@9.1"])}},
        f"/{KERNELS}: 1 modules need PTX 9.1, and driver 580 takes 9.0",
        ("gpu.jit",),
    ),
    "gpu.not-as-predicted": (
        {
            "files": {f"{SITE}/vllm/_C.so": gpu_library(["sm_120"], ["sm_80"], ["sm_121a"])},
            "about": {"predicted": (component("base", "12.0", _C=None), component("old", "8.0;12.1", _C=None))},
        },
        "/vllm/_C.so: sm_121a is of no part of the compile",
        ("gpu.module-not-usable",),
    ),
    "gpu.other-count": (
        {
            "files": {
                f"{SITE}/vllm/_C.abi3.so": gpu_library(["sm_120"], ["sm_121a"], ["sm_120!"]),
                f"{SITE}/vllm/_moe_C.abi3.so": gpu_library(["sm_120"]),
            },
            "about": {"predicted": (component("base", "12.0", _C=3, _moe_C=1), component("new", "12.1a", _C=1))},
        },
        f"/{SITE}/vllm/_C.abi3.so: 2 modules of sm_120, and 3 files are compiled so",
        (),
    ),
    "platform.foreign-elf": (
        {"files": {"opt/app/b.so": program(machine=EM_X86_64)}},
        "/opt/app/b.so: x86_64, not aarch64",
        (),
    ),
    "platform.disagreement": (
        {"indexed": "linux/amd64"},
        "the index says linux/amd64, the config linux/arm64",
        (),
    ),
    "link.missing": (
        {"files": {"opt/app/b.so": program("libnowhere.so.1")}},
        "/opt/app/b.so: libnowhere.so.1 is nowhere in the image",
        (),
    ),
    "link.only-if-loaded-before": (
        {"files": {"opt/app/b.so": program("libtorch_cuda.so")}},
        f"/opt/app/b.so: libtorch_cuda.so in /{SITE}/torch/lib, where it is not looked for",
        (),
    ),
    "link.second-copy": (
        {
            "files": {
                "opt/a/libnccl.so.2": program(soname="libnccl.so.2"),
                "opt/b/libnccl.so.2": program("libc.so.6", soname="libnccl.so.2"),
            }
        },
        "libnccl.so.2: 2 that differ: /opt/a/libnccl.so.2, /opt/b/libnccl.so.2",
        (),
    ),
    "link.driver-inside": (
        {"files": {f"{LIBS}/libcuda.so.1": program(soname="libcuda.so.1")}},
        f"/{LIBS}/libcuda.so.1",
        (),
    ),
    "cuda.two-majors": (
        {"files": {f"{LIBS}/libcudart.so.12": program(soname="libcudart.so.12")}},
        f"/{LIBS}/libcudart.so.12: is libcudart.so.12, beside CUDA 13",
        (),
    ),
    "cuda.newer-than-driver": (
        {"about": {"target": TARGET.__class__(**{**vars(TARGET), "driver": "570"})}},
        "driver 570 of `gb10` is of CUDA 12.8",
        (),
    ),
    "cuda.ptxas-too-old": (
        {"files": {"opt/cuda/bin/ptxas": executable("opt/cuda/bin/ptxas", program() + b"\0sm_90\0sm_120\0")}},
        "/opt/cuda/bin/ptxas: TRITON_PTXAS_PATH names it, and it does not know sm_121a",
        (),
    ),
    "cuda.dsl-refuses-gpu": (
        {"files": {f"opt/{DSL}/warp/mma.py": b'admissible_archs = ["sm_120a"]\n'}},
        "names sm_120a and not sm_121a",
        (),
    ),
    "cuda.dsl-patched": (
        {"files": {f"opt/{DSL}/tcgen05/mma.py": b"admissible_archs = [Arch.sm_100a, Arch.sm_121a]\n"}},
        "names sm_121a",
        (),
    ),
    "cuda.torch-without": (
        {"files": {f"{SITE}/torch/lib/libtorch_cuda.so": None, **distribution("torch")}},
        "torch 1.0 has no lib/libtorch_cuda.so",
        (),
    ),
    "python.changed": (
        {"files": {f"{SITE}/tool/cli.py": b"patched = True\n"}},
        f"/{SITE}/tool/cli.py: not as tool 1.0 brought it",
        (),
    ),
    "python.missing": (
        {"files": {f"{SITE}/tool/__init__.py": None}},
        f"/{SITE}/tool/__init__.py: tool 1.0 lists it",
        (),
    ),
    "python.two-owners": (
        {"files": distribution("other", listed={"tool/cli.py": b"another\n"})},
        f"/{SITE}/tool/cli.py: of other 1.0 and tool 1.0",
        ("python.changed",),
    ),
    "python.installed-twice": ({"files": distribution("tool", "2.0")}, f"/{SITE}: tool as 1.0, 2.0", ()),
    "python.must-be-absent": (
        {
            "files": distribution("flash-attn", "2.7.4"),
            "about": {"absent": (Excuse(pattern="flash-attn", because="it is linked to CUDA 12"),)},
        },
        f"/{SITE}/flash_attn-2.7.4.dist-info: it is linked to CUDA 12",
        (),
    ),
    "python.not-as-locked": (
        {"about": {"locked": (("tool", "1.0"), ("torch", "2.11.0"))}},
        "torch: the lock says 2.11.0, installed is 1.0",
        (),
    ),
    "python.requirement-unmet": (
        {
            "files": distribution("other", requires=("gone>=1; python_version >= '3.10'",)),
            "about": {"locked": (("other", "1.0"), ("tool", "1.0"), ("torch", "1.0"))},
        },
        f"/{SITE}/other-1.0.dist-info: other 1.0 asks for `gone>=1; python_version >= '3.10'`, and there is none",
        (),
    ),
    "python.entry-point-missing": (
        {"files": distribution("other", commands="other = other.main:run")},
        "other of other 1.0: there is no module other.main",
        (),
    ),
    "python.does-not-compile": (
        {
            "files": distribution(
                "tool", files={"tool/__init__.py": b"", "tool/cli.py": b"import = 1\n"}, commands="tool = tool.cli:main"
            )
        },
        f"/{SITE}/tool/cli.py: line 1: invalid syntax",
        (),
    ),
    "python.newer-grammar": (
        {
            "files": {
                path.replace("3.11", "3.99"): content
                for path, content in distribution(
                    "next", files={"next.py": b"match = = 1\n"}, commands="tool = next:main"
                ).items()
            }
        },
        "/usr/lib/python3.99/site-packages/next.py: not judged by Python",
        (),
    ),
    "config.empty-variable": ({"settings": {"Env": ["HF_TOKEN="]}}, "HF_TOKEN is set and empty", ()),
    "config.build-variable": ({"settings": {"Env": ["MAX_JOBS=20"]}}, "MAX_JOBS=20", ()),
    "config.unlimited-compilers": (
        {
            "files": {
                "opt/cuda/bin/nvcc": executable("opt/cuda/bin/nvcc", program()),
                **distribution("flashinfer-python"),
            }
        },
        "/opt/cuda/bin/nvcc is there for flashinfer-python, and MAX_JOBS is not set",
        (),
    ),
    "config.host-variable": ({"settings": {"Env": ["NCCL_SOCKET_IFNAME=enP7s7"]}}, "NCCL_SOCKET_IFNAME=enP7s7", ()),
    "config.model-variable": (
        {"settings": {"Env": ["VLLM_USE_FLASHINFER_MOE_FP4=0"]}},
        "VLLM_USE_FLASHINFER_MOE_FP4=0",
        (),
    ),
    "config.expandable-segments": (
        {"settings": {"Env": ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"]}},
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        (),
    ),
    "config.unknown-variable": (
        {"files": distribution("vllm", "0.20.2"), "settings": {"Env": ["VLLM_NVFP4_MOE_BACKEND=marlin"]}},
        "VLLM_NVFP4_MOE_BACKEND",
        (),
    ),
    "config.arch-list": (
        {"settings": {"Env": ["TORCH_CUDA_ARCH_LIST=9.0;12.0a"]}},
        "TORCH_CUDA_ARCH_LIST=9.0;12.0a: none of it runs on 12.1",
        (),
    ),
    "config.root": ({"settings": {"User": ""}}, "it runs as root", ()),
    "config.unknown-user": ({"settings": {"User": "server"}}, "server: not in /etc/passwd", ()),
    "config.nothing-to-start": ({"settings": {"Entrypoint": ["serve"]}}, "serve: not in the image", ()),
    "config.ngc-entry-point": (
        {"files": {"opt/nvidia/nvidia_entrypoint.sh": executable("opt/nvidia/nvidia_entrypoint.sh")}},
        "/opt/nvidia/nvidia_entrypoint.sh is there, and the entry point is /opt/app/server",
        (),
    ),
    "config.port": ({"settings": {"ExposedPorts": {"80/tcp": {}}}}, "80/tcp", ()),
    "secret.in-file": ({"files": {"etc/app.conf": b"token = " + GITHUB}}, "/etc/app.conf: a token of GitHub", ()),
    "secret.in-config": (
        {"history": ["|1 NGC_API_KEY=abcdefgh12345678 /bin/sh -c make"]},
        "history, entry 1: a secret by its name",
        (),
    ),
    "files.setuid": ({"files": {"usr/bin/su": executable("usr/bin/su", mode=0o4755)}}, "/usr/bin/su: mode 4755", ()),
    "files.world-writable": ({"files": {"opt/x": file("opt/x", mode=0o666)}}, "/opt/x: mode 0666", ()),
    "files.leftover": ({"files": {"root/.cache/pip/x": b"x"}}, "/root/.cache/pip/x: nothing should be in /root", ()),
    "files.stale-bytecode": (
        {"files": {f"{SITE}/tool/__pycache__/cli.cpython-311.pyc": b"\xa7\r\r\n" + bytes(4) + b"time" + bytes(8)}},
        f"/{SITE}/tool/__pycache__/cli.cpython-311.pyc",
        (),
    ),
    "excuse.needless": ({"about": never_called("/opt/old/*")}, "/opt/old/*: there is no such file", ()),
}


VLLM = f"{SITE}/vllm"
PREDICTED = {"predicted": (component("base", "12.0", _C=None, _moe_C=None), component("qutlass", "12.0f", _C=None))}
COUNTED = {"predicted": (component("base", "12.0", _C=3), component("fa2", "8.0+PTX", _vllm_fa2_C=2))}
FA2 = f"{VLLM}/vllm_flash_attn/_vllm_fa2_C.abi3.so"
PTXAS = program() + b"\0sm_121a\0"

# Further ways to fail a check, each of which passed once.
MORE_TWINS: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "brought-for-nobody": (
        "excuse.needless",
        {"about": {"brought": (Excuse(pattern="libcufft.so.12", because="torch needs it"),)}},
        "libcufft.so.12: nothing needs it",
        (),
    ),
    "file-capabilities": (
        "files.setuid",
        {
            "files": {
                "usr/bin/ping": file(
                    "usr/bin/ping", b"#!/bin/sh\n", mode=0o755, pax_headers={"SCHILY.xattr.security.capability": "x"}
                )
            }
        },
        "/usr/bin/ping: has capabilities",
        (),
    ),
    "unreadable-and-never-called": (
        "gpu.unreadable",
        {"files": {"opt/app/k.so": gpu_library(["sm_121a"], said="")}, "about": never_called("/opt/app/k.so")},
        "/opt/app/k.so: ",
        (),
    ),
    "code-of-another-library": (
        "gpu.not-as-predicted",
        {
            "files": {
                f"{VLLM}/_C.so": gpu_library(["sm_120"]),
                f"{VLLM}/_moe_C.so": gpu_library(["sm_120"], ["sm_120f"]),
            },
            "about": PREDICTED,
        },
        f"/{VLLM}/_C.so: in it should be qutlass, and sm_120f is not (CMakeLists.txt:1)",
        (),
    ),
    "library-left-out": (
        "gpu.not-as-predicted",
        {"files": {f"{VLLM}/_C.so": gpu_library(["sm_120"], ["sm_120f"])}, "about": PREDICTED},
        "_moe_C: no such library with GPU code, and in it should be base",
        (),
    ),
    "library-of-another-project": (
        "gpu.not-as-predicted",
        {
            "files": {
                f"{VLLM}/_C.so": gpu_library(["sm_120"], ["sm_120f"]),
                f"{VLLM}/third_party/deep_gemm/_moe_C.abi3.so": gpu_library(["sm_120"]),
            },
            "about": PREDICTED,
        },
        "_moe_C: no such library with GPU code, and in it should be base",
        (),
    ),
    "far-fewer": (
        "gpu.other-count",
        {
            "files": {f"{VLLM}/_C.so": gpu_library(["sm_120"]), FA2: gpu_library(*[["sm_80", "compute_80"]] * 2)},
            "about": COUNTED,
        },
        f"/{VLLM}/_C.so: 1 modules of sm_120, and 3 files are compiled so",
        ("gpu.jit",),
    ),
    "of-another-architecture": (
        "gpu.other-count",
        {
            "files": {
                f"{VLLM}/_C.so": gpu_library(*[["sm_120"]] * 3),
                FA2: gpu_library(["sm_80", "compute_80"], ["sm_80", "compute_80"], ["sm_120"]),
            },
            "about": COUNTED,
        },
        f"/{FA2}: 1 modules of sm_120, and 0 files are compiled so",
        ("gpu.jit",),
    ),
    "second-copy-by-auditwheel": (
        "link.second-copy",
        {
            "files": {
                "opt/x.libs/libcudart-1a2b3c4d.so.13.0.88": program("libc.so.6", soname="libcudart-1a2b3c4d.so.13.0.88")
            }
        },
        "libcudart.so.13: 2 that differ: ",
        (),
    ),
    "second-cuda-by-auditwheel": (
        "cuda.two-majors",
        {
            "files": {
                "opt/x.libs/libcudart-1a2b3c4d.so.12.8.90": program("libc.so.6", soname="libcudart-1a2b3c4d.so.12.8.90")
            }
        },
        "/opt/x.libs/libcudart-1a2b3c4d.so.12.8.90: is libcudart-1a2b3c4d.so.12.8.90, beside CUDA 13",
        (),
    ),
    "ptxas-of-triton": (
        "cuda.ptxas-too-old",
        {
            "files": {"opt/triton/ptxas": executable("opt/triton/ptxas", program() + b"\0sm_90\0")},
            "settings": {"Env": ["HOME=/tmp"]},
        },
        "/opt/triton/ptxas: does not know sm_121a",
        (),
    ),
    "ptxas-not-there": (
        "cuda.ptxas-too-old",
        {"files": {"opt/cuda/bin/ptxas": None}},
        "/opt/cuda/bin/ptxas: TRITON_PTXAS_PATH names it, and it is not there",
        (),
    ),
    "ptxas-not-executable": (
        "cuda.ptxas-too-old",
        {"files": {"opt/cuda/bin/ptxas": file("opt/cuda/bin/ptxas", PTXAS, mode=0o644)}},
        "/opt/cuda/bin/ptxas: TRITON_PTXAS_PATH names it, and it may not be run",
        (),
    ),
    "ptxas-of-another-name": (
        "cuda.ptxas-too-old",
        {
            "files": {"opt/bin/assemble": executable("opt/bin/assemble", PTXAS)},
            "settings": {"Env": ["TRITON_PTXAS_PATH=/opt/bin/assemble"]},
        },
        "/opt/bin/assemble: TRITON_PTXAS_PATH names it, and it is no ELF file called ptxas",
        (),
    ),
    "limit-of-another-number": (
        "config.build-variable",
        {"settings": {"Env": ["MAX_JOBS=20"]}, "about": {"meant": frozenset({("MAX_JOBS", "4")})}},
        "MAX_JOBS=20",
        (),
    ),
    "secret-behind-another-argument": (
        "secret.in-config",
        {"history": ["|2 BUILD_ID=abcdefgh12345678 NGC_API_KEY=abcdefgh12345678 /bin/sh -c make"]},
        "history, entry 1: a secret by its name",
        (),
    ),
    "secret-in-quotes": (
        "secret.in-config",
        {"history": ["ENV HF_TOKEN='abcdefgh12345678'"]},
        "history, entry 1: a secret by its name",
        (),
    ),
    "secret-within-quotes": (
        "secret.in-config",
        {"history": ['ENV START="WANDB_TOKEN=abcdefgh12345678 make"']},
        "history, entry 1: a secret by its name",
        (),
    ),
}


def test_clean_image_has_no_finding(tmp_path: Path) -> None:
    result = audit(tmp_path)
    assert [(finding.check.id, finding.text) for finding in result.findings] == []
    assert result.document["verdict"] == "passed"
    assert [row["path"] for row in result.document["gpu"]] == [f"/{KERNELS}"]
    assert result.subject.sources.read == 2


def test_every_check_has_a_twin() -> None:
    assert [check.id for check in CHECKS] == list(TWINS)


def test_every_check_says_why_and_who_says_so() -> None:
    assert all(check.reason and check.source and "\n" not in check.reason for check in CHECKS)


@pytest.mark.parametrize("check", TWINS)
def test_spoiled_image_fails_its_check_and_no_other(tmp_path: Path, check: str) -> None:
    spoiled, text, besides = TWINS[check]
    if check == "config.unknown-variable":
        knowledge = Path(__file__).parents[2] / "images" / "vllm-knowledge.json"
        (tmp_path / "own/project/images").mkdir(parents=True)
        (tmp_path / "own/project/images/vllm-knowledge.json").write_bytes(knowledge.read_bytes())
    expect(audit(tmp_path, **spoiled), check, text, besides)


@pytest.mark.parametrize("way", MORE_TWINS)
def test_further_spoiled_image_fails_its_check_and_no_other(tmp_path: Path, way: str) -> None:
    check, spoiled, text, besides = MORE_TWINS[way]
    expect(audit(tmp_path, **spoiled), check, text, besides)


@pytest.mark.parametrize("check", ["gpu.other-count", "config.unlimited-compilers"])
def test_what_once_only_warned_fails_the_image(tmp_path: Path, check: str) -> None:
    assert {finding.check.id for finding in audit(tmp_path, **TWINS[check][0]).failures} == {check}


def expect(result: Result, check: str, text: str, besides: tuple[str, ...]) -> None:
    found = {finding.check.id for finding in result.findings}
    assert any(text in finding.text for finding in result.findings if finding.check.id == check), result.findings
    assert found == {check, *besides}
    severe = any(one.severity is Severity.FAIL for one in CHECKS if one.id in found)
    assert result.document["verdict"] == ("failed" if severe else "passed")

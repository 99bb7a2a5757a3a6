"""Checks of an image's configuration: environment, user, entry point, ports. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from spark_images.audit.checks import Severity, check
from spark_images.audit.facts import Subject
from spark_images.cuda_arch import Run, parse_torch_list, run_of
from spark_images.errors import ConfigError
from spark_images.imagechecks import real_path

SPEC = "OCI image spec, config.md"
NGC_ENTRY_POINT = "/opt/nvidia/nvidia_entrypoint.sh"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

BUILD_ONLY = re.compile(
    r"MAX_JOBS|JOBS|MAKEFLAGS|NINJAFLAGS|CMAKE_BUILD_PARALLEL_LEVEL|CARGO_BUILD_JOBS|NVCC_THREADS|NVCC_(?:AP|PRE)PEND_FLAGS"
    r"|MEMORY_MIB|MEMGATE_\w+|SOURCE_DATE_EPOCH|CCACHE_\w+|SCCACHE_\w+|CMAKE_ARGS|SETUPTOOLS_SCM_PRETEND_VERSION\w*"
    r"|VLLM_\w+_SRC_DIR|VLLM_VERSION_OVERRIDE|QUTLASS_SRC_DIR|DEEPGEMM_SRC_DIR"
)
OF_A_HOST = re.compile(
    r"NCCL_SOCKET_IFNAME|NCCL_IB_HCA|GLOO_SOCKET_IFNAME|TP_SOCKET_IFNAME|UCX_NET_DEVICES|MASTER_ADDR|VLLM_HOST_IP"
)
OF_A_MODEL = re.compile(
    r"VLLM_USE_FLASHINFER_MOE_FP4|VLLM_NVFP4_GEMM_BACKEND|VLLM_TEST_FORCE_FP8_MARLIN|VLLM_MARLIN_USE_ATOMIC_ADD"
    r"|VLLM_ATTENTION_BACKEND|VLLM_USE_FLASHINFER_\w+"
)


@check(
    "config.empty-variable",
    Severity.FAIL,
    reason="a variable that is set and empty is not unset: programs read it as a value",
    source="public images with `ENV HF_TOKEN=`; POSIX, Environment Variables",
)
def empty_variable(subject: Subject) -> Iterator[str]:
    for name, value in subject.env:
        if not value:
            yield f"{name} is set and empty"


@check(
    "config.build-variable",
    Severity.FAIL,
    reason="what governed a build governs every compile at run time too: 20 compilers at the first request",
    source="FlashInfer and torch read MAX_JOBS when they compile at run time; vLLM warns of its *_SRC_DIR",
)
def build_variable(subject: Subject) -> Iterator[str]:
    for name, value in subject.env:
        if BUILD_ONLY.fullmatch(name) and (name, value) not in subject.meant:  # image.yaml may limit run-time compilers
            yield f"{name}={value}"


@check(
    "config.unlimited-compilers",
    Severity.FAIL,
    reason="FlashInfer compiles at the first request with as many compilers as there are cores: 20 of them take 100 GB",
    source="flashinfer/jit/cpp_ext.py:309 of 0.6.8.post1: MAX_JOBS, else ninja's default",
)
def unlimited_compilers(subject: Subject) -> Iterator[str]:
    if subject.settings is None or "MAX_JOBS" in dict(subject.env):
        return
    nvcc = next((path for path, file in subject.tree.items() if path.endswith("/bin/nvcc") and file.mode & 0o111), "")
    if nvcc and any(one.name == "flashinfer-python" for one in subject.distributions):
        yield f"{nvcc} is there for flashinfer-python, and MAX_JOBS is not set"


@check(
    "config.host-variable",
    Severity.FAIL,
    reason="names of network devices and addresses are of the machine on which somebody tried the image",
    source="public Spark images with NCCL_SOCKET_IFNAME in ENV",
)
def host_variable(subject: Subject) -> Iterator[str]:
    for name, value in subject.env:
        if OF_A_HOST.fullmatch(name):
            yield f"{name}={value}"


@check(
    "config.model-variable",
    Severity.FAIL,
    reason="it is right for one model and an error, or another answer each time, for the next: it belongs in recipes",
    source="vLLM: VLLM_USE_FLASHINFER_MOE_FP4=0 is a ValueError on Qwen; atomic adds make answers differ",
)
def model_variable(subject: Subject) -> Iterator[str]:
    for name, value in subject.env:
        if OF_A_MODEL.fullmatch(name):
            yield f"{name}={value}"


@check(
    "config.expandable-segments",
    Severity.FAIL,
    reason="on unified memory torch's growing segments ended in hard resets of the machine",
    source="public reports from DGX Spark",
)
def expandable_segments(subject: Subject) -> Iterator[str]:
    for name, value in subject.env:
        if name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF") and "expandable_segments:True" in value:
            yield f"{name}={value}"


@check(
    "config.unknown-variable",
    Severity.FAIL,
    reason="vLLM only warns of a variable that it does not know, so a wrong name does nothing, for ever",
    source="images/vllm-knowledge.json, read from vLLM's own releases",
)
def unknown_variable(subject: Subject) -> Iterator[str]:
    yield from subject.unknown_variables


@check(
    "config.arch-list",
    Severity.FAIL,
    reason="what torch compiles at run time for such a list does not run here, or torch refuses the list",
    source="torch/utils/cpp_extension.py:2502 of torch 2.10.0",
)
def arch_list(subject: Subject) -> Iterator[str]:
    text = subject.variable("TORCH_CUDA_ARCH_LIST")
    if not text or subject.gpu is None:
        return
    try:
        codes = parse_torch_list(text)
    except ConfigError as err:
        yield f"TORCH_CUDA_ARCH_LIST={text}: {err.what}"
        return
    if all(run_of(code, subject.gpu) is Run.NOT for code in codes):
        yield f"TORCH_CUDA_ARCH_LIST={text}: none of it runs on {subject.gpu}"


@check(
    "config.root",
    Severity.WARN,
    reason="what breaks out of the server is root in the container",
    source=SPEC,
)
def root(subject: Subject) -> Iterator[str]:
    if subject.settings and subject.settings.user.partition(":")[0] in ("", "0", "root"):
        yield "it runs as root"


@check(
    "config.unknown-user",
    Severity.FAIL,
    reason="an engine cannot start an image whose user has a name that /etc/passwd does not know",
    source=SPEC,
)
def unknown_user(subject: Subject) -> Iterator[str]:
    user = subject.settings.user.partition(":")[0] if subject.settings else ""
    known = {line.partition(":")[0] for line in subject.texts.get("/etc/passwd", "").splitlines()}
    if user and not user.isdigit() and user not in known:
        yield f"{user}: not in /etc/passwd"


@check(
    "config.nothing-to-start",
    Severity.FAIL,
    reason="the container ends at once: the program is not there or may not be run",
    source=SPEC,
)
def nothing_to_start(subject: Subject) -> Iterator[str]:
    if subject.settings is None:
        return
    words = subject.settings.entrypoint or subject.settings.command
    if not words:
        yield "neither entry point nor command"
        return
    folders = (subject.variable("PATH") or DEFAULT_PATH).split(":")
    places = [words[0]] if "/" in words[0] else [posixpath.join(folder, words[0]) for folder in folders]
    found = [path for place in places if (path := real_path(subject.tree, place))]
    if not found:
        yield f"{words[0]}: not in the image"
    elif all(subject.tree[path].kind != "file" or not subject.tree[path].mode & 0o111 for path in found):
        yield f"{found[0]}: may not be run"


@check(
    "config.ngc-entry-point",
    Severity.FAIL,
    reason="NVIDIA's entry point makes a CUDA that is newer than the driver work: else cudaErrorUnsupportedPtxVersion",
    source="NVIDIA, CUDA Compatibility, Forward Compatibility; NGC's /opt/nvidia/nvidia_entrypoint.sh",
)
def ngc_entry_point(subject: Subject) -> Iterator[str]:
    if subject.settings and NGC_ENTRY_POINT in subject.tree and NGC_ENTRY_POINT not in subject.settings.entrypoint:
        yield f"{NGC_ENTRY_POINT} is there, and the entry point is {' '.join(subject.settings.entrypoint) or 'empty'}"


@check(
    "config.port",
    Severity.FAIL,
    reason="only root may listen below 1024, and this image does not run as root",
    source="ip(7), net.ipv4.ip_unprivileged_port_start",
)
def port(subject: Subject) -> Iterator[str]:
    if subject.settings is None or subject.settings.user.partition(":")[0] in ("", "0", "root"):
        return
    for name in subject.settings.ports:
        number, _, protocol = name.partition("/")
        if not number.isdigit() or not 1024 <= int(number) < 65536 or protocol not in ("", "tcp", "udp"):
            yield name

"""The command lines of smoke checks: on the machine itself, or in a container with the GPU and little else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_images.targets import Target

# The order is that of how much a check stands on: what fails first explains what fails later.
INSIDE = (  # by the image's own Python
    "cuda_kernel",
    "torch_matmul",
    "triton_kernel",
    "cuda_graph",
    "fp4_gemm",
    "flashinfer_attention",
    "vllm_ops",
    "marlin",
    "vllm_generate",
)
OUTSIDE = ("llamacpp",)  # drives an image's programs from the host: such an image has no Python
CHECKS = (*INSIDE, *OUTSIDE)
FIRST = "device"  # always, on the host: without the target's GPU nothing else is run

SCRIPTS = "/spark/smoke"  # scripts/smoke in a container
TMPFS = "rw,exec,nosuid,nodev,size=8g"  # exec: what is compiled at run time is loaded from there
LABEL = "io.spark-images.smoke"

# What the tiny GGUF model is asked: its best word leads by 0.05 logits or more at every step of the answer, so that no
# order of floating-point sums can change it.
PROMPTS = (
    "Fetch, then build with the network off.",
    "ARM64 (10 + 10 Kerne) \u2013 größtenteils",
    "user: Who are you?\nassistant:",
)
TOKENS = 12


@dataclass(frozen=True, kw_only=True)
class Container:
    """How containers of one run are started."""

    engine: str  # "podman" or "docker"
    image: str
    rootless: bool
    user: str  # "1000:1000": who runs us; files in `work` stay his
    memory_bytes: int  # of host memory; the GPU's own is counted by no cgroup
    scripts: str  # folders of the host
    work: str  # the same path inside; what checks write: compiled kernels, sockets
    labels: tuple[tuple[str, str], ...]
    moved: tuple[tuple[str, str], ...] = ()  # variables of the image with another value: see moved_caches
    wrapper: str = ""  # a program of the image that starts others: NVIDIA's, which finds the driver's newer libraries


def gpu_words(engine: str) -> list[str]:
    """What gives a container the GPU: docker by NVIDIA's runtime, podman by CDI."""
    return ["--device", "nvidia.com/gpu=all"] if engine == "podman" else ["--gpus", "all"]


def wrapper_in(entrypoint: Sequence[str]) -> str:
    """NVIDIA's entry point of its base images; it is kept, as it lets a newer CUDA run on an older driver."""
    return next((word for word in entrypoint if word.endswith("/nvidia_entrypoint.sh")), "")


def moved_caches(settings: Sequence[str], folders: Sequence[str], work: str) -> tuple[tuple[str, str], ...]:
    """The `NAME=value` of an image that lie in folders which users mount, with a place below `work` for each.

    Nothing is mounted there in a smoke container, and nothing could be written.
    """
    pairs = (setting.partition("=")[::2] for setting in settings)
    return tuple(
        (name, work + value) for name, value in pairs if any(f"{value}/".startswith(f"{one}/") for one in folders)
    )


def container_command(container: Container, program: str, *, gpu: bool = True, folder: str = "/tmp") -> list[str]:
    """Start a program of the image: no network, nothing writable but /tmp and the work folder, no capabilities."""
    words = [container.engine, "run", "--rm", "--pull=never", *(gpu_words(container.engine) if gpu else [])]
    words += ["--network", "none", "--read-only", "--tmpfs", f"/tmp:{TMPFS}", "--shm-size", "1g"]
    words += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--security-opt", "label=disable"]
    words += ["--memory", str(container.memory_bytes), "--memory-swap", str(container.memory_bytes)]
    words += ["--pids-limit", "4096"]
    words += ["--userns", "keep-id"] if container.rootless else []
    words += ["--user", container.user, "--workdir", folder]
    # USER: torch asks who it is, and the user's number has no name in the image.
    env = {"HOME": "/tmp", "USER": "spark", "FLASHINFER_WORKSPACE_BASE": f"{container.work}/flashinfer"}
    env |= dict(container.moved)
    for name, value in env.items():
        words += ["--env", f"{name}={value}"]
    words += ["--volume", f"{container.scripts}:{SCRIPTS}:ro", "--volume", f"{container.work}:{container.work}"]
    for name, value in container.labels:
        words += ["--label", f"{name}={value}"]
    if container.wrapper:
        return [*words, "--entrypoint", container.wrapper, container.image, program]
    return [*words, "--entrypoint", program, container.image]


def target_words(check: str, target: Target | None) -> list[str]:
    """What a check is told of the target."""
    words = ["--compute-capability", target.compute_capability] if target and target.compute_capability else []
    if check == FIRST and target:
        words += ["--unified-memory", "yes" if target.unified_memory else "no"]
        words += ["--driver", target.driver] if target.driver else []
        words += [word for name in target.gpu_names for word in ("--gpu-name", name)]
    return words


def check_command(check: str, *, python: str, scripts: str, words: Sequence[str]) -> list[str]:
    """Run a check's script."""
    return [python, f"{scripts}/{check}.py", *words]

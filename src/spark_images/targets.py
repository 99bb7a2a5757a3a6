"""images/targets.yaml: the machines that images are built for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_images import forms
from spark_images.document import Section, reading


@dataclass(frozen=True, kw_only=True)
class Target:
    """A kind of machine: its platform, its GPU and what compilers must be told of it."""

    name: str
    platform: str  # "linux/arm64"
    compute_capability: str  # "12.1a" as CUDA spells it for this GPU; "" where there is none
    cuda_architecture: str  # CMake's spelling: "121a-real"; "" where there is no GPU
    cpu_architecture: str  # GCC's -march for the CPU code: "armv9-a+i8mm+bf16"
    unified_memory: bool  # CPU and GPU share one memory
    description: str
    gpu_names: tuple[str, ...] = ()  # parts of the GPU's name, of which one has to be in it: "GB10"
    driver: str = ""  # the oldest branch of NVIDIA's driver that has to do: "580"; "" where nobody says

    @property
    def arch(self) -> str:
        """The OCI architecture: `arm64` of `linux/arm64`. It is Debian's name as well."""
        return self.platform.split("/")[1]


def read_targets(path: Path) -> tuple[Target, ...]:
    """All targets, in the file's order. Raises ConfigError with every mistake of the file."""
    with reading(path) as top:
        return tuple(_read_target(name, top.section(name)) for name in top.names(forms.NAME))


def _read_target(name: str, section: Section) -> Target:
    compute_capability = section.optional("compute-capability", forms.COMPUTE_CAPABILITY, "")
    cuda_architecture = section.optional("cuda-architecture", forms.CUDA_ARCHITECTURE, "")
    if cuda_architecture.partition("-")[0] != compute_capability.replace(".", ""):
        section.refuse(
            "cuda-architecture",
            f"`{cuda_architecture}` is not for the GPU that compute-capability names, `{compute_capability}`",
        )
    driver = section.optional("driver", forms.DRIVER, "")
    if driver and not compute_capability:
        section.refuse("driver", "there is no GPU that it would drive: compute-capability is not given")
    return Target(
        name=name,
        platform=section.value("platform", forms.PLATFORM),
        compute_capability=compute_capability,
        cuda_architecture=cuda_architecture,
        cpu_architecture=section.value("cpu-architecture", forms.CPU_ARCHITECTURE),
        gpu_names=section.values("gpu-names", forms.TEXT, optional=True),
        driver=driver,
        unified_memory=section.optional("unified-memory", forms.TRUTH, False),
        description=section.value("description", forms.TEXT),
    )

"""images/targets.yaml: the machines that images are built for."""

from __future__ import annotations

from dataclasses import dataclass


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

    @property
    def arch(self) -> str:
        """The OCI architecture: `arm64` of `linux/arm64`. It is Debian's name as well."""
        return self.platform.split("/")[1]

"""The architectures that builds run on and images are for, by each of their names."""

from __future__ import annotations

ARCHES = {"x86_64": "amd64", "aarch64": "arm64"}  # as `uname -m` and ELF say it -> as OCI and Debian do
MACHINES = {arch: machine for machine, arch in ARCHES.items()}

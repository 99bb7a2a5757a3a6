"""Frozen values that several unit tests start from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from spark_images.imageconfig import ImageConfig
from spark_images.images import CompileSpec, Image, RuntimeSpec, WheelUse
from spark_images.locks import DebsLock, LockedDeb, LockedWheel, WheelsLock
from spark_images.pins import DebSet, DebsPin, GitPin, GitRoute, Pins, RequirementsPin, WheelsPin
from spark_images.plan import Plan, make_plan
from spark_images.requirements import Layer, Requirements
from spark_images.targets import Target

GB10 = Target(
    name="gb10",
    platform="linux/arm64",
    compute_capability="12.1a",
    cuda_architecture="121a-real",
    cpu_architecture="armv9-a+i8mm+bf16",
    unified_memory=True,
    description="DGX Spark",
)
HELLO_PIN = GitPin(
    name="hello",
    line=2,
    url="https://example.org/hello",
    version="b12",
    commit="0123456789" * 4,
    committed=datetime(2026, 1, 2, tzinfo=UTC),
    tree="sha256:" + "a" * 64,
    routes=(GitRoute(url="https://example.org/hello", commit="0123456789" * 4),),
)
TOOLS_PIN = WheelsPin(
    name="tools",
    line=3,
    version="1",
    lock="images/tools.lock",
    platforms=("linux/amd64", "linux/arm64"),
    packages=("nvcc==13.0.88", "cublas==13.0.2"),
)
DEBIAN_PIN = DebsPin(
    name="debian",
    line=4,
    suite="bookworm",
    lock="images/debian/debs.lock",
    snapshot=datetime(2026, 11, 1, tzinfo=UTC),
    routes=("http://deb.debian.org/{archive}/{path}",),
    sets=(
        DebSet(name="build", packages=("gcc",), arches=("amd64", "arm64")),
        DebSet(name="cross-arm64", packages=("cross-gcc",), arches=("amd64",)),
        DebSet(name="runtime", packages=("libc6",), arches=("amd64", "arm64")),
    ),
)
REQUIREMENTS_PIN = RequirementsPin(
    name="app-gb10-debian",
    line=5,
    lock="images/app/gb10-debian.lock",
    platform="linux/arm64",
    python="3.11",
    exclude_newer=datetime(2026, 11, 20, tzinfo=UTC),
    packages=("app==1.0",),
    requirements=Requirements(
        path="images/app/requirements.yaml",
        layers=(Layer(name="torch", projects=("torch",)), Layer(name="rest", projects=("*",))),
    ),
)
PINS = Pins(path="pins.yaml", pins=(HELLO_PIN, TOOLS_PIN, DEBIAN_PIN))


def wheel(project: str, platform: str) -> LockedWheel:
    tag = {"linux/amd64": "manylinux_2_17_x86_64", "linux/arm64": "manylinux_2_17_aarch64"}[platform]
    return LockedWheel(
        project=project,
        version="13",
        filename=f"{project}-13-py3-none-{tag}.whl",
        platform=platform,
        sha256=f"{project}{platform}".encode().hex().ljust(64, "0")[:64],
        size_bytes=10,
    )


def deb(package: str, arch: str, *sets: str) -> LockedDeb:
    return LockedDeb(
        package=package,
        version="1",
        arch=arch,
        archive="debian",
        path=f"pool/main/{package}_1_{arch}.deb",
        sha256=f"{package}{arch}".encode().hex().ljust(64, "0")[:64],
        size_bytes=10,
        sets=sets,
    )


WHEELS = WheelsLock(
    path="images/tools.lock",
    made_from="sha256:" + "0" * 64,
    wheels=tuple(wheel(project, platform) for project in ("nvcc", "cublas") for platform in TOOLS_PIN.platforms),
)
DEBS = DebsLock(
    path="images/debian/debs.lock",
    made_from="sha256:" + "0" * 64,
    debs=(
        deb("gcc", "amd64", "build/amd64"),
        deb("gcc", "arm64", "build/arm64"),
        deb("cross-gcc", "amd64", "cross-arm64/amd64"),
        deb("libc6", "amd64", "build/amd64", "runtime/amd64"),
        deb("libc6", "arm64", "build/arm64", "runtime/arm64"),
    ),
)
HELLO = Image(
    name="hello",
    path="images/hello/image.yaml",
    description="a greeting",
    licenses="MIT",
    source_url="https://example.org/hello",
    template="hello.Dockerfile.j2",
    scripts=("step",),
    supports=(("gb10", ("debian",)),),
    compile=CompileSpec(
        pin="hello",
        debs=("build",),
        image="",
        cross_debs=(("arm64", ("cross-arm64",)),),
        wheels=(WheelUse(pin="tools", builder=("nvcc",), target=("nvcc", "cublas")),),
        gib_per_job=1.0,
    ),
    runtime=RuntimeSpec(
        debs=("runtime",),
        image="",
        user="10001:10001",
        folders=(),
        env=(("PATH", "/usr/bin"),),
        entrypoint=("/hello",),
        command=(),
        ports=(),
        workdir="/",
        stop_signal="SIGTERM",
    ),
)
CONFIG = ImageConfig(
    architecture="arm64",
    user="10001:10001",
    env=(("PATH", "/usr/bin"),),
    entrypoint=("/hello",),
    command=(),
    ports=(),
    workdir="/",
    stop_signal="SIGTERM",
    labels=(),
    epoch=1767312000,
)


def toy_plan(**changes: Any) -> Plan:
    """The plan of HELLO, cross-compiled, with other arguments of make_plan where they are named."""
    arguments: dict[str, Any] = {
        "image": HELLO,
        "target": GB10,
        "base": "debian",
        "builder": "linux/amd64",
        "pins": PINS,
        "wheels": {"tools": WHEELS},
        "debs": DEBS,
        "dockerfile": "FROM runtime-root\n",
        "config": CONFIG,
        "scripts": {"step": "1" * 64},
        "forms": ("1 zstd",),
    }
    return make_plan(**{**arguments, **changes})

"""images/<name>/image.yaml: what an image is made of, how it is compiled and how it starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WheelUse:
    """Which wheels of a WheelsPin go where: programs for the builder's platform, libraries for the target's."""

    pin: str
    builder: tuple[str, ...] = ()  # project names; the wheels of the builder's platform
    target: tuple[str, ...] = ()  # project names; the wheels of the target's platform


@dataclass(frozen=True, kw_only=True)
class CompileSpec:
    """What the build stages stand on and how much one compile job needs."""

    pin: str  # the source pin; its version and commit time are the image's
    debs: tuple[str, ...]  # sets of the debs pin for the builder's architecture
    cross_debs: tuple[tuple[str, tuple[str, ...]], ...]  # target arch -> further sets where the builder differs from it
    wheels: tuple[WheelUse, ...]
    gib_per_job: float  # largest peak of one compiler process, GiB
    sources: tuple[str, ...] = ()  # further source pins, mounted as they are


@dataclass(frozen=True, kw_only=True)
class RuntimeSpec:
    """The image's configuration (the OCI image config is written from this) and what it stands on."""

    debs: tuple[str, ...]  # sets of the debs pin for the target's architecture
    user: str  # "10001:10001"
    env: tuple[tuple[str, str], ...]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    ports: tuple[str, ...]  # "8080/tcp"
    workdir: str
    stop_signal: str


@dataclass(frozen=True, kw_only=True)
class Image:
    """One folder below images/."""

    name: str
    path: str  # of image.yaml, for messages
    description: str
    licenses: str  # SPDX expression
    source_url: str
    template: str  # file in templates/
    scripts: tuple[str, ...]  # files of scripts/ that the build steps run; they are part of the plan
    supports: tuple[tuple[str, tuple[str, ...]], ...]  # target -> bases, in order of preference
    compile: CompileSpec
    runtime: RuntimeSpec
    arguments: tuple[tuple[str, str], ...] = ()  # name -> value, for the template

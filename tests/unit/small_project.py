"""A project folder with every kind of pin that has contents, small enough to be planned in milliseconds."""

from __future__ import annotations

from pathlib import Path

from values import DEBS, WHEELS

from spark_images.debian_lock import write_debs_lock
from spark_images.pins import DebsPin, WheelsPin
from spark_images.project import Project
from spark_images.wheel_lock import write_wheels_lock

PINS = """\
schema: 1
hello:
  kind: git
  url: https://example.org/hello
  version: b12
  commit: "0123456789012345678901234567890123456789"
  committed: 2026-01-02T00:00:00Z
  tree: sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
patch:
  kind: archive
  version: "1"
  sha256: bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb
  urls: [https://example.org/fix.patch]
extra:
  kind: sdist
  name: extra
  version: "2"
  sha256: cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc
tools:
  kind: wheels
  version: "13"
  lock: images/tools.lock
  platforms: [linux/amd64, linux/arm64]
  packages: [nvcc==13, cublas==13]
debian:
  kind: debs
  suite: bookworm
  lock: images/debian/debs.lock
  snapshot: 2026-11-01T00:00:00Z
  routes: ["http://deb.debian.org/{archive}/{path}"]
  sets:
    build: {arches: [amd64, arm64], packages: [gcc]}
    cross-arm64: {arches: [amd64], packages: [cross-gcc]}
    runtime: {arches: [amd64, arm64], packages: [libc6]}
buildkit:
  kind: image
  ref: docker.io/moby/buildkit:v0.32.2
  digest: sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd
"""
TARGETS = """\
gb10:
  platform: linux/arm64
  compute-capability: 12.1a
  cuda-architecture: 121a-real
  cpu-architecture: armv9-a
  description: DGX Spark
cpu: {platform: linux/amd64, cpu-architecture: x86-64-v3, description: a PC}
hopper: {platform: linux/amd64, cpu-architecture: x86-64-v3, description: a server}
"""
IMAGE = """\
schema: 1
description: a greeting
licenses: MIT
source-url: https://example.org/hello
template: hello.Dockerfile.j2
scripts: [step]
supports: {gb10: [debian, ngc], cpu: [debian]}
compile:
  source: hello
  debs: [build]
  cross-debs: {arm64: [cross-arm64]}
  wheels: {tools: {builder: [nvcc], target: [cublas]}}
  gib-per-job: 0.1
runtime:
  debs: [runtime]
  user: "10001:10001"
  entrypoint: [/hello]
  workdir: /
  stop-signal: SIGTERM
"""
TEMPLATE = "# {{ image.name }} for {{ target.name }} on {{ base }}\nFROM runtime-root\nUSER {{ config.user }}\n"


def make_project(root: Path) -> Project:
    """The project below a new folder, with locks that belong to its pins and rendered Dockerfiles."""
    for name, text in {
        "pins.yaml": PINS,
        "images/targets.yaml": TARGETS,
        "images/hello/image.yaml": IMAGE,
        "images/hallway/image.yaml": IMAGE.replace("a greeting", "another image"),
        "templates/hello.Dockerfile.j2": TEMPLATE,
        "scripts/step": "#!/bin/sh\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    write_locks(root)
    render(root)
    return Project(root)


def write_locks(root: Path) -> None:
    """Locks for the pins as they are now."""
    pins = Project(root).pins
    tools, debian = pins["tools"], pins["debian"]
    assert isinstance(tools, WheelsPin)
    assert isinstance(debian, DebsPin)
    (root / "images/debian").mkdir(exist_ok=True)
    write_wheels_lock(tools, WHEELS.wheels, root / tools.lock)
    write_debs_lock(debian, DEBS.debs, root / debian.lock)


def render(root: Path) -> None:
    """Accept what the sources render to now."""
    for path, text in Project(root).dockerfiles():
        path.write_text(text)

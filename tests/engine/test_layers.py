"""An image of locked wheels in layers: another release of what lies on top leaves all layers below as they are."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path

import pytest
import yaml
from pipeline import REPOSITORY, Pipeline, make_pipeline
from wheels import make_wheel

from spark_images.engine.base import Engine
from spark_images.layers import Layer
from spark_images.locks import LockedWheel
from spark_images.oci import read_layout
from spark_images.pins import RequirementsPin
from spark_images.project import Project
from spark_images.record import read_records
from spark_images.wheel_lock import write_wheels_lock

CUDA = "nvidia/cu13/lib/lib{}.so.13"
LAYERS = ("cuda", "torch", "app")
REQUIREMENTS = """\
schema: 1
layers:
  cuda: [nvidia-cuda]
  torch: ["*"]
  app: [app]
"""
PIN = """
app: {{kind: sdist, name: app, version: "{version}", released: 2026-11-{version}T00:00:00Z, sha256: "{sha256}"}}
app-wheels:
  kind: requirements
  for: [app]
  requirements: images/app/requirements.yaml
  lock: images/app/wheels.lock
  platform: {platform}
  python: "3.11"
  exclude-newer: 2026-11-{version}T00:00:00Z
"""
COMPILE = 'stages.step("compile", command)'
SCRIPTS = {
    "compile_app": "mkdir -p /out/vllm/usr/local/app\ncp /spark/inputs/sources/* /out/vllm/usr/local/app\n",
    "compile_part": 'mkdir -p /out/hello/usr/local/part\necho "$1" >/out/hello/usr/local/part/version\n',
}


@pytest.fixture
def project(tmp_path: Path) -> Pipeline:
    """The image `app`, made by the template and the scripts of `vllm` from three small wheels."""
    made = make_pipeline(tmp_path, tmp_path / "cache")
    for name in ("install_layers", "install_wheels"):
        shutil.copy(REPOSITORY / "scripts" / name, made.project / "scripts")
    shutil.copy(REPOSITORY / "templates/wheels.Dockerfile.j2", made.project / "templates")
    folder = made.project / "images/app"
    folder.mkdir()
    (folder / "requirements.yaml").write_text(REQUIREMENTS)
    image = {
        "schema": 1,
        "description": "a program in layers",
        "licenses": "MIT",
        "source-url": "https://example.org/app",
        "template": "wheels.Dockerfile.j2",
        "scripts": ["step", "prove_isolation", "install_layers", "install_wheels"],
        "supports": {"here": ["debian-wheel"]},
        "compile": {"source": "app-wheels", "debs": ["build"], "gib-per-job": 0.2},
        "runtime": {
            **{"debs": ["runtime", "python"], "user": "10001:10001", "folders": ["/models"]},
            **{"command": ["app"], "workdir": "/", "stop-signal": "SIGTERM"},
        },
    }
    (folder / "image.yaml").write_text(json.dumps(image))
    return made


@pytest.fixture
def compiled(project: Pipeline) -> Pipeline:
    """The same by the template of vLLM from source: `app` is compiled, on its layers lies the component `part`."""
    root = project.project
    text = (REPOSITORY / "templates/vllm.Dockerfile.j2").read_text()
    assert text.count(COMPILE) == 1  # all of it stands in the toy's but what vLLM's own rules make the command
    (root / "templates/app.Dockerfile.j2").write_text(text.replace(COMPILE, 'stages.step("compile", "compile_app")'))
    hello = (root / "templates/hello.Dockerfile.j2").read_text()
    (root / "templates/part.Dockerfile.j2").write_text(hello.replace("compile_hello", "compile_part"))
    for name, text in SCRIPTS.items():
        (root / "scripts" / name).write_text(f"#!/bin/bash\nset -euo pipefail\n{text}")
        (root / "scripts" / name).chmod(0o755)
    part = yaml.safe_load((root / "images/hello/image.yaml").read_text())
    part |= {"template": "part.Dockerfile.j2", "scripts": ["step", "prove_isolation", "compile_part"]}
    app = json.loads((root / "images/app/image.yaml").read_text())
    app |= {"template": "app.Dockerfile.j2", "scripts": [*app["scripts"], "compile_app"]}
    app |= {"supports": {"here": ["debian"]}}
    app["compile"] |= {"source": "app", "installs": "app-wheels", "compiled": ["app"], "components": ["part"]}
    (root / "images/part").mkdir()
    for name, image in (("part", part), ("app", app)):
        (root / f"images/{name}/image.yaml").write_text(json.dumps(image))
    return project


def release(project: Pipeline, day: int) -> None:
    """Pin the release of that day, with a lock as a solver would write it; its wheels are in the store."""
    root = project.project
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    pins = (root / "pins.yaml").read_text().partition("\napp:")[0]
    (root / "pins.yaml").write_text(
        pins + PIN.format(version=day, sha256=hashlib.sha256(b"%d" % day).hexdigest(), platform=f"linux/{arch}")
    )
    libraries = {CUDA.format(name): name.encode() for name in ("cublas", "cublasLt", "cudart", "curand", "nvrtc")}
    wheels = {
        "cuda": make_wheel(root / "wheels", "nvidia-cuda", "13.0", files=libraries),
        "torch": make_wheel(root / "wheels", "torch", "2.11", files={"torch/__init__.py": b"version = 1\n"}),
        "app": make_wheel(
            root / "wheels",
            "app",
            str(day),
            files={"app.py": b"def main():\n    print(%d)\n" % day},
            entry_points="[console_scripts]\napp = app:main\n",
        ),
    }
    sdist = root / "wheels/app.tar.gz"  # nobody unpacks it
    sdist.write_bytes(b"%d" % day)
    project.store.add_file(sdist, f"sha256:{hashlib.sha256(b'%d' % day).hexdigest()}")
    locked = []
    for layer, file in wheels.items():
        project_name, version = file.name.split("-")[:2]
        content = file.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        project.store.add_file(file, f"sha256:{sha256}")
        locked.append(
            LockedWheel(
                project=project_name.replace("_", "-"),
                version=version,
                filename=file.name,
                platform="any",
                sha256=sha256,
                size_bytes=len(content),
                layer=layer,
            )
        )
    pin = Project(root).pins["app-wheels"]
    assert isinstance(pin, RequirementsPin)
    write_wheels_lock(pin, locked, root / pin.lock)
    assert project("render").returncode == 0


def layers(project: Pipeline, engine: Engine, origin: str = "wheel") -> tuple[Layer, ...]:
    built = project("build", "app", "--from", origin, "--engine", engine.name)
    assert built.returncode == 0, built.stderr
    layouts = [Path(line.split()[1]) for line in built.stderr.splitlines() if "layout  " in line]
    return read_layout(layouts[-1]).layers  # before it that of its component


def test_another_release_changes_its_own_layer_alone(project: Pipeline, engine: Engine) -> None:
    release(project, day=11)
    first = layers(project, engine)
    release(project, day=12)
    second = layers(project, engine)
    assert [layer.created_by for layer in first[1:]] == [f"COPY --from=compile /out/{name}/ /" for name in LAYERS]
    assert [one.digest == other.digest for one, other in zip(first, second, strict=True)] == [True, True, True, False]


def test_another_release_of_what_is_compiled_leaves_the_component_as_it_is(compiled: Pipeline, engine: Engine) -> None:
    release(compiled, day=11)
    first = layers(compiled, engine, "source")
    release(compiled, day=12)
    second = layers(compiled, engine, "source")
    assert [layer.created_by for layer in second[1:]] == [
        "COPY --from=compile /out/cuda/ /",
        "COPY --from=compile /out/torch/ /",
        "COPY --from=part /usr/local/ /usr/local/",
        "COPY --from=compile /out/vllm/ /",
    ]
    same = [one.digest == other.digest for one, other in zip(first, second, strict=True)]
    assert same == [True, True, True, True, False]
    plans = [record.plan_id for record in read_records(compiled.cache / "records") if record.image == "app"]
    assert len(set(plans)) == 2  # and the second image is not the first once more


def test_it_is_not_made_from_source(project: Pipeline) -> None:
    release(project, day=11)
    refused = project("plan", "app", "--from", "source")
    assert refused.returncode != 0
    assert "image `app` is not made `--from source` for target `here`" in refused.stderr

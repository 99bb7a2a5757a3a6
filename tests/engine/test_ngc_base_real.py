"""An image on NVIDIA's, by the template of `vllm`: on a stand-in for it, with a torch that holds next to nothing."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import packaging
import pytest
import yaml
from pipeline import ARCHES, REPOSITORY, Pipeline, base_of, make_pipeline, output_of
from registries import DEBIANS, DISTRIBUTION, distribution, push_foundation
from wheels import make_wheel

from spark_images.engine.base import Engine
from spark_images.locks import LockedWheel
from spark_images.oci import read_layout
from spark_images.pins import RequirementsPin
from spark_images.project import Project
from spark_images.record import read_records
from spark_images.wheel_lock import write_wheels_lock

PYTHON = "3.11"  # Debian's
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
PLATFORM = f"linux/{ARCHES[platform.machine()]}"
TARGET = f"""\
here: {{platform: {PLATFORM}, cpu-architecture: native, description: this machine,
       compute-capability: 12.1a, cuda-architecture: 121a-real, gpu-names: [none], driver: "580"}}
"""
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 13.1, V13.1.115'\n"
PTXAS = '#!/bin/sh\n[ "$1" = -arch=sm_121a ] && cp "$4" "$3"\n'
PINS = """
foundation:
  kind: image
  {pushed}
  provides: {{torch: 2.10.0a0, triton: 3.6.0, numpy: {numpy}, cuda: 13.1.1, python: "{python}"}}
app: {{kind: sdist, name: app, version: "1.0", sha256: "{sha256}", released: 2026-01-02T03:04:05Z}}
app-wheels:
  kind: requirements
  for: [app]
  on: foundation
  requirements: images/app/requirements.yaml
  lock: images/app/wheels.lock
  platform: {platform}
  python: "{python}"
  exclude-newer: 2026-11-20T00:00:00Z
"""
REQUIREMENTS = 'schema: 1\nlayers:\n  python: ["*"]\n  app: [app]\n'
COPY = """\
#!/bin/bash
set -e
mkdir -p /out/hello
tar -C /out/hello --strip-components=1 -xf /spark/inputs/trees/hello.tar base
"""
COMPILE = f"""\
#!/bin/bash
# compile_app [FILE]: what a compile leaves. FILE: one that it should not.
mkdir -p /out/vllm/{SITE}
for file in app.py "$@"; do
  mkdir -p "$(dirname "/out/vllm/{SITE}/$file")"
  echo made >"/out/vllm/{SITE}/$file"
done
"""
REPORT = """\
import importlib.util, json, os
from importlib.metadata import distributions, version
print(json.dumps({
    "flash-attn": importlib.util.find_spec("flash_attn") is not None,
    "versions": {name: version(name) for name in ("torch", "pytorch-triton", "numpy", "attrs")},
    "attr": sorted(os.listdir(os.path.dirname(importlib.util.find_spec("attr").origin))),
    "app": importlib.util.find_spec("app") is not None,
    "user": os.getuid(), "owner": os.stat("/models").st_uid, "constraint": os.environ["PIP_CONSTRAINT"],
}))
"""

pytestmark = pytest.mark.skipif(
    not ((DEBIANS or DISTRIBUTION) and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)


def stand_in(source: Path, wheels: Path) -> None:
    """Fill the source tree of the foundation with what NVIDIA's image has, or has something of."""
    for name, version, files in (
        ("torch", "2.10.0a0+a36e1d39eb.nv26.01", {"torch/__init__.py": b"", "torch/lib/libtorch.so": b"code"}),
        ("pytorch-triton", "3.6.0+git1", {"triton/__init__.py": b"__version__ = '3.6.0'\n"}),
        ("numpy", "2.1.0", {"numpy/__init__.py": b""}),
        ("flash-attn", "2.7.4.post1", {"flash_attn/__init__.py": b"", "flash_attn_2_cuda.so": b"code"}),
        ("attrs", "20.1", {"attr/__init__.py": b"", "attr/gone.py": b""}),
    ):
        make_wheel(wheels / "base", name, version, files=files)
    subprocess.run([REPOSITORY / "scripts/install_wheels", PYTHON, wheels, source], check=True, capture_output=True)
    shutil.copytree(packaging.__path__[0], source / "base" / SITE / "packaging", ignore=lambda *_: {"__pycache__"})
    for path, text in (("usr/local/cuda/bin/nvcc", NVCC), ("usr/local/cuda/bin/ptxas", PTXAS), ("report.py", REPORT)):
        file = source / "base" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)


class App:
    """The image `app` on `ngc`, in a project whose other image stands in for NVIDIA's."""

    def __init__(self, made: Pipeline, pushed: str) -> None:
        self.made, self.pushed = made, pushed
        self.pins = (made.project / "pins.yaml").read_text()

    def build(self, engine: Engine, *, numpy: str = "2.1.0", compiled: str = "") -> subprocess.CompletedProcess[str]:
        """numpy: what pins.yaml says of the base. compiled: a file that the compile brings."""
        root, store = self.made.project, self.made.store
        sdist = root / "app-1.0.tar.gz"
        sdist.write_bytes(b"an sdist that nobody opens")
        sha256 = hashlib.sha256(sdist.read_bytes()).hexdigest()
        store.add_file(sdist, f"sha256:{sha256}")
        (root / "pins.yaml").write_text(
            self.pins + PINS.format(pushed=self.pushed, numpy=numpy, python=PYTHON, sha256=sha256, platform=PLATFORM)
        )
        text = (REPOSITORY / "templates/vllm-ngc.Dockerfile.j2").read_text()
        (root / "templates/vllm-ngc.Dockerfile.j2").write_text(
            text.replace('stages.step("compile", command)', f'stages.step("compile", "compile_app {compiled}")')
        )
        shutil.rmtree(root / "wheels", ignore_errors=True)
        wheels = {
            "python": make_wheel(root / "wheels", "attrs", "26.1", files={"attr/__init__.py": b""}),
            "app": make_wheel(root / "wheels", "app", "1.0"),
        }
        locked = []
        for layer, wheel in wheels.items():
            content = wheel.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            store.add_file(wheel, f"sha256:{digest}")
            project, version = wheel.name.split("-")[:2]
            locked.append(
                LockedWheel(
                    project=project,
                    version=version,
                    filename=wheel.name,
                    platform="any",
                    sha256=digest,
                    size_bytes=len(content),
                    layer=layer,
                )
            )
        pin = Project(root).pins["app-wheels"]
        assert isinstance(pin, RequirementsPin)
        write_wheels_lock(pin, locked, root / pin.lock)
        assert self.made("render").returncode == 0
        # The second engine must give the digest of the first.
        return self.made("build", "app", "--engine", engine.name, "--rebuild")


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    made = make_pipeline(tmp_path_factory.mktemp("app"), tmp_path_factory.mktemp("cache"))
    root = made.project
    (root / "images/targets.yaml").write_text(TARGET)
    stand_in(root / "source", tmp_path_factory.mktemp("wheels"))
    (root / "scripts/compile_hello").write_text(COPY)
    hello = yaml.safe_load((root / "images/hello/image.yaml").read_text())
    hello["runtime"] = {
        **{"debs": ["toy", "python"], "user": "0:0", "env": {"PATH": "/usr/bin:/bin", "PIP_CONSTRAINT": "/x"}},
        **{"command": ["true"], "workdir": "/", "stop-signal": "SIGTERM"},
    }
    (root / "images/hello/image.yaml").write_text(json.dumps(hello))
    made.pin_source()
    built = made("build", "hello")
    assert built.returncode == 0, built.stderr
    for script in ("install_wheels", "ngc_base"):
        shutil.copy(REPOSITORY / "scripts" / script, root / "scripts")
    (root / "scripts/compile_app").write_text(COMPILE)
    (root / "scripts/compile_app").chmod(0o755)
    shutil.copy(REPOSITORY / "templates/ngc.j2", root / "templates")
    folder = root / "images/app"
    folder.mkdir()
    (folder / "requirements.yaml").write_text(REQUIREMENTS)
    image = {
        "schema": 1,
        "description": "an application on the image of somebody else",
        "licenses": "MIT",
        "source-url": "https://example.org/app",
        "template": "vllm-ngc.Dockerfile.j2",
        "scripts": ["step", "prove_isolation", "install_wheels", "ngc_base", "compile_app"],
        "supports": {"here": ["ngc"]},
        "compile": {
            **{"source": "app", "image": "foundation", "installs": "app-wheels", "compiled": ["app"]},
            "gib-per-job": 0.1,
        },
        "runtime": {
            **{"image": "foundation", "user": "10001:10001", "folders": ["/models"]},
            **{"command": ["python3", "-B", "/report.py"], "workdir": "/", "stop-signal": "SIGTERM"},
        },
        "audit": {"absent": [{"distribution": "flash-attn", "because": "of its torch"}]},
    }
    (folder / "image.yaml").write_text(json.dumps(image))
    with distribution(tmp_path_factory.mktemp("registry")) as registry:
        layout = read_layout(next((made.cache / "images").iterdir()))
        yield App(
            made, push_foundation(layout, registry.host, tmp_path_factory.mktemp("unpacked")).replace(", ", "\n  ")
        )


def test_it_stands_on_the_base_without_what_had_to_make_room(app: App, engine: Engine) -> None:
    built = app.build(engine)

    assert built.returncode == 0, built.stderr
    plan_id = read_records(app.made.cache / "records")[-1].plan_id
    report = json.loads(output_of(engine, f"localhost/spark-images/app:{plan_id[:12]}"))
    assert report == {
        "flash-attn": False,
        "versions": {
            "torch": "2.10.0a0+a36e1d39eb.nv26.01",
            "pytorch-triton": "3.6.0+git1",
            "numpy": "2.1.0",
            "attrs": "26.1",
        },
        "attr": ["__init__.py"],
        "app": True,
        **{"user": 10001, "owner": 10001, "constraint": "/x"},
    }
    layout = read_layout(app.made.cache / "images" / plan_id)
    base = base_of(app.made, "foundation")
    assert [one.digest for one in layout.layers][: len(base.layers)] == [one.digest for one in base.layers]
    cleared, *copied = (one.created_by for one in layout.layers[len(base.layers) :])
    assert cleared.startswith("/spark/scripts/step clear ")
    assert copied == ["COPY --from=compile /out/python/ /", "COPY --from=compile /out/vllm/ /"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"numpy": "1.26.4"}, "pins.yaml says that the base has numpy 1.26.4, and it has 2.1.0"),
        ({"compiled": "triton/__init__.py"}, "triton was pytorch-triton 3.6.0+git1"),
    ],
)
def test_what_would_be_wrong_in_it_ends_the_build(
    app: App, default_engine: Engine, change: dict[str, str], why: str
) -> None:
    built = app.build(default_engine, **change)

    assert built.returncode != 0
    assert f"ngc_base: {why}" in built.stderr

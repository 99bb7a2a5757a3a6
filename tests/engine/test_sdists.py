"""Packages that exist only as source: a step of the image's build makes wheels of them, with both engines alike."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path

import pytest
import yaml
from elftools.elf.elffile import ELFFile
from followed import ROOT, clone, environment, follow
from pipeline import ARCHES, Pipeline, make_pipeline

from spark_images.engine.base import Engine
from spark_images.imagefiles import walk_files
from spark_images.oci import read_layout
from spark_images.record import read_records

PAGE, SECTION = ROOT / "docs/adding-a-pin.md", "A package that exists only as source"
SITE = "usr/local/lib/python3.11/dist-packages"
HERE = ARCHES[platform.machine()]
MACHINES = {"amd64": "EM_X86_64", "arm64": "EM_AARCH64"}
TEMPLATE = """\
{% import "stages.j2" as stages -%}
{{ stages.header(image, target, base) }}

{{ stages.build_stage(epoch) }}
{{ stages.install(source, target, "install_wheels", ["/out"]) }}

FROM runtime-root
COPY --from=compile /out/all/ /
{{ stages.configuration(config) }}
"""
TESTS = '''"""Nothing but the import tells whether what was built belongs to this Python."""

from testinfra.host import Host


def test_what_was_built_is_imported(inside: Host) -> None:
    code = "import crcmod._crcfunext, farmhash, omegaconf; print(omegaconf.OmegaConf.create({'a': '${b}', 'b': 7}).a)"
    assert inside.check_output("python3 -c %s", code) == "7"
'''
# crcmod (C), pyfarmhash (C++) and antlr4's runtime 4.9 were never released as wheels for Linux.
REQUIREMENTS = {
    "schema": 1,
    "additions": {
        "crcmod": {"version": "1.7", "because": "it is partly in C"},
        "pyfarmhash": {"version": "0.4.0", "because": "it is in C++"},
    },
    "sdists": {
        "crcmod": {"version": "1.7", "because": "there is no wheel"},
        "pyfarmhash": {"version": "0.4.0", "because": "there is none for Linux"},
        "antlr4-python3-runtime": {"version": "4.9.3", "requires": [], "because": "there is no wheel of 4.9"},
    },
    "layers": {"all": ["*"]},
}


DIGESTS: dict[str, str] = {}  # platform -> what the engine that was first has made


@pytest.fixture(params=MACHINES)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Pipeline:
    """The image `app` for each architecture: omegaconf, its wheels, and three sdists."""
    arch: str = request.param
    if (HERE, arch) == ("arm64", "amd64"):
        pytest.skip("no cross compiler from arm64 to amd64 is pinned")
    made = make_pipeline(tmp_path, tmp_path / "cache")
    root = made.project
    for name in ("install_wheels", "build_sdists"):
        shutil.copy(ROOT / "scripts" / name, root / "scripts")
    (root / "templates/app.Dockerfile.j2").write_text(TEMPLATE)
    targets = root / "images/targets.yaml"
    targets.write_text(targets.read_text().replace(f"linux/{HERE}", f"linux/{arch}"))
    shutil.rmtree(root / "images/hello")
    (root / "images/app/tests").mkdir(parents=True)
    (root / "images/app/tests/test_app.py").write_text(TESTS)
    (root / "images/app/requirements.yaml").write_text(json.dumps(REQUIREMENTS))
    image = {
        **{"schema": 1, "description": "some sdists", "licenses": "MIT", "source-url": "https://example.org/app"},
        **{"template": "app.Dockerfile.j2", "scripts": ["step", "prove_isolation", "install_wheels"]},
        **{"supports": {"here": ["debian"]}},
        "compile": {
            **{"source": "app-wheels", "debs": ["build", "jit"], "gib-per-job": 0.2},
            "cross-debs": {"arm64": ["cross-arm64"]},
        },
        "runtime": {
            **{"debs": ["runtime", "python"], "user": "10001:10001", "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"}},
            **{"command": ["python3"], "workdir": "/", "stop-signal": "SIGTERM"},
        },
    }
    (root / "images/app/image.yaml").write_text(json.dumps(image))
    zeros, day = "0" * 64, "2026-11-20T00:00:00Z"
    wheels = {
        **{"kind": "requirements", "for": ["omegaconf"], "requirements": "images/app/requirements.yaml"},
        **{"lock": "images/app.lock", "platform": f"linux/{arch}", "python": "3.11", "exclude-newer": day},
        "build-with": "sdist-build",
    }
    pins = {
        "omegaconf": {"kind": "sdist", "name": "omegaconf", "version": "2.3.0", "sha256": zeros},
        "app-wheels": wheels,
        "sdist-build": page_pin(),
    }
    with (root / "pins.yaml").open("a") as file:
        file.writelines(f"{name}: {json.dumps(pin)}\n" for name, pin in pins.items())
    for words in (["lock", "sdist-build", "app-wheels"], ["render"]):
        ended = made(*words)
        assert ended.returncode == 0, ended.stderr
    return made


def page_pin() -> dict[str, object]:
    """What docs/adding-a-pin.md pins to build sdists with."""
    found: dict[str, object] = yaml.safe_load(PAGE.read_text().partition("\nsdist-build:\n")[2].partition("```")[0])
    return found


def test_wheels_of_sdists_are_built_for_the_target(project: Pipeline, engine: Engine) -> None:
    built = project("build", "app", "--engine", engine.name)
    assert built.returncode == 0, built.stderr
    plan = json.loads(project("plan", "app").stdout)
    assert {path for path in plan["inputs"] if path.startswith("sdists/")} == {
        "sdists/all/antlr4-python3-runtime-4.9.3.tar.gz",
        "sdists/all/crcmod-1.7.tar.gz",
        "sdists/all/pyfarmhash-0.4.0.tar.gz",
    }
    (record,) = read_records(project.cache / "records")
    layout = read_layout(project.cache / "images" / record.plan_id)
    files = {entry.path: entry for entry in walk_files(layout)}
    extensions = [path for path in files if path.startswith((f"{SITE}/crcmod/_crcfunext", f"{SITE}/farmhash."))]
    assert len(extensions) == 2
    for extension in extensions:
        with files[extension].open() as stream:
            assert ELFFile(stream)["e_machine"] == MACHINES[plan["platform"].removeprefix("linux/")]
    assert f"{SITE}/antlr4/Parser.py" in files
    for words in (["audit", "app"], ["test", "app", "--engine", engine.name]):
        ended = project(*words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert layout.manifest_digest == DIGESTS.setdefault(plan["platform"], layout.manifest_digest)


@pytest.mark.parametrize("project", [HERE], indirect=True)
def test_an_sdist_whose_build_requirement_is_not_pinned_ends_the_build(project: Pipeline, engine: Engine) -> None:
    pins = project.project / "pins.yaml"
    pins.write_text(pins.read_text().replace(', "setuptools==80.10.2"', ""))
    for words in (["lock", "sdist-build"], ["render"]):
        assert project(*words).returncode == 0
    ended = project("build", "app", "--engine", engine.name)
    assert ended.returncode != 0
    assert "No module named 'setuptools'" in ended.stderr
    assert "belongs into the pin that `build-with` names" in ended.stderr


def test_the_page_is_followed_with_the_pins_of_vllm(tmp_path: Path) -> None:
    folder = clone(tmp_path / "clone")
    printed = follow(PAGE, folder, environment(tmp_path / "cache"), SECTION)
    plan = json.loads(printed["./noxw -s plan-vllm -- --from wheel"])
    assert "sdists/python/antlr4-python3-runtime-4.9.3.tar.gz" in plan["inputs"]
    assert "build_sdists 3.11 arm64 /build/layers" in plan["dockerfile"]
    assert hashlib.sha256((ROOT / "scripts/build_sdists").read_bytes()).hexdigest() == plan["scripts"]["build_sdists"]

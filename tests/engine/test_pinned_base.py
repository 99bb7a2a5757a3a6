"""An image that stands on a pinned one from a registry: its layers stay, its environment and entry point hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pipeline import Pipeline, base_of, make_pipeline, output_of
from registries import DEBIANS, DISTRIBUTION, distribution, push_foundation

from spark_images.engine.base import Engine
from spark_images.oci import Layout, read_layout
from spark_images.record import read_records

pytestmark = pytest.mark.skipif(
    not ((DEBIANS or DISTRIBUTION) and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """hello, also on the base `ngc`: a pinned image in Docker's own form, which here is hello on Debian."""
    made = make_pipeline(tmp_path_factory.mktemp("hello"), tmp_path_factory.mktemp("cache"))
    built = made("build", "hello")
    assert built.returncode == 0, built.stderr
    with distribution(tmp_path_factory.mktemp("registry")) as registry:
        pushed = push_foundation(only_layout(made), registry.host, tmp_path_factory.mktemp("unpacked"))
        with (made.project / "pins.yaml").open("a") as pins:
            pins.write(f"\nfoundation: {{kind: image, {pushed}}}\n")
        file = made.project / "images/hello/image.yaml"
        image = yaml.safe_load(file.read_text())
        image["supports"] = {"here": ["debian", "ngc"]}
        runtime: dict[str, object] = {
            "image": "foundation",
            "user": "10001:10001",
            "workdir": "/",
            "stop-signal": "SIGTERM",
        }
        runtime |= {"env": {"GREETING": "from above", "ADDED": "yes"}, "command": ["base"]}
        image["bases"] = {"ngc": {"runtime": runtime}}
        file.write_text(json.dumps(image))
        assert made("render").returncode == 0
        yield made


def only_layout(project: Pipeline) -> Layout:
    return read_layout(next((project.cache / "images").iterdir()))


def build(project: Pipeline, engine: Engine, *arguments: str) -> Layout:
    built = project("build", "hello", "--base", "ngc", "--engine", engine.name, *arguments)
    assert built.returncode == 0, built.stderr
    return read_layout(next(Path(line.split()[1]) for line in built.stderr.splitlines() if "layout  " in line))


def test_its_layers_stay_and_its_environment_and_entry_point_hold(project: Pipeline, engine: Engine) -> None:
    layout = build(project, engine, "--rebuild")  # another digest than the other engine's would be an error
    base = base_of(project, "foundation")
    assert [one.digest for one in layout.layers][: len(base.layers)] == [one.digest for one in base.layers]
    assert layout.config["config"]["Env"] == ["PATH=/opt/hello:/usr/bin:/bin", "GREETING=from above", "ADDED=yes"]
    assert layout.config["config"]["Entrypoint"] == ["/opt/hello/hello"]
    plan = read_records(project.cache / "records")[-1].plan_id
    assert "base" in output_of(engine, f"localhost/spark-images/hello:{plan[:12]}")


def test_the_plan_names_its_digest(project: Pipeline) -> None:
    plan = json.loads(project("plan", "hello", "--base", "ngc").stdout)
    assert plan["roots"]["runtime-root"]["image"].startswith("sha256:")
    assert plan["roots"]["runtime-root"]["debs"] == {}
    assert "foundation" in plan["pins"]


def test_what_compiles_inside_an_image_for_the_target_is_not_planned_elsewhere(project: Pipeline) -> None:
    targets = project.project / "images/targets.yaml"
    platform = "linux/arm64" if "amd64" in targets.read_text() else "linux/amd64"
    before = {file: file.read_text() for file in (targets, project.project / "images/hello/image.yaml")}
    there = f"there: {{platform: {platform}, cpu-architecture: native, unified-memory: false, description: other}}\n"
    targets.write_text(before[targets] + there)
    image = json.loads(before[project.project / "images/hello/image.yaml"])
    image["supports"]["there"] = ["ngc", "debian"]
    image["bases"]["ngc"]["compile"] = {"source": "hello", "image": "foundation", "gib-per-job": 0.1}
    (project.project / "images/hello/image.yaml").write_text(json.dumps(image))
    try:
        refused = project("plan", "hello", "--target", "there")
    finally:
        for file, text in before.items():
            file.write_text(text)
    assert refused.returncode != 0
    assert "on base `ngc` `hello` is compiled inside `foundation`, an image for the target" in refused.stderr
    assert f"hint: build it on a {platform} machine, or take another base: `debian`" in refused.stderr

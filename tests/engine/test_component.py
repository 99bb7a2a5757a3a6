"""An image with a component: that is built before it, and its plan and files become part of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from pipeline import Pipeline, make_pipeline, output_of

from spark_images.engine.base import Engine
from spark_images.oci import read_layout
from spark_images.record import read_records


@pytest.fixture
def project(tmp_path: Path) -> Pipeline:
    """The image `whole`: hello once more, and hello's own files from the image `hello`."""
    made = make_pipeline(tmp_path, tmp_path / "cache")
    images = made.project / "images"
    shutil.copytree(images / "hello", images / "whole")
    (images / "whole/here-debian.Dockerfile").unlink()
    image = yaml.safe_load((images / "whole/image.yaml").read_text())
    image["template"] = "whole.Dockerfile.j2"
    image["compile"]["components"] = ["hello"]
    (images / "whole/image.yaml").write_text(json.dumps(image))
    templates = made.project / "templates"
    text = (templates / "hello.Dockerfile.j2").read_text()
    copied = "COPY --from=hello /opt/hello/ /opt/part/\nCOPY --from=compile"
    (templates / "whole.Dockerfile.j2").write_text(text.replace("COPY --from=compile", copied))
    assert made("render").returncode == 0
    return made


def test_a_component_is_built_first_and_its_files_are_taken(project: Pipeline, engine: Engine) -> None:
    built = project("build", "whole", "--engine", engine.name)
    assert built.returncode == 0, built.stderr
    part, whole = read_records(project.cache / "records")
    assert (part.image, whole.image) == ("hello", "whole")
    plan = json.loads(project("plan", "whole").stdout)
    assert plan["roots"]["hello"]["component"] == part.plan_id
    layers = read_layout(project.cache / "images" / whole.plan_id).layers
    assert [layer.created_by for layer in layers[1:]] == [
        "COPY --from=hello /opt/hello/ /opt/part/",
        "COPY --from=compile /out/hello/ /",
    ]
    assert "world" in output_of(engine, f"localhost/spark-images/whole:{whole.plan_id[:12]}")


def test_another_component_is_another_plan(project: Pipeline) -> None:
    before = json.loads(project("plan", "whole").stdout)["plan_id"]
    script = project.project / "scripts/compile_hello"
    script.write_text(script.read_text() + "# another\n")
    part = json.loads(project("plan", "hello").stdout)["plan_id"]
    after = json.loads(project("plan", "whole").stdout)
    assert after["plan_id"] != before
    assert after["roots"]["hello"]["component"] == part


def test_a_component_that_is_no_image_is_refused(project: Pipeline) -> None:
    file = project.project / "images/whole/image.yaml"
    file.write_text(file.read_text().replace('"components": ["hello"]', '"components": ["hallo"]'))
    refused = project("plan", "whole")
    assert refused.returncode == 10
    assert "`whole` on `debian` has the component `hallo`, and no image of this name supports `here`" in refused.stderr

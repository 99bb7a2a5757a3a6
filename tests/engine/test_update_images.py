"""update-pins on a pin of kind image: newer tags of the same form in a real registry, and their digests."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import tiny
from pipeline import make_pipeline
from registries import DEBIANS, DISTRIBUTION, distribution

from spark_images.pins import ImagePin
from spark_images.pins_file import read_pins

pytestmark = pytest.mark.skipif(
    not ((DEBIANS or DISTRIBUTION) and shutil.which("skopeo")), reason="needs docker-registry (or registry) and skopeo"
)


def test_the_newest_tag_of_the_same_form_is_taken_with_its_digest(tmp_path: Path) -> None:
    project = make_pipeline(tmp_path, tmp_path / "cache")
    digests = {}
    with distribution(tmp_path / "registry") as registry:
        for tag in ("26.01-py3", "26.02-py3", "26.10-py3", "26.11-py3-igpu", "latest"):
            root = tiny.write_root(tmp_path, tag, {"tag": tag.encode()})
            to = ["--dest-tls-verify=false", "oci:.", f"docker://{registry.host}/nvidia/pytorch:{tag}"]
            subprocess.run(["skopeo", "copy", "--quiet", "--preserve-digests", *to], cwd=root.layout, check=True)
            digests[tag] = root.digest
        ref = f"{registry.host}/nvidia/pytorch"
        pins = project.project / "pins.yaml"
        with pins.open("a") as file:
            file.write(f"\nbase: {{kind: image, ref: '{ref}:26.01-py3', digest: '{digests['26.01-py3']}'}}\n")
        updated = project("update-pins", "base", "--apply")
        assert updated.returncode == 0, updated.stdout + updated.stderr
    pin = read_pins(pins)["base"]
    assert isinstance(pin, ImagePin)
    assert (pin.ref, pin.digest) == (f"{ref}:26.10-py3", digests["26.10-py3"])

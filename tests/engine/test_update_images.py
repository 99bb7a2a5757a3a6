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


def test_a_new_pin_gets_the_digest_of_its_tag_and_one_that_has_a_digest_keeps_it(tmp_path: Path) -> None:
    project = make_pipeline(tmp_path, tmp_path / "cache")
    pins = project.project / "pins.yaml"
    kept = f"sha256:{'1' * 64}"
    with distribution(tmp_path / "registry") as registry:
        root = tiny.write_root(tmp_path, "tool", {"tool": b"1"})
        ref = f"{registry.host}/tools/tool:v1"
        to = ["--dest-tls-verify=false", "oci:.", f"docker://{ref}"]
        subprocess.run(["skopeo", "copy", "--quiet", "--preserve-digests", *to], cwd=root.layout, check=True)
        with pins.open("a") as file:
            file.write(f"\nnew: {{kind: image, ref: '{ref}', digest: 'sha256:{'0' * 64}'}}\n")
            file.write(f"old: {{kind: image, ref: '{ref}', digest: '{kept}'}}\n")
        completed = project("update-pins", "new", "old", "--complete")
        assert completed.returncode == 0, completed.stdout + completed.stderr
    found = {pin.name: pin.digest for pin in read_pins(pins).pins if isinstance(pin, ImagePin)}
    assert found == {"new": root.digest, "old": kept}

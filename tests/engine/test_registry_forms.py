"""One image in two forms: pushed with zstd and with gzip layers, promoted, verified and pulled, on a real registry."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from registries import DEBIANS, DISTRIBUTION, Registry, distribution
from registry_images import Place, make_place, plan_tag, write_image
from tiny import NATIVE
from values import HELLO

from spark_images.cache import Cache
from spark_images.engine.base import Engine
from spark_images.errors import CanonicalError, PromotionError
from spark_images.layers import TAR_GZIP
from spark_images.oci import Layout, read_layout
from spark_images.registry.explanation import explain
from spark_images.registry.forms import GZIP, ZSTD, write_gzip
from spark_images.registry.listing import read_listing
from spark_images.registry.offer import FORM_OF, read_offer
from spark_images.registry.pull import pull_layout
from spark_images.registry.push import push_layout
from spark_images.verdict import Gate

pytestmark = pytest.mark.skipif(not (DEBIANS or DISTRIBUTION), reason="needs docker-registry (or registry)")

IMAGE = replace(HELLO, name="noise", supports=(("gb10", ("debian",)),))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with distribution(tmp_path_factory.mktemp("registry"), program=DEBIANS or DISTRIBUTION) as registry:
        yield registry


@pytest.fixture
def place(registry: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return make_place(registry.host, tmp_path, IMAGE, request.node.name)


def built(place: Place, seed: int = 1, arch: str = "arm64") -> Layout:
    """An image where a build would put it."""
    plan_id = f"{seed:064x}"[::-1]
    return write_image(place.cache.images / plan_id, seed=seed, plan_id=plan_id, arch=arch)


def test_the_gzip_form_is_the_same_image_under_another_digest_each_time_alike(place: Place) -> None:
    image = built(place)
    made, again = (write_gzip(image, place.folder / name) for name in ("made", "again"))
    assert made.manifest_digest == again.manifest_digest != image.manifest_digest
    assert made.config_digest == image.config_digest
    assert [layer.diff_id for layer in made.layers] == [layer.diff_id for layer in image.layers]
    assert {layer.media_type for layer in made.layers} == {TAR_GZIP}
    first = gzip.decompress(made.blob(made.layers[0].digest).read_bytes())
    assert len(first) == made.layers[0].uncompressed_bytes


def test_a_layer_that_is_not_what_the_config_says_is_not_packed_again(place: Place) -> None:
    image, other = built(place, 1), built(place, 2)
    wrong = replace(image, layers=(replace(image.layers[0], diff_id=other.layers[0].diff_id), *image.layers[1:]))
    with pytest.raises(CanonicalError, match="is not what the image's config says"):
        write_gzip(wrong, place.folder / "made")
    assert not (place.folder / "made").exists()


def test_layers_that_are_gzip_already_stay_as_they_are(place: Place) -> None:
    """Those of NVIDIA's base images."""
    once = write_gzip(built(place), place.folder / "once")
    twice = write_gzip(once, place.folder / "twice")
    assert [layer.digest for layer in twice.layers] == [layer.digest for layer in once.layers]


def test_both_forms_lie_side_by_side_under_tags_of_their_own(place: Place) -> None:
    image = built(place)
    zstd, other = place.push(image), place.push(image, GZIP)
    tag = plan_tag(image)
    assert (place.tag(tag), place.tag(f"{tag}-gzip")) == (zstd, other)
    listing = read_listing(place.client)
    assert sorted(one.tag for one in listing.images) == [tag, f"{tag}-gzip"]
    assert listing.readable == {}
    explained = explain(place.client, f"{tag}-gzip")
    assert (explained["form_of"], explained["image_id"]) == (image.manifest_digest, image.config_digest)


def test_engines_pull_the_gzip_form_as_the_image_that_was_built(place: Place, engine: Engine) -> None:
    image = built(place, arch=NATIVE)
    reference = place.client.at(place.push(image, GZIP))
    options = {"podman": ["--tls-verify=false"], "docker": []}[engine.name]
    pulled = subprocess.run([engine.name, "pull", "--quiet", *options, reference], text=True, capture_output=True)
    assert pulled.returncode == 0, pulled.stderr
    try:
        assert engine.image_id(reference) == image.config_digest
    finally:
        subprocess.run([engine.name, "rmi", "--force", reference], check=True, capture_output=True)


def test_what_was_tested_with_zstd_is_promoted_with_gzip(place: Place) -> None:
    image = built(place)
    place.judge(image, *Gate)
    digest = place.push(image, GZIP)
    place.promote(image, layers=GZIP)
    assert {place.tag(tag) for tag in ("1.0-gb10", "gb10", "latest")} == {digest}
    (listed,) = read_listing(place.client).images
    assert {verdict.digest for verdict in listed.verdicts.values()} == {digest}
    assert set(listed.verdicts) == set(Gate)


def test_on_a_machine_without_the_image_the_registrys_zstd_form_vouches(place: Place) -> None:
    image = built(place)
    place.judge(image, *Gate)
    place.push(image)
    place.promote(image)
    digest = place.push(image, GZIP)
    replace(place, cache=Cache(place.folder / "elsewhere")).promote(image, layers=GZIP)
    assert place.tag("gb10") == digest


def test_a_gzip_form_that_nobody_tested_is_not_promoted(place: Place) -> None:
    image = built(place)
    place.push(image, GZIP)
    with pytest.raises(PromotionError) as caught:
        place.promote(image, layers=GZIP)
    assert "audit: did not run" in caught.value.why


def test_verdicts_on_another_image_that_it_claims_to_be_do_not_count(place: Place) -> None:
    """A manifest can say anything; the config's digest cannot."""
    good, bad = built(place, 1), built(place, 2)
    place.judge(good, *Gate)
    place.push(good, ZSTD)
    place.promote(good, layers=ZSTD)
    lying = write_gzip(bad, place.folder / "lying")
    manifest = json.loads(lying.blob(lying.manifest_digest).read_bytes())
    manifest["annotations"][FORM_OF] = good.manifest_digest
    forged = relabelled(lying, manifest)
    push_layout(place.client, forged, f"{plan_tag(bad)}-gzip", states=place.cache.uploads)
    with pytest.raises(PromotionError):
        place.promote(bad, layers=GZIP)


def test_going_back_leaves_both_forms_of_the_bad_image(place: Place) -> None:
    good, bad = built(place, 1), built(place, 2)
    for image in (good, bad):
        place.judge(image, *Gate)
        place.push(image)
        place.promote(image)
    place.push(bad, GZIP)
    place.promote(bad, layers=GZIP)
    place.rollback()
    assert place.tag("gb10") == good.manifest_digest


def test_a_pulled_gzip_form_is_not_taken_for_what_a_build_gives(place: Place) -> None:
    image = built(place)
    digest = place.push(image, GZIP)
    elsewhere = Cache(place.folder / "elsewhere")
    pulled = pull_layout(place.client, read_offer(place.client, digest), elsewhere)
    assert pulled
    (name,) = [path.name for path in elsewhere.images.iterdir()]
    assert name != image.path.name
    assert read_layout(elsewhere.images / name).config_digest == image.config_digest


def relabelled(layout: Layout, manifest: dict[str, object]) -> Layout:
    """The layout with another manifest."""
    import hashlib

    data = json.dumps(manifest).encode()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    (layout.path / "blobs/sha256" / digest.removeprefix("sha256:")).write_bytes(data)
    index = json.loads((layout.path / "index.json").read_bytes())
    index["manifests"][0].update(digest=digest, size=len(data))
    (layout.path / "index.json").chmod(0o644)
    (layout.path / "index.json").write_text(json.dumps(index))
    return read_layout(layout.path)

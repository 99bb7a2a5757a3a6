"""Promotion and rollback on real registries: what moves, what does not, and that every machine sees it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fault_proxy import fault_proxy, reset_in_body
from registries import DEBIANS, DISTRIBUTION, Registry, distribution
from registry_images import Place, make_place, plan_id_of, plan_tag, write_image
from values import HELLO

from spark_images.attest.bundle import Statement
from spark_images.attest.provenance import PREDICATE_TYPE as PROVENANCE
from spark_images.cache import Cache
from spark_images.errors import PromotionError, RegistryError
from spark_images.oci import Layout
from spark_images.registry import clean_up
from spark_images.registry.artifacts import referrers
from spark_images.registry.clean_up import prune_registry
from spark_images.registry.client import Client
from spark_images.registry.history import Kind
from spark_images.registry.job_results import prune_results, put_results
from spark_images.registry.ledger import read_history
from spark_images.registry.listing import read_listing
from spark_images.registry.manifest import MANIFEST, Manifest
from spark_images.registry.offer import members
from spark_images.registry.statements import attach_statement
from spark_images.verdict import Colour, Gate

pytestmark = pytest.mark.skipif(not (DEBIANS or DISTRIBUTION), reason="needs docker-registry (or registry)")

SUPPORTS = (("gb10", ("debian", "ngc")), ("rtx50", ("debian",)), ("cpu", ("debian",)))
IMAGE = replace(HELLO, name="noise", supports=SUPPORTS)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    with distribution(tmp_path_factory.mktemp("registry"), program=DISTRIBUTION or DEBIANS) as registry:
        yield registry


@pytest.fixture
def place(registry: Registry, tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    return make_place(registry.host, tmp_path, IMAGE, request.node.name)


def pushed(place: Place, seed: int, *, smoke: Colour | None = Colour.GREEN, **about: str) -> Layout:
    """An image that is pushed, and whose gates are passed."""
    layout = write_image(place.folder / f"image{seed}-{about.get('target', '')}", seed=seed, **about)  # type: ignore[arg-type]
    place.push(layout)
    place.judge(layout, Gate.AUDIT, Gate.TEST)
    if smoke:
        place.judge(layout, Gate.SMOKE, colour=smoke)
    return layout


def test_green_gates_move_all_readable_tags(place: Place) -> None:
    image = pushed(place, 1)
    assert place.promote(image) is not None
    assert {place.tag(tag) for tag in ("1.0-gb10", "gb10", "latest")} == {image.manifest_digest}


def test_a_skipped_smoke_moves_the_targets_tags_and_not_latest(place: Place) -> None:
    image = pushed(place, 1, smoke=Colour.SKIPPED)
    place.promote(image)
    assert (place.tag("gb10"), place.tag("1.0-gb10")) == (image.manifest_digest, image.manifest_digest)
    assert place.tag("latest") is None


def test_a_smoke_that_never_ran_is_written_as_skipped_on_the_image(place: Place, tmp_path: Path) -> None:
    image = pushed(place, 1, smoke=None)
    place.promote(image)
    assert place.tag("latest") is None
    (listed,) = read_listing(place.client).images
    assert listed.verdicts[Gate.SMOKE].colour is Colour.SKIPPED
    assert "never ran" in listed.verdicts[Gate.SMOKE].evidence


def test_latest_follows_once_smoke_is_green(place: Place) -> None:
    image = pushed(place, 1, smoke=None)
    place.promote(image)
    place.judge(image, Gate.SMOKE)
    move = place.promote(image)
    assert move is not None
    assert place.tag("latest") == image.manifest_digest


@pytest.mark.parametrize("gate", list(Gate))
def test_a_red_gate_moves_nothing(place: Place, gate: Gate) -> None:
    image = pushed(place, 1)
    place.judge(image, gate, colour=Colour.RED, evidence="2 of 12 checks failed")
    with pytest.raises(PromotionError, match="gates are not passed") as caught:
        place.promote(image)
    assert caught.value.why == (f"{gate.value}: red, 2 of 12 checks failed",)
    assert place.tag("gb10") is None
    assert read_history(place.client) == ()


@pytest.mark.parametrize("gate", [Gate.AUDIT, Gate.TEST])
def test_a_gate_that_did_not_run_moves_nothing(place: Place, gate: Gate) -> None:
    image = pushed(place, 1)
    shutil.rmtree(place.cache.verdicts)
    for other in {Gate.AUDIT, Gate.TEST, Gate.SMOKE} - {gate}:
        place.judge(image, other)
    with pytest.raises(PromotionError) as caught:
        place.promote(image)
    assert caught.value.why == (f"{gate.value}: did not run",)
    assert f"./noxw -s {gate.value}-noise" in caught.value.hint


def test_a_verdict_on_another_image_of_the_plan_does_not_count(place: Place) -> None:
    image = pushed(place, 1)
    other = write_image(place.folder / "other", seed=2, plan_id=plan_id_of(image))
    shutil.rmtree(place.cache.verdicts)
    for gate in Gate:
        place.judge(other, gate)
    with pytest.raises(PromotionError):
        place.promote(image)


def test_an_image_that_is_not_pushed_is_not_promoted(place: Place) -> None:
    image = write_image(place.folder / "image")
    with pytest.raises(RegistryError, match="is not there") as caught:
        place.promote(image)
    assert "`push` brings it" in caught.value.hint


def test_an_image_with_a_layer_missing_is_not_promoted(place: Place) -> None:
    image = pushed(place, 77)
    lost = image.layers[0].digest
    place.client.ask("DELETE", f"blobs/{lost}", good=(202,))
    with pytest.raises(RegistryError, match="is not complete") as caught:
        place.promote(image)
    assert caught.value.why == (lost,)
    assert place.tag("gb10") is None


def test_a_target_never_gets_an_image_of_another(place: Place) -> None:
    image = pushed(place, 1, target="rtx50", arch="amd64")
    with pytest.raises(PromotionError, match=r"is for rtx50 \(linux/amd64\) on debian, not for gb10"):
        place.promote(image, "gb10")
    mislabelled = pushed(place, 2, target="gb10", arch="amd64")
    with pytest.raises(PromotionError, match="not for gb10"):
        place.promote(mislabelled, "gb10")
    assert place.tag("gb10") is None


def test_latest_of_two_platforms_is_an_index_and_each_gets_its_own(place: Place) -> None:
    arm, intel = pushed(place, 1), pushed(place, 2, target="rtx50", arch="amd64")
    place.promote(arm)
    place.promote(intel, "rtx50")
    latest = place.client.manifest("latest")
    assert latest is not None
    assert latest.is_index
    wanted = {"linux/arm64": arm.manifest_digest, "linux/amd64": intel.manifest_digest}
    assert members(place.client, latest) == wanted
    assert (place.tag("gb10"), place.tag("rtx50")) == (arm.manifest_digest, intel.manifest_digest)


def test_a_second_target_of_a_platform_leaves_latest_alone(place: Place) -> None:
    intel, plain = pushed(place, 1, target="rtx50", arch="amd64"), pushed(place, 2, target="cpu", arch="amd64")
    place.promote(intel, "rtx50")
    place.promote(plain, "cpu")
    assert (place.tag("latest"), place.tag("cpu")) == (intel.manifest_digest, plain.manifest_digest)


def test_another_base_of_a_target_has_tags_of_its_own(place: Place) -> None:
    first, other = pushed(place, 1), pushed(place, 2, base="ngc")
    place.promote(first)
    place.promote(other, base="ngc")
    assert {place.tag(tag) for tag in ("1.0-gb10", "gb10", "latest")} == {first.manifest_digest}
    assert {place.tag(tag) for tag in ("1.0-gb10-ngc", "gb10-ngc")} == {other.manifest_digest}
    with pytest.raises(PromotionError, match="on ngc, not for gb10"):
        place.promote(other)


def test_promoting_twice_writes_one_entry(place: Place) -> None:
    image = pushed(place, 1)
    assert place.promote(image) is not None
    assert place.promote(image) is None
    assert len(read_history(place.client)) == 1


def test_rollback_goes_to_the_last_good_image_and_twice_goes_further(place: Place) -> None:
    first, second, third = (pushed(place, seed, version=f"{seed}.0") for seed in (1, 2, 3))
    for image in (first, second, third):
        place.promote(image)
    assert place.rollback().digest == second.manifest_digest
    assert {place.tag("gb10"), place.tag("latest")} == {second.manifest_digest}
    assert place.tag("3.0-gb10") == third.manifest_digest  # whoever asks for 3.0 gets 3.0
    assert place.rollback().digest == first.manifest_digest
    with pytest.raises(PromotionError, match="was never another image that was not left"):
        place.rollback()


def test_rollback_within_a_version_moves_its_tag_too(place: Place) -> None:
    first, second = pushed(place, 1), pushed(place, 2)
    place.promote(first)
    place.promote(second)
    place.rollback()
    assert {place.tag(tag) for tag in ("1.0-gb10", "gb10", "latest")} == {first.manifest_digest}


def test_rollback_skips_what_was_left_before(place: Place) -> None:
    good, bad, fixed = (pushed(place, seed) for seed in (1, 2, 3))
    place.promote(good)
    place.promote(bad)
    place.rollback()
    place.promote(fixed)
    assert place.rollback().digest == good.manifest_digest


def test_rollback_of_one_platform_leaves_the_other_in_latest(place: Place) -> None:
    old, new, intel = pushed(place, 1), pushed(place, 2), pushed(place, 3, target="rtx50", arch="amd64")
    place.promote(old)
    place.promote(intel, "rtx50")
    place.promote(new)
    place.rollback()
    latest = place.client.manifest("latest")
    assert latest is not None
    assert members(place.client, latest) == {
        "linux/arm64": old.manifest_digest,
        "linux/amd64": intel.manifest_digest,
    }


def test_rollback_to_an_image_goes_only_to_one_that_was_promoted(place: Place) -> None:
    first, second, third, never = (pushed(place, seed) for seed in (1, 2, 3, 4))
    for image in (first, second, third):
        place.promote(image)
    assert place.rollback(to=plan_tag(first)).digest == first.manifest_digest
    with pytest.raises(PromotionError, match="was never promoted to"):
        place.rollback(to=never.manifest_digest)


def test_rollback_moves_latest_only_to_what_had_all_gates_green(place: Place) -> None:
    green, skipped, bad = pushed(place, 1), pushed(place, 2, smoke=Colour.SKIPPED), pushed(place, 3)
    for image in (green, skipped, bad):
        place.promote(image)
    place.rollback()
    assert place.tag("gb10") == skipped.manifest_digest
    assert place.tag("latest") == green.manifest_digest


def test_latest_stays_where_nothing_before_it_was_green(place: Place) -> None:
    skipped, green = pushed(place, 1, smoke=Colour.SKIPPED), pushed(place, 2)
    place.promote(skipped)
    place.promote(green)
    place.rollback()
    assert (place.tag("gb10"), place.tag("latest")) == (skipped.manifest_digest, green.manifest_digest)


def test_another_machine_sees_history_and_verdicts_and_rolls_back(place: Place, tmp_path: Path) -> None:
    first, second = pushed(place, 1), pushed(place, 2)
    place.promote(first)
    place.promote(second)
    elsewhere = replace(place, cache=Cache(tmp_path / "elsewhere"), client=Client(place.client.repository))
    elsewhere.rollback()
    history = read_history(elsewhere.client)
    assert [(move.kind, move.digest, move.left) for move in history] == [
        (Kind.PROMOTE, first.manifest_digest, ""),
        (Kind.PROMOTE, second.manifest_digest, first.manifest_digest),
        (Kind.ROLLBACK, first.manifest_digest, second.manifest_digest),
    ]
    assert elsewhere.promote(second) is not None  # by the verdicts that are attached to the image


def test_a_promotion_that_broke_off_is_finished_by_the_same_command_with_one_entry(place: Place) -> None:
    image = pushed(place, 1)
    with fault_proxy(place.client.host) as proxy:
        proxy.add("PUT", "/manifests/latest", reset_in_body(1, registry_gets_it=False), times=None)
        client = Client(replace(place.client.repository, host=proxy.host))
        client.patience = replace(client.patience, backoff_s=0.01)
        broken = replace(place, client=client)
        with pytest.raises(RegistryError):
            broken.promote(image)
    assert (place.tag("gb10"), place.tag("latest")) == (image.manifest_digest, None)
    place.promote(image)
    assert place.tag("latest") == image.manifest_digest
    assert len(read_history(place.client)) == 1


def test_two_moves_at_once_both_stay_in_the_history(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the history before either wrote."""
    first, second = pushed(place, 1), pushed(place, 2, target="rtx50", arch="amd64")
    monkeypatch.setattr("spark_images.registry.tags.read_history", lambda *words: ())
    place.promote(first)
    place.promote(second, "rtx50")
    monkeypatch.undo()
    history = read_history(place.client)
    assert {move.digest for move in history} == {first.manifest_digest, second.manifest_digest}
    assert [move.number for move in history] == [1, 1]


def test_list_tells_what_tags_point_to_and_pointed_to(place: Place) -> None:
    first, second = pushed(place, 1, version="1.0"), pushed(place, 2, version="2.0")
    place.promote(first)
    place.promote(second)
    listing = read_listing(place.client).document()
    newest, older = listing["images"]
    assert (newest["digest"], newest["tags"]) == (second.manifest_digest, ["2.0-gb10", "gb10", "latest"])
    assert (older["tags"], older["pointed_to_by"]) == (["1.0-gb10"], ["gb10", "latest"])
    assert newest["pins"] == {"noise": "2.0"}
    assert newest["size_bytes"] == sum(layer.size_bytes for layer in second.layers)
    assert newest["verdicts"]["smoke"]["colour"] == "green"
    assert listing["tags"]["gb10"]["named"] == [first.manifest_digest, second.manifest_digest]


def described(place: Place, layout: Layout, day: int) -> None:
    """Attach when it was built, as push does."""
    manifest = Manifest(media_type=MANIFEST, data=layout.blob(layout.manifest_digest).read_bytes())
    predicate = {"runDetails": {"metadata": {"finishedOn": f"2026-11-{day:02}T00:00:00Z"}}}
    statement = Statement(digest=layout.manifest_digest, predicate_type=PROVENANCE, predicate=predicate)
    attach_statement(place.client, manifest, statement, None)


def test_prune_deletes_what_no_rule_keeps_and_only_when_told_to(place: Place) -> None:
    images = [pushed(place, seed) for seed in (1, 2, 3, 4)]
    for day, image in enumerate(images, start=1):
        described(place, image, day)
    place.promote(images[0])

    decided = prune_registry(place.client, keep=1, delete=False)
    assert [kept.image.tag for kept in decided if not kept.because] == [plan_tag(image) for image in images[1:3]]
    assert all(place.tag(plan_tag(image)) for image in images)

    prune_registry(place.client, keep=1, delete=True)
    assert [bool(place.tag(plan_tag(image))) for image in images] == [True, False, False, True]
    assert place.tag("latest") == images[0].manifest_digest
    assert referrers(place.client, images[1].manifest_digest) == ()
    assert referrers(place.client, images[3].manifest_digest) != ()


def test_an_image_that_is_promoted_while_prune_thinks_stays(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [pushed(place, seed) for seed in (1, 2)]
    for day, image in enumerate(images, start=1):
        described(place, image, day)
    real = clean_up._delete

    def promoted_meanwhile(*words: Any, **options: Any) -> None:
        place.promote(images[0])
        real(*words, **options)

    monkeypatch.setattr(clean_up, "_delete", promoted_meanwhile)
    prune_registry(place.client, keep=1, delete=True)
    assert place.tag(plan_tag(images[0])) == images[0].manifest_digest


def test_the_newest_results_of_each_job_stay_and_only_when_told_to_do_others_go(place: Place) -> None:
    for job, run in (("build noise", 9), ("build noise", 10), ("build noise", 11), ("checks", 3)):
        put_results(place.client, job, run=str(run), attempt="1", data=f"{job} {run}".encode())
    prune_results(place.client, keep=2, delete=False)
    assert place.tag("build-noise-9-1")
    prune_results(place.client, keep=2, delete=True)
    left = [tag for tag in place.client.tags() if place.tag(tag)]
    assert left == ["build-noise-10-1", "build-noise-11-1", "checks-3-1"]


def test_results_that_are_the_same_as_others_that_stay_are_not_deleted(place: Place) -> None:
    for run in (1, 2):
        put_results(place.client, "checks", run=str(run), attempt="1", data=b"equal")
    prune_results(place.client, keep=1, delete=True)
    assert place.tag("checks-2-1")

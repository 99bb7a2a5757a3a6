"""The order of moves, what to go back to, and what may be deleted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.registry.history import Kind, Move, in_order, last_good, pointed_to, read_move
from spark_images.registry.job_results import spare_results
from spark_images.registry.retention import Stored, decide

START = datetime(2026, 11, 21, tzinfo=UTC)


def promotion(number: int, digest: str, *, left: str = "", target: str = "gb10", key: str = "") -> Move:
    return move(Kind.PROMOTE, number, digest, left=left, target=target, key=key)


def move(kind: Kind, number: int, digest: str, *, left: str = "", target: str = "gb10", key: str = "") -> Move:
    return Move(
        number=number,
        kind=kind,
        when=START - timedelta(days=number),  # clocks that run backwards
        target=target,
        version="1",
        plan_id=f"plan of {digest}",
        digest=digest,
        left=left,
        tags=((target, digest),),
        key=key,
    )


def test_the_number_orders_and_not_the_clock() -> None:
    moves = [promotion(2, "b"), promotion(1, "a")]
    assert [one.digest for one in in_order(moves)] == ["a", "b"]
    assert pointed_to(moves, "gb10") == ("a", "b")


@given(
    st.permutations([promotion(n, d, key=k) for n, d, k in ((1, "a", "x"), (2, "b", "y"), (2, "c", "z"), (3, "d", ""))])
)
def test_every_machine_orders_alike_however_the_registry_lists(moves: list[Move]) -> None:
    assert [one.digest for one in in_order(moves)] == ["a", "b", "c", "d"]


def test_back_goes_to_the_promotion_before() -> None:
    moves = [promotion(1, "a"), promotion(2, "b", left="a"), promotion(3, "c", left="b")]
    assert (good := last_good(moves, "gb10", "c"))
    assert good.digest == "b"


@pytest.mark.parametrize("current", ["b", "b-gzip"])
def test_another_form_of_the_image_is_not_gone_back_to(current: str) -> None:
    other = replace(promotion(3, "b-gzip", left="b"), plan_id="plan of b")
    assert (good := last_good([promotion(1, "a"), promotion(2, "b", left="a"), other], "gb10", current))
    assert good.digest == "a"


def test_forms_of_one_plan_count_as_one_of_the_newest() -> None:
    day = timedelta(days=1)
    images = [
        Stored(tag=f"{tag * 12}{form}", digest=f"{tag}{form}", target="gb10", built=START + number * day, tags=())
        for number, tag in enumerate("abc")
        for form in ("", "-gzip")
    ]
    kept = decide(images, [], newest_per_target=2)
    assert [one.image.digest for one in kept if one.because] == ["b", "b-gzip", "c", "c-gzip"]


def test_an_image_that_was_left_is_not_gone_back_to() -> None:
    moves = [
        promotion(1, "a"),
        promotion(2, "bad", left="a"),
        move(Kind.ROLLBACK, 3, "a", left="bad"),
        promotion(4, "c", left="a"),
    ]
    assert (good := last_good(moves, "gb10", "c"))
    assert good.digest == "a"


def test_an_image_that_was_promoted_again_is_good_again() -> None:
    moves = [
        promotion(1, "a"),
        promotion(2, "b", left="a"),
        move(Kind.ROLLBACK, 3, "a", left="b"),
        promotion(4, "b", left="a"),
        promotion(5, "c", left="b"),
    ]
    assert (good := last_good(moves, "gb10", "c"))
    assert good.digest == "b"


def test_the_first_image_has_nothing_before_it_and_other_targets_do_not_count() -> None:
    moves = [promotion(1, "x", target="rtx50"), promotion(2, "a")]
    assert last_good(moves, "gb10", "a") is None


def test_a_tag_that_somebody_moved_by_hand_goes_back_to_the_last_promotion() -> None:
    assert (good := last_good([promotion(1, "a"), promotion(2, "b", left="a")], "gb10", "by hand"))
    assert good.digest == "b"


def test_a_move_is_read_as_it_was_written_and_a_later_versions_is_passed_over() -> None:
    written = promotion(7, "a", left="b", key="history-000007-0")
    assert read_move(written.document(), "history-000007-0") == written
    assert read_move({**written.document(), "kind": "teleport"}, "k") is None
    assert read_move([], "k") is None


def stored(digest: str, day: int | None, *tags: str, target: str = "gb10") -> Stored:
    built = None if day is None else START + timedelta(days=day)
    return Stored(tag=digest, digest=digest, target=target, built=built, tags=tags)


def gone(images: list[Stored], moves: list[Move], keep: int = 1) -> set[str]:
    return {kept.image.digest for kept in decide(images, moves, newest_per_target=keep) if not kept.because}


def test_the_newest_of_each_target_stay() -> None:
    images = [stored("a", 1), stored("b", 2), stored("c", 3), stored("x", 1, target="rtx50")]
    assert gone(images, []) == {"a", "b"}
    assert gone(images, [], keep=2) == {"a"}


def test_what_a_tag_or_the_history_names_stays() -> None:
    images = [stored("a", 1), stored("b", 2, "1.0-gb10"), stored("c", 3), stored("d", 4), stored("e", 5)]
    assert gone(images, [promotion(1, "c", left="a")]) == {"d"}


def test_what_nobody_knows_the_age_of_stays() -> None:
    assert gone([stored("a", None), stored("b", 1), stored("c", 2)], []) == {"b"}


def test_every_image_gets_a_reason() -> None:
    images = [stored("a", 1), stored("b", 2, "gb10")]
    moves = [promotion(1, "a"), promotion(2, "b", left="a")]
    reasons = {kept.image.digest: kept.because for kept in decide(images, moves, newest_per_target=1)}
    assert reasons == {"a": "the last known good one of gb10", "b": "gb10 names it"}


def test_results_of_a_job_go_by_the_number_of_their_run_and_what_is_no_result_stays() -> None:
    runs = [f"build-noise-for-gb10-{run}-1" for run in (99, 100, 9)] + ["build-noise-for-gb10-100-2"]
    assert spare_results([*runs, "latest", "checks-1-1"], keep=2) == (runs[2], runs[0])

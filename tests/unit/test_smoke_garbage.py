from __future__ import annotations

import math

import garbage
import pytest


@pytest.mark.parametrize(
    ("tokens", "bad"),
    [
        ([7] * 9, True),
        ([1, 2, 3, *[7] * 9], True),
        ([1, 2, *[5, 6] * 6], True),
        ([1, *[5, 6, 7, 8] * 7], True),
        (list(range(16)), False),
        ([1, 2, 2, 2, 3, 1, 2, 4], False),
        ([5, 6, 5, 6, 7, 1, 2, 3, 4, 9, 5, 6], False),
        ([], False),
    ],
)
def test_repeated_token_and_short_cycles(tokens: list[int], bad: bool) -> None:
    assert bool(garbage.repeated_token(tokens)) is bad


@pytest.mark.parametrize(
    ("text", "bad"), [("!!!!!!!!!!", True), ("Hello!!!!!!", True), ("Hello!!! You! There!", False), ("", False)]
)
def test_row_of_exclamation_marks(text: str, bad: bool) -> None:
    assert bool(garbage.exclamations(text)) is bad


@pytest.mark.parametrize(
    ("values", "bad"),
    [([0.5, math.nan], True), ([-math.inf], True), ([1.0, None], True), ([0.0, -3.5], False), ([], False)],
)
def test_numbers_that_are_not_finite(values: list[float | None], bad: bool) -> None:
    assert bool(garbage.not_finite(values)) is bad


def test_one_answer_to_different_questions() -> None:
    assert garbage.independent_of_input([[1, 2], [1, 2], [1, 2]]) == "3 different inputs give one answer"
    assert garbage.independent_of_input([[1, 2], [1, 2], [1, 3]]) == ""
    assert garbage.independent_of_input([[1, 2]]) == ""


def test_candidates_that_are_all_equally_likely() -> None:
    assert garbage.flat([-6.2, -6.2, -6.2])
    assert not garbage.flat([-0.1, -2.5, -3.0])
    assert not garbage.flat([-0.1])


def test_signs_of_one_answer_are_told_together() -> None:
    assert len(garbage.signs([0] * 12, "!" * 12)) == 2
    assert garbage.signs([4, 9, 2], " a sound answer") == []

"""What gates allow: only green ones move `latest`, a skipped smoke the target's tags, red or absent ones nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from spark_images.cache import Cache
from spark_images.verdict import Colour, Gate, Verdict, all_green, latest_verdicts, obstacles, read_verdict
from spark_images.verdicts import keep_verdict, kept_verdicts

DIGEST = "sha256:" + "1" * 64
START = datetime(2026, 11, 21, 12, tzinfo=UTC)


def verdict(gate: Gate, colour: Colour, *, minute: int = 0, digest: str = DIGEST) -> Verdict:
    return Verdict(gate=gate, colour=colour, digest=digest, when=START + timedelta(minutes=minute), evidence="3 checks")


def given(audit: Colour | None, test: Colour | None, smoke: Colour | None) -> dict[Gate, Verdict]:
    colours = {Gate.AUDIT: audit, Gate.TEST: test, Gate.SMOKE: smoke}
    return {gate: verdict(gate, colour) for gate, colour in colours.items() if colour}


GREEN, RED, SKIPPED = Colour.GREEN, Colour.RED, Colour.SKIPPED


@pytest.mark.parametrize(
    ("gates", "target_tags", "latest"),
    [
        ((GREEN, GREEN, GREEN), True, True),
        ((GREEN, GREEN, SKIPPED), True, False),
        ((GREEN, GREEN, RED), False, False),
        ((GREEN, GREEN, None), False, False),
        ((GREEN, SKIPPED, GREEN), False, False),
        ((SKIPPED, GREEN, GREEN), False, False),
        ((RED, GREEN, GREEN), False, False),
        ((None, GREEN, GREEN), False, False),
        ((None, None, None), False, False),
    ],
)
def test_what_the_gates_allow(
    gates: tuple[Colour | None, Colour | None, Colour | None], target_tags: bool, latest: bool
) -> None:
    found = given(*gates)
    assert (not obstacles(found), all_green(found)) == (target_tags, latest)


def test_the_last_word_of_a_gate_counts_and_only_on_the_image_itself() -> None:
    said = [
        verdict(Gate.TEST, GREEN, minute=5),
        verdict(Gate.TEST, RED, minute=9),
        verdict(Gate.TEST, GREEN, minute=2),
        verdict(Gate.AUDIT, GREEN, digest="sha256:" + "2" * 64),
    ]
    assert latest_verdicts(said, DIGEST) == {Gate.TEST: said[1]}


@pytest.mark.parametrize("found", [GREEN, RED])
@pytest.mark.parametrize("skipped_at", [1, 9])
def test_a_skip_takes_back_nothing_that_was_found_out(found: Colour, skipped_at: int) -> None:
    said = [verdict(Gate.SMOKE, found, minute=5), verdict(Gate.SMOKE, SKIPPED, minute=skipped_at)]
    assert latest_verdicts(said, DIGEST) == {Gate.SMOKE: said[0]}


def test_of_skips_alone_the_last_one_counts() -> None:
    said = [verdict(Gate.SMOKE, SKIPPED, minute=5), verdict(Gate.SMOKE, SKIPPED, minute=9)]
    assert latest_verdicts(said, DIGEST) == {Gate.SMOKE: said[1]}


def test_an_obstacle_names_gate_colour_and_evidence() -> None:
    assert obstacles(given(GREEN, RED, None)) == ("test: red, 3 checks", "smoke: did not run")


def test_a_verdict_is_read_as_it_was_written() -> None:
    said = verdict(Gate.SMOKE, SKIPPED)
    assert read_verdict(said.document()) == said


@pytest.mark.parametrize("change", [{"gate": "taste"}, {"colour": "blue"}, {"when": "yesterday"}, {"digest": None}])
def test_what_is_no_verdict_is_none(change: dict[str, object]) -> None:
    data = {**verdict(Gate.TEST, GREEN).document(), **change}
    if change == {"digest": None}:
        del data["digest"]
    assert read_verdict(data) is None


def test_a_verdict_on_an_image_that_was_pulled_is_kept_too(tmp_path: Path) -> None:
    cache, said = Cache(tmp_path), verdict(Gate.SMOKE, GREEN)
    keep_verdict(cache, "f" * 64, said)
    assert kept_verdicts(cache, "f" * 64) == (said,)
    assert kept_verdicts(cache, "e" * 64) == ()

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from spark_images.smoke_results import CheckResult, junit, overall, read_result
from spark_images.verdict import Colour


def line(check: str, verdict: str, why: str = "") -> str:
    """What a check prints last."""
    facts: dict[str, object] = {"gpu": "NVIDIA GB10"}
    said = {"check": check, "verdict": verdict, "why": why, "sentence": "so it is", "seconds": 1.5}
    return json.dumps({**said, "facts": facts, "stages": []})


def result(check: str, verdict: Colour, why: str = "") -> CheckResult:
    return CheckResult(check=check, colour=verdict, why=why, sentence=f"about {check}")


GREEN, RED, SKIPPED = Colour.GREEN, Colour.RED, Colour.SKIPPED
DEVICE = CheckResult(check="device", colour=GREEN)


def test_result_is_the_last_line_whatever_libraries_print_around_it() -> None:
    printed = ["stage: compile", '{"not": "ours"}', "{broken", line("mma", "green"), "Exception ignored in: …"]
    read = read_result("mma", printed, status=0)
    assert (read.colour, read.seconds, read.facts) == (GREEN, 1.5, {"gpu": "NVIDIA GB10"})


def test_result_of_another_check_does_not_count() -> None:
    assert read_result("mma", [line("device", "green")], status=0).colour is RED


def test_check_that_dies_is_red_and_names_its_stage_and_last_words() -> None:
    read = read_result("mma", ["stage: compile", "stage: run `mix`", "Illegal instruction"], status=132)
    assert (read.colour, read.why) == (RED, "broken")
    ended = "ended with status 132 in `run `mix`` without a matching result"
    assert read.sentence == f"{ended}: Illegal instruction"


@pytest.mark.parametrize(("verdict", "status"), [("green", 137), ("skipped", 1), ("red", 0)])
def test_result_that_the_exit_status_belies_does_not_count(verdict: str, status: int) -> None:
    read = read_result("mma", [line("mma", verdict)], status=status)
    assert (read.colour, read.why) == (RED, "broken")


def test_check_that_was_ended_names_what_hung() -> None:
    read = read_result("mma", ["stage: compile", "stage: run `mix`", "noise"], status=124, hangs_s=30)
    assert (read.colour, read.why, read.sentence) == (RED, "hangs", "`run `mix`` did not end within 30 s")


def test_all_green_is_green() -> None:
    assert overall([DEVICE, result("a", GREEN)], of_image=True) == (GREEN, "1 checks")


def test_one_red_is_red_and_says_which() -> None:
    assert overall([DEVICE, result("a", GREEN), result("b", RED)], of_image=True) == (RED, "b: about b")


def test_what_the_gpu_has_no_instructions_for_does_not_count() -> None:
    assert overall([DEVICE, result("a", GREEN), result("fp4", SKIPPED, "other-gpu")], of_image=True)[0] is GREEN


@pytest.mark.parametrize("why", ["no-gpu", "memory"])
def test_check_that_could_not_be_made_leaves_the_whole_undecided(why: str) -> None:
    assert overall([DEVICE, result("a", GREEN), result("b", SKIPPED, why)], of_image=True) == (SKIPPED, "about b")


@pytest.mark.parametrize(("of_image", "verdict"), [(True, RED), (False, GREEN)])
def test_missing_package_is_red_in_an_image_that_promises_the_check(of_image: bool, verdict: Colour) -> None:
    results = [DEVICE, result("a", GREEN), result("marlin", SKIPPED, "missing")]
    assert overall(results, of_image=of_image)[0] is verdict


def test_the_device_alone_proves_nothing() -> None:
    assert overall([DEVICE], of_image=True)[0] is SKIPPED
    assert overall([DEVICE, result("fp4", SKIPPED, "other-gpu")], of_image=True) == (SKIPPED, "about fp4")


def test_junit_counts_failures_and_skips() -> None:
    results = [DEVICE, result("a", RED, "wrong"), result("b", SKIPPED, "memory")]
    suite = ElementTree.fromstring(junit(results, suite="smoke.toy"))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    failure, skipped = cases["a"].find("failure"), cases["b"].find("skipped")
    assert failure is not None
    assert failure.get("message") == "wrong: about a"
    assert skipped is not None
    assert cases["device"].find("failure") is None

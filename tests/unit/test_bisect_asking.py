from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_search import BAD, GOOD, SKIP, MadeUp, line_of, set_of

from spark_images.audit.judge import CHECKS
from spark_images.bisect.answer import Answer, CannotGoOn, Cause, judge_check, judge_verb
from spark_images.bisect.asking import (
    Asker,
    Limits,
    OutOfBudget,
    check_ends,
    confirm,
    search_line,
    search_set,
    told,
)
from spark_images.bisect.candidate import Candidate
from spark_images.bisect.check import Check, parse_check
from spark_images.bisect.journal import Journal
from spark_images.bisect.stages import carried_out, run_repeatedly
from spark_images.errors import (
    BisectError,
    BudgetError,
    BuildError,
    CheckError,
    CompatError,
    ConfigError,
    ContentError,
    DiskFullError,
    EngineError,
    HostMemoryError,
    MissingError,
    OutOfMemoryError,
    RouteError,
    SparkImagesError,
    UsageError,
)
from spark_images.search import Culprits, Verdict

LINE = line_of(20)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal.open(tmp_path, "toy", {"what": "is asked"})


def bad_from(place: int, *, broken: tuple[int, ...] = ()) -> MadeUp:
    def judge(candidate: Candidate) -> Verdict:
        number = int(candidate.label.split()[1])
        return SKIP if number in broken else BAD if number >= place else GOOD

    return MadeUp(judge)


# --- what an exit status means ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "verdict"), [(0, GOOD), (1, BAD), (124, BAD), (125, SKIP), (2, BAD)])
def test_a_command_says_good_bad_or_nothing(status: int, verdict: Verdict) -> None:
    assert judge_check(status)[0] is verdict


@pytest.mark.parametrize(("status", "words"), [(126, "executed"), (127, "no such command"), (137, "signal 9")])
def test_a_command_that_cannot_be_run_ends_everything(status: int, words: str) -> None:
    with pytest.raises(CannotGoOn, match=words):
        judge_check(status)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (BuildError, Cause.BUILD_FAILED),
        (OutOfMemoryError, Cause.OUT_OF_MEMORY),
        (BudgetError, Cause.OUT_OF_MEMORY),
        (HostMemoryError, Cause.OUT_OF_MEMORY),
        (RouteError, Cause.NETWORK),
        (MissingError, Cause.MISSING),
        (ConfigError, Cause.COMPAT),
        (CompatError, Cause.COMPAT),
    ],
)
def test_what_keeps_a_candidate_from_being_tried_is_never_bad(error: type[SparkImagesError], cause: Cause) -> None:
    assert judge_verb(error.exit_status, checks_build=False) == (SKIP, cause)


def test_a_failed_build_is_bad_only_where_building_is_the_check() -> None:
    assert judge_verb(BuildError.exit_status, checks_build=True) == (BAD, Cause.BUILT)
    assert judge_verb(OutOfMemoryError.exit_status, checks_build=True) == (SKIP, Cause.OUT_OF_MEMORY)
    assert judge_verb(CheckError.exit_status, checks_build=False) == (BAD, Cause.CHECK)
    assert judge_verb(0, checks_build=True) is None


@pytest.mark.parametrize("error", [DiskFullError, EngineError, ContentError])
def test_what_is_no_fault_of_the_candidate_ends_everything(error: type[SparkImagesError]) -> None:
    with pytest.raises(CannotGoOn):
        judge_verb(error.exit_status, checks_build=False)


def test_one_check_of_an_audit_is_judged_by_its_findings_alone(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_text(json.dumps({"verdict": "failed", "findings": [{"check": CHECKS[0].id, "severity": "fail"}]}))
    assert parse_check(f"audit:{CHECKS[0].id}").judge_report(report) == (BAD, Cause.CHECK)
    assert parse_check(f"audit:{CHECKS[1].id}").judge_report(report) == (GOOD, Cause.CHECK)
    assert parse_check("audit").judge_report(report) is None
    with pytest.raises(UsageError, match="the audit has no check `no-such-check`"):
        parse_check("audit:no-such-check")


def test_smoke_checks_that_were_skipped_tell_nothing(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_text(
        "<testsuite><testcase name='device'/><testcase name='gemm'><failure/></testcase>"
        "<testcase name='nccl'><skipped/></testcase></testsuite>"
    )
    judged = {check: parse_check(check).judge_report(report) for check in ("smoke:device", "smoke:gemm", "smoke:nccl")}
    assert [verdict for verdict, _ in filter(None, judged.values())] == [GOOD, BAD, SKIP]
    assert parse_check("smoke").judge_report(report) == (BAD, Cause.CHECK)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("build", Check(verb="build")),
        ("test:test_hello", Check(verb="test", name="test_hello")),
        ("make test", Check(command="make test")),
        ("build:x", Check(command="build:x")),
    ],
)
def test_a_check_is_one_of_our_verbs_or_a_command(text: str, check: Check) -> None:
    assert parse_check(text) == check


# --- the journal ------------------------------------------------------------------------------------------------------


def answer(key: str, verdict: Verdict = GOOD, cause: Cause = Cause.CHECK) -> Answer:
    return Answer(key=key, label=key, verdict=verdict, cause=cause, reason="weil „es“ so ist")


def test_answers_are_there_again(tmp_path: Path, journal: Journal) -> None:
    journal.add(answer("a"))
    journal.add(answer("b", BAD))
    again = Journal.open(tmp_path, "toy", {"what": "is asked"})
    assert again.answers == (answer("a"), answer("b", BAD))
    assert again.resumed == 2


def test_another_question_has_other_answers(tmp_path: Path, journal: Journal) -> None:
    journal.add(answer("a"))
    assert Journal.open(tmp_path, "toy", {"what": "else is asked"}).answers == ()


def test_half_a_line_of_a_killed_process_is_passed_over(tmp_path: Path, journal: Journal) -> None:
    journal.add(answer("a"))
    with (journal.folder / "answers.jsonl").open("a") as out:
        out.write('{"key": "b", "verd')
    journal = Journal(journal.folder)
    assert [one.key for one in journal.answers] == ["a"]
    journal.add(answer("c"))
    assert [one.key for one in Journal(journal.folder).answers] == ["a", "c"]


def test_what_the_network_kept_from_being_tried_is_asked_again(journal: Journal) -> None:
    journal.add(answer("a", SKIP, Cause.NETWORK))
    journal.add(answer("b", SKIP, Cause.BUILD_FAILED))
    assert [one.key for one in Journal(journal.folder).answers] == ["b"]


def test_fresh_forgets(tmp_path: Path, journal: Journal) -> None:
    journal.add(answer("a"))
    assert Journal.open(tmp_path, "toy", {"what": "is asked"}, fresh=True).answers == ()


# --- ends -------------------------------------------------------------------------------------------------------------


def ends_error(stage: MadeUp, journal: Journal, *, find_fix: bool = False) -> BisectError:
    with pytest.raises(BisectError) as caught:
        check_ends(Asker(stage, journal, find_fix=find_fix), LINE.candidates[0], LINE.candidates[-1])
    return caught.value


def test_ends_the_wrong_way_round_are_an_error(journal: Journal) -> None:
    error = ends_error(MadeUp(lambda candidate: BAD if candidate.label == "toy 0" else GOOD), journal)
    assert "wrong way round" in error.what
    assert "--find-fix" in error.hint


def test_a_good_end_that_is_bad_and_a_bad_end_that_is_good_are_errors(tmp_path: Path) -> None:
    error = ends_error(MadeUp(lambda candidate: BAD), Journal.open(tmp_path, "bad", {}))
    assert error.what == "the good end, toy 0, is bad as well"
    error = ends_error(MadeUp(lambda candidate: GOOD), Journal.open(tmp_path, "good", {}))
    assert error.what == "the bad end, toy 19, is good as well"


def test_an_end_that_cannot_be_tried_is_an_error_with_its_cause(journal: Journal) -> None:
    error = ends_error(bad_from(5, broken=(19,)), journal)
    assert error.what == "the bad end, toy 19, cannot be tried: build failed"


def test_a_check_that_fails_now_and_then_at_the_good_end_is_flaky(journal: Journal) -> None:
    journal.add(replace(answer(LINE.candidates[0].key, BAD), runs=5, failures=2))
    assert "flaky at the good end: 2 of 5" in ends_error(bad_from(5), journal).what


# --- searching --------------------------------------------------------------------------------------------------------


def test_no_question_is_asked_twice_not_even_by_the_next_run(journal: Journal) -> None:
    stage = bad_from(13, broken=(9, 10))
    left = search_line(LINE, Asker(stage, journal))
    assert (left.good, left.bad) == (12, 13)
    assert len(stage.tried) == len(set(stage.tried))
    again = bad_from(13)
    assert search_line(LINE, Asker(again, Journal(journal.folder))) == left
    assert again.tried == []


def test_the_repair_is_found_in_the_other_direction(journal: Journal) -> None:
    stage = MadeUp(lambda candidate: GOOD if int(candidate.label.split()[1]) >= 7 else BAD)
    asker = Asker(stage, journal, find_fix=True)
    check_ends(asker, LINE.candidates[-1], LINE.candidates[0])
    left = search_line(LINE, asker)
    assert (left.good, left.bad) == (6, 7)  # as the search sees it: the last before the change, the first after it


def test_two_versions_with_none_between_them_need_no_try(journal: Journal) -> None:
    stage = bad_from(1)
    assert search_line(line_of(2), Asker(stage, journal)).candidates == 1
    assert stage.tried == []


def test_a_run_ends_at_its_budgets_and_the_next_goes_on(journal: Journal) -> None:
    stage = bad_from(13)
    with pytest.raises(OutOfBudget, match="2 tries were allowed"):
        search_line(LINE, Asker(stage, journal, limits=Limits(builds=2)))
    assert len(stage.tried) == 2
    moments = iter(range(0, 10_000, 30))
    with pytest.raises(OutOfBudget, match="budget of 0:45"):
        search_line(LINE, Asker(stage, journal, limits=Limits(budget_s=45), clock=lambda: next(moments)))
    assert len(stage.tried) == 3
    left = search_line(LINE, Asker(stage, journal))
    assert (left.good, left.bad) == (12, 13)
    assert len(stage.tried) == len(set(stage.tried))


def test_a_network_that_is_gone_ends_the_search_before_all_is_skipped(journal: Journal) -> None:
    stage = bad_from(13)
    answer_of = stage.try_out
    stage.try_out = lambda candidate, **how: replace(  # type: ignore[method-assign]
        answer_of(candidate, **how), verdict=SKIP, cause=Cause.NETWORK, reason="no route to host"
    )
    with pytest.raises(BisectError, match="3 candidates in a row"):
        search_line(LINE, Asker(stage, journal))
    assert len(stage.tried) == 3
    assert Journal(journal.folder).answers == (), "they are asked again"


def test_what_may_come_next_is_fetched_while_one_is_tried(journal: Journal) -> None:
    stage = bad_from(13)
    stage.pause_s = 0.05
    search_line(LINE, Asker(stage, journal))
    deadline = time.monotonic() + 30
    while not set(stage.fetched) & set(stage.tried):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_other_runners_get_candidates_over_the_whole_range_and_their_verdicts_shrink_it(journal: Journal) -> None:
    stage, rounds = bad_from(13), 0
    while True:
        asker = Asker(stage, journal, elsewhere=True)
        try:
            left = search_line(LINE, asker, jobs=3)
            break
        except OutOfBudget:
            rounds += 1
            assert 1 <= len(asker.wanted) <= 3
            for candidate in asker.wanted:
                journal.add(stage.try_out(candidate, repeat=1, every_run=False))
    assert (left.good, left.bad) == (12, 13)
    assert rounds <= 3  # one runner needs 5 tries, one after another


def test_the_pair_is_found_and_what_other_runners_may_be_asked_of_it(journal: Journal) -> None:
    changes = set_of(*(f"pin-{number}" for number in range(9)))
    stage = MadeUp(lambda candidate: BAD if {"pin-2", "pin-7"} <= candidate.made else GOOD)
    asker = Asker(stage, journal, elsewhere=True)
    with pytest.raises(OutOfBudget):
        search_set(changes, asker, jobs=3)
    assert len(asker.wanted) == 3
    found = search_set(changes, Asker(stage, journal))
    assert isinstance(found, Culprits)
    assert found.failing == found.proved == ("pin-2", "pin-7")


# --- flaky checks -----------------------------------------------------------------------------------------------------


def test_an_answer_that_is_not_confirmed_is_flaky(journal: Journal) -> None:
    seen: list[str] = []

    def judge(candidate: Candidate) -> Verdict:
        seen.append(candidate.key)
        return BAD if len(seen) == 1 else GOOD

    asker = Asker(MadeUp(judge), journal)
    with pytest.raises(BisectError, match="flaky: toy 4 was bad first and good then"):
        confirm(asker, LINE.candidates[4])


def test_repeated_runs_are_bad_at_the_first_failure_unless_all_are_wanted(journal: Journal) -> None:
    def tried(every_run: bool) -> Answer:
        results = iter([GOOD, BAD, GOOD, BAD, GOOD])
        return carried_out(
            LINE.candidates[1],
            journal,
            lambda trying: run_repeatedly(trying, lambda: (next(results), Cause.CHECK), repeat=5, every_run=every_run),
        )

    short, whole = tried(False), tried(True)
    assert (short.verdict, short.runs, short.failures) == (BAD, 2, 1)
    assert (whole.verdict, whole.runs, whole.failures) == (BAD, 5, 2)
    assert whole.reason == "failed in 2 of 5 runs"


def test_a_release_that_cannot_be_fetched_is_skipped_by_its_cause(journal: Journal) -> None:
    def missing(trying: object) -> tuple[Verdict, Cause, str]:
        raise MissingError("no package index has it")

    def silent(trying: object) -> tuple[Verdict, Cause, str]:
        raise RouteError("the index does not answer")

    assert told(carried_out(LINE.candidates[1], journal, missing)) == "skipped: missing"
    assert told(carried_out(LINE.candidates[1], journal, silent)) == "skipped: network"
    absent = replace(LINE.candidates[1], missing="the index has no sdist of it")
    assert carried_out(absent, journal, silent).reason == "the index has no sdist of it"


def test_a_check_that_cannot_be_run_ends_the_search_with_what_it_said(journal: Journal) -> None:
    def run(trying: object) -> tuple[Verdict, Cause, str]:
        judge_check(127)
        raise AssertionError

    with pytest.raises(BisectError) as caught:
        carried_out(LINE.candidates[1], journal, run)
    assert "says nothing about it" in caught.value.what
    assert "no such command" in caught.value.why[0]

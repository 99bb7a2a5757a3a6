import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_images.errors import BudgetError, UsageError
from spark_images.jobs import Jobs, parse_size, plan_budget, plan_jobs
from spark_images.units import GIB, MIB

AMOUNTS = st.integers(min_value=0, max_value=1 << 45)


@pytest.mark.parametrize(
    ("budget_gib", "gib_per_job", "cores", "jobs"),
    [(48.0, 8.0, 20, 6), (48.0, 0.7, 20, 20), (7.9, 8.0, 20, 1), (16.0, 8.0, 1, 1), (16.0, 8.0, 20, 2)],
)
def test_jobs_are_as_many_as_fit_memory_and_cores(budget_gib: float, gib_per_job: float, cores: int, jobs: int) -> None:
    found = plan_jobs(budget_gib=budget_gib, gib_per_job=gib_per_job, cores=cores, gated=False)
    assert found == Jobs(jobs, jobs)


def test_behind_the_gate_every_core_has_a_compiler_and_as_many_wait_as_a_twentieth_of_the_budget_holds() -> None:
    assert plan_jobs(budget_gib=64, gib_per_job=9.6, cores=20, gated=True) == Jobs(20, 327)


@pytest.mark.parametrize(("budget_gib", "queue"), [(0.5, 8), (1000, 512)], ids=["little memory", "much memory"])
def test_the_queue_at_the_gate_is_neither_shorter_than_twice_the_cores_nor_endless(
    budget_gib: float, queue: int
) -> None:
    assert plan_jobs(budget_gib=budget_gib, gib_per_job=1, cores=4, gated=True) == Jobs(4, queue)


def test_budget_without_a_wish_is_what_the_host_can_spare() -> None:
    budget = plan_budget(asked=None, available=20 * GIB, reserve=2 * GIB, cgroup_limit=None)
    assert budget.bytes == 18 * GIB
    assert budget.because == "20 GiB are available on this host and 2 GiB of them stay reserved"


def test_budget_says_when_our_own_cgroup_decides() -> None:
    budget = plan_budget(asked=None, available=20 * GIB, reserve=2 * GIB, cgroup_limit=8 * GIB)
    assert budget.bytes == 8 * GIB
    assert budget.because.startswith("the cgroup that this runs in has 8 GiB left; 20 GiB are available on this host")


def test_budget_says_why_so_much_stays_reserved_and_where_a_limit_is() -> None:
    budget = plan_budget(
        asked=None,
        available=20 * GIB,
        reserve=6 * GIB,
        reserve_because="a GPU shares this memory",
        cgroup_limit=8 * GIB,
        cgroup_where="memory.max of `/me` in cgroup v2",
    )
    assert budget.because == (
        "the cgroup that this runs in has 8 GiB left (memory.max of `/me` in cgroup v2); "
        "20 GiB are available on this host and 6 GiB of them stay reserved (a GPU shares this memory)"
    )


def test_wider_cgroup_does_not_decide() -> None:
    budget = plan_budget(asked=None, available=20 * GIB, reserve=2 * GIB, cgroup_limit=64 * GIB)
    assert budget.bytes == 18 * GIB
    assert "available on this host" in budget.because


def test_budget_says_that_it_was_asked_for() -> None:
    budget = plan_budget(asked=4 * GIB, available=20 * GIB, reserve=2 * GIB, cgroup_limit=None)
    assert budget.bytes == 4 * GIB
    assert budget.because.startswith("`--memory` asks for it")


def test_asking_for_more_than_the_host_has_tells_the_most_that_works() -> None:
    with pytest.raises(BudgetError) as caught:
        plan_budget(asked=100 * GIB, available=20 * GIB, reserve=2 * GIB, cgroup_limit=None)
    assert caught.value.render() == (
        "error: `--memory` asks for 100 GiB, but a build here can have at most 18 GiB\n"
        "  20 GiB are available on this host and 2 GiB of them stay reserved\n"
        "\n"
        "hint: ask for at most `--memory 18432MiB`, or free what holds memory now"
    )
    plan_budget(asked=parse_size("18432MiB"), available=20 * GIB, reserve=2 * GIB, cgroup_limit=None)


def test_asking_for_more_than_the_cgroup_leaves_names_the_cgroup() -> None:
    with pytest.raises(BudgetError) as caught:
        plan_budget(asked=9 * GIB, available=20 * GIB, reserve=2 * GIB, cgroup_limit=8 * GIB)
    assert "the cgroup that this runs in has 8 GiB left" in caught.value.why


def test_host_without_memory_to_spare_is_refused() -> None:
    with pytest.raises(BudgetError, match="0 bytes is too small"):
        plan_budget(asked=None, available=1 * GIB, reserve=2 * GIB, cgroup_limit=None)


def test_budget_below_one_job_is_refused_and_says_what_would_do() -> None:
    with pytest.raises(BudgetError, match="4 GiB is too small for one compile job") as caught:
        plan_budget(asked=4 * GIB, available=20 * GIB, reserve=2 * GIB, cgroup_limit=None, gib_per_job=7.4)
    assert "`--memory 8GiB`" in caught.value.hint


def test_host_below_one_job_is_not_told_to_ask_for_more() -> None:
    with pytest.raises(BudgetError, match="too small") as caught:
        plan_budget(asked=None, available=6 * GIB, reserve=2 * GIB, cgroup_limit=None, gib_per_job=8.0)
    assert "--memory" not in caught.value.hint


@given(asked=st.none() | AMOUNTS, available=AMOUNTS, reserve=AMOUNTS, limit=st.none() | AMOUNTS)
def test_budget_never_exceeds_any_of_its_bounds(
    asked: int | None, available: int, reserve: int, limit: int | None
) -> None:
    try:
        budget = plan_budget(asked=asked, available=available, reserve=reserve, cgroup_limit=limit)
    except BudgetError:
        room = min(bound for bound in (available - reserve, limit) if bound is not None)
        assert room < MIB or (asked is not None and (asked > room // MIB * MIB or asked < MIB))
        return
    assert 0 < budget.bytes <= available - reserve
    assert budget.bytes % MIB == 0
    assert asked is None or budget.bytes <= asked
    assert limit is None or budget.bytes <= limit


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GiB", 8 * GIB),
        ("8192MiB", 8 * GIB),
        ("48G", 48 * GIB),
        ("48g", 48 * GIB),
        ("1.5 GiB", 1536 * MIB),
        ("2T", 2048 * GIB),
        ("500kb", 500_000),
        ("48GB", 48_000_000_000),
    ],
)
def test_sizes_are_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GiB", "8GiBs", "-8GiB", "0GiB", "8 GiB 2", "8,5GiB", "nan", "٨GiB", "$(id)"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert "is not a size" in caught.value.what
    assert "`--memory 8GiB`" in caught.value.hint


def test_number_without_unit_is_refused_as_such() -> None:
    with pytest.raises(UsageError, match="`48` has no unit"):
        parse_size("48")

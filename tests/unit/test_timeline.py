from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_images.timeline import MARKS, POINTS, Cut, Mark, Point, Timeline


def timeline_of(memory: list[int]) -> Timeline:
    timeline = Timeline()
    for number, mib in enumerate(memory):
        timeline.sample(Point(elapsed_s=2.0 * number, memory_mib=mib, compilers=number % 20))
    return timeline


def test_few_samples_are_kept_as_they_are() -> None:
    assert [point.memory_mib for point in timeline_of([5, 3, 9]).points] == [5, 3, 9]


@settings(max_examples=30, deadline=None)
@given(count=st.integers(POINTS - 1, 12 * POINTS), spike=st.floats(0, 1, exclude_max=True))
def test_long_builds_keep_few_points_that_are_evenly_spread_and_the_highest(count: int, spike: float) -> None:
    memory = [100] * count
    memory[int(spike * count)] = 48000
    points = timeline_of(memory).points
    assert POINTS // 2 - 1 <= len(points) <= POINTS
    assert max(point.memory_mib for point in points) == 48000
    times = [point.elapsed_s for point in points]
    assert times == sorted(set(times))
    widest = max(after - before for before, after in pairwise(times))
    assert widest <= 2 * 2.0 * 2 * count / len(points)


def test_marks_are_bounded() -> None:
    timeline = Timeline()
    for number in range(5 * MARKS):
        timeline.mark(Mark(elapsed_s=number, cut=Cut.KILLED, unit="a.o"))
    assert len(timeline.marks) == MARKS

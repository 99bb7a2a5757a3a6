import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_images.memory_chart import StepChart, memory_chart
from spark_images.timeline import Cut, Mark, Point

SVG = "{http://www.w3.org/2000/svg}"


def step(
    memory: list[int], *, cap_mib: int = 8192, compilers: int = 4, every_s: float = 2.0, marks: tuple[Mark, ...] = ()
) -> StepChart:
    points = tuple(
        Point(elapsed_s=every_s * number, memory_mib=mib, compilers=compilers) for number, mib in enumerate(memory, 1)
    )
    return StepChart(name="compile", cap_mib=cap_mib, peak_mib=max(memory), points=points, marks=marks)


def words(*steps: StepChart, title: str = "vllm-gb10-ngc") -> list[str]:
    root = ElementTree.fromstring(memory_chart(title, "", steps))
    return ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def test_peak_cap_and_units_are_written() -> None:
    said = words(step([1000, 7000, 3000]))
    assert "vllm-gb10-ngc" in said
    assert "compilepeak 6.8 GiB of 8 GiB, at most 4 compilers" in said
    assert {"cap 8 GiB", "GiB", "compilers", "2", "4", "6", "8", "0:00", "0:06"} <= set(said)


def test_small_steps_are_in_mib() -> None:
    assert {"MiB", "100", "200", "300", "cap 300 MiB"} <= set(words(step([90, 280], cap_mib=300)))


def test_cap_far_above_does_not_flatten_the_memory() -> None:
    said = words(step([300, 700], cap_mib=65536))
    assert "cap 64 GiB, far above" in said
    assert "600" in said


def test_missing_cap_is_said() -> None:
    assert "compilepeak 700 MiB, no cap, at most 4 compilers" in words(step([700], cap_mib=0))


def test_what_was_cut_short_is_marked_and_counted() -> None:
    marks = (
        Mark(elapsed_s=2, cut=Cut.STOPPED, unit="a.o"),
        Mark(elapsed_s=3, cut=Cut.STOPPED, unit="b.o"),
        Mark(elapsed_s=4, cut=Cut.FAILED, unit="<c>.o"),
    )
    svg = memory_chart("x", "", [step([1000, 7000], marks=marks)])
    assert {"2 stopped by the gate", "1 killed also alone"} <= set(words(step([1000, 7000], marks=marks)))
    titles = [title.text for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]
    assert "<c>.o: killed also alone" in titles


def test_every_step_has_its_own_plot() -> None:
    once, twice = (memory_chart("x", "", [step([5, 6])] * count) for count in (1, 2))
    assert twice.count("<path") == 2 * once.count("<path")
    assert int(ElementTree.fromstring(twice).get("height", "0")) > int(ElementTree.fromstring(once).get("height", "0"))


def test_long_axis_has_few_labels() -> None:
    said = words(step([100] * 1200, every_s=60))
    assert 3 <= sum(bool(re.fullmatch(r"\d+:\d\d(:\d\d)?", word)) for word in said) <= 10


@pytest.mark.parametrize("title", ["a & b <c>", '"quoted"', "ümläut"])
def test_names_may_hold_anything(title: str) -> None:
    assert title in words(step([5]), title=title)


@settings(deadline=None)
@given(
    memory=st.lists(st.integers(0, 10**6), min_size=1, max_size=30),
    cap_mib=st.integers(0, 10**6),
    compilers=st.integers(0, 200),
    every_s=st.floats(0.01, 10**5),
)
def test_everything_stays_inside_the_card(memory: list[int], cap_mib: int, compilers: int, every_s: float) -> None:
    chart = step(
        memory,
        cap_mib=cap_mib,
        compilers=compilers,
        every_s=every_s,
        marks=(Mark(elapsed_s=every_s * len(memory), cut=Cut.KILLED, unit="a.o"),),
    )
    root = ElementTree.fromstring(memory_chart("x", "", [chart]))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for line in root.iter(f"{SVG}line"):
        assert all(0 <= float(line.get(name, "-1")) <= width for name in ("x1", "x2"))
        assert all(0 <= float(line.get(name, "-1")) <= height for name in ("y1", "y2"))
    (place,) = re.findall(r'class="blue" fill="none"[^>]* d="M([^"]*)"', memory_chart("x", "", [chart]))
    for pair in place.split(" L"):
        x, y = map(float, pair.split())
        assert 64 <= x <= width - 20
        assert 70 <= y <= height

"""Every picture, rendered: text lies inside the card and on nothing else, the marks are there, on light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import resvg_py
import ttf_opensans
from numpy.typing import NDArray
from PIL import Image

from spark_images.bisect.picture import range_svg
from spark_images.drawing import EDGE, fit, text_width
from spark_images.layer_chart import Layer, changes_chart, layer_changes, layer_name, layers_chart
from spark_images.memory_chart import StepChart, memory_chart
from spark_images.search import Verdict
from spark_images.timeline import Cut, Mark, Point

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels
SVG = "{http://www.w3.org/2000/svg}"
FONTS = [str(Path(ttf_opensans.__file__).parent / f"ttf/OpenSans-{weight}.ttf") for weight in ("Regular", "Bold")]
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) {\n(.*?)\n}\n", re.DOTALL)
PICTURES = Path(__file__).parents[2] / "docs/pictures"

OLD = tuple(
    Layer(name=name, digest=f"old {name}", size_bytes=mib << 20)
    for name, mib in (
        ("root file system", 6),
        ("cuda", 504),
        ("llamacpp", 26),
        ("a layer with a name of many words", 3),
    )
)
NEW = (*OLD[:2], Layer(name="llamacpp", digest="new", size_bytes=40 << 20), Layer(name="z", digest="z", size_bytes=0))
GOOD, BAD, SKIP = Verdict.GOOD, Verdict.BAD, Verdict.SKIP


def memory() -> str:
    points = tuple(
        Point(elapsed_s=second, memory_mib=70 * second if second < 90 else 200, compilers=second // 30)
        for second in range(1, 121)
    )
    marks = tuple(Mark(elapsed_s=30 * number, cut=cut, unit=f"{cut.value}.o") for number, cut in enumerate(Cut, 1))
    steps = [StepChart(name=name, cap_mib=8192, peak_mib=6230, points=points, marks=marks) for name in ("one", "two")]
    return memory_chart("vllm-gb10-ngc", "memory and compilers", steps)


def found(count: int) -> str:
    known = [GOOD, *[None] * (count - 6), GOOD, SKIP, None, BAD, BAD]
    labels = [f"vllm 0.{number}.0" for number in range(count)]
    return range_svg("first bad: vllm 0.9.0", f"of {count}", labels, known, first=count - 5, last=count - 2)


DRAWN: dict[str, Callable[[], str]] = {
    "memory": memory,
    "layers": partial(layers_chart, "llamacpp gb10-debian", OLD),
    "changes": partial(
        changes_chart, "llamacpp " + "x" * 60, layer_changes(OLD, NEW), ["pin `a`: was 1, is 2" * 9] * 9
    ),
    "range": partial(found, 12),
    "long range": partial(found, 900),
}


@pytest.fixture(params=DRAWN)
def svg(request: pytest.FixtureRequest) -> str:
    return DRAWN[request.param]()


def rendered(svg: str, *, dark: bool = False) -> NDArray[Any]:
    """The pixels as height x width x RGB, by resvg and a font of ours."""
    rules = DARK.search(svg)
    if rules:  # resvg knows no media queries
        svg = svg.replace(rules[0], f"{rules[1]}\n" if dark else "")
    png = resvg_py.svg_to_bytes(
        svg_string=svg, background="white", skip_system_fonts=True, font_files=FONTS, sans_serif_family="Open Sans"
    )
    return np.asarray(Image.open(io.BytesIO(bytes(png))).convert("RGB")).astype(int)


def colour(svg: str, name: str, *, dark: bool = False) -> NDArray[Any]:
    """What a class fills with."""
    return np.array(list(bytes.fromhex(re.findall(rf"\.{name}-fill {{ fill: #(\w+) }}", svg)[dark])))


def box(drawn: NDArray[Any]) -> Box:
    """Left, top, right and bottom of what is true."""
    rows, columns = np.nonzero(drawn)
    assert len(rows), "nothing is drawn"
    return int(columns.min()), int(rows.min()), int(columns.max()), int(rows.max())


def of_colour(pixels: NDArray[Any], wanted: NDArray[Any]) -> Box:
    """The box of all pixels of about this colour."""
    return box((abs(pixels - wanted) < 12).all(axis=2))


@cache
def texts(svg: str) -> tuple[tuple[str, Box], ...]:
    """Each text, and where its ink lies when it is drawn alone."""
    found = []
    root = ElementTree.fromstring(svg)
    whole = list(root.iter(f"{SVG}text"))
    for element in whole:
        for part in element.iter():
            part.attrib.pop("class", None)  # black
        alone = ElementTree.Element(f"{SVG}svg", root.attrib)
        alone.append(element)
        ink = rendered(ElementTree.tostring(alone, encoding="unicode")).sum(axis=2) < 600
        found.append(("".join(element.itertext()), box(ink)))
    return tuple(found)


def overlap(one: Box, other: Box) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def test_text_lies_inside_the_card_and_on_no_other_text(svg: str) -> None:
    height, width, _ = rendered(svg).shape
    drawn = texts(svg)
    assert len(drawn) > 3
    for words, (left, top, right, bottom) in drawn:
        assert left >= EDGE - 1, words
        assert right <= width - EDGE + 1, words
        assert top >= 8, words
        assert bottom <= height - 4, words
    assert [(one, other) for (one, place), (other, there) in combinations(drawn, 2) if overlap(place, there)] == []


def test_text_lies_on_no_bar(svg: str) -> None:
    bars = [
        tuple(float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
        for rect in list(ElementTree.fromstring(svg).iter(f"{SVG}rect"))[1:]  # the first is the card
    ]
    for words, place in texts(svg):
        assert not any(overlap(place, (x, y, x + w, y + h)) for x, y, w, h in bars), words


@pytest.mark.parametrize("dark", [False, True])
def test_every_colour_stands_out_from_its_card(svg: str, dark: bool) -> None:
    assert tuple(rendered(svg, dark=dark)[4, 440]) == tuple(colour(svg, "card", dark=dark))
    for name in ("ink", "faint", "blue", "violet", "green", "orange", "red"):
        assert contrast(colour(svg, name, dark=dark), colour(svg, "card", dark=dark)) >= 4.5, name  # WCAG 2.2, 1.4.3


def contrast(one: NDArray[Any], other: NDArray[Any]) -> float:
    """As WCAG 2.2 defines it."""

    def luminance(rgb: NDArray[Any]) -> float:
        parts = rgb / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ np.array([0.2126, 0.7152, 0.0722]))

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_same_numbers_give_the_same_bytes_and_nothing_is_loaded_or_run(request: pytest.FixtureRequest) -> None:
    for draw in DRAWN.values():
        svg = draw()
        assert svg == draw()
        assert not re.search(r"<script|href|url\(|@import|@font-face", svg)
        assert "prefers-color-scheme: dark" in svg
        assert ElementTree.fromstring(svg).findtext(f"{SVG}title")


def test_memory_rises_to_its_peak_below_the_cap_and_falls() -> None:
    svg = memory()
    upper = rendered(svg)[: (44 + 358)]
    left, top, right, bottom = of_colour(upper, colour(svg, "blue"))
    assert (left, right) in [(x, y) for x in range(64, 74) for y in range(856, 862)]
    cap = of_colour(upper[:, 64:780], colour(svg, "red"))[1]
    assert cap < top < bottom
    peak_column = 64 + 796 * 89 // 120
    assert abs(of_colour(upper[:, peak_column - 3 : peak_column + 3], colour(svg, "blue"))[1] - top) <= 2


def test_bars_are_as_long_as_the_layers_are_large() -> None:
    svg = layers_chart("x", OLD)
    pixels = rendered(svg)
    widths = []
    for number in range(len(OLD)):
        row = pixels[44 + 26 * number + 8 : 44 + 26 * number + 20]
        left, _, right, _ = of_colour(row, colour(svg, "blue"))
        widths.append(right - left + 1)
    assert widths[1] == max(widths)
    assert [round(width / widths[1] * 504) for width in widths] == pytest.approx([6, 504, 26, 3], abs=2)


def test_what_has_to_be_pulled_is_orange_and_what_is_there_is_not() -> None:
    changes = layer_changes(OLD, NEW)
    svg = changes_chart("x", changes, ())
    pixels, orange = rendered(svg), colour(svg, "orange")
    for number, change in enumerate(changes):
        row = pixels[44 + 26 * number + 8 : 44 + 26 * number + 20]
        assert ((abs(row - orange) < 12).all(axis=2).any()) == (change.after_bytes is not None and not change.kept)


def test_changes_tell_kept_new_larger_and_gone_layers() -> None:
    changes = layer_changes(OLD, NEW)
    assert [change.words for change in changes] == [
        "6 MiB, as before",
        "504 MiB, as before",
        "26 MiB -> 40 MiB",
        "0 bytes, new",
        "3 MiB, gone",
    ]
    assert [change.pulled_bytes >> 20 for change in changes] == [0, 0, 40, 0, 0]


def test_layer_that_only_moved_is_there_already() -> None:
    renamed = (Layer(name="other", digest=OLD[1].digest, size_bytes=504 << 20),)
    assert layer_changes(OLD, renamed)[0].kept


def test_several_layers_of_one_name_are_compared_in_their_order() -> None:
    twice = tuple(Layer(name="RUN", digest=digest, size_bytes=1) for digest in "ab")
    other = (twice[0], Layer(name="RUN", digest="c", size_bytes=2))
    assert [(one.kept, one.before_bytes) for one in layer_changes(twice, other)] == [(True, 1), (False, 1)]


def test_layer_is_named_by_what_is_copied() -> None:
    assert layer_name("COPY --from=compile /out/cuda/ /") == "cuda"
    assert layer_name("RUN apt-get install") == "RUN apt-get install"


def test_bracket_holds_the_range_and_nothing_else() -> None:
    svg = found(12)
    pixels = rendered(svg)
    step = 840 / 12
    left, _, right, _ = of_colour(pixels[60:66], colour(svg, "ink"))
    assert (left, right) == pytest.approx((20 + 7 * step, 20 + 11 * step - 1), abs=2)
    cells = pixels[44 + 26 + 2]
    drawn = [tuple(cells[int(20 + (number + 0.15) * step)]) for number in range(12)]
    kinds = [GOOD, *[None] * 6, GOOD, SKIP, None, BAD, BAD]
    names = {GOOD: "green", BAD: "red", SKIP: "orange", None: "grid"}
    assert drawn == [tuple(colour(svg, names[kind])) for kind in kinds]


def test_what_was_tried_is_seen_among_many_candidates() -> None:
    svg = found(900)
    row = rendered(svg)[44 + 26 + 4]
    for name, least in (("green", 3), ("red", 3), ("orange", 1)):
        assert ((abs(row - colour(svg, name)) < 12).all(axis=1)).sum() >= least, name
    assert len(svg) < 8000


def test_words_are_cut_where_the_room_ends() -> None:
    assert fit("short", 100) == "short"
    cut = fit("x" * 100, 100)
    assert cut.endswith("x…")
    assert text_width(cut) <= 100


@pytest.mark.parametrize("path", sorted(PICTURES.glob("*.svg")), ids=lambda path: path.stem)
def test_pictures_of_the_documents_are_as_they_would_be_drawn_now(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    style = re.compile(r"<style>.*</style>", re.DOTALL)
    assert style.findall(svg) == style.findall(memory()), "draw it again, by the command beside it"
    height, width, _ = rendered(svg).shape
    assert all(right < width and bottom < height for _, (_, _, right, bottom) in texts(svg))

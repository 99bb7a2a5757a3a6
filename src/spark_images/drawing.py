"""What pictures are drawn with: a card in SVG without fonts, scripts or links, for light and dark pages. Pure.

Colours are classes, so that one file serves both: `blue` strokes, `blue-fill` fills. Places and sizes are in pixels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from xml.sax.saxutils import escape, quoteattr

WIDTH = 880  # about what GitHub and Gitea leave a README
EDGE = 20  # stays free on every side
HEAD = 44  # the title's part of the height

_LIGHT = {
    "card": "#ffffff",
    "edge": "#d0d7de",
    "ink": "#1f2328",
    "faint": "#656d76",
    "grid": "#e4e8ec",
    "blue": "#1f6fce",
    "violet": "#4a3aa7",
    "green": "#1a7f37",
    "orange": "#b35900",
    "red": "#c0392b",
}
_DARK = {
    "card": "#0d1117",
    "edge": "#30363d",
    "ink": "#e6edf3",
    "faint": "#9198a1",
    "grid": "#21262d",
    "blue": "#4f9cf0",
    "violet": "#a79bf0",
    "green": "#3fb950",
    "orange": "#f0a458",
    "red": "#ff7b72",
}
_FONTS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif"
_LETTER, _BOLD_LETTER = 0.62, 0.70  # of the font's size, in the widest of such fonts (DejaVu Sans), on average


def card(title: str, facts: str, body: Iterable[str], *, height: float, says: str) -> str:
    """The document. facts: shown beside the title. says: the picture in a sentence, for who cannot see it."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}" '
        f'role="img" font-family="{_FONTS}" font-size="12">',
        f"<title>{escape(says)}</title>",
        "<style>",
        *_rules(_LIGHT),
        "@media (prefers-color-scheme: dark) {",
        *_rules(_DARK),
        "}",
        "</style>",
        shape("rect", "card-fill edge", x=0.5, y=0.5, width=WIDTH - 1, height=height - 1, rx=6),
        heading(EDGE, 28, title, facts, size=15),
        *body,
    ]
    return "\n".join([*lines, "</svg>", ""])


def _rules(colours: Mapping[str, str]) -> Iterator[str]:
    for name, colour in colours.items():
        yield f".{name}-fill {{ fill: {colour} }} .{name} {{ stroke: {colour} }}"


def shape(tag: str, colours: str, inside: str = "", **attributes: object) -> str:
    """One element. inside: markup. attributes: `stroke_width` is written stroke-width; numbers with one decimal."""
    said = {"class": colours, **{name.replace("_", "-"): value for name, value in attributes.items() if value != ""}}
    words = (f"{name}={quoteattr(_number(value))}" for name, value in said.items())
    return f"<{tag} {' '.join(words)}>{inside}</{tag}>" if inside else f"<{tag} {' '.join(words)}/>"


def _number(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def line(x1: float, y1: float, x2: float, y2: float, colour: str, *, dash: str = "", width: float = 1) -> str:
    """A straight line."""
    return shape("line", colour, x1=x1, y1=y1, x2=x2, y2=y2, stroke_width=width, stroke_dasharray=dash)


def text(x: float, y: float, words: str, colour: str = "faint", *, anchor: str = "") -> str:
    """A line of text on the base line y. anchor: `middle` or `end` of it lies at x, else its start."""
    return shape("text", f"{colour}-fill", escape(words), x=x, y=y, text_anchor=anchor)


def heading(x: float, y: float, words: str, facts: str, *, size: int = 13) -> str:
    """Bold words and, on the same line, plain ones; both are cut where the card would end."""
    words = fit(words, WIDTH - EDGE - x, size=size, bold=True)
    room = WIDTH - EDGE - x - text_width(words, size=size, bold=True) - 10
    plain = shape("tspan", "faint-fill", escape(fit(facts, room)), dx=10, font_size=12, font_weight="normal")
    inside = escape(words) + (plain if facts and room > 60 else "")
    return shape("text", "ink-fill", inside, x=x, y=y, font_size=size, font_weight="bold")


def told(words: str, *shapes: str) -> str:
    """Shapes with a tool tip, which is also what a screen reader says."""
    return f"<g><title>{escape(words)}</title>{''.join(shapes)}</g>"


def text_width(words: str, *, size: int = 12, bold: bool = False) -> float:
    """What the words take at most, as nobody knows the reader's font."""
    return len(words) * size * (_BOLD_LETTER if bold else _LETTER)


def fit(words: str, room: float, *, size: int = 12, bold: bool = False) -> str:
    """The words, or as many letters of them as there is room for."""
    if text_width(words, size=size, bold=bold) <= room:
        return words
    return words[: max(0, int(room / text_width("x", size=size, bold=bold)) - 1)].rstrip() + "…"

"""Pieces of SVG. Their colors come from charts.css, so that they follow the theme of the page."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from pathlib import Path

from markupsafe import Markup, escape

from unimp.errors import printable

STYLES = 8  # each style has its own color, shape and dashes
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 3", "12 4", "6 2 2 2 2 2")
CORNERS = {
    1: ((-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)),
    2: ((0.0, -5.0), (4.6, 3.4), (-4.6, 3.4)),
    3: ((0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)),
}
RIGHT_TO_LEFT = {"R", "AL", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI"}  # Unicode classes

Point = tuple[float, float]


def stylesheet(name: str) -> Markup:
    """The text of a style sheet of this package."""
    return Markup((Path(__file__).parent / name).read_text(encoding="utf-8"))


def isolated(name: str) -> str:
    """Isolate a right-to-left name, so that `A → B` is not shown as `B → A`."""
    name = printable(name)
    turns = any(unicodedata.bidirectional(letter) in RIGHT_TO_LEFT for letter in name)
    return f"\N{FIRST STRONG ISOLATE}{name}\N{POP DIRECTIONAL ISOLATE}" if turns else name


def svg(
    size: Point, name: str, about: str, body: Iterable[str], *, widest: float | None = None
) -> Markup:
    """A drawing with a title and a description for screen readers.

    It fills the available width, up to `widest` pixels.
    """
    most = "" if widest is None else f" style='max-width: {widest:.0f}px'"
    return Markup(
        f"<svg viewBox='0 0 {size[0]:.0f} {size[1]:.0f}' role='img'{most}>"
        f"<title>{escape(name)}</title><desc>{escape(about)}</desc>{''.join(body)}</svg>"
    )


def standalone(drawing: Markup, *more: str) -> str:
    """A drawing as the content of an SVG file: with its own styles and a background.

    more: style sheets besides charts.css.
    """
    head, end, rest = str(drawing).partition(">")
    names = "<svg xmlns='http://www.w3.org/2000/svg'"
    paper = "<rect class='paper' width='100%' height='100%'/>"
    style = f"<style>{''.join(map(stylesheet, ('charts.css', *more)))}</style>"
    return f"{names}{head.removeprefix('<svg')}{end}{style}{paper}{rest}\n"


def rule(start: Point, end: Point, kind: str) -> str:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    return f"<line class='{kind}' x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}'/>"


def path(points: Iterable[Point], kind: str, style: int, *, dashed: bool = False) -> str:
    """A line through points."""
    dash = f" stroke-dasharray='{DASHES[style]}'" if dashed and DASHES[style] else ""
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f"<path class='{kind} s{style}'{dash} d='M{drawn}'/>"


def rectangle(
    corner: Point, width: float, height: float, kind: str, words: str = "", opacity: float = 1.0
) -> str:
    """A box with a tooltip."""
    faded = f" fill-opacity='{opacity:.2f}'" if opacity < 1 else ""
    return (
        f"<rect class='{kind}' x='{corner[0]:.1f}' y='{corner[1]:.1f}' width='{width:.1f}' "
        f"height='{height:.1f}'{faded}>{tooltip(words)}</rect>"
    )


def text(
    place: Point,
    words: str,
    *,
    anchor: str = "start",
    kind: str = "tick",
    room: int = 0,
    upright: bool = False,
) -> str:
    """Words at a place. More than `room` letters are cut in the middle; the tooltip has all."""
    cut = 0 < room < len(words)
    shown = words[: room // 2] + "…" + words[room // 2 + 1 - room :] if cut else words
    turn = f" transform='rotate(-90 {place[0]:.1f} {place[1]:.1f})'" if upright else ""
    return (
        f"<text class='{kind}' x='{place[0]:.1f}' y='{place[1]:.1f}' text-anchor='{anchor}'{turn}>"
        f"{escape(shown)}{tooltip(words) if cut else ''}</text>"
    )


def shape(style: int, place: Point, words: str = "", *, form: int | None = None) -> str:
    """The marker of a style: circle, square, triangle or diamond; styles 4 to 7 are hollow.

    `form` is the style whose marker is drawn in the color of `style`.
    """
    x, y = place
    form = style if form is None else form
    start = f" class='dot s{style}{' hollow' if form >= 4 else ''}'"
    if form % 4 == 0:
        return f"<circle{start} cx='{x:.1f}' cy='{y:.1f}' r='3.8'>{tooltip(words)}</circle>"
    drawn = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in CORNERS[form % 4])
    return f"<polygon{start} points='{drawn}'>{tooltip(words)}</polygon>"


def sample(style: int, place: Point = (0.0, 6.0)) -> str:
    """A piece of line with the marker of a style, 34 wide, for a legend."""
    x, y = place
    line = path([(x + 1, y), (x + 33, y)], "line", style, dashed=True)
    return line + shape(style, (x + 17, y))


def swatch(style: int) -> Markup:
    """The same as a small drawing of its own, for a legend in HTML."""
    start = "<svg class='swatch' viewBox='0 0 34 12' aria-hidden='true'>"
    return Markup(f"{start}{sample(style)}</svg>")


def tooltip(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""

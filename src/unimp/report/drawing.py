"""Pieces of SVG. Colors come from the page's style, so that they follow its theme."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable

STYLES = 8  # what colors tell apart, shapes and dashes do too
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2", "1 3", "12 4", "6 2 2 2 2 2")
CORNERS = {
    1: ((-3.5, -3.5), (3.5, -3.5), (3.5, 3.5), (-3.5, 3.5)),
    2: ((0.0, -5.0), (4.6, 3.4), (-4.6, 3.4)),
    3: ((0.0, -5.0), (5.0, 0.0), (0.0, 5.0), (-5.0, 0.0)),
}

TURNING = {"R", "AL", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI"}  # of Unicode

Point = tuple[float, float]


def escape(value: object) -> str:
    """Text that may have come from outside, as HTML can hold it."""
    return html.escape(str(value))


def isolated(name: str) -> str:
    """A name that leaves the order of the words beside it alone, also where it reads leftward.

    Without it `A → B` of two such names would be shown as `B → A`.
    """
    turns = any(unicodedata.bidirectional(letter) in TURNING for letter in name)
    return f"\N{FIRST STRONG ISOLATE}{name}\N{POP DIRECTIONAL ISOLATE}" if turns else name


def svg(
    width: float,
    height: float,
    name: str,
    about: str,
    body: Iterable[str],
    *,
    widest: float | None = None,
) -> str:
    """A drawing, with a name and a description for those who do not see it.

    It fills its place, up to `widest` pixels.
    """
    most = "" if widest is None else f" style='max-width: {widest:.0f}px'"
    return (
        f"<svg viewBox='0 0 {width:.0f} {height:.0f}' role='img'{most}>"
        f"<title>{escape(name)}</title><desc>{escape(about)}</desc>{''.join(body)}</svg>"
    )


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
    """A box, with the words it shows when pointed at."""
    faded = f" fill-opacity='{opacity:.2f}'" if opacity < 1 else ""
    return (
        f"<rect class='{kind}' x='{corner[0]:.1f}' y='{corner[1]:.1f}' width='{width:.1f}' "
        f"height='{height:.1f}'{faded}>{_title(words)}</rect>"
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
    """Words at a place, cut to `room` letters in the middle; pointed at, they are shown whole."""
    cut = 0 < room < len(words)
    shown = words[: room // 2] + "…" + words[room // 2 + 1 - room :] if cut else words
    turn = f" transform='rotate(-90 {place[0]:.1f} {place[1]:.1f})'" if upright else ""
    return (
        f"<text class='{kind}' x='{place[0]:.1f}' y='{place[1]:.1f}' text-anchor='{anchor}'{turn}>"
        f"{escape(shown)}{_title(words) if cut else ''}</text>"
    )


def shape(style: int, place: Point, words: str = "") -> str:
    """The shape of a style: circle, square, triangle, diamond, and the same again, hollow."""
    x, y = place
    start = f" class='dot s{style}{' hollow' if style >= 4 else ''}'"
    if style % 4 == 0:
        return f"<circle{start} cx='{x:.1f}' cy='{y:.1f}' r='3.8'>{_title(words)}</circle>"
    drawn = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in CORNERS[style % 4])
    return f"<polygon{start} points='{drawn}'>{_title(words)}</polygon>"


def swatch(style: int) -> str:
    """A piece of line with its shape, for a legend."""
    line = path([(1, 6), (33, 6)], "line", style, dashed=True)
    return (
        "<svg class='swatch' viewBox='0 0 34 12' aria-hidden='true'>"
        f"{line}{shape(style, (17, 6))}</svg>"
    )


def _title(words: str) -> str:
    return f"<title>{escape(words)}</title>" if words else ""

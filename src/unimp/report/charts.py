"""Charts: lines with bands and error bars, rows of dots, and a heat map.

A chart is about as wide as its place on a phone, and as one of three columns on a laptop, so that
its text has the same size on both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup

from unimp.report.axes import Axis
from unimp.report.drawing import Point, isolated, path, rectangle, rule, sample, shape, svg, text

WIDTH, HEIGHT = 372.0, 172.0  # of a chart, and of the area inside its axes
BARS = 46.0  # height of the bars below
LETTER = 6.6  # approximate width of a letter

Band = Sequence[tuple[float, float, float]]  # x, low, high
T = TypeVar("T")


@dataclass(frozen=True)
class Mark:
    """A point with a marker, a tooltip and error bars."""

    x: float
    y: float
    words: str = ""
    ends: tuple[float, float] | None = None  # of the error bar along y (along x in dot rows)
    across: tuple[float, float] | None = None  # of the error bar along x
    form: int | None = None  # style of the marker, if it differs from that of the series


@dataclass(frozen=True)
class Series:
    """A line, a band around it, single runs behind it, and marks on it."""

    name: str
    style: int
    line: Sequence[Point] = ()
    band: Band = ()
    runs: Sequence[Sequence[Point]] = ()
    marks: Sequence[Mark] = ()


def through(name: str, style: int, marks: Sequence[Mark], band: Band = ()) -> Series:
    """A line through marks."""
    return Series(name, style, [(mark.x, mark.y) for mark in marks], band, marks=marks)


@dataclass(frozen=True)
class Bar:
    """A bar below a chart, from x = `start` to `end`."""

    start: float
    end: float
    height: float
    words: str = ""
    label: str = ""  # written above the bar


@dataclass(frozen=True)
class Extras:
    """Optional parts of a line chart."""

    bars: Sequence[Bar] = ()
    bars_title: str = ""
    diagonal: bool = False
    verticals: Sequence[tuple[float, str]] = ()  # vertical reference lines: x and name


PLAIN = Extras()


def line_chart(
    series: Sequence[Series], x: Axis, y: Axis, *, name: str, extras: Extras = PLAIN
) -> Markup:
    """Lines, bands and marks over one pair of axes; bars are drawn below, on the same x.

    Empty if there are no series.
    """
    if not series:
        return Markup()
    body, height = plot_lines(series, x, y, extras=extras)
    return svg((WIDTH, height), name, describe(series, x, y), body)


def plot_lines(
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    extras: Extras = PLAIN,
    width: float = WIDTH,
    height: float = HEIGHT,
) -> tuple[list[str], float]:
    """The pieces of a line chart, and its whole height; `height` is that inside the axes."""
    left = 14 + LETTER * max((len(words) for _, words in y.ticks), default=1)
    right, top, bars = width - 14, 24.0, extras.bars
    bottom = top + height
    base = bottom + BARS + 36 if bars else bottom

    def at(point: Point) -> Point:
        return x.place(point[0], left, right), y.place(point[1], bottom, top)

    body = [text((2, 11), y.title, kind="title")]
    for value, words in y.ticks:
        level = at((x.low, value))[1]
        body.append(rule((left, level), (right, level), "grid"))
        body.append(text((left - 7, level + 4), words, anchor="end"))
    body += _x_axis(x, left, right, base)
    if extras.diagonal:
        body.append(rule(at((x.low, x.low)), at((x.high, x.high)), "ideal"))
    for value, words in extras.verticals:
        across = at((value, y.low))[0]
        anchor, side = ("end", -6) if across > width / 2 else ("start", 6)
        body.append(rule((across, bottom), (across, top), "ideal"))
        body.append(text((across + side, top + 10), words, anchor=anchor))
    for one in series:
        body += [path(map(at, run), "faint", one.style) for run in one.runs]
        if one.band:
            edge = [(p, high) for p, _, high in one.band]
            edge += [(p, low) for p, low, _ in reversed(one.band)]
            body.append(path(map(at, edge), "band", one.style))
    for one in series:
        if one.line:
            body.append(path(map(at, one.line), "line", one.style, dashed=True))
    for one in series:
        for mark in one.marks:
            bars_of = [(mark.x, end) for end in mark.ends or ()]
            bars_across = [(end, mark.y) for end in mark.across or ()]
            body += [path(map(at, e), "whisker", one.style) for e in (bars_of, bars_across) if e]
            body.append(shape(one.style, at((mark.x, mark.y)), mark.words, form=mark.form))
    if bars:
        body.append(text((2, base - BARS - 8), extras.bars_title, kind="title"))
        tallest = max(bar.height for bar in bars) or 1.0
        for bar in bars:
            start, end = x.place(bar.start, left, right), x.place(bar.end, left, right)
            tall = (BARS - 14 * bool(bar.label)) * bar.height / tallest
            corner, wide = (start + 0.75, base - tall), max(1.0, end - start - 1.5)
            body.append(rectangle(corner, wide, tall, "bar", bar.words))
            if bar.label:
                body.append(text(((start + end) / 2, base - tall - 4), bar.label, anchor="middle"))
    return body, base + 42


def legend_rows(
    entries: Sequence[tuple[int, str]], width: float, forms: Sequence[tuple[int, str]] = ()
) -> tuple[list[str], float]:
    """The legend of a figure file in as many rows as needed, and its height.

    Entries are styles with their names. If markers have a meaning of their own, `forms` names
    them, and entries are drawn as lines without markers.
    """
    body, x, y = [], 2.0, 6.0
    for k, (style, name) in enumerate((*entries, *forms)):
        wide = 40 + LETTER * len(name) + 16
        if x > 2 and x + wide > width:
            x, y = 2.0, y + 18
        if k >= len(entries):
            body.append(shape(7, (x + 17, y), form=style))
        elif forms:
            body.append(path([(x + 7, y), (x + 33, y)], "line", style))
        else:
            body.append(sample(style, (x, y)))
        body.append(text((x + 40, y + 4), name))
        x += wide
    return body, y + 12


def dot_rows(
    rows: Sequence[tuple[str, Sequence[tuple[int, Mark]]]],
    x: Axis,
    *,
    name: str,
    labels: int = 22,
    guess: float | None = None,
) -> Markup:
    """One row per label, with marks at their x; `labels` is the room for a label, in letters.

    Without room the label is above its marks. `guess` is the score of random guessing. Empty if
    there are no rows.
    """
    if not rows:
        return Markup()
    step, top = 21.0 if labels else 44.0, 6.0
    longest = min(labels, max(len(label) for label, _ in rows))
    left, right, base = 18 + LETTER * longest, WIDTH - 14, top + step * len(rows)
    body = []
    for value, _ in x.ticks:
        across = x.place(value, left, right)
        body.append(rule((across, top), (across, base), "grid"))
    body += _x_axis(x, left, right, base)
    if guess is not None and x.low <= guess <= x.high:
        across = x.place(guess, left, right)
        body.append(rule((across, top), (across, base), "ideal"))
    for number, (label, marks) in enumerate(rows):
        height = top + step * (number + (0.5 if labels else 0.68))
        if labels:
            body.append(text((left - 8, height + 4), label, anchor="end", room=labels))
        else:
            body.append(text((left, height - 14), label, room=int((right - left) / LETTER)))
        for style, mark in marks:
            if mark.ends:
                ends = [(x.place(end, left, right), height) for end in mark.ends]
                body.append(path(ends, "whisker", style))
            body.append(shape(style, (x.place(mark.x, left, right), height), mark.words))
    about = "; ".join(f"{label}: {', '.join(m.words for _, m in marks)}" for label, marks in rows)
    return svg((WIDTH, base + 42), name, about, body)


def heat_map(names: Sequence[str], counts: Sequence[Sequence[float]], *, name: str) -> Markup:
    """Counts of label (row) and prediction (column), each row divided by its sum.

    The diagonal is right. With few classes the cells contain their shares in percent.
    """
    size = len(names)
    cell = 46.0 if size <= 8 else 30.0 if size <= 16 else 20.0 if size <= 30 else 13.0
    room = 20
    margin = 14 + 6.2 * min(room, max(len(n) for n in names))
    body = []
    for k, label in enumerate(names):
        middle = margin + cell * (k + 0.5) + 3.5
        body.append(text((margin - 6, middle), label, anchor="end", kind="class", room=room))
        body.append(text((middle, margin - 6), label, kind="class", room=room, upright=True))
    for i, row in enumerate(counts):
        total = sum(row)
        for j, count in enumerate(row):
            if count == 0:
                continue
            share = count / total
            corner = (margin + cell * j, margin + cell * i)
            words = f"{isolated(names[i])} → {isolated(names[j])}: {share:.1%} "
            words += f"({count:,.0f} of {total:,.0f})"
            kind = "right" if i == j else "wrong"
            # The root keeps shares of a few percent visible; they are the interesting ones.
            body.append(rectangle(corner, cell - 1, cell - 1, kind, words, math.sqrt(share)))
            if cell >= 30 and share >= 0.005:
                # The color of the text depends on the strength of the cell and on the theme.
                kind = "cell strong" if share > 0.8 else "cell half" if share > 0.35 else "cell"
                center = (corner[0] + cell / 2 - 0.5, corner[1] + cell / 2 + 4)
                body.append(text(center, f"{100 * share:.0f}", anchor="middle", kind=kind))
    side = cell * size
    body.append(rectangle((margin - 1, margin - 1), side + 1, side + 1, "frame"))
    right = sum(row[k] for k, row in enumerate(counts))
    about = f"{right:,.0f} of {sum(map(sum, counts)):,.0f} nodes are on the diagonal."
    whole = margin + side + 4
    # A map of two classes should not fill the room of sixteen.
    widest = min(512.0, 1.25 * whole) if size <= 16 else None
    return svg((whole, whole), name, about, body, widest=widest)


def thinned(points: Sequence[T], most: int = 240) -> list[T]:
    """About `most` points of a line at most, evenly chosen, with the last one."""
    stride = max(1, math.ceil(len(points) / most))
    kept = list(points[::stride])
    return kept if not points or kept[-1] == points[-1] else [*kept, points[-1]]


def describe(series: Sequence[Series], x: Axis, y: Axis) -> str:
    """Every mark, and the ends of a line that has more points, for screen readers."""
    found = []
    for one in series:
        if len(one.line) > len(one.marks):
            (x1, y1), (x2, y2) = one.line[0], one.line[-1]
            found.append(f"{one.name}: from {y1:.3g} at {x1:.4g} to {y2:.3g} at {x2:.4g}")
        found += [mark.words for mark in one.marks if mark.words]
    return f"{y.title} by {x.title}. " + "; ".join(found)


def _x_axis(x: Axis, left: float, right: float, base: float) -> list[str]:
    body = [rule((left, base), (right, base), "axis")]
    places = [x.place(value, left, right) for value, _ in x.ticks]
    widest = LETTER * max((len(words) for _, words in x.ticks), default=0)
    nearest = min((b - a for a, b in pairwise(places)), default=math.inf)
    every = max(1, math.ceil((widest + 4) / nearest))  # texts that would touch are left out
    for number, (across, (_, words)) in enumerate(zip(places, x.ticks, strict=True)):
        body.append(rule((across, base), (across, base + 4), "axis"))
        if number % every == 0:
            middle = min(across, right + 14 - LETTER * len(words) / 2)
            body.append(text((middle, base + 17), words, anchor="middle"))
    body.append(text((right, base + 36), x.title, anchor="end", kind="title"))
    return body

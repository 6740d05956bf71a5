"""Drawings: every point at its place on the axes, names escaped, described in words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from unimp.report.axes import number_axis, place_axis
from unimp.report.charts import (
    LETTER,
    Bar,
    Extras,
    Mark,
    Series,
    dot_rows,
    heat_map,
    legend_rows,
    line_chart,
    thinned,
)
from unimp.report.drawing import (
    DASHES,
    STYLES,
    isolated,
    shape,
    standalone,
    stylesheet,
    swatch,
)

NASTY = "<script>'&\""


def elements(drawing: str, tag: str, kind: str = "") -> list[ElementTree.Element]:
    """The elements of a drawing; it must be well-formed to be read at all."""
    found = ElementTree.fromstring(drawing).iter(tag)
    return [e for e in found if kind in (e.get("class") or "").split() or not kind]


def small_chart(**options: object) -> Markup:
    series = Series(
        NASTY, 0, [(0, 0.0), (1, 1.0)], [(0, 0.0, 0.2), (1, 0.8, 1.0)], marks=[Mark(1, 1.0, NASTY)]
    )
    x, y = number_axis([], "x", low=0, high=1), number_axis([], "y", low=0, high=1)
    return line_chart([series], x, y, name="a chart", **options)  # type: ignore[arg-type]


def test_a_drawing_has_a_name_and_a_description() -> None:
    root = ElementTree.fromstring(small_chart())
    assert root.get("role") == "img"
    assert root[0].tag == "title"
    assert root[0].text == "a chart"
    assert root[1].tag == "desc"
    assert (root[1].text or "").endswith(f"from 0 at 0 to 1 at 1; {NASTY}")  # line, then marks


def test_names_from_outside_are_text_and_not_markup() -> None:
    drawing = small_chart()
    assert "<script" not in drawing
    titles = [e.text for e in elements(drawing, "title")]
    assert NASTY in titles


def test_a_line_begins_and_ends_at_the_corners_of_its_range() -> None:
    drawing = small_chart()
    (line,) = elements(drawing, "path", "line")
    (axis, *_) = elements(drawing, "line", "axis")
    points = [tuple(map(float, p.split(","))) for p in (line.get("d") or "")[1:].split()]
    assert points[0] == (float(axis.get("x1") or 0), float(axis.get("y1") or 0))
    assert points[1][0] == float(axis.get("x2") or 0)
    assert points[1][1] < points[0][1]  # up is more


def test_bars_are_below_on_the_same_x() -> None:
    bars = [Bar(0, 0.5, 2, "two"), Bar(0.5, 1, 4, "four")]
    drawn = elements(small_chart(extras=Extras(bars, "nodes")), "rect", "bar")
    heights = [float(bar.get("height") or 0) for bar in drawn]
    assert heights[1] == pytest.approx(2 * heights[0])
    assert [bar[0].text for bar in drawn] == ["two", "four"]


def test_error_bars_reach_along_both_axes_and_reference_lines_have_names() -> None:
    marks = [Mark(0.5, 0.5, "m", (0.25, 0.75), (0.4, 0.6), form=2)]
    x, y = number_axis([], "x", low=0, high=1), number_axis([], "y", low=0, high=1)
    extras = Extras(verticals=[(0.25, "here")])
    drawing = line_chart([Series("s", 0, marks=marks)], x, y, name="c", extras=extras)
    upright, across = (
        [tuple(map(float, p.split(","))) for p in (bar.get("d") or "")[1:].split()]
        for bar in elements(drawing, "path", "whisker")
    )
    assert upright[0][0] == upright[1][0]
    assert across[0][1] == across[1][1]
    (triangle,) = elements(drawing, "polygon", "s0")  # the color of the series, another marker
    assert len((triangle.get("points") or "").split()) == 3
    (line,) = elements(drawing, "line", "ideal")
    assert line.get("x1") == line.get("x2")
    assert "here" in [e.text for e in elements(drawing, "text")]


def test_a_legend_wraps_where_the_room_ends() -> None:
    entries = [(k, "a name of some length") for k in range(6)]
    one, low = legend_rows(entries, 10_000)
    many, high = legend_rows(entries, 400)
    assert len(one) == len(many)
    assert high > 2 * low


def test_a_figure_file_has_its_own_styles() -> None:
    root = ElementTree.fromstring(standalone(small_chart()))
    space = "{http://www.w3.org/2000/svg}"
    assert root.tag == f"{space}svg"
    assert "--c0" in (root.findtext(f"{space}style") or "")
    assert "a chart" in [e.text for e in root.iter(f"{space}title")]


def test_styles_differ_by_more_than_their_color() -> None:
    seen = set()
    for style in range(STYLES):
        drawn = re.sub(rf"s{style}\b", "s", shape(style, (0, 0)))
        seen.add((drawn, DASHES[style]))
        assert "aria-hidden" in swatch(style)
    assert len(seen) == STYLES
    assert len(set(DASHES)) == STYLES


def test_dots_are_at_their_values() -> None:
    x = number_axis([], "score", low=0, high=1)
    drawing = dot_rows(
        [("first", [(0, Mark(0.0, 0, "a", (0.0, 0.5)))]), ("second", [(0, Mark(1.0, 0, "b"))])],
        x,
        name="rows",
    )
    first, second = elements(drawing, "circle")
    (axis, *_) = elements(drawing, "line", "axis")
    assert first.get("cx") == axis.get("x1")
    assert second.get("cx") == axis.get("x2")
    assert len(elements(drawing, "path", "whisker")) == 1


def test_a_long_label_is_cut_and_whole_in_its_tooltip() -> None:
    long = "a" * 30 + "b" * 30
    drawing = dot_rows([(long, [(0, Mark(0.5, 0, "w"))])], number_axis([0, 1]), name="rows")
    (label,) = [e for e in elements(drawing, "text") if "…" in (e.text or "")]
    assert re.fullmatch(r"a{10,}…b{10,}", label.text or "")
    assert label[0].text == long


def test_a_heat_map_divides_rows_by_their_sums_and_leaves_zeros_out() -> None:
    drawing = heat_map(["a", NASTY], [[3, 1], [0, 2]], name="map")
    right, wrong = elements(drawing, "rect", "right"), elements(drawing, "rect", "wrong")
    assert (len(right), len(wrong)) == (2, 1)
    assert wrong[0][0].text == f"a → {NASTY}: 25.0% (1 of 4)"
    assert [e.text for e in elements(drawing, "text", "cell")] == ["75", "25", "100"]


def test_a_map_of_many_classes_keeps_their_names() -> None:
    names = [f"class {k}" for k in range(58)]
    counts = [[float(i == j) for j in range(58)] for i in range(58)]
    drawing = heat_map(names, counts, name="map")
    assert len(elements(drawing, "text", "class")) == 2 * 58
    assert not elements(drawing, "text", "cell")  # no room for numbers


@pytest.mark.parametrize("count", [0, 1, 239, 240, 241, 5000])
def test_long_lines_are_thinned_and_keep_their_ends(count: int) -> None:
    points = [(float(k), 0.0) for k in range(count)]
    kept = thinned(points)
    assert len(kept) <= 241
    assert kept[:1] == points[:1]
    assert kept[-1:] == points[-1:]


def test_named_places_can_be_an_axis() -> None:
    series = [Series("s", 2, [(0, 0.5), (1, 0.7)])]
    drawing = line_chart(series, place_axis(["0", "1+"], "n"), number_axis([0, 1]), name="c")
    assert {"0", "1+"} <= {e.text for e in elements(drawing, "text")}


def test_two_classes_are_not_drawn_as_large_as_sixteen() -> None:
    def widest(size: int) -> float:
        names = [f"c{k:02}" for k in range(size)]
        drawn = heat_map(names, [[1.0] * size] * size, name="confusions")
        return float(re.findall(r"max-width: (\d+)px", drawn)[0])

    assert widest(2) < 200 < widest(16) <= 512


def test_numbers_along_an_axis_neither_touch_nor_leave_the_drawing() -> None:
    close = number_axis([0.48071, 0.48129], percent=True)
    drawing = dot_rows([("row", [(0, Mark(0.481, 0, "w"))])], close, name="rows")
    width = float((ElementTree.fromstring(drawing).get("viewBox") or "").split()[2])
    written = [e for e in elements(drawing, "text") if e.get("text-anchor") == "middle"]
    places = [float(e.get("x") or 0) for e in written]
    half = LETTER * len(close.ticks[0][1]) / 2
    assert 2 <= len(written) <= len(close.ticks)
    assert places[-1] + half <= width
    assert all(b - a > 2 * half for a, b in pairwise(places))


def test_right_to_left_names_do_not_reverse_the_arrow_between_them() -> None:
    first, second = "שלום", "سلام"
    drawing = heat_map([first, second], [[0, 1], [0, 2]], name="map")
    (wrong,) = elements(drawing, "rect", "wrong")
    assert wrong[0].text == f"\u2068{first}\u2069 → \u2068{second}\u2069: 100.0% (1 of 1)"
    assert isolated("plain") == "plain"


def luminance(color: Sequence[float]) -> float:
    """The relative luminance of red, green and blue from 0 to 1, as WCAG defines it."""
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in color]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("theme", [0, 1])
def test_the_numbers_of_a_map_can_be_read_in_both_themes(theme: int) -> None:
    light, dark = (
        dict(re.findall(r"--(\w+): ([^;}]+?) ?[;}]", stylesheet(file)))
        for file in ("charts.css", "report.css")
    )
    named = {**light, **dark} if theme else light

    def color(name: str) -> list[float]:
        value = named[name]
        if value.startswith("var("):
            return color(value[6:-1])
        digits = value[1:] if len(value) == 7 else "".join(2 * c for c in value[1:])
        return [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]

    for right in range(1, 100):
        drawing = heat_map(["a", "b"], [[right, 100 - right], [0, 1]], name="map")
        texts = elements(drawing, "text", "cell")[:2]
        for name, share, text in zip(("right", "wrong"), (right, 100 - right), texts, strict=True):
            opacity = math.sqrt(share / 100)
            behind = zip(color(name), color("card"), strict=True)
            cell = luminance([opacity * c + (1 - opacity) * card for c, card in behind])
            kind = (text.get("class") or "").split()[-1]
            ink = luminance(color({"cell": "ink", "half": "half", "strong": "on"}[kind]))
            assert (max(cell, ink) + 0.05) / (min(cell, ink) + 0.05) > 3.4

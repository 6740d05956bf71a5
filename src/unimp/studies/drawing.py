"""Figures of studies as SVG, drawn with the chart kit of the report."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from unimp.report import charts
from unimp.report.axes import Axis, number_axis, place_axis, ticked_axis
from unimp.report.charts import Bar, Extras, Mark, describe, legend_rows, plot_lines
from unimp.report.drawing import standalone, svg, text
from unimp.studies.study import Figure, Findings, Point, Series, Study, deviation, mean

WIDTH, HEIGHT = 720.0, 300.0
WRAP = 106  # letters per line of the caption
LEVEL_STYLE = 2  # of the horizontal reference line


def figure_svg(study: Study, findings: Findings, made: Mapping[str, Any]) -> str:
    """The figure of a study with its heading, legend and caption."""
    assert findings.figure is not None
    figure = findings.figure
    title, subtitle = heading(study, made)
    scattered = figure.kind == "points"
    series = _points(figure) if scattered else _lines(figure)
    x, y = _axes(figure, series)
    entries = [(one.style, one.name) for one in series]
    forms = list(enumerate(_marks(figure))) if scattered else []
    legend, legend_height = legend_rows(entries, WIDTH - 24, forms)
    extras = Extras(
        [Bar(p - 0.3, p + 0.3, count, label=f"{count:,}") for p, count in figure.counts],
        figure.counts_label,
        verticals=figure.marked_x,
    )
    plot, plot_height = plot_lines(series, x, y, extras=extras, width=WIDTH - 24, height=HEIGHT)
    lines = caption(findings)
    body = [
        text((12, 26), title, kind="heading"),
        text((12, 46), subtitle),
        f"<g transform='translate(12 62)'>{''.join(legend)}</g>",
        f"<g transform='translate(12 {72 + legend_height:.0f})'>{''.join(plot)}</g>",
    ]
    top = 72 + legend_height + plot_height
    body += [text((12, top + 18 * k), line, kind="caption") for k, line in enumerate(lines, 1)]
    size = (WIDTH, top + 18 * len(lines) + 14)
    return standalone(svg(size, title, describe(series, x, y), body))


def heading(study: Study, made: Mapping[str, Any]) -> tuple[str, str]:
    count = len(made["seeds"])
    seeds = f"{count} seeds, mean ± standard deviation" if count > 1 else "1 seed"
    task, recipe = Path(made["task"]).stem, made["recipe"]
    if recipe != task:
        task += f", recipe {recipe}"
    quick = f" · quick check with {made['epochs']} epochs" if made["quick"] else ""
    return study.heading, f"{task} · {study.place} · {seeds}{quick}"


def caption(findings: Findings) -> list[str]:
    """The lines below the figure: the claims of the paper with our results, and the first note."""
    lines: list[str] = []
    for claim in findings.claims:
        verdict = {"yes": "agrees", "no": "does not agree"}.get(claim.agrees, claim.agrees)
        lines += textwrap.wrap(f"Paper: “{claim.sentence}”. Ours: {claim.ours}; {verdict}.", WRAP)
    for note in findings.notes[:1]:
        lines += textwrap.wrap(note, WRAP)
    return lines


def _lines(figure: Figure) -> list[charts.Series]:
    """Curves with bands of one standard deviation, and the reference line across them."""
    found = []
    for style, series in enumerate(figure.series):
        style += style >= LEVEL_STYLE and figure.level is not None
        found.append(_curve(series, style))
    if figure.level is not None and figure.level.points[0].y:
        xs = [p.x for series in figure.series for p in series.points]
        ends = tuple(replace(figure.level.points[0], x=x) for x in (min(xs), max(xs)))
        level = _curve(replace(figure.level, points=ends), LEVEL_STYLE)
        found.append(replace(level, marks=()))
    return found


def _curve(series: Series, style: int) -> charts.Series:
    points = [p for p in series.points if p.y]
    marks = [_mark(p, series.label) for p in points]
    return charts.through(series.label, style, marks, [(p.x, *_ends(p)) for p in points])


def _points(figure: Figure) -> list[charts.Series]:
    """Points with error bars along both axes: colors are the series, markers the marks."""
    forms = _marks(figure)
    found = []
    for style, series in enumerate(figure.series):
        marks = []
        for point in series.points:
            spread = deviation(point.x_by_seed or {})
            across = None if math.isnan(spread) else (point.x - spread, point.x + spread)
            mark = _mark(point, f"{series.label}, {point.mark}")
            form = forms.index(point.mark)
            marks.append(replace(mark, ends=_ends(point), across=across, form=form))
        found.append(charts.Series(series.label, style, marks=marks))
    return found


def _marks(figure: Figure) -> list[str]:
    return list(dict.fromkeys(p.mark for s in figure.series for p in s.points))


def _mark(point: Point, name: str) -> Mark:
    height = 100 * mean(point.y)
    return Mark(point.x, height, f"{name}, {point.x:g}: {height:.2f}")


def _ends(point: Point) -> tuple[float, float]:
    """The mean ± one standard deviation in percent, within the range of scores."""
    height, spread = 100 * mean(point.y), deviation(point.y)
    spread = 0.0 if math.isnan(spread) else 100 * spread
    return max(0.0, height - spread), min(100.0, height + spread)


def _axes(figure: Figure, series: Sequence[charts.Series]) -> tuple[Axis, Axis]:
    heights = [y for one in series for _, low, high in one.band for y in (low, high)]
    heights += [y for one in series for m in one.marks for y in (m.y, *(m.ends or ()))]
    y = number_axis(heights, figure.y_label)
    if figure.counts:  # half a place at both ends, for the bars
        return place_axis([words for _, words in figure.ticks], figure.x_label), y
    if figure.ticks:
        return ticked_axis(figure.ticks, figure.x_label), y
    if figure.kind == "lines":
        xs = [p.x for p in figure.series[0].points]
        return ticked_axis([(x, f"{x:g}") for x in xs], figure.x_label), y
    across = [x for one in series for m in one.marks for x in (m.x, *(m.across or ()))]
    return number_axis(across, figure.x_label), y

"""Figures drawn with matplotlib, as .svg and .png."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unimp.data.files import write_atomically
from unimp.studies.study import Figure, Findings, Point, Series, Study, deviation, mean

# Told apart by people who see colors differently, and by markers too (Okabe and Ito).
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")
INK, PALE = "#222222", "#8a8a8a"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "unimp",  # so that the same figure is the same file
}
WIDTH, WRAP = 7.0, 104
FITS = 100  # letters in the line below the heading
ABOVE = 0.95  # inches for the heading and the legend


def can_draw() -> bool:
    return find_spec("matplotlib") is not None


def draw(study: Study, findings: Findings, made: Mapping[str, Any], page: Path) -> Path:
    """Draw a study's figure beside its page, as .svg and .png; the path of the .svg."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    assert findings.figure is not None
    figure = findings.figure
    head, foot = heading(study, made), caption(findings)
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        line = 0.166  # inches a line of the caption
        below = 0.55 + line * len(foot) + (0.75 if figure.counts else 0.0)
        height = 3.5 + ABOVE + below
        canvas = Canvas(figsize=(WIDTH, height))
        FigureCanvasAgg(canvas)
        bottom, top = below / height, 1 - ABOVE / height
        axes = canvas.add_axes((0.105, bottom, 0.865, top - bottom))
        if figure.kind == "lines":
            _lines(axes, figure)
        else:
            _points(axes, figure)
        axes.set_ylabel(figure.y_label)
        if figure.counts:
            _counts(canvas, axes, figure, bottom, height)
        else:
            axes.set_xlabel(figure.x_label)
        canvas.text(0.02, 1 - 0.2 / height, head[0], fontsize=12.5, weight="bold", va="top")
        small = min(9.0, 9.0 * FITS / len(head[1]))
        canvas.text(0.02, 1 - 0.45 / height, head[1], fontsize=small, color=PALE, va="top")
        canvas.text(
            0.02, 0.08 / height, "\n".join(foot), fontsize=8.5, va="bottom", linespacing=1.35
        )
        for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
            buffer = io.BytesIO()
            canvas.savefig(buffer, format=kind, **options)
            write_atomically(page.with_suffix(f".{kind}"), buffer.getvalue())
    return page.with_suffix(".svg")


def heading(study: Study, made: Mapping[str, Any]) -> tuple[str, str]:
    count = len(made["seeds"])
    seeds = f"{count} seeds, mean ± standard deviation" if count > 1 else "1 seed"
    task, recipe = Path(made["task"]).stem, made["recipe"]
    if recipe != task:
        task += f", recipe {recipe}"
    quick = f" · a quick look: {made['epochs']} epochs" if made["quick"] else ""
    return study.heading, f"{task} · {study.place} · {seeds}{quick}"


def caption(findings: Findings) -> list[str]:
    """The paper's sentences and what we found, and the first note, in lines."""
    lines: list[str] = []
    for claim in findings.claims:
        verdict = {"yes": "agrees", "no": "does not agree"}.get(claim.agrees, claim.agrees)
        lines += textwrap.wrap(f"Paper: “{claim.sentence}”. Ours: {claim.ours}; {verdict}.", WRAP)
    for note in findings.notes[:1]:
        lines += textwrap.wrap(note, WRAP)
    return lines


def _lines(axes: Any, figure: Figure) -> None:
    for number, series in enumerate(figure.series):
        color, marker = COLORS[number], MARKERS[number]
        points = [p for p in series.points if p.y]
        xs = [p.x for p in points]
        ys = [100 * mean(p.y) for p in points]
        spread = [100 * _deviation(p) for p in points]
        axes.plot(xs, ys, color=color, marker=marker, markersize=5, label=series.label)
        # No score lies beyond these, however few nodes it is of.
        low = [max(0.0, y - s) for y, s in zip(ys, spread, strict=True)]
        high = [min(100.0, y + s) for y, s in zip(ys, spread, strict=True)]
        axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    if figure.level is not None:
        _level(axes, figure.level)
    for x, text in figure.marked_x:
        axes.axvline(x, color=PALE, linestyle=":", linewidth=1.3, label=text)
    axes.margins(y=0.08)
    if not figure.ticks:
        xs = [p.x for p in figure.series[0].points]
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
    _legend(axes, *axes.get_legend_handles_labels())


def _level(axes: Any, level: Series) -> None:
    values = level.points[0].y
    height = 100 * mean(values)
    axes.axhline(height, color=COLORS[2], linestyle="--", linewidth=1.4, label=level.label)
    spread = 100 * _deviation(level.points[0])
    if spread:
        axes.axhspan(height - spread, height + spread, color=COLORS[2], alpha=0.12, linewidth=0)


def _points(axes: Any, figure: Figure) -> None:
    """Colors are the series, markers the marks of their points."""
    from matplotlib.lines import Line2D

    marks = list(dict.fromkeys(p.mark for s in figure.series for p in s.points))
    for number, series in enumerate(figure.series):
        for point in series.points:
            across = deviation(point.x_by_seed or {})
            axes.errorbar(
                point.x,
                100 * mean(point.y),
                xerr=0.0 if math.isnan(across) else across,
                yerr=100 * _deviation(point),
                color=COLORS[number],
                marker=MARKERS[marks.index(point.mark)],
                markersize=8,
                markeredgecolor="white",
                capsize=2.5,
                linewidth=1.2,
                linestyle="none",
            )
    handles = [
        Line2D([], [], color=COLORS[number], linewidth=5, label=series.label)
        for number, series in enumerate(figure.series)
    ]
    handles += [
        Line2D([], [], color=INK, marker=MARKERS[number], linestyle="none", label=mark)
        for number, mark in enumerate(marks)
    ]
    axes.margins(x=0.08, y=0.1)
    _legend(axes, handles, [str(handle.get_label()) for handle in handles])


def _legend(axes: Any, handles: list[Any], labels: list[str]) -> None:
    """In one row above the curves, where it hides nothing."""
    axes.legend(
        handles,
        labels,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1.0),
        ncols=len(labels),
        fontsize=8.5,
        columnspacing=1.4,
        handlelength=1.8,
        borderaxespad=0.2,
    )


def _counts(canvas: Any, axes: Any, figure: Figure, bottom: float, height: float) -> None:
    """How many nodes stand behind each x, as bars in a strip of their own below the curves."""
    strip = canvas.add_axes((0.105, bottom - 0.75 / height, 0.865, 0.6 / height), sharex=axes)
    xs = [x for x, _ in figure.counts]
    heights = [count for _, count in figure.counts]
    strip.bar(xs, heights, width=0.6, color="#c9c9c9")
    for x, count in figure.counts:
        strip.annotate(
            f"{count:,}",
            (x, count),
            xytext=(0, 1.5),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7.5,
            color=PALE,
        )
    strip.set_ylim(0, 1.35 * max(heights))
    strip.set_yticks([])
    strip.grid(visible=False)
    strip.spines["left"].set_visible(False)
    strip.set_ylabel(figure.counts_label, fontsize=8, color=PALE)
    strip.set_xticks([x for x, _ in figure.ticks], [text for _, text in figure.ticks])
    strip.set_xlabel(figure.x_label)
    axes.tick_params(labelbottom=False)


def _deviation(point: Point) -> float:
    found = deviation(point.y)
    return 0.0 if math.isnan(found) else found

"""The charts of a page, each drawn from the runs of a comparison; empty if there is nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from unimp.inference.reliability import BINS, Reliability, reliability
from unimp.report import measures
from unimp.report.axes import Axis, number_axis, place_axis
from unimp.report.charts import (
    LETTER,
    Bar,
    Extras,
    Mark,
    Series,
    dot_rows,
    heat_map,
    line_chart,
    thinned,
    through,
)
from unimp.report.drawing import STYLES
from unimp.report.evidence import Evidence, ScoredNodes
from unimp.report.groups import Group
from unimp.report.measures import Array
from unimp.tasks.means import mean_and_std

Matrix = NDArray[np.float64]
METRICS = {"accuracy": "accuracy", "rocauc": "ROC-AUC"}
PARTS = {"val": "validation", "test": "test"}
LEAST_SPAN = 0.05  # of an axis of scores, so that small differences look small
FEWEST = 10  # nodes of a bin whose share is drawn, if any bin has as many
CROWD = 4  # lines; more of them have neither bands nor error bars
BIN_ROOM = 330.0  # pixels for the names of all bins
MOST_CLASSES = 60  # in a heat map; the others are drawn as one class

Drawn = Sequence[tuple[int, Group]]
"""The groups that charts show, each with its style."""


def drawn(groups: Sequence[Group]) -> list[tuple[int, Group]]:
    """The groups that charts show, with their styles: the best by validation if they are many."""
    order = np.argsort([-np.nan_to_num(group.mean("val")) for group in groups], kind="stable")
    return [(style, groups[k]) for style, k in enumerate(np.sort(order[:STYLES]))]


def learning_curves(groups: Drawn, key: str, metric: str) -> Markup:
    """The loss on hidden labels (key "loss") or the score on a set by epoch, for all groups."""
    series = [_curve(group, key, style, group.name) for style, group in groups]
    title = "loss on hidden labels" if key == "loss" else f"{PARTS[key]} {METRICS[metric]}, %"
    return _by_epoch(series, title, percent=key != "loss")


def both_scores(group: Group, metric: str) -> Markup:
    """The scores on both sets by epoch, for one group."""
    series = [_curve(group, part, style, PARTS[part]) for style, part in enumerate(PARTS)]
    return _by_epoch(series, f"{METRICS[metric]}, %", percent=True)


def seed_scores(groups: Drawn, metric: str) -> Markup:
    """The test score of every run, and their mean ± one standard deviation."""
    rows: list[tuple[str, list[tuple[int, Mark]]]] = []
    for style, group in groups:
        scores = [(run.manifest["seed"], run.score("test")) for run in group.runs]
        found = [(seed, score) for seed, score in scores if score is not None]
        ends = _either_way([score for _, score in found])
        marks = [Mark(v, 0, f"seed {seed}: {100 * v:.2f}", ends) for seed, v in found]
        rows += [(group.name, [(style, mark) for mark in marks])] if marks else []
    x = _percent(_across(rows), f"test {METRICS[metric]}, %", least=0.02)
    return dot_rows(rows, x, name="Test scores by seed", labels=0)


def label_rates(groups: Drawn, metric: str) -> Markup:
    """The score by the share of train labels that is revealed."""
    found = [(s, g, [dict(run.label_rates) for run in g.runs]) for s, g in groups]
    series = _uncrowded([_mean_curve(g.name, s, [*filter(None, c)]) for s, g, c in found if any(c)])
    part = PARTS[scored_part(groups)]
    x = number_axis([], "% of the train labels revealed", low=0, high=1, percent=True, count=4)
    y = _percent(_heights(series), f"{part} {METRICS[metric]}, %", least=LEAST_SPAN)
    return line_chart(series, x, y, name=f"{part} score by labels revealed")


def accuracy_by(groups: Drawn, attribute: str, title: str) -> Markup:
    """Accuracy by in-edges or by known in-neighbors, in bins that double in width."""
    having = [
        (style, group, nodes)
        for style, group in groups
        if (nodes := [n for n in _nodes(group.runs) if getattr(n, attribute) is not None])
    ]
    if not having:
        return Markup()
    edges = measures.doubling_edges(getattr(having[0][2][0], attribute))
    binned = [(style, group, *_binned(nodes, attribute, edges)) for style, group, nodes in having]
    first = min((k for *_, count, _ in binned for k in np.flatnonzero(count)), default=0)
    edges = edges[first:]
    words = measures.bin_names(edges, "{} or more")
    series: list[Series] = []
    bars: list[Bar] = []
    for style, group, count, right in binned:
        count, right = count[first:], right[first:]
        least = min(FEWEST, count.max())
        places = [k for k in range(len(edges)) if count[k] >= least and count[k] > 0]
        shares = {k: right[k] / count[k] for k in places}
        band = [(float(k), *measures.wilson(shares[k], count[k])) for k in places]
        about = {k: f"{shares[k]:.1%} of {count[k]:,.0f} nodes" for k in places}
        marks = [Mark(k, shares[k], f"{group.name}, {words[k]}: {about[k]}") for k in places]
        series.append(through(group.name, style, marks, band))
        bars = bars or [
            Bar(k - 0.5, k + 0.5, count[k], f"{words[k]}: {count[k]:,.0f} nodes")
            for k in np.flatnonzero(count)
        ]
    if not bars:
        return Markup()
    series = _uncrowded(series)
    labels = [*words[:-1], f"{edges[-1]}+"]
    if LETTER * max(map(len, labels)) + 8 > BIN_ROOM / len(labels):
        labels = [*map(str, edges[:-1]), labels[-1]]
    y = _percent(_heights(series), f"{_what(having[0][2][0])}, %")
    most = f"nodes, up to {max(bar.height for bar in bars):,.0f}"
    x = place_axis(labels, title)
    return line_chart(series, x, y, name=f"Accuracy by {title}", extras=Extras(bars, most))


def reliability_of(runs: Sequence[Evidence]) -> list[Reliability]:
    """One reliability for each run that has probabilities."""
    found = [reliability(*_judged(nodes)) for nodes in _nodes(runs)]
    return [one for one in found if one.count.any()]


def reliability_diagram(groups: Drawn) -> Markup:
    """How often predictions of each confidence are right, and how many they are."""
    series: list[Series] = []
    bars: list[Bar] = []
    binary = False
    for style, group in groups:
        runs = len(reliability_of(group.runs))
        if not runs:
            continue
        nodes = _nodes(group.runs)
        binary = nodes[0].prediction is None
        one = reliability(*map(np.concatenate, zip(*map(_judged, nodes), strict=True)))
        marks = []
        for k in np.flatnonzero(one.count >= min(runs * FEWEST, one.count.max())):
            x, y, each = one.promised[k], one.kept[k], one.count[k] / runs
            words = f"{group.name}: {x:.1%} confident, {y:.1%} right, {each:,.0f}"
            marks.append(Mark(x, y, words, measures.wilson(y, each)))
        series.append(through(group.name, style, marks))
        bars = bars or [
            Bar(k / BINS, (k + 1) / BINS, s, f"{k / BINS:.0%}–{(k + 1) / BINS:.0%}: {s:.1%}")
            for k, s in enumerate(one.count / one.count.sum())
        ]
    what = "entries" if binary else "nodes"
    x = number_axis([], "confidence, %", low=0, high=1, percent=True)
    y = number_axis([], "% true" if binary else "% right", low=0, high=1, percent=True)
    extras = Extras(bars, f"share of {what}", diagonal=True)
    return line_chart(_uncrowded(series), x, y, name="Reliability", extras=extras)


def surest_first(groups: Drawn) -> Markup:
    """Accuracy of the most confident predictions, by their share; empty for binary tasks."""
    series = []
    for style, group in groups:
        curves = [
            measures.share_of_surest(n.probability, n.prediction == n.label, fewest=FEWEST)
            for n in _nodes(group.runs)
            if n.prediction is not None and np.isfinite(n.probability).all()
        ]
        if curves:
            # Test sets of different splits differ in size, so their curves have other shares.
            places = [x for x, _ in curves[0]]
            every = [np.interp(places, *np.array(curve).T) for curve in curves]
            line = list(zip(places, np.mean(every, 0).tolist(), strict=True))
            series.append(Series(group.name, style, line))
    x = number_axis([], "% of the nodes, most confident first", low=0, high=1, percent=True)
    y = _percent(_heights(series), "accuracy, %")
    return line_chart(series, x, y, name="Accuracy of the most confident predictions")


def confusion_of(group: Group) -> tuple[list[str], Matrix] | None:
    """Class names, the largest first, and the confusion matrix summed over runs."""
    found = [n for n in _nodes(group.runs) if n.prediction is not None]
    if not found:
        return None
    names = list(dict.fromkeys(name for nodes in found for name in nodes.names))
    place = {name: k for k, name in enumerate(names)}
    counts = np.zeros((len(names), len(names)))
    for nodes in found:
        here = np.array([place[name] for name in nodes.names])
        assert nodes.prediction is not None
        counts += measures.confusion(here[nodes.label], here[nodes.prediction], len(names))
    order = np.argsort(-counts.sum(1), kind="stable")
    return [names[k] for k in order], counts[np.ix_(order, order)]


def confusion_map(names: Sequence[str], counts: Matrix) -> Markup:
    """The heat map of a confusion matrix; the smallest classes of many are drawn as one."""
    if len(names) > MOST_CLASSES:
        starts = range(MOST_CLASSES)  # the last one adds up all that follow
        counts = np.add.reduceat(np.add.reduceat(counts, starts, 0), starts, 1)
        names = [*names[: starts[-1]], f"{len(names) - starts[-1]} smaller"]
    return heat_map(names, counts.tolist(), name="Confusion matrix")


def largest_confusions(
    names: Sequence[str], counts: Matrix, most: int = 12
) -> list[tuple[str, str, float, float]]:
    """Label, wrong prediction, their count, and its share of the nodes with that label."""
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [divmod(int(flat), len(names)) for flat in order]
    return [
        (names[i], names[j], float(wrong[i, j]), float(wrong[i, j] / counts[i].sum()))
        for i, j in pairs
        if wrong[i, j] > 0
    ]


@dataclass(frozen=True)
class TaskArea:
    """The ROC-AUC of one binary task for each run of each group; empty if it is undefined."""

    name: str
    positives: int  # positive scored nodes of the last run
    by_style: Mapping[int, Sequence[float]]

    @property
    def defined(self) -> bool:
        return any(self.by_style.values())


def task_areas(groups: Drawn) -> list[TaskArea]:
    """The ROC-AUC of each binary task, the best first, undefined ones last."""
    areas: dict[str, dict[int, list[float]]] = {}
    positives: dict[str, int] = {}
    for style, group in groups:
        for nodes in _nodes(group.runs):
            if nodes.prediction is None:
                for t, area in enumerate(measures.auc_by_task(nodes.probability, nodes.label)):
                    found = areas.setdefault(nodes.names[t], {}).setdefault(style, [])
                    found += [float(area)] if np.isfinite(area) else []
                    positives[nodes.names[t]] = int((nodes.label[:, t] == 1).sum())

    def worse(name: str) -> tuple[float, str]:
        first = next((values for values in areas[name].values() if values), [])
        return -mean_and_std(first)[0] if first else math.inf, name

    return [TaskArea(name, positives[name], areas[name]) for name in sorted(areas, key=worse)]


def area_rows(areas: Sequence[TaskArea], columns: int = 3) -> list[Markup]:
    """The areas as rows of dots, one chart per column."""

    def mark(one: TaskArea, found: Sequence[float]) -> Mark:
        mean = mean_and_std(found)[0]
        words = f"{one.name}: {100 * mean:.1f}, {one.positives:,} positive nodes"
        return Mark(mean, 0, words, _either_way(found))

    rows = [
        (one.name, [(style, mark(one, found)) for style, found in one.by_style.items() if found])
        for one in areas
        if one.defined
    ]
    x = _percent([0.5, *_across(rows)], "ROC-AUC, %", least=LEAST_SPAN)
    each = -(-len(rows) // columns)
    parts = [rows[start : start + each] for start in range(0, len(rows), each or 1)]
    return [dot_rows(part, x, name="ROC-AUC by task", guess=0.5) for part in parts]


def _curve(group: Group, key: str, style: int, name: str) -> Series:
    """A column of the history: the mean over seeds, with each run behind it."""
    curves, marks = [], []
    for run in group.runs:
        points = {line["epoch"]: line[key] for line in run.history if line.get(key) is not None}
        curves.append(points)
        best = run.metrics["best_epoch"]
        if key != "loss" and best in points:
            words = f"{name}, seed {run.manifest['seed']}: epoch {best}, {100 * points[best]:.2f}"
            marks.append(Mark(best, points[best], words))
    one = _mean_curve(name, style, curves, most=math.inf if key == "loss" else 1.0)
    runs = [thinned([*curve.items()]) for curve in curves] if len(curves) > 1 else []
    return replace(one, line=thinned(one.line), band=thinned(one.band), runs=runs, marks=marks)


def _by_epoch(series: Sequence[Series], title: str, *, percent: bool) -> Markup:
    """Curves over epochs."""
    series = _uncrowded(series)
    heights = _heights(series)
    if not heights:
        return Markup()
    last = max(x for one in series for curve in (one.line, *one.runs) for x, _ in curve)
    x = number_axis([], "epoch", low=0, high=max(2.0, last), whole=True)
    y = _percent(heights, title) if percent else number_axis(heights, title, low=0.0)
    return line_chart(series, x, y, name=f"{title} by epoch")


def _mean_curve(
    name: str, style: int, curves: Sequence[dict[float, float]], most: float = 1.0
) -> Series:
    """The mean of curves over the same x, with a band of one standard deviation."""
    values = {x: [c[x] for c in curves] for x in curves[0] if all(x in c for c in curves)}
    means = {x: mean_and_std(found)[0] for x, found in values.items()}
    marks = [Mark(x, y, f"{name}, {x:.0%} revealed: {100 * y:.2f}") for x, y in means.items()]
    band = [(x, *ends) for x, found in values.items() if (ends := _either_way(found, most))]
    return through(name, style, marks, band)


def _percent(values: Sequence[float], title: str, *, least: float = 0.0) -> Axis:
    """An axis of shares in percent, within 0 to 100, that spans at least `least`."""
    if values and least:
        middle = (min(values) + max(values)) / 2
        values = [*values, max(0.0, middle - least / 2), min(1.0, middle + least / 2)]
    axis = number_axis(values, title, percent=True)
    low = 0.0 if axis.low <= 0 else None
    high = 1.0 if axis.high >= 1 else None
    return number_axis(values, title, percent=True, low=low, high=high)


def _either_way(values: Sequence[float], most: float = 1.0) -> tuple[float, float] | None:
    """The mean ± one standard deviation, within 0 and `most`; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, std = mean_and_std(values)
    return max(0.0, mean - std), min(most, mean + std)


def _across(rows: Sequence[tuple[str, Sequence[tuple[int, Mark]]]]) -> list[float]:
    """Every x of rows of dots."""
    return [v for _, row in rows for _, mark in row for v in (mark.x, *(mark.ends or ()))]


def _judged(nodes: ScoredNodes) -> tuple[Array, Array]:
    """The probability of each prediction, or of each known binary entry, and if it came true."""
    if nodes.prediction is None:
        known = nodes.label != -1
        return nodes.probability[known], nodes.label[known] == 1
    return nodes.probability, nodes.prediction == nodes.label


def _binned(
    nodes: Sequence[ScoredNodes], attribute: str, edges: Sequence[int]
) -> tuple[Matrix, Matrix]:
    """Nodes per bin and how many of them are right, each a mean over runs: [bins]."""
    chosen = [(getattr(one, attribute), *_right(one)) for one in nodes]
    every = [values[some] for values, some, _ in chosen]
    right = [values[some][true] for values, some, true in chosen]
    bins = [*edges, np.inf]
    count, true = (np.histogram(np.concatenate(v), bins)[0] / len(nodes) for v in (every, right))
    return count, true


def _uncrowded(series: Sequence[Series]) -> list[Series]:
    """The series; without bands and error bars if they are many."""
    if len(series) <= CROWD:
        return list(series)
    return [
        replace(one, band=(), runs=(), marks=[replace(mark, ends=None) for mark in one.marks])
        for one in series
    ]


def _heights(series: Sequence[Series]) -> list[float]:
    """Every y that is drawn."""
    found: list[float] = []
    for one in series:
        found += [y for curve in (one.line, *one.runs) for _, y in curve]
        found += [end for _, low, high in one.band for end in (low, high)]
        found += [mark.y for mark in one.marks]
    return found


def _nodes(runs: Sequence[Evidence]) -> list[ScoredNodes]:
    return [run.nodes for run in runs if run.nodes is not None]


def scored_part(groups: Drawn) -> str:
    """The set whose nodes the charts show."""
    return next((n.part for _, group in groups for n in _nodes(group.runs)), "test")


def _right(nodes: ScoredNodes) -> tuple[Array, Array]:
    """Which nodes count, and whether each of them is right."""
    if nodes.prediction is None:
        return measures.likeliest_is_right(nodes.probability, nodes.label)
    return np.ones(len(nodes.label), dtype=bool), nodes.prediction == nodes.label


def _what(nodes: ScoredNodes) -> str:
    if nodes.prediction is None:
        return "most likely task is positive"
    return f"{PARTS[nodes.part]} accuracy"

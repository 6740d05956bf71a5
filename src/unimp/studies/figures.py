"""Figures (a) to (d): how many labels are known, and what follows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from unimp.run import Run, groups_of, load_run, score_split
from unimp.studies import paper
from unimp.studies.cells import Cell, Subject
from unimp.studies.study import (
    Claim,
    Column,
    Figure,
    Findings,
    Gap,
    Outcome,
    Outcomes,
    Point,
    Row,
    Series,
    Study,
    Table,
    comparison,
    gap,
    mean,
    score_text,
    verdict,
)
from unimp.tasks.labels import mask_labels
from unimp.tasks.metrics import score

LABEL_RATES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TRAIN_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
INFERENCE_RATES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
DEGREES = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Where each group of numbers of neighbors begins; the last has no end."""

PLACE = "section 5.3, Figure ({})"


def without_labels(subject: Subject, *, train_share: float = 1.0) -> Cell:
    """The graph transformer with X and A alone."""
    return subject.cell("unimp", "X,A", train_share=train_share)


def sweep_table(head: str, series: Sequence[Series], xs: Sequence[str]) -> Table:
    """The numbers of curves: a row for each x, a column for each curve."""
    rows = [Row((x,), {s.label: s.points[i].y for s in series}) for i, x in enumerate(xs)]
    return Table((head,), tuple(Column(s.label, s.label) for s in series), tuple(rows))


def y_label(subject: Subject, part: str = "test") -> str:
    words = {"accuracy": "accuracy", "rocauc": "ROC-AUC"}[subject.metric]
    return f"{part} {words} in %" if part else f"{words} in %"


def remarks(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    return tuple(f"{o.cell.name}: {o.remark}." for o in outcomes if o.remark)


def runs_of(outcome: Outcome, place: Path) -> Iterator[tuple[int, Run]]:
    """The seeds of a cell and their finished runs, one at a time: each holds its task."""
    for seed in sorted(outcome.metrics):
        yield seed, load_run(outcome.cell.folder(place, seed))


# Figure (a): training with different label_rate


def label_rate_cells(subject: Subject) -> Sequence[Cell]:
    return [subject.cell(label_rate=rate) for rate in LABEL_RATES]


def conclude_label_rate(subject: Subject, outcomes: Outcomes) -> Findings:
    chosen = [outcomes[cell.name] for cell in label_rate_cells(subject)]
    series = tuple(
        Series(
            title,
            tuple(Point(r, o.scores(part)) for r, o in zip(LABEL_RATES, chosen, strict=True)),
        )
        for title, part in (("validation", "val"), ("test", "test"))
    )
    target = paper.BEST_LABEL_RATE.value
    measured = {p.x: p.y for p in series[0].points if p.y}
    told, agrees = "not measured", None
    if measured:
        best = max(measured, key=lambda rate: mean(measured[rate]))
        worst = min(measured, key=lambda rate: mean(measured[rate]))
        more = gap(measured[best], measured.get(target, {}))
        told = (
            f"best by validation at {best:g}, {100 * mean(measured[best]):.2f}; worst at "
            f"{worst:g}, {100 * mean(measured[worst]):.2f}"
        )
        if more is not None and best != target:
            told += f"; {100 * more.mean:.2f} points over {target:g}"
        # About: the nearest rates are as good as the one named.
        near = abs(best - target) <= 0.125
        agrees = True if near else (False if more is not None and more.sign > 0 else None)
    claim = Claim(
        "Our model achieves better performance when label_rate is about 0.625",
        PLACE.format("a"),
        told,
        agrees,
    )
    return Findings(
        tables=(sweep_table("label_rate in training", series, [f"{r:g}" for r in LABEL_RATES]),),
        figure=Figure(
            "lines",
            "label_rate in training (share of the train labels observed)",
            y_label(subject, ""),
            series,
            marked_x=((target, "the paper's best, 0.625"),),
        ),
        claims=(claim,),
        notes=("All train labels are inputs when scoring, as in the paper.", *remarks(chosen)),
    )


# Figure (b): training with different proportion of labeled data


def train_share_cells(subject: Subject) -> Sequence[Cell]:
    with_labels = [subject.cell(train_share=share) for share in TRAIN_SHARES]
    return with_labels + [without_labels(subject, train_share=share) for share in TRAIN_SHARES]


def conclude_train_share(subject: Subject, outcomes: Outcomes) -> Findings:
    chosen = [outcomes[cell.name] for cell in train_share_cells(subject)]
    half = len(TRAIN_SHARES)
    series = tuple(
        Series(
            title,
            tuple(Point(x, o.scores("test")) for x, o in zip(TRAIN_SHARES, these, strict=True)),
        )
        for title, these in (
            ("with label input", chosen[:half]),
            ("without label input", chosen[half:]),
        )
        if any(o.metrics for o in these)
    )
    claims = [
        Claim(
            "with the increased amount of training data, the performance is gradually improving",
            PLACE.format("b"),
            f"{s.label}: " + " → ".join(f"{100 * mean(p.y):.2f}" for p in s.points if p.y),
            verdict(steps(s)),
        )
        for s in series
    ]
    if len(series) == 2:
        gains = [_gain(s) for s in series]
        more = gap(gains[0], gains[1])
        claims.append(
            Claim(
                "the model with label propagation Ŷ can gain greater benefits from increasing "
                "labeled data proportion",
                PLACE.format("b"),
                f"from {TRAIN_SHARES[0]:g} to all of the train labels: {100 * mean(gains[0]):+.2f} "
                f"with label input, {100 * mean(gains[1]):+.2f} without",
                None if more is None else verdict([more]),
            )
        )
    rate = subject.recipe.mask.label_rate
    return Findings(
        tables=(sweep_table("share of train labels", series, [f"{s:g}" for s in TRAIN_SHARES]),),
        figure=Figure(
            "lines", "share of the train labels that are known", y_label(subject), series
        ),
        claims=tuple(claims),
        notes=(
            "Labels left out are neither inputs nor targets; a smaller share is part of every "
            f"larger one of the same seed. Validation and test sets stay. label_rate is {rate:g}.",
            *remarks(chosen),
        ),
    )


def steps(series: Series) -> list[Gap]:
    """How much each point of a curve is over the one before."""
    found = [gap(after.y, before.y) for before, after in pairwise(series.points)]
    return [g for g in found if g is not None]


def _gain(series: Series) -> dict[int, float]:
    """The last point of a curve over its first, by seed."""
    first, last = series.points[0].y, series.points[-1].y
    return {seed: last[seed] - first[seed] for seed in last if seed in first}


# Figure (c): testing with different label_rate


def inference_rate_cells(subject: Subject) -> Sequence[Cell]:
    return [subject.cell(), without_labels(subject)]


def observed_share(run: Run, rate: float) -> Tensor:
    """A random share of the train labels, as the model may see them; smaller ones lie in larger."""
    known = torch.zeros(run.task.graph.num_nodes, dtype=torch.bool)
    known[run.task.split.train] = True
    generator = torch.Generator().manual_seed(run.seed)
    groups = groups_of(run.recipe, run.task)
    mask = mask_labels(known, rate, generator=generator, groups=groups)
    return mask.reveal(run.task.labels)


def conclude_inference_rate(subject: Subject, outcomes: Outcomes) -> Findings:
    outcome, baseline = (outcomes[cell.name] for cell in inference_rate_cells(subject))
    found: dict[tuple[str, float], dict[int, float]] = {}
    for seed, run in runs_of(outcome, subject.place):
        for rate in INFERENCE_RATES:
            scores = score_split(run.scores(observed_share(run, rate)), run.task, "train")
            for part, value in scores.items():
                found.setdefault((part, rate), {})[seed] = value
    series = tuple(
        Series(title, tuple(Point(r, found.get((part, r), {})) for r in INFERENCE_RATES))
        for title, part in (("validation", "val"), ("test", "test"))
    )
    test = [p.y for p in series[1].points]
    level = baseline.scores("test")
    claims = (
        comparison(
            "UniMP might have worse performance (less than 0.70) than the baseline (about 0.72) "
            "when lowering the label_rate during prediction",
            PLACE.format("c"),
            [("baseline over UniMP without any label:", level, test[0])],
        ),
        comparison(
            "when the label_rate climbs up, the performance can boost up to 0.73",
            PLACE.format("c"),
            [
                ("all train labels over none:", test[-1], test[0]),
                ("all train labels over the baseline:", test[-1], level),
            ],
        ),
    )
    flat = Series("test, without label input (X,A)", (Point(0.0, level),)) if level else None
    trained = subject.recipe.mask.label_rate
    table = sweep_table("label_rate at inference", series, [f"{r:g}" for r in INFERENCE_RATES])
    return Findings(
        tables=(table,),
        figure=Figure(
            "lines",
            "label_rate at inference (share of the train labels that are inputs)",
            y_label(subject, ""),
            series,
            level=flat,
            marked_x=((trained, f"in training: {trained:g}"),),
        ),
        claims=claims,
        notes=(
            f"Trained at a label_rate of {trained:g}, then scored with random shares of the train "
            "labels as inputs, without retraining; a smaller share is part of every larger one. "
            f"Baseline, inputs X,A: test {score_text(level)}.",
            *remarks([outcome, baseline]),
        ),
        protocol="test score of one trained model a seed, at its best validation epoch with all "
        "train labels as inputs; mean ± unbiased standard deviation over seeds",
    )


# Figure (d): test accuracy with different neighbors


def neighbor_cells(subject: Subject) -> Sequence[Cell]:
    return [subject.cell(), without_labels(subject)]


def degree_names() -> list[str]:
    names = []
    for begin, end in pairwise(DEGREES):
        names.append(f"{begin}" if end == begin + 1 else f"{begin}–{end - 1}")
    return [*names, f"≥ {DEGREES[-1]}"]


def scores_by_degree(run: Run) -> tuple[list[float], list[int]]:
    """The test score of each group of numbers of neighbors, and how many nodes it has."""
    observed = run.observed_with(None)
    logits, task = run.scores(observed), run.task
    nodes = task.split.test
    degree = task.graph.without_self_loops().in_degree[nodes]
    group = torch.bucketize(degree, torch.tensor(DEGREES[1:]), right=True)
    scores, counts = [], []
    for number in range(len(DEGREES)):
        these = nodes[group == number]
        counts.append(these.numel())
        scores.append(
            score(task.metric, logits[these], task.labels[these]) if these.numel() else math.nan
        )
    return scores, counts


def conclude_neighbors(subject: Subject, outcomes: Outcomes) -> Findings:
    chosen = [outcomes[cell.name] for cell in neighbor_cells(subject)]
    names, counts = degree_names(), [0] * len(DEGREES)
    values: list[list[dict[int, float]]] = []
    for outcome in chosen:
        by_group: list[dict[int, float]] = [{} for _ in DEGREES]
        for seed, run in runs_of(outcome, subject.place):
            scores, counts = scores_by_degree(run)
            for number, value in enumerate(scores):
                if not math.isnan(value):
                    by_group[number][seed] = value
        values.append(by_group)
    there = [n for n in range(len(DEGREES)) if any(by_group[n] for by_group in values)]
    titles = ("with label input", "without label input")
    series = tuple(
        Series(title, tuple(Point(float(place), by_group[n]) for place, n in enumerate(there)))
        for title, by_group in zip(titles, values, strict=True)
        if any(by_group)
    )
    claims: list[Claim] = []
    for s in series:
        rises = steps(s)
        claims.append(
            Claim(
                "nodes with more neighbors have higher accuracy",
                PLACE.format("d"),
                f"{s.label}: {sum(g.mean > 0 for g in rises)} of {len(rises)} steps to more "
                f"neighbors rise; {100 * mean(_gain(s)):+.2f} from {names[there[0]]} to "
                f"{names[there[-1]]} neighbors",
                verdict(rises),
            )
        )
    if len(series) == 2:
        pairs = list(zip(*(s.points for s in series), strict=True))
        claims.append(
            comparison(
                "the model with label propagation Ŷ can always have improvements even with "
                "different numbers of training neighbors",
                PLACE.format("d"),
                [(names[n], one.y, other.y) for n, (one, other) in zip(there, pairs, strict=True)],
            )
        )
    table = sweep_table("neighbors", series, [names[n] for n in there])
    nodes = Column("nodes", "test nodes", "count")
    table = Table(
        table.head,
        (nodes, *table.columns),
        tuple(
            replace(row, ours={"nodes": {subject.seeds[-1]: counts[n]}, **row.ours})
            for n, row in zip(there, table.rows, strict=True)
        ),
    )
    return Findings(
        tables=(table,),
        figure=Figure(
            "lines",
            "number of neighbors",
            y_label(subject),
            series,
            ticks=tuple((float(place), names[n]) for place, n in enumerate(there)),
            counts=tuple((float(place), counts[n]) for place, n in enumerate(there)),
            counts_label="test nodes",
        ),
        claims=tuple(claims),
        notes=(
            "Neighbors are in-neighbors other than the node itself; numbers of test nodes are of "
            "the last seed.",
            *remarks(chosen),
        ),
    )


FIGURE_A = Study(
    "figure-a",
    "training with different label_rate",
    "Figure (a)",
    label_rate_cells,
    conclude_label_rate,
)
FIGURE_B = Study(
    "figure-b",
    "training with different shares of the train labels",
    "Figure (b)",
    train_share_cells,
    conclude_train_share,
)
FIGURE_C = Study(
    "figure-c",
    "scoring one trained model with different label_rate",
    "Figure (c)",
    inference_rate_cells,
    conclude_inference_rate,
)
FIGURE_D = Study(
    "figure-d",
    "test score by number of neighbors",
    "Figure (d)",
    neighbor_cells,
    conclude_neighbors,
)

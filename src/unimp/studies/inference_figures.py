"""Figures (c) and (d): what trained models answer, by labels given and by neighbors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.studies.cells import Cell, Subject
from unimp.studies.figures import (
    PLACE,
    gain,
    remarks,
    runs_of,
    steps,
    sweep_table,
    without_labels,
    y_label,
)
from unimp.studies.study import (
    Claim,
    Column,
    Figure,
    Findings,
    Outcomes,
    Point,
    Series,
    Study,
    Table,
    comparison,
    mean,
    points_text,
    score_text,
    verdict,
)
from unimp.tasks.metrics import FEW_NODES, score

INFERENCE_RATES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0)
DEGREES = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129)
"""Where each group of numbers of neighbors begins; the last has no end."""


# Figure (c): testing with different label_rate


def inference_rate_cells(subject: Subject) -> Sequence[Cell]:
    return [subject.cell(), without_labels(subject)]


def conclude_inference_rate(subject: Subject, outcomes: Outcomes) -> Findings:
    outcome, baseline = (outcomes[cell.name] for cell in inference_rate_cells(subject))
    found: dict[tuple[str, float], dict[int, float]] = {}
    for seed, run in runs_of(outcome, subject.place):
        for rate in INFERENCE_RATES:
            scores = score_split(run.outputs(run.observed_share(rate)), run.task, "train")
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
    observed = run.observed_labels(reveal="train")
    logits, task = run.outputs(observed), run.task
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
    # One node more or less would move the score of a small group by points: it is in the table.
    large = [place for place, n in enumerate(there) if counts[n] >= FEW_NODES]
    drawn = large or list(range(len(there)))
    shown = tuple(Series(s.label, tuple(s.points[place] for place in drawn)) for s in series)
    named = [names[there[place]] for place in drawn]
    claims: list[Claim] = []
    for s in shown:
        rises = steps(s)
        claims.append(
            Claim(
                "nodes with more neighbors have higher accuracy",
                PLACE.format("d"),
                f"{s.label}: {sum(g.mean > 0 for g in rises)} of {len(rises)} steps to more "
                f"neighbors rise; {points_text(mean(gain(s)))} from {named[0]} to "
                f"{named[-1]} neighbors",
                verdict(rises),
            )
        )
    if len(shown) == 2:
        pairs = list(zip(*(s.points for s in shown), strict=True))
        claims.append(
            comparison(
                "the model with label propagation Ŷ can always have improvements even with "
                "different numbers of training neighbors",
                PLACE.format("d"),
                [(words, one.y, two.y) for words, (one, two) in zip(named, pairs, strict=True)],
            )
        )
    if not large:
        claims = [
            replace(c, agrees="not clear") if c.agrees in ("yes", "no") else c for c in claims
        ]
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
            shown,
            ticks=tuple((float(place), names[n]) for place, n in enumerate(there)),
            counts=tuple((float(place), counts[n]) for place, n in enumerate(there)),
            counts_label="test nodes",
        ),
        claims=tuple(claims),
        notes=(
            "Neighbors are in-neighbors other than the node itself; numbers of test nodes are of "
            f"the last seed. Groups of fewer than {FEW_NODES} nodes stand in the table, and "
            "nothing is drawn or judged by them.",
            *remarks(chosen),
        ),
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

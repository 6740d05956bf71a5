"""Figures (a) to (d): labels observed or known in training, labels at inference, neighbors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch

from unimp.report.measures import bin_names
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.studies import paper
from unimp.studies.cells import Cell, Subject
from unimp.studies.study import (
    BySeed,
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
    Table,
    Verdict,
    comparisons,
    gap,
    mean,
    points_text,
    study,
    verdict,
)
from unimp.tasks.means import FEW_NODES, mean_text
from unimp.tasks.metrics import score

LABEL_RATES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TRAIN_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)
INFERENCE_RATES = (0.0, *LABEL_RATES, 1.0)
DEGREES = (0, 1, 2, 3, 5, 9, 17, 33, 65, 129)
"""The smallest number of neighbors in each group; the last group has no upper end."""

PLACE = "section 4.3, Figure ({})"
PARTS = (("validation", "val"), ("test", "test"))
WITH, WITHOUT = "with label input", "without label input"


def sweep(label: str, xs: Sequence[float], values: Sequence[BySeed]) -> Series:
    """A curve with one point for each x."""
    return Series(label, tuple(Point(x, y) for x, y in zip(xs, values, strict=True)))


def sweep_table(head: str, series: Sequence[Series], xs: Sequence[float | str]) -> Table:
    """The numbers of curves: one row for each x, one column for each curve."""
    names = [x if isinstance(x, str) else f"{x:g}" for x in xs]
    rows = [Row((name,), {s.label: s.points[i].y for s in series}) for i, name in enumerate(names)]
    return Table((head,), tuple(Column(s.label, s.label) for s in series), tuple(rows))


def y_label(subject: Subject, part: str = "test ") -> str:
    return f"{part}{'accuracy' if subject.metric == 'accuracy' else 'ROC-AUC'} in %"


def remarks(outcomes: Outcomes) -> tuple[str, ...]:
    """One sentence for each reason why results are missing."""
    names: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        if outcome.remark:
            names.setdefault(outcome.remark, []).append(name)
    return tuple(f"{', '.join(which)}: {why}." for why, which in names.items())


def runs_of(outcome: Outcome, place: Path) -> Iterator[tuple[int, Run]]:
    """The seeds of a cell and their finished runs, one at a time: each run holds its task."""
    for seed in sorted(outcome.metrics):
        yield seed, load_run(outcome.cell.folder(place, seed))


def steps(series: Series) -> list[Gap]:
    """The difference of each point of a curve to the one before it."""
    found = [gap(after.y, before.y) for before, after in pairwise(series.points)]
    return [g for g in found if g is not None]


def gain(series: Series) -> BySeed:
    """The last point of a curve minus its first, by seed."""
    first, last = series.points[0].y, series.points[-1].y
    return {seed: last[seed] - first[seed] for seed in last if seed in first}


@study(
    "figure-a",
    "training with different label_rate",
    "Figure (a)",
    cells=lambda subject: [subject.cell(label_rate=rate) for rate in LABEL_RATES],
)
def figure_a(subject: Subject, outcomes: Outcomes) -> Findings:
    series = tuple(
        sweep(title, LABEL_RATES, [outcome.scores(part) for outcome in outcomes.values()])
        for title, part in PARTS
    )
    target = paper.BEST_LABEL_RATE.value
    measured = {p.x: p.y for p in series[0].points if p.y}
    ours = ""
    agrees: Verdict = "not measured"
    if measured:
        best = max(measured, key=lambda rate: mean(measured[rate]))
        worst = min(measured, key=lambda rate: mean(measured[rate]))
        ours = (
            f"best on validation at {best:g} ({100 * mean(measured[best]):.2f}), worst at "
            f"{worst:g} ({100 * mean(measured[worst]):.2f})"
        )
        found = near_against_others(measured, target)
        if found:
            nearest, gaps = found
            ours += f"; {nearest:g}, the best rate near {target:g}, compared with " + ", ".join(
                f"{rate:g}: {points_text(g.mean)}" for rate, g in gaps.items()
            )
            agrees = verdict(list(gaps.values()))
    sentence = "Our model achieves better performance when label_rate is about 0.625"
    return Findings(
        tables=(sweep_table("label_rate in training", series, LABEL_RATES),),
        figure=Figure(
            "lines",
            "label_rate in training (share of the train labels observed)",
            y_label(subject, ""),
            series,
            marked_x=((target, "the paper's best, 0.625"),),
        ),
        claims=(Claim(sentence, PLACE.format("a"), ours, agrees),),
        notes=(
            "All train labels are inputs when a model is scored, as in the paper.",
            *remarks(outcomes),
        ),
    )


def near_against_others(
    measured: Mapping[float, BySeed], target: float
) -> tuple[float, dict[float, Gap]] | None:
    """The best of the rates near the target, and its difference to each rate that is not near.

    Near are the target and the rates next to it. None if no such rate was measured.
    """
    near = [rate for rate in measured if abs(rate - target) <= 0.125]
    if not near:
        return None
    best = max(near, key=lambda rate: mean(measured[rate]))
    found = {r: gap(measured[best], values) for r, values in measured.items() if r not in near}
    return best, {rate: g for rate, g in found.items() if g is not None}


@study(
    "figure-b",
    "training with different shares of the train labels",
    "Figure (b)",
    cells=lambda subject: [
        subject.cell("unimp", inputs, train_share=share)
        for inputs in (subject.inputs, "X,A")
        for share in TRAIN_SHARES
    ],
)
def figure_b(subject: Subject, outcomes: Outcomes) -> Findings:
    chosen, half = [*outcomes.values()], len(TRAIN_SHARES)
    series = tuple(
        sweep(title, TRAIN_SHARES, [outcome.scores("test") for outcome in these])
        for title, these in ((WITH, chosen[:half]), (WITHOUT, chosen[half:]))
        if any(outcome.metrics for outcome in these)
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
        with_labels, without = (gain(s) for s in series)
        claims.append(
            Claim(
                "the model with label propagation Ŷ can gain greater benefits from increasing "
                "labeled data proportion",
                PLACE.format("b"),
                f"from {TRAIN_SHARES[0]:g} to all of the train labels: "
                f"{points_text(mean(with_labels))} with label input, "
                f"{points_text(mean(without))} without",
                verdict([gap(with_labels, without)]),
            )
        )
    return Findings(
        tables=(sweep_table("share of train labels", series, TRAIN_SHARES),),
        figure=Figure(
            "lines", "share of the train labels that are known", y_label(subject), series
        ),
        claims=tuple(claims),
        notes=(
            "Labels that are left out are neither inputs nor targets. With the same seed, a "
            "smaller share is part of every larger one. Validation and test sets do not change. "
            f"label_rate is {subject.recipe.mask.label_rate:g}.",
            *remarks(outcomes),
        ),
    )


def pair_cells(subject: Subject) -> Sequence[Cell]:
    """UniMP, and the same model without labels as inputs."""
    return [subject.cell(), subject.cell("unimp", "X,A")]


@study(
    "figure-c",
    "scoring one trained model with different label_rate",
    "Figure (c)",
    cells=pair_cells,
)
def figure_c(subject: Subject, outcomes: Outcomes) -> Findings:
    outcome, baseline = outcomes.values()
    found: dict[tuple[str, float], dict[int, float]] = {}
    for seed, run in runs_of(outcome, subject.place):
        for rate in INFERENCE_RATES:
            scores = score_split(run.outputs(run.observed_share(rate)), run.task, "train")
            for part, value in scores.items():
                found.setdefault((part, rate), {})[seed] = value
    series = tuple(
        sweep(title, INFERENCE_RATES, [found.get((part, rate), {}) for rate in INFERENCE_RATES])
        for title, part in PARTS
    )
    none, everything = series[1].points[0].y, series[1].points[-1].y
    level = baseline.scores("test")
    pairs = {
        "UniMP might have worse performance (less than 0.70) than the baseline (about 0.72) when "
        "lowering the label_rate during prediction": [
            ("baseline vs. UniMP without labels:", level, none)
        ],
        "when the label_rate climbs up, the performance can boost up to 0.73": [
            ("all train labels vs. none:", everything, none),
            ("all train labels vs. the baseline:", everything, level),
        ],
    }
    flat = Series("test, without label input (X,A)", (Point(0.0, level),)) if level else None
    trained = subject.recipe.mask.label_rate
    return Findings(
        tables=(sweep_table("label_rate at inference", series, INFERENCE_RATES),),
        figure=Figure(
            "lines",
            "label_rate at inference (share of the train labels that are inputs)",
            y_label(subject, ""),
            series,
            level=flat,
            marked_x=((trained, f"in training: {trained:g}"),),
        ),
        claims=comparisons(PLACE.format("c"), pairs),
        notes=(
            f"The model is trained at a label_rate of {trained:g} and then scored, without "
            "retraining, with random shares of the train labels as inputs. A smaller share is "
            "part of every larger one. Baseline with inputs X,A: test "
            f"{mean_text([*level.values()])}.",
            *remarks(outcomes),
        ),
        protocol="test score of one trained model per seed, taken from its best validation epoch "
        "with all train labels as inputs; mean ± unbiased standard deviation over seeds",
    )


def scores_by_degree(run: Run) -> tuple[list[float], list[int]]:
    """The test score of each group of nodes by number of neighbors, and the size of the group."""
    logits, task = run.outputs(run.observed_labels(reveal="train")), run.task
    nodes = task.split.test
    degree = task.graph.without_self_loops().in_degree[nodes]
    group = torch.bucketize(degree, torch.tensor(DEGREES[1:]), right=True)
    groups = [nodes[group == number] for number in range(len(DEGREES))]
    scores = [
        score(task.metric, logits[these], task.labels[these]) if these.numel() else math.nan
        for these in groups
    ]
    return scores, [these.numel() for these in groups]


@study("figure-d", "test score by number of neighbors", "Figure (d)", cells=pair_cells)
def figure_d(subject: Subject, outcomes: Outcomes) -> Findings:
    counts = [0] * len(DEGREES)
    values: list[list[dict[int, float]]] = []
    for outcome in outcomes.values():
        by_seed = {}
        for seed, run in runs_of(outcome, subject.place):
            by_seed[seed], counts = scores_by_degree(run)
        values.append(
            [
                {seed: scores[n] for seed, scores in by_seed.items() if not math.isnan(scores[n])}
                for n in range(len(DEGREES))
            ]
        )
    there = [n for n in range(len(DEGREES)) if any(by_group[n] for by_group in values)]
    names, counts = [bin_names(DEGREES, "≥ {}")[n] for n in there], [counts[n] for n in there]
    series = tuple(
        sweep(title, range(len(there)), [by_group[n] for n in there])
        for title, by_group in zip((WITH, WITHOUT), values, strict=True)
        if any(by_group)
    )
    # A single node would change the score of a small group by points: the table shows it.
    large = [place for place, count in enumerate(counts) if count >= FEW_NODES]
    drawn = large or list(range(len(there)))
    shown = tuple(Series(s.label, tuple(s.points[place] for place in drawn)) for s in series)
    named = [names[place] for place in drawn]
    claims: list[Claim] = []
    for s in shown:
        rises = steps(s)
        claims.append(
            Claim(
                "nodes with more neighbors have higher accuracy",
                PLACE.format("d"),
                f"{s.label}: the score rises in {sum(g.mean > 0 for g in rises)} of {len(rises)} "
                f"steps to more neighbors; {points_text(mean(gain(s)))} from {named[0]} to "
                f"{named[-1]} neighbors",
                verdict(rises),
            )
        )
    if len(shown) == 2:
        sentence = (
            "the model with label propagation Ŷ can always have improvements even with different "
            "numbers of training neighbors"
        )
        both = zip(named, *(s.points for s in shown), strict=True)
        pairs = {sentence: [(words, one.y, two.y) for words, one, two in both]}
        claims += comparisons(PLACE.format("d"), pairs)
    if not large:
        claims = [
            replace(c, agrees="not clear") if c.agrees in ("yes", "no") else c for c in claims
        ]
    table = sweep_table("neighbors", series, names)
    rows = (
        replace(row, ours={"nodes": {subject.seeds[-1]: count}, **row.ours})
        for count, row in zip(counts, table.rows, strict=True)
    )
    nodes = Column("nodes", "test nodes", "count")
    return Findings(
        tables=(Table(table.head, (nodes, *table.columns), tuple(rows)),),
        figure=Figure(
            "lines",
            "number of neighbors",
            y_label(subject),
            shown,
            ticks=tuple(enumerate(names)),
            counts=tuple(enumerate(counts)),
            counts_label="test nodes",
        ),
        claims=tuple(claims),
        notes=(
            "Neighbors are in-neighbors other than the node itself. Counts of test nodes are those "
            f"of the last seed. Groups of fewer than {FEW_NODES} nodes are listed in the table, "
            "but are neither drawn nor used for the verdicts.",
            *remarks(outcomes),
        ),
    )

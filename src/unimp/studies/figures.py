"""Figures (a) and (b): training with more labels observed, or more labels known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from unimp.runs.run import Run, load_run
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
    Study,
    Table,
    Verdict,
    gap,
    mean,
    points_text,
    verdict,
)

LABEL_RATES = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TRAIN_SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)

PLACE = "section 4.3, Figure ({})"


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
    """What is missing and why, in a sentence for each reason."""
    names: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.remark:
            names.setdefault(outcome.remark, []).append(outcome.cell.name)
    return tuple(f"{', '.join(which)}: {why}." for why, which in names.items())


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
    told = ""
    agrees: Verdict = "not measured"
    if measured:
        best = max(measured, key=lambda rate: mean(measured[rate]))
        worst = min(measured, key=lambda rate: mean(measured[rate]))
        told = (
            f"best by validation at {best:g}, {100 * mean(measured[best]):.2f}; worst at "
            f"{worst:g}, {100 * mean(measured[worst]):.2f}"
        )
        over = about_over_others(measured, target)
        if over:
            nearest, gaps = over
            told += f"; {nearest:g}, the best of about {target:g}, over " + ", ".join(
                f"{rate:g}: {points_text(g.mean)}" for rate, g in gaps.items()
            )
            agrees = verdict(list(gaps.values()))
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


def about_over_others(
    measured: Mapping[float, BySeed], target: float
) -> tuple[float, dict[float, Gap]] | None:
    """The best of the rates about the target, and how much it is over each rate farther off.

    About: the target and the rates next to it. None where no rate about it was measured.
    """
    near = [rate for rate in measured if abs(rate - target) <= 0.125]
    if not near:
        return None
    best = max(near, key=lambda rate: mean(measured[rate]))
    found = {r: gap(measured[best], values) for r, values in measured.items() if r not in near}
    return best, {rate: g for rate, g in found.items() if g is not None}


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
        gains = [gain(s) for s in series]
        more = gap(gains[0], gains[1])
        claims.append(
            Claim(
                "the model with label propagation Ŷ can gain greater benefits from increasing "
                "labeled data proportion",
                PLACE.format("b"),
                f"from {TRAIN_SHARES[0]:g} to all of the train labels: "
                f"{points_text(mean(gains[0]))} with label input, "
                f"{points_text(mean(gains[1]))} without",
                verdict([] if more is None else [more]),
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


def gain(series: Series) -> dict[int, float]:
    """The last point of a curve over its first, by seed."""
    first, last = series.points[0].y, series.points[-1].y
    return {seed: last[seed] - first[seed] for seed in last if seed in first}


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

"""Margin similarity of attention (equation 11), compared with accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unimp.graph.hop import Hop
from unimp.model.unimp import UniMP
from unimp.runs.preparation import graph_for
from unimp.runs.run import Run
from unimp.studies.cells import Cell, Subject
from unimp.studies.figures import remarks, runs_of, y_label
from unimp.studies.study import (
    BySeed,
    Claim,
    Column,
    Figure,
    Findings,
    Outcomes,
    Point,
    Row,
    Series,
    Table,
    gap,
    gap_from_zero,
    mean,
    study,
    verdict,
)
from unimp.studies.tables import GRAPH_INPUTS, GRAPH_MODELS, TEST, slips
from unimp.tasks.labels import UNLABELED

PLACE = "section 4.3, equation 11"
CHOICES = (
    "Equation 11 is computed over the test nodes, whose labels no model receives, with their true "
    "labels. Weights are averaged over heads, and the margin over layers. A node does not count "
    "as its own neighbor; the weights of its other neighbors are scaled to sum to 1. Nodes without "
    "a neighbor of the same class or without a neighbor of another class are left out. Where the "
    "sum s is negative, −log(1 − s) replaces log(1 + s), which is not defined for s ≤ −1."
)


@dataclass(frozen=True)
class Margin:
    """The margin similarity of some nodes, and for how many of them equation 11 is defined."""

    mean: float  # of the margin defined everywhere
    as_printed: float  # over the nodes for which equation 11 is defined
    undefined: float  # share of the nodes for which it is not
    nodes: int  # nodes with neighbors of both kinds


def margin_similarity(weight: Tensor, hop: Hop, labels: Tensor, nodes: Tensor) -> Margin:
    """How strongly attention prefers neighbors of a node's own class.

        s_i = Σ_{j ∈ pos(i)} Σ_{k ∈ neg(i)} e^α_ij − e^α_ik        margin = sign(s) log(1 + |s|)

    For s ≥ 0 this is the term log(1 + s) of equation 11, which is not defined for s ≤ −1.
    weight [E]: one per edge of a square hop; scaled to sum to 1 over a node's neighbors, without
    the node itself. labels [N]: a neighbor that is UNLABELED belongs to neither kind.
    """
    target, source = hop.target.long(), hop.source.long()
    other = target != source
    zeros = torch.zeros(hop.num_targets, dtype=torch.float64)
    weight = torch.where(other, weight.double().cpu(), 0.0)
    total = zeros.index_add(0, target, weight)
    alpha = weight / total[target].clamp(min=1e-300)
    both_known = other & (labels[target] != UNLABELED) & (labels[source] != UNLABELED)
    same = (labels[target] == labels[source]) & both_known
    differs = both_known & ~same
    strength = alpha.exp()

    def sums(edges: Tensor) -> tuple[Tensor, Tensor]:
        """How many of a node's in-edges are among these edges, and Σ e^α over them."""
        count = zeros.index_add(0, target[edges], torch.ones_like(strength[edges]))
        return count, zeros.index_add(0, target[edges], strength[edges])

    (pos, of_pos), (neg, of_neg) = sums(same), sums(differs)
    # Each positive edge is paired with every negative edge.
    s = (neg * of_pos - pos * of_neg)[nodes]
    s = s[((pos > 0) & (neg > 0))[nodes]]
    if not s.numel():
        return Margin(math.nan, math.nan, math.nan, 0)
    defined = s > -1
    printed = torch.log1p(s[defined])
    return Margin(
        mean=float((s.sign() * torch.log1p(s.abs())).mean()),
        as_printed=float(printed.mean()) if printed.numel() else math.nan,
        undefined=float((~defined).double().mean()),
        nodes=s.numel(),
    )


def margins_of(run: Run) -> list[Margin]:
    """The margin of each layer of a trained model that receives the train labels.

    A GCN has no attention: its weights follow from the degrees and are the same in every layer.
    """
    model, task = run.model, run.task
    assert isinstance(model, UniMP)
    graph = graph_for(run.recipe, model, task, run.device)
    hop = graph.hop.to(run.device)
    if model.layer == "gcn":
        # √(d_i/d_j), which at each node is proportional to 1/√(d_i d_j)
        assert hop.edge_attr is not None
        weights = [hop.edge_attr]
    else:
        observed = run.observed_labels(reveal="train").to(run.device)
        x = model.features(graph, observed)
        x = None if x is None else x.to(run.device)
        model.eval()
        weights = model.attention_weights(x, observed, [hop] * model.num_layers)
    labels, hop = task.labels, hop.to("cpu")
    nodes = task.split.test.sort().values
    return [margin_similarity(w.mean(1).cpu(), hop, labels, nodes) for w in weights]


def margin_cells(subject: Subject) -> Sequence[Cell]:
    cells = [subject.cell(model, inputs) for inputs in GRAPH_INPUTS for model, _ in GRAPH_MODELS]
    return [cell for cell in cells if not cell.unfit and not subject.sizes.multilabel]


@study(
    "margin",
    "margin similarity of attention, compared with accuracy",
    "equation 11 and its figure",
    "equation-11",
    cells=margin_cells,
)
def margin(subject: Subject, outcomes: Outcomes) -> Findings:
    if subject.sizes.multilabel:
        note = "The task has several binary labels per node, so that neighbors of the same class "
        return Findings(tables=(), notes=(f"{note}are not defined.",))
    rows, nodes = [], 0
    layers = [f"layer {number + 1}" for number in range(subject.recipe.model.layers)]
    for outcome in outcomes.values():
        options = outcome.cell.recipe.model
        found = {seed: margins_of(run) for seed, run in runs_of(outcome, subject.place)}
        nodes = next((m[0].nodes for m in found.values()), nodes)
        numbers = {"test": outcome.scores("test"), "margin": _over_layers("mean", found)}
        for index, layer in enumerate(layers):
            numbers[layer] = {s: m[min(index, len(m) - 1)].mean for s, m in found.items()}
        numbers["printed"] = _over_layers("as_printed", found)
        numbers["undefined"] = _over_layers("undefined", found)
        words = (options.inputs, dict(GRAPH_MODELS)[options.name])
        rows.append(Row(words, numbers, remark=outcome.remark))
    margins, test = ({row.words: row.ours[key] for row in rows} for key in ("margin", "test"))
    points: dict[str, list[Point]] = {title: [] for _, title in GRAPH_MODELS}
    for (inputs, title), values in margins.items():
        if math.isfinite(mean(values)):
            points[title].append(Point(mean(values), test[inputs, title], values, inputs))
    columns = (
        TEST,
        *(Column(name, name, "number") for name in ("margin", *layers)),
        Column("printed", "as printed, where defined", "number"),
        Column("undefined", "undefined, % of nodes"),
    )
    return Findings(
        tables=(Table(("inputs", "model"), columns, tuple(rows)),),
        figure=Figure(
            "points",
            "margin similarity between neighbors",
            y_label(subject),
            tuple(Series(title, tuple(ps)) for title, ps in points.items() if ps),
        ),
        claims=_claims(margins, test),
        notes=(
            CHOICES + f" {nodes:,} test nodes remain (of one seed).",
            "A GCN has no attention: its weights are 1/√(d_i d_j) for all inputs.",
            *slips(subject, "margin"),
            *remarks(outcomes),
        ),
    )


def _over_layers(name: str, found: Mapping[int, list[Margin]]) -> BySeed:
    return {s: sum(getattr(m, name) for m in each) / len(each) for s, each in found.items()}


def correlations(ones: Sequence[BySeed], others: Sequence[BySeed]) -> dict[int, float]:
    """The correlation of two lists of numbers, by seed, for the seeds where it is defined.

    It takes at least three pairs, and neither side may be constant.
    """
    found = {}
    for seed in sorted({seed for one in ones for seed in one}):
        table = np.array([[b.get(seed, math.nan) for b in side] for side in (ones, others)])
        table = table[:, np.isfinite(table).all(0)]
        if table.shape[1] > 2 and np.ptp(table, 1).all():
            found[seed] = float(np.corrcoef(table)[0, 1])
    return found


def _claims(
    margins: Mapping[tuple[str, ...], BySeed], test: Mapping[tuple[str, ...], BySeed]
) -> tuple[Claim, ...]:
    learned = [key for key in margins if key[1] != "GCN" and margins[key] and test[key]]
    found = gap_from_zero(correlations([margins[k] for k in learned], [test[k] for k in learned]))
    words = "correlation: not defined"
    if found is not None:
        words = f"correlation {found.mean:+.2f}"
        words += "" if math.isnan(found.error) else f" ± {found.error:.2f} (standard error)"
    claims = [
        Claim(
            "the ACC of models' prediction is proportional to Margin Similarity",
            PLACE,
            f"{words}, computed per seed over {len(learned)} pairs of model and inputs without the "
            "GCN, then averaged; the claim agrees if it is clearly greater than 0",
            verdict([found]),
        )
    ]
    for sentence, keys in (
        (
            "Unifying feature and label propagation can further strengthen their connection, "
            "improving their ACC",
            [(("X,A,Y", t), ("X,A", t), t) for t in ("GAT", "Graph Transformer")],
        ),
        (
            "our Graph Transformer outperforms GAT in both connection tightness and ACC with "
            "different inputs",
            [((i, "Graph Transformer"), (i, "GAT"), i) for i in GRAPH_INPUTS],
        ),
    ):
        texts, gaps = [], []
        for one, two, words in keys:
            tighter = gap(margins.get(one, {}), margins.get(two, {}))
            better = gap(test.get(one, {}), test.get(two, {}))
            if tighter is not None and better is not None:
                texts.append(f"{words}: margin {tighter.mean:+.3f}, test {100 * better.mean:+.2f}")
                gaps += [tighter, better]
        claims.append(Claim(sentence, PLACE, "; ".join(texts), verdict(gaps)))
    return tuple(claims)

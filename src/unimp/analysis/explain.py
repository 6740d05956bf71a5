"""Why a node was labeled as it was: the neighbors and the known labels that drove it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unimp.analysis.rollout import Rollout, roll_out, weigh_by_attention, weigh_evenly
from unimp.config.choices import ALL
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.ops.sampling import sample_hops
from unimp.tasks.labels import is_known
from unimp.tasks.names import class_names, node_ids
from unimp.tasks.task import Task

EXACT = 20
"""Labels, and edges, whose exact effect is computed: those with the largest shares."""

BUDGET = 600_000
"""Edges that the exact effects may take, half for labels and half for edges: part of a second. A
hub's many neighbors would take more; what does not fit keeps its share alone."""

SHOWN = 8
"""Labels, and edges, that a picture shows."""

SPREAD = 3
"""Hops that are looked at where a model has no layers, such as label propagation."""


Key = TypeVar("Key", bound=Hashable)
Effect = TypeVar("Effect", "LabelEffect", "EdgeEffect")


@dataclass(frozen=True)
class LabelEffect:
    """What one known label does to the probability."""

    node: int
    label: int | list[int]  # the class, or the binary tasks that hold
    hops: int
    share: float  # of the rollout
    without: float | None  # the probability if it were hidden; None: not computed

    def effect(self, probability: float) -> float:
        return 0.0 if self.without is None else probability - self.without


@dataclass(frozen=True)
class EdgeEffect:
    """What one edge, both ways where it goes both ways, does to the probability."""

    source: int
    target: int
    both_ways: bool
    share: float
    without: float | None

    def effect(self, probability: float) -> float:
        return 0.0 if self.without is None else probability - self.without


@dataclass(frozen=True)
class Explanation:
    """One prediction, and what it rests on; nodes and classes by number."""

    node: int
    target: int  # the class, or the binary task, that is explained
    probability: float
    classes: list[tuple[int, float]]  # the likeliest, and their probabilities
    observed: int | list[int] | None  # its own label, where it is an input
    attends: bool  # whether shares are the model's attention, or those of an even walk
    followed: float  # the share of the rollout that was followed to the end
    without_labels: float | None  # the probability if no label were seen; None: it takes none
    without_edges: float  # the probability if the node heard from nobody
    known_labels: int  # known labels found on the way
    labels: list[LabelEffect]  # largest effect first, then those not computed, by share
    edges: list[EdgeEffect]
    attention: list[list[tuple[int, float]]]  # of each layer, the first first: in-neighbors
    links: list[tuple[int, int, float]]  # source, target, share: how those named are joined

    @property
    def exact_labels(self) -> int:
        return sum(one.without is not None for one in self.labels)

    @property
    def exact_edges(self) -> int:
        return sum(one.without is not None for one in self.edges)

    def named(self, task: Task) -> dict[str, Any]:
        """The same under the task's own names, as JSON can hold it."""
        ids, classes = node_ids(task), class_names(task)

        def label(given: int | list[int] | None) -> Any:
            return (
                [classes[c] for c in given]
                if isinstance(given, list)
                else (None if given is None else classes[given])
            )

        def outcome(one: LabelEffect | EdgeEffect) -> dict[str, Any]:
            known = one.without is not None
            effect = one.effect(self.probability) if known else None
            return {"share": one.share, "without": one.without, "effect": effect}

        return {
            "node": ids[self.node],
            "class": classes[self.target],
            "probability": self.probability,
            "classes": [{"class": classes[c], "probability": p} for c, p in self.classes],
            "observed": label(self.observed),
            "without_labels": self.without_labels,
            "without_edges": self.without_edges,
            "shares_are": "attention" if self.attends else "those of an even walk",
            "followed": self.followed,
            "known_labels": self.known_labels,
            "exact_labels": self.exact_labels,
            "exact_edges": self.exact_edges,
            "labels": [
                {"node": ids[one.node], "label": label(one.label), "hops": one.hops} | outcome(one)
                for one in self.labels
            ],
            "edges": [
                {"source": ids[one.source], "target": ids[one.target], "both_ways": one.both_ways}
                | outcome(one)
                for one in self.edges
            ],
            "attention": [
                [{"node": ids[n], "weight": weight} for n, weight in layer]
                for layer in self.attention
            ],
            "links": [
                {"source": ids[s], "target": ids[t], "share": share} for s, t, share in self.links
            ],
        }


def explain(
    answers: ChangeableLogits,
    graph: Graph,
    observed: Tensor,
    node: int,
    *,
    chances: Callable[[Tensor], Tensor],
    takes_labels: bool = True,
    target: int | None = None,
    top: int = 10,
    exact: int = EXACT,
    budget: int = BUDGET,
) -> Explanation:
    """Explain the probability of a class at a node (default: the likeliest, as predicted).

    chances: logits → probabilities. observed: the labels that are inputs. The effects of labels
    and edges are exact: the probability as it is, less what it would be without. They are computed
    for the `exact` labels and edges with the largest share of the attention rolled out over the
    layers (of an even walk, where the model has no attention), as far as `budget` goes.
    """
    here = torch.tensor([node])

    def after(changes: Sequence[Change]) -> list[float]:
        found = answers.after(changes, [here] * len(changes))
        return [float(chances(logits)[0, target]) for logits in found]

    (logits,) = answers.after([Change()], [here])
    probabilities = chances(logits)[0]
    if target is None:
        target = int(probabilities.argmax())
    probability = float(probabilities[target])
    rollout, attends = _rolled_out(answers, graph, node)
    seen = is_known(observed)
    known = np.flatnonzero(seen.numpy()[rollout.nodes]) if takes_labels else np.empty(0, int)
    hide = {k: Change.hide([int(rollout.nodes[k])]) for k in known[:exact].tolist()}
    edges = _joined_ways(rollout, max(top, exact))
    cut = {e: Change.take_away(_ways(graph, *e)) for e in list(edges)[:exact]}
    hide, cut = (_affordable(answers, changes, here, budget // 2) for changes in (hide, cut))
    alone = Change.take_away([(s, node) for s in _sources(graph, node) if s != node])
    *found, without_edges = after([*hide.values(), *cut.values(), alone])
    label_without = dict(zip(hide, found, strict=False))
    edge_without = dict(zip(cut, found[len(hide) :], strict=True))
    likeliest = probabilities.topk(min(5, len(probabilities)))
    labels = _strongest(
        [
            LabelEffect(
                node=int(rollout.nodes[k]),
                label=_label(observed[int(rollout.nodes[k])]),
                hops=int(rollout.hops[k]),
                share=float(rollout.share[k]),
                without=label_without.get(k),
            )
            for k in known[: max(top, exact)].tolist()
        ],
        probability,
    )
    effects = _strongest(
        [
            EdgeEffect(*e, len(_ways(graph, *e)) > 1, share, edge_without.get(e))
            for e, share in edges.items()
        ],
        probability,
    )
    return Explanation(
        node=node,
        target=target,
        probability=probability,
        classes=list(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)),
        observed=_label(observed[node]) if takes_labels and bool(seen[node]) else None,
        attends=attends,
        followed=rollout.followed,
        without_labels=(
            float(chances(answers.without_labels[here])[0, target]) if takes_labels else None
        ),
        without_edges=without_edges,
        known_labels=len(known),
        labels=labels,
        edges=effects,
        attention=_attention(answers, node, top) if attends else [],
        links=_links(rollout, labels[:SHOWN], effects[:SHOWN]),
    )


def _rolled_out(answers: ChangeableLogits, graph: Graph, node: int) -> tuple[Rollout, bool]:
    """The rollout, as the task numbers nodes, and whether it is that of the model's attention."""
    if not isinstance(answers, IncrementalLogits):
        return roll_out(graph, node, SPREAD, weigh_evenly), False
    weigh = weigh_by_attention(answers)
    start = int(answers.here(torch.tensor([node])))
    rollout = roll_out(answers.graph, start, answers.model.num_layers, weigh or weigh_evenly)
    return rollout.renumbered(answers.held.numpy()), weigh is not None


def _joined_ways(rollout: Rollout, count: int) -> dict[tuple[int, int], float]:
    """The edges with the largest shares; the two ways of one edge are one, named by the larger."""
    edges: dict[tuple[int, int], float] = {}
    rows = zip(rollout.source.tolist(), rollout.target.tolist(), rollout.flow, strict=True)
    for source, target, flow in itertools.islice(rows, 4 * count):
        if source == target:
            continue
        way = (target, source) if (target, source) in edges else (source, target)
        edges[way] = edges.get(way, 0.0) + float(flow)
    ranked = sorted(edges.items(), key=lambda item: -item[1])
    return dict(ranked[:count])


def _ways(graph: Graph, source: int, target: int) -> list[tuple[int, int]]:
    """An edge and, where it is there, its reverse."""
    both = target in _sources(graph, source)
    return [(source, target), (target, source)] if both else [(source, target)]


def _sources(graph: Graph, node: int) -> list[int]:
    begin, end = graph.indptr[node : node + 2].tolist()
    return list(dict.fromkeys(graph.source[begin:end].tolist()))


def _links(
    rollout: Rollout, labels: Sequence[LabelEffect], edges: Sequence[EdgeEffect]
) -> list[tuple[int, int, float]]:
    """The edges named, and those by which what is named reaches the node: the largest shares."""
    hops = dict(zip(rollout.nodes.tolist(), rollout.hops.tolist(), strict=True))
    links = {(e.source, e.target): e.share for e in edges}
    waiting = [one.node for one in labels] + sorted({end for pair in links for end in pair})
    while waiting:
        source = waiting.pop()
        far = hops.get(source, 0)
        if any(s == source and hops.get(t, far) < far for s, t in links):
            continue
        for k in np.flatnonzero(rollout.source == source).tolist():  # the largest share first
            target = int(rollout.target[k])
            if hops.get(target, far) < far:
                links[source, target] = float(rollout.flow[k])
                waiting.append(target)
                break
    return [(s, t, f) for (s, t), f in links.items()]


def _affordable(
    answers: ChangeableLogits, changes: Mapping[Key, Change], here: Tensor, budget: int
) -> dict[Key, Change]:
    """Those that fit the budget, the first first; one that is too much lets later ones by."""
    if not isinstance(answers, IncrementalLogits):
        return dict(changes)
    kept = {}
    for key, change in changes.items():
        cost = answers.cost(change, here)
        if cost <= budget:
            kept[key] = change
            budget -= cost
    return kept


def _strongest(effects: list[Effect], probability: float) -> list[Effect]:
    """Exact ones by size of their effect, then the others by share."""
    return sorted(effects, key=lambda e: (e.without is None, -abs(e.effect(probability)), -e.share))


def _attention(answers: ChangeableLogits, node: int, top: int) -> list[list[tuple[int, float]]]:
    """The node's own attention in each layer: its in-neighbors with the largest weights."""
    assert isinstance(answers, IncrementalLogits)
    weigh = weigh_by_attention(answers)
    assert weigh is not None
    nodes, (hop,) = sample_hops(answers.graph, answers.here(torch.tensor([node])), [ALL], seed=0)
    layers = []
    for index in range(answers.model.num_layers):
        weights, _ = weigh(nodes, hop, index)
        share = torch.zeros(len(nodes)).index_add_(0, hop.source.long(), weights)
        largest = share.topk(min(top, len(nodes)))
        names = answers.held[nodes[largest.indices]].tolist()
        pairs = zip(names, largest.values.tolist(), strict=True)
        layers.append([(name, value) for name, value in pairs if value > 0])
    return layers


def _label(label: Tensor) -> int | list[int]:
    """A class, or the numbers of the binary tasks that are known to hold."""
    if label.ndim == 0:
        return int(label)
    holds: list[int] = torch.nonzero(label == 1).squeeze(1).tolist()
    return holds

"""Explain a prediction by the neighbors and the known labels that caused it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from unimp.analysis.rollout import Rollout, roll_out, weigh_by_attention, weigh_evenly
from unimp.analysis.table import Table, tables_html
from unimp.config.choices import ALL
from unimp.errors import printable
from unimp.graph.graph import Graph
from unimp.inference.incremental.changes import Change, ChangeableLogits
from unimp.inference.incremental.logits import IncrementalLogits
from unimp.ops.sampling import sample_hops
from unimp.tasks.labels import is_known
from unimp.tasks.names import class_names, node_ids
from unimp.tasks.task import Task

EXACT = 20
"""The exact effect is computed for so many labels, and edges: those with the largest shares."""

BUDGET = 600_000
"""Exact effects may compute so many edges, half for labels and half for edges, which takes less
than a second. The neighbors of a hub would take more; those that do not fit only have a share."""

SHOWN = 8
"""A picture shows so many labels, and edges."""

SPREAD = 3
"""The number of hops that are followed if a model has no layers, such as label propagation."""


Key = TypeVar("Key", bound=Hashable)
Effect = TypeVar("Effect", "LabelEffect", "EdgeEffect")


@dataclass(frozen=True)
class LabelEffect:
    """The effect of one known label on the probability."""

    node: int
    label: int | list[int]  # the class, or the binary tasks that are true
    hops: int
    share: float  # of the rollout
    without: float | None  # the probability with this label hidden; None: not computed
    effect: float | None  # the probability minus `without`


@dataclass(frozen=True)
class EdgeEffect:
    """The effect of one edge on the probability, in both directions if it has both."""

    source: int
    target: int
    both_ways: bool
    share: float
    without: float | None
    effect: float | None


@dataclass(frozen=True, repr=False, eq=False)
class Explanation:
    """One prediction and its causes; nodes and classes are numbers.

    `to_dict`, `labels_table` and `edges_table` use the names of the task.
    """

    task: Task
    node: int
    target: int  # the class, or the binary task, that is explained
    probability: float
    classes: list[tuple[int, float]]  # the most likely ones with their probabilities
    observed: int | list[int] | None  # the node's own label, if it is an input
    attends: bool  # whether shares come from the attention of the model, or from a uniform walk
    followed: float  # the share of the rollout that was followed to the end
    without_labels: float | None  # the probability without any label; None: labels are not inputs
    without_edges: float  # the probability without edges to the node
    known_labels: int  # the number of known labels that were found
    labels: list[LabelEffect]  # largest effect first, then those not computed, by share
    edges: list[EdgeEffect]
    attention: list[list[tuple[int, float]]]  # for each layer: in-neighbors and their weights
    links: list[tuple[int, int, float]]  # source, target, share: how these nodes are connected
    smooth: str = "none"  # the form of smoothing after the model
    computed: str = ""  # how much was computed, in words

    @property
    def exact_labels(self) -> int:
        return sum(one.without is not None for one in self.labels)

    @property
    def exact_edges(self) -> int:
        return sum(one.without is not None for one in self.edges)

    @property
    def labels_table(self) -> Table:
        """The known labels: node, label, hops, share, without, effect."""
        return _table(self.to_dict()["labels"], LabelEffect)

    @property
    def edges_table(self) -> Table:
        """The edges: source, target, both_ways, share, without, effect."""
        return _table(self.to_dict()["edges"], EdgeEffect)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation under the names of the task, ready for JSON."""
        ids, classes = node_ids(self.task), class_names(self.task)

        def label(given: int | list[int]) -> Any:
            return [classes[c] for c in given] if isinstance(given, list) else classes[given]

        return {
            "node": ids[self.node],
            "class": classes[self.target],
            "probability": self.probability,
            "classes": [{"class": classes[c], "probability": p} for c, p in self.classes],
            "observed": None if self.observed is None else label(self.observed),
            "without_labels": self.without_labels,
            "without_edges": self.without_edges,
            "shares_are": "attention" if self.attends else "those of an even walk",
            "followed": self.followed,
            "known_labels": self.known_labels,
            "exact_labels": self.exact_labels,
            "exact_edges": self.exact_edges,
            "labels": [
                asdict(one) | {"node": ids[one.node], "label": label(one.label)}
                for one in self.labels
            ],
            "edges": [
                asdict(one) | {"source": ids[one.source], "target": ids[one.target]}
                for one in self.edges
            ],
            "attention": [
                [{"node": ids[n], "weight": weight} for n, weight in layer]
                for layer in self.attention
            ],
            "links": [
                {"source": ids[s], "target": ids[t], "share": share} for s, t, share in self.links
            ],
            "smooth": self.smooth,
            "computed": self.computed,
        }

    def _shown(self) -> tuple[str, dict[str, Table]]:
        """Return a summary, and the tables that are not empty by their titles."""
        found = self.to_dict()
        without = [f"{self.without_edges:.1%} without edges"]
        if self.without_labels is not None:
            without.insert(0, f"{self.without_labels:.1%} without labels")
        summary = printable(
            f"{found['node']}: {found['class']} with probability {self.probability:.1%} "
            f"({', '.join(without)})"
        )
        tables = {"Known labels": self.labels_table, "Edges": self.edges_table}
        return summary, {title: table for title, table in tables.items() if len(table)}

    def __repr__(self) -> str:
        summary, tables = self._shown()
        return "\n".join([summary, *(f"{title}:\n{table}" for title, table in tables.items())])

    def _repr_html_(self) -> str:
        summary, tables = self._shown()
        return tables_html(tables, summary)


def _table(rows: list[dict[str, Any]], kind: type[LabelEffect | EdgeEffect]) -> Table:
    import pyarrow as pa

    names = [field.name for field in fields(kind)]
    return Table(pa.table({name: pa.array([row[name] for row in rows]) for name in names}))


def explain(
    answers: ChangeableLogits,
    task: Task,
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
    """Explain the probability of a class at a node; by default, of the predicted class.

    chances: the function from logits to probabilities. observed: the labels that are inputs. The
    effect of a label or an edge is exact: the probability, minus the probability without it. It is
    computed for the `exact` labels and edges with the largest share of the attention rolled out
    over the layers (of a uniform walk, if the model has no attention), as far as `budget` permits.
    """
    graph = task.graph
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
    cut = {e: Change.remove_edges(_ways(graph, *e)) for e in list(edges)[:exact]}
    hide, cut = (_affordable(answers, changes, here, budget // 2) for changes in (hide, cut))
    alone = Change.remove_edges([(s, node) for s in _sources(graph, node) if s != node])
    *found, without_edges = after([*hide.values(), *cut.values(), alone])
    label_without = dict(zip(hide, found, strict=False))
    edge_without = dict(zip(cut, found[len(hide) :], strict=True))
    most_likely = probabilities.topk(min(5, len(probabilities)))

    def measured(share: float, without: float | None) -> tuple[float, float | None, float | None]:
        return float(share), without, None if without is None else probability - without

    labels = _strongest(
        LabelEffect(
            int(rollout.nodes[k]),
            _label(observed[int(rollout.nodes[k])]),
            int(rollout.hops[k]),
            *measured(rollout.share[k], label_without.get(k)),
        )
        for k in known[: max(top, exact)].tolist()
    )
    effects = _strongest(
        EdgeEffect(s, t, len(_ways(graph, s, t)) > 1, *measured(share, edge_without.get((s, t))))
        for (s, t), share in edges.items()
    )
    return Explanation(
        task=task,
        node=node,
        target=target,
        probability=probability,
        classes=list(zip(most_likely.indices.tolist(), most_likely.values.tolist(), strict=True)),
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
    """Return the rollout in node numbers of the task, and whether it follows attention."""
    if not isinstance(answers, IncrementalLogits):
        return roll_out(graph, node, SPREAD, weigh_evenly), False
    weigh = weigh_by_attention(answers)
    start = int(answers.here(torch.tensor([node])))
    found = roll_out(answers.graph, start, answers.model.num_layers, weigh or weigh_evenly)
    ends = {
        name: answers.held.numpy()[getattr(found, name)] for name in ("nodes", "source", "target")
    }
    return replace(found, **ends), weigh is not None


def _joined_ways(rollout: Rollout, count: int) -> dict[tuple[int, int], float]:
    """Return the edges with the largest shares; both directions of an edge count as one."""
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
    """Return an edge and, if the graph contains it, its reverse."""
    both = target in _sources(graph, source)
    return [(source, target), (target, source)] if both else [(source, target)]


def _sources(graph: Graph, node: int) -> list[int]:
    begin, end = graph.indptr[node : node + 2].tolist()
    return list(dict.fromkeys(graph.source[begin:end].tolist()))


def _links(
    rollout: Rollout, labels: Sequence[LabelEffect], edges: Sequence[EdgeEffect]
) -> list[tuple[int, int, float]]:
    """Return the given edges, and those that connect the labels and edges with the node."""
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
    """Return the changes that fit the budget, in order; skip one that is too expensive."""
    if not isinstance(answers, IncrementalLogits):
        return dict(changes)
    kept = {}
    for key, change in changes.items():
        cost = answers.cost(change, here)
        if cost <= budget:
            kept[key] = change
            budget -= cost
    return kept


def _strongest(effects: Iterable[Effect]) -> list[Effect]:
    """Sort exact effects by size, then the others by share."""
    return sorted(effects, key=lambda e: (e.effect is None, -abs(e.effect or 0.0), -e.share))


def _attention(answers: ChangeableLogits, node: int, top: int) -> list[list[tuple[int, float]]]:
    """Return the in-neighbors with the largest attention weights of the node, per layer."""
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
    """Return a class, or the numbers of the binary tasks that are known to be true."""
    if label.ndim == 0:
        return int(label)
    true: list[int] = torch.nonzero(label == 1).squeeze(1).tolist()
    return true

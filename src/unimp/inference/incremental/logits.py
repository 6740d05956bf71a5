"""Update logits after a change by computing only the rows that the change affects."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.errors import GraphError, NonFiniteError
from unimp.graph.features import join_features, split_features
from unimp.graph.graph import Graph, checked_numbers
from unimp.inference.exact import layer_states
from unimp.inference.incremental.assembly import Assembly, Planned
from unimp.inference.incremental.changes import Change, FullRecomputation, checked_change
from unimp.inference.incremental.reach import NO_NODES, Nodes, Reach, pick
from unimp.inference.logits import predict_logits
from unimp.model.gcn import with_convolution_weights
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import UNLABELED
from unimp.tasks.metrics import non_finite_rows
from unimp.training.precision import autocast, matmuls_in

EDGES_PER_PASS = 2_000_000
"""Changes with so many edges are computed together: enough to use a processor well, and small
enough for memory."""

COLUMNS_PER_EDGE = 1000
"""Propagating so many columns of labels along an edge takes as long as one edge of a layer."""


class IncrementalLogits:
    """Stores the state of every node after every layer, and updates it after changes.

    A new label affects the out-neighbors of its node in the first layer, their out-neighbors in the
    next, and so on. A target depends on its in-neighbors in the last layer, on theirs in the layer
    before, and so on. A row is computed again if it is in both sets, by the model's own layer over
    all its in-edges, so that the result equals a full recomputation up to rounding.

    Labels that are propagated over the whole graph are computed again after every change. The rows
    that differ are inputs that change.

    Removing an edge has the same result as a graph without it: the degrees of a graph convolution
    change too. The edge of a node to itself cannot be removed.

    around: store only the states that the logits of these nodes depend on; other logits are NaN.
    """

    def __init__(
        self,
        model: NodeModel,
        graph: Graph,
        observed: Tensor,
        *,
        around: Tensor | None = None,
        chunk_edges: int = EDGES_PER_PASS,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        if not model.by_layer:
            raise GraphError(
                f"{type(model).__name__} does not run layer by layer, so there are no states to "
                "store. Use FullRecomputation instead."
            )
        self.model = model.eval()
        self.device, self.precision, self.chunk_edges = device, precision, chunk_edges
        self._task_nodes = graph.num_nodes
        self.observed = observed.clone()
        self.is_whole = around is None
        # The nodes whose states are stored: node i of the stored graph is node held[i] of the task.
        self.held = torch.arange(self._task_nodes)
        self._place = self._placed()
        self._use_graph(graph.to("cpu"))
        whole, x = self.graph, self.model.features(self.graph, self.observed)
        self._rows: list[Tensor] | None = None
        self._leaving = NO_NODES
        if around is not None:
            self._narrow(around)
            x = None if x is None else x[self.held]
        with self._in_precision():
            self._states = list(
                layer_states(
                    self.model,
                    self.graph,
                    x,
                    self.observed,
                    chunk_edges=self.chunk_edges,
                    device=self.device,
                    rows=self._rows,
                )
            )
        self._logits = self._read_out(self._states[-1])
        rows = self._rows[-1] if self._rows else torch.arange(len(self._logits))
        _refuse_non_finite(self._logits[rows], self.held[rows])
        # The propagated labels of the stored nodes; they depend on the whole task.
        self._channel = split_features(x)[1]
        if self._channel is not None:
            self._propagation = FullRecomputation(
                self.model.propagated, whole, observed, self._logits.shape[1]
            )

    def _placed(self) -> Tensor:
        place = torch.full((self._task_nodes,), -1)
        place[self.held] = torch.arange(len(self.held))
        return place

    def _use_graph(self, graph: Graph, degrees: tuple[Nodes, Nodes] | None = None) -> None:
        """Store a graph; `degrees` are those of the larger graph that it is a part of."""
        self.graph, self.reach = graph, Reach(graph)
        degrees = degrees or (self.reach.in_degree, self.reach.out_degree)
        self._assembly = Assembly(
            graph, self.reach, degrees if self.model.weighs_by_degree else None, self.chunk_edges
        )
        self._plans: MutableMapping[Change, Planned] = WeakKeyDictionary()

    def _narrow(self, around: Tensor) -> None:
        """Keep the part of the graph that some nodes depend on."""
        wanted = np.unique(self._place[around].numpy())
        needed = self.reach.backward(wanted, self.model.num_layers)
        self._rows = [torch.from_numpy(np.searchsorted(needed[0], r)) for r in needed[1:]]
        nodes = torch.from_numpy(needed[0])
        if self.model.weighs_by_degree:
            self._leaving = self._edges_out_of(needed[0])
        degrees = self.reach.in_degree[needed[0]], self.reach.out_degree[needed[0]]
        self.held, self.observed = self.held[nodes], self.observed[nodes]
        self._place = self._placed()
        self._use_graph(self.graph.induced_subgraph(nodes), degrees)

    def _edges_out_of(self, nodes: Nodes) -> Nodes:
        """Return the edges from `nodes` to other nodes, as increasing numbers that combine the
        position of the source and the task's number of the target. No stored row depends on these
        edges, but degrees count them."""
        count, slots = pick(self.reach.out_indptr, nodes)
        target = self.reach.target[slots]
        out = ~np.isin(target, nodes)
        source = np.repeat(np.arange(len(nodes)), count)[out]
        return np.sort(source * self._task_nodes + self.held.numpy()[target[out]])

    @property
    def logits(self) -> Tensor:
        return self._to_task(self._logits)

    @cached_property
    def without_labels(self) -> Tensor:
        if self._rows is not None:
            targets = self.held[self._rows[-1]] if self._rows else self.held
            (found,) = self.after([Change(torch.arange(self._task_nodes))], [targets])
            logits = self._logits.new_full(self._logits.shape, torch.nan)
            logits[self._place[targets]] = found
            return self._to_task(logits)
        logits = predict_logits(
            self.model,
            self.graph,
            torch.full_like(self.observed, UNLABELED),
            chunk_edges=self.chunk_edges,
            device=self.device,
            precision=self.precision,
        )
        return self._to_task(logits)

    def state(self, layer: int, nodes: Tensor) -> Tensor:
        """Return the inputs of a layer for nodes in the numbers of the stored graph."""
        return self._states[layer][nodes].to(self.device)

    def here(self, nodes: Tensor) -> Tensor:
        """Map node numbers of the task to those of the stored graph; −1 for other nodes."""
        return self._place[nodes]

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        answers: list[Tensor] = []
        planned: list[Planned] = []
        cost = 0
        for change, wanted in zip(changes, targets, strict=True):
            one = self._planned(change, wanted)
            if planned and cost + one.cost > min(EDGES_PER_PASS, self.chunk_edges):
                answers += self._answer(planned)
                planned, cost = [], 0
            planned.append(one)
            cost += one.cost
        return answers + self._answer(planned)

    def commit(self, change: Change) -> None:
        if not self.is_whole:
            raise GraphError(
                "a change can be committed only if all states are stored; omit `around`"
            )
        planned, before = self._plan(change, None), self.graph
        if planned.gone.numel():
            graph = self.graph.without_edges(*planned.gone)
            self._use_graph(with_convolution_weights(graph) if self._assembly.degrees else graph)
        try:
            computed = list(self._computed([replace(planned, gone=planned.gone[:, :0])]))
            logits = self._read_out(computed[-1])
            _refuse_non_finite(logits, torch.from_numpy(planned.rows[-1]))
        except BaseException:  # the change is complete, or nothing changes
            self._use_graph(before)
            raise
        for state, nodes, rows in zip(self._states, planned.rows, computed, strict=True):
            state[torch.from_numpy(nodes)] = rows
        self._logits[torch.from_numpy(planned.rows[-1])] = logits
        self.observed[planned.nodes] = planned.labels
        if self._channel is not None and planned.propagated is not None:
            self._channel[torch.from_numpy(planned.rows[0])] = planned.propagated
            self._propagation.commit(change)
        self._plans.clear()
        self.__dict__.pop("without_labels", None)

    def cost(self, change: Change, targets: Tensor) -> int:
        """Return the number of edges and rows that are computed for a change."""
        return self._planned(change, targets).cost

    @property
    def propagation_cost(self) -> int:
        """The cost of propagating labels over the whole graph, which every change needs, in edges
        of a layer; 0 if propagated labels are not inputs."""
        if self._channel is None:
            return 0
        return self._propagation.graph.num_edges * self._channel.shape[1] // COLUMNS_PER_EDGE

    def _planned(self, change: Change, targets: Tensor) -> Planned:
        """Return `_plan` of a change, cached as long as the change exists: asking for its cost
        first needs the same plan."""
        known = self._plans.get(change)
        if known is None or known.targets is not targets:
            known = self._plans[change] = self._plan(change, targets)
        return known

    def _plan(self, change: Change, targets: Tensor | None) -> Planned:
        """Translate a change to the stored graph, and find the rows to compute for it."""
        change = checked_change(change, self._task_nodes, self.observed, self._logits.shape[1])
        nodes, labels = self._relabeled(change)
        gone, left = self._gone(change), self._left(change)
        changed = nodes.numpy() if self.model.takes_labels else NO_NODES
        propagated = None
        if self._channel is not None:
            (propagated,) = self._propagation.after([change], [self.held])
            differs = propagated.ne(self._channel).any(1).numpy()
            changed = self.reach.distinct(changed, np.flatnonzero(differs))
        rewired = gone[1].numpy()
        if self.model.weighs_by_degree and len(rewired) + len(left):
            # Their sources have fewer out-edges, each with a larger weight.
            sources = np.unique(np.concatenate((gone[0].numpy(), left)))
            rewired = np.concatenate((rewired, self.reach.targets(sources)))
        wanted = None if targets is None else np.unique(self._places_of(targets).numpy())
        rewired = np.unique(rewired).astype(np.int64)
        rows = self.reach.rows(
            changed, rewired, wanted, self.model.num_layers, alone=self._alone(gone)
        )
        if propagated is not None:
            propagated = propagated[torch.from_numpy(rows[0])]
        cost = self.reach.cost(rows)
        return Planned(nodes, labels, gone, left, targets, rows, propagated, cost)

    def _relabeled(self, change: Change) -> tuple[Tensor, Tensor]:
        """Return the nodes whose label really changes, in increasing order, and the new labels."""
        if change.nodes is None:
            return torch.empty(0, dtype=torch.int64), self.observed[:0]
        nodes = self.here(change.nodes)
        now = self.observed[nodes.clamp(min=0)]
        labels = torch.full_like(now, UNLABELED)
        if change.labels is not None:
            labels = change.labels.to(labels)
        # A label that stays the same or belongs to a node that is not stored changes nothing.
        other = labels != now if labels.ndim == 1 else (labels != now).any(1)
        kept = torch.nonzero(other & (nodes >= 0)).squeeze(1)
        kept = kept[torch.argsort(nodes[kept])]
        return nodes[kept], labels[kept]

    def _places_of(self, targets: Tensor) -> Tensor:
        places = self.here(checked_numbers(targets, self._task_nodes))
        held = places >= 0
        if self._rows:  # the other nodes are stored only as inputs of these
            held &= torch.isin(places, self._rows[-1])
        if not bool(held.all()):
            raise GraphError(
                f"the logits of node {int(targets[~held][0])} are not stored; include it in "
                "`around`, or omit `around`"
            )
        return places

    def _gone(self, change: Change) -> Tensor:
        """Return the removed edges that exist, in the numbers of the stored graph: [2, m], with
        duplicates if the graph contains some."""
        if change.without is None or change.without.numel() == 0:
            return torch.empty(2, 0, dtype=torch.int64)
        gone: Tensor = self.here(change.without)
        gone = gone[:, (gone >= 0).all(0)]
        targets = np.unique(gone[1].numpy())
        count, slots = pick(self.reach.in_indptr, targets)
        there = self.reach.pairs(self.reach.source[slots], np.repeat(targets, count))
        there = there[np.isin(there, self.reach.pairs(*gone.numpy()))]
        return torch.from_numpy(np.stack(divmod(there, self.reach.num_nodes)))

    def _left(self, change: Change) -> Nodes:
        """Return the source of each removed edge that leads out of the stored graph."""
        if change.without is None or not len(self._leaving):
            return NO_NODES
        source, target = self.here(change.without[0]).numpy(), change.without[1].numpy()
        gone = np.unique((source * self._task_nodes + target)[source >= 0])
        first, end = (np.searchsorted(self._leaving, gone, side) for side in ("left", "right"))
        return np.repeat(gone // self._task_nodes, end - first)

    def _alone(self, gone: Tensor) -> Nodes:
        """Return the nodes that lose all edges from other nodes."""
        targets, many = np.unique(gone[1].numpy(), return_counts=True)
        count, slots = pick(self.reach.in_indptr, targets)
        others = self.reach.source[slots] != np.repeat(targets, count)
        left = np.bincount(np.repeat(np.arange(len(targets)), count)[others], minlength=len(many))
        alone: Nodes = targets[left == many]
        return alone

    def _answer(self, planned: Sequence[Planned]) -> list[Tensor]:
        """Return the logits of the targets of each plan."""
        if not planned:
            return []
        last = deque(self._computed(planned), maxlen=1).pop()
        answers, begin = [], 0
        for one in planned:
            assert one.targets is not None
            places = self._places_of(one.targets)
            logits = self._logits[places]
            rows = torch.from_numpy(one.rows[-1])
            if len(rows):
                found = self._read_out(last[begin : begin + len(rows)])
                at = torch.searchsorted(rows, places).clamp(max=len(rows) - 1)
                is_new = rows[at] == places
                logits[is_new] = found[at[is_new]]
            _refuse_non_finite(logits, one.targets)
            answers.append(logits)
            begin += len(rows)
        return answers

    @torch.no_grad()
    def _computed(self, planned: Sequence[Planned]) -> Iterator[Tensor]:
        """Yield the planned rows of h⁰ and of each layer, one plan after the other."""
        with self._in_precision():
            rows = torch.cat([self._embedded(one) for one in planned])
            yield rows
            for index in range(self.model.num_layers):
                rows = self._propagated(planned, rows, index)
                yield rows

    def _embedded(self, one: Planned) -> Tensor:
        nodes = torch.from_numpy(one.rows[0])
        if not len(nodes):
            return self._states[0][:0]
        labels, is_new = self.observed[nodes], torch.isin(nodes, one.nodes)
        labels[is_new] = one.labels[torch.searchsorted(one.nodes, nodes[is_new])]
        x = join_features(None if self.graph.x is None else self.graph.x[nodes], one.propagated)
        x = None if x is None else x.to(self.device)
        return self.model.embed(x, labels.to(self.device)).cpu()

    def _propagated(self, planned: Sequence[Planned], before: Tensor, index: int) -> Tensor:
        """Compute layer `index` of the planned rows from new rows and stored ones."""
        held, done = self._states[index], []
        for part in self._assembly.parts(planned, index):
            own = held[part.nodes]
            is_new = part.own >= 0
            own[is_new] = before[part.own[is_new]]
            h = torch.cat((own, held[part.held], before[part.fresh]))
            done.append(
                self.model.propagate(h.to(self.device), part.hop.to(self.device), index).cpu()
            )
        return torch.cat(done) if done else self._states[index + 1][:0]

    def _read_out(self, h: Tensor) -> Tensor:
        with torch.no_grad(), self._in_precision():
            return self.model.read_out(h.to(self.device)).float().cpu()

    def _to_task(self, rows: Tensor) -> Tensor:
        """Expand one row per stored node to one row per node of the task; others are NaN."""
        found = rows.new_full((self._task_nodes, rows.shape[1]), torch.nan)
        found[self.held] = rows
        return found

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        with matmuls_in(self.precision), autocast(self.device, self.precision):
            yield


def _refuse_non_finite(logits: Tensor, nodes: Tensor) -> None:
    """Raise NonFiniteError if logits [n, classes] of the nodes [n] are not finite."""
    if rows := non_finite_rows(logits):
        bad: list[int] = torch.unique(nodes[rows]).tolist()
        shown = ", ".join(map(str, bad[:5]))
        raise NonFiniteError(
            f"the scores of {len(bad):,} nodes are not finite, such as those of node {shown}. "
            "Check the weights and the features.",
            bad,
        )

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
from unimp.data.structure import NUM_COLUMNS
from unimp.errors import GraphError, NonFiniteError
from unimp.graph.changed import with_rows
from unimp.graph.csr import pick_entries
from unimp.graph.features import SparseFeatures, join_features, split_features
from unimp.graph.graph import Graph, checked_numbers
from unimp.inference.exact import layer_states
from unimp.inference.incremental.assembly import Assembly, Planned
from unimp.inference.incremental.changes import (
    Change,
    Limits,
    Update,
    checked_change,
    limits_of,
)
from unimp.inference.incremental.projections import Projections
from unimp.inference.incremental.reach import NO_NODES, NO_PAIRS, Nodes, Reach
from unimp.inference.incremental.rewiring import Rewiring, rewiring_of
from unimp.inference.incremental.structure import with_structural_rows
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
    all its in-edges.

    The logits equal those of a cold `predict_logits` with the same graph and labels, within
    rounding (1e-5 in single precision), after any number of changes: a row is always computed from
    its present inputs, never by adding a difference, so that errors do not accumulate. They are not
    equal bit by bit, because a product of matrices may be rounded differently if it has another
    number of rows.

    Labels that are propagated over the whole graph are computed again after every change. The rows
    that differ are inputs that change.

    Adding and removing edges has the same result as another graph: the degrees of a graph
    convolution change too, and a new node gets a self-loop if the model adds them. The edge of a
    node to itself cannot be removed.

    around: store only the states that the logits of these nodes depend on; other logits are NaN.
    structure: the last columns of x are structural columns, which are computed again when edges or
    nodes change; the features of a change are then without them. hold_projections: store queries,
    keys, values and residuals of attention layers too, which takes several times the memory of the
    states; None: if at most half of the free memory is needed. Only one thread may use an engine.
    """

    def __init__(
        self,
        model: NodeModel,
        graph: Graph,
        observed: Tensor,
        *,
        around: Tensor | None = None,
        structure: bool = False,
        hold_projections: bool | None = False,
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
        self.structure = structure
        self._task_nodes = graph.num_nodes
        self.observed = observed.clone()
        self.is_whole = around is None
        # The nodes whose states are stored: node i of the stored graph is node held[i] of the task.
        self.held = torch.arange(self._task_nodes)
        self._place = self._placed()
        self._use_graph(graph.to("cpu"))
        x = self.model.features(self.graph, self.observed)
        # Propagated labels depend on the edges and labels of the whole task.
        self._bare = replace(self.graph, x=None, edge_attr=None)
        self._all_observed = self.observed
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
            wanted = hold_projections if self.is_whole and str(device) == "cpu" else False
            self.projections = Projections.of(self.model, self._states, wanted=wanted)
        self._logits = self._read_out(self._states[-1])
        rows = self._rows[-1] if self._rows else torch.arange(len(self._logits))
        _refuse_non_finite(self._logits[rows], self.held[rows])
        self._channel = split_features(x)[1]  # the propagated labels of the stored nodes

    def _placed(self) -> Tensor:
        place = torch.full((self._task_nodes,), -1)
        place[self.held] = torch.arange(len(self.held))
        return place

    def _reserve(self, num_nodes: int) -> None:
        """Make room for the rows of more nodes, and for some that may follow."""
        if num_nodes <= self.reach.num_nodes:
            return
        if num_nodes > len(self._logits):
            room = num_nodes + num_nodes // 8
            self._states = [_grown(rows, room, torch.nan) for rows in self._states]
            self._logits = _grown(self._logits, room, torch.nan)
            self.observed = _grown(self.observed, room, UNLABELED)
            if self._channel is not None:
                self._channel = _grown(self._channel, room, torch.nan)
            if self.projections is not None:
                self.projections.reserve(room)
            self._place = torch.arange(room)
        self.reach.reserve(len(self._logits))
        self._assembly.reserve()

    def _use_graph(self, graph: Graph, degrees: tuple[Nodes, Nodes] | None = None) -> None:
        """Store a graph; `degrees` are those of the larger graph that it is a part of."""
        self.graph, self.reach = graph, Reach(graph)
        degrees = degrees or (self.reach.in_degree, self.reach.out_degree)
        self._by_degree = self.model.weighs_by_degree
        self._assembly = Assembly(
            graph, self.reach, degrees if self._by_degree else None, self.chunk_edges
        )
        self._plans: MutableMapping[Change, Planned] = WeakKeyDictionary()

    def _narrow(self, around: Tensor) -> None:
        """Keep the part of the graph that some nodes depend on."""
        wanted = np.unique(self._place[around].numpy())
        needed = self.reach.backward(wanted, self.model.num_layers)
        self._rows = [torch.from_numpy(np.searchsorted(needed[0], r)) for r in needed[1:]]
        nodes = torch.from_numpy(needed[0])
        if self._by_degree:
            self._leaving = self._edges_out_of(needed[0])
        degrees = self.reach.in_degree[needed[0]], self.reach.out_degree[needed[0]]
        self.held, self.observed = self.held[nodes], self.observed[nodes]
        self._place = self._placed()
        self._use_graph(self.graph.induced_subgraph(nodes), degrees)

    def _edges_out_of(self, nodes: Nodes) -> Nodes:
        """Return the edges from `nodes` to other nodes, as increasing numbers that combine the
        position of the source and the task's number of the target. No stored row depends on these
        edges, but degrees count them."""
        count, slots = pick_entries(self.reach.out_indptr, nodes)
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
            torch.full_like(self.observed[: self._task_nodes], UNLABELED),
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

    def prepare(self, change: Change) -> Update:
        if not self.is_whole:
            raise GraphError(
                "a change can be committed only if all states are stored; omit `around`"
            )
        planned, projected = self._plan(change, None), list[Tensor]()
        computed = list(self._computed([planned], projected))
        logits = self._read_out(computed[-1])
        nodes = torch.from_numpy(planned.rows[-1])
        _refuse_non_finite(logits, nodes)
        before = self._logits[nodes]
        differs = torch.nonzero(logits.ne(before).any(1)).squeeze(1)

        def apply() -> None:
            self._apply(planned, computed, projected, logits)

        return Update(nodes[differs], before[differs], logits[differs], apply)

    def commit(self, change: Change) -> Update:
        update = self.prepare(change)
        update.apply()
        return update

    def _apply(
        self, one: Planned, computed: list[Tensor], projected: list[Tensor], logits: Tensor
    ) -> None:
        """Store the rows that were computed for a change of the whole graph."""
        for state, nodes, rows in zip(self._states, one.rows, computed, strict=True):
            state[torch.from_numpy(nodes)] = rows
        if self.projections is not None:
            self.projections.store(one, projected)
        self._logits[torch.from_numpy(one.rows[-1])] = logits
        self.observed[one.nodes] = one.labels
        if self._channel is not None and one.propagated is not None:
            self._channel[torch.from_numpy(one.rows[0])] = one.propagated
        if one.change.changes_graph:
            self._task_nodes += one.change.new_nodes
            graph = replace(one.change, edge_attr=self._edge_attr(one.change)).graph_from(self.graph)
            self._use_graph(with_convolution_weights(graph) if self._by_degree else graph)
            self._bare = replace(self.graph, x=None, edge_attr=None)
            self.held = torch.arange(self._task_nodes)
        self._all_observed = self.observed[: self._task_nodes]
        self._plans.clear()
        self.__dict__.pop("without_labels", None)

    def _edge_attr(self, change: Change) -> Tensor | None:
        """The features of added edges; those of a graph convolution are computed afterwards."""
        if not self._by_degree or change.edges is None:
            return change.edge_attr
        return torch.zeros(change.edges.shape[1], 1)

    def cost(self, change: Change, targets: Tensor) -> int:
        """Return the number of edges and rows that are computed for a change."""
        return self._planned(change, targets).cost

    @property
    def propagation_cost(self) -> int:
        """The cost of propagating labels over the whole graph, which every change needs, in edges
        of a layer; 0 if propagated labels are not inputs."""
        if self._channel is None:
            return 0
        return self._bare.num_edges * self._channel.shape[1] // COLUMNS_PER_EDGE

    def _planned(self, change: Change, targets: Tensor) -> Planned:
        """Return `_plan` of a change, cached as long as the change exists: asking for its cost
        first needs the same plan."""
        known = self._plans.get(change)
        if known is None or known.targets is not targets:
            known = self._plans[change] = self._plan(change, targets)
        return known

    @property
    def _limits(self) -> Limits:
        """What a change must fit; edge features that the model does not use are ignored."""
        limits = limits_of(self.graph, self.observed, self._logits.shape[1])
        features = limits.features - (NUM_COLUMNS if self.structure else 0)
        edge_features = limits.edge_features if self.model.takes_edge_features else None
        return replace(
            limits, num_nodes=self._task_nodes, features=features, edge_features=edge_features
        )

    def _completed(self, change: Change) -> Change:
        """Check a change, and add what follows from it: self-loops and structural columns."""
        change = checked_change(change, self._limits)
        if not change.changes_graph:
            return change
        if change.new_nodes or change.edges is not None or change.featured is not None:
            if not self.is_whole:
                raise GraphError(
                    "nodes, edges and features can be added only if all states are stored; omit "
                    "`around`"
                )
            self._reserve(self._task_nodes + change.new_nodes)
        if self.model.adds_self_loops and change.new_nodes:
            new = torch.arange(self._task_nodes, self._task_nodes + change.new_nodes)
            loops = torch.stack((new, new))
            given = loops if change.edges is None else torch.cat((change.edges, loops), 1)
            change = replace(change, edges=torch.unique(given, dim=1))
        return with_structural_rows(change, self.graph) if self.structure else change

    def _plan(self, change: Change, targets: Tensor | None) -> Planned:
        """Translate a change to the stored graph, and find the rows to compute for it."""
        change = self._completed(change)
        nodes, labels = self._relabeled(change)
        rewiring = self._rewiring(change)
        inputs = [nodes.numpy() if self.model.takes_labels else NO_NODES]
        if change.featured is not None:
            inputs.append(change.featured.numpy())
        if change.new_nodes:
            inputs.append(np.arange(self._task_nodes, self._task_nodes + change.new_nodes))
        propagated = None
        if self._channel is not None:
            labels_after = replace(change, featured=None, x=None)
            propagated = self._propagated_labels(labels_after)
            differs = propagated.ne(self._channel[: len(propagated)]).any(1).numpy()
            inputs.append(np.flatnonzero(differs))
        changed = self.reach.distinct(*inputs)
        wanted = None
        if targets is not None:
            wanted = np.unique(self._places_of(targets, change).numpy())
        rows = self.reach.rows(
            changed,
            rewiring.rewired(self.reach, by_degree=self._by_degree),
            wanted,
            self.model.num_layers,
            alone=rewiring.alone,
            added=rewiring.added,
        )
        if propagated is not None:
            propagated = propagated[torch.from_numpy(rows[0])]
        cost = self.reach.cost(rows)
        return Planned(change, nodes, labels, rewiring, targets, rows, propagated, cost)

    def _propagated_labels(self, change: Change) -> Tensor:
        """Propagate the labels after a change over the whole graph; return the stored rows."""
        edges = replace(change, edge_attr=None).graph_from(self._bare)
        found = self.model.propagated(edges, change.labels_from(self._all_observed))
        return found if self.is_whole else found[self.held]

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

    def _places_of(self, targets: Tensor, change: Change) -> Tensor:
        places = self.here(checked_numbers(targets, self._task_nodes + change.new_nodes))
        held = places >= 0
        if self._rows:  # the other nodes are stored only as inputs of these
            held &= torch.isin(places, self._rows[-1])
        if not bool(held.all()):
            raise GraphError(
                f"the logits of node {int(targets[~held][0])} are not stored; include it in "
                "`around`, or omit `around`"
            )
        return places

    def _rewiring(self, change: Change) -> Rewiring:
        """Return the edges that a change removes and adds, in the numbers of the stored graph."""
        without, edges = NO_PAIRS, NO_PAIRS
        if change.without is not None:
            places = self.here(change.without)
            without = places[:, (places >= 0).all(0)].numpy()
        if change.edges is not None:
            edges = change.edges.numpy()
        left = self._left(change)
        if not (without.shape[1] or edges.shape[1] or len(left)):
            return Rewiring()
        return rewiring_of(
            self.graph,
            self.reach,
            without=without,
            left=left,
            edges=edges,
            attr=change.edge_attr,
        )

    def _left(self, change: Change) -> Nodes:
        """Return the source of each removed edge that leads out of the stored graph."""
        if change.without is None or not len(self._leaving):
            return NO_NODES
        source, target = self.here(change.without[0]).numpy(), change.without[1].numpy()
        gone = np.unique((source * self._task_nodes + target)[source >= 0])
        first, end = (np.searchsorted(self._leaving, gone, side) for side in ("left", "right"))
        return np.repeat(gone // self._task_nodes, end - first)

    def _answer(self, planned: Sequence[Planned]) -> list[Tensor]:
        """Return the logits of the targets of each plan."""
        if not planned:
            return []
        last = deque(self._computed(planned), maxlen=1).pop()
        answers, begin = [], 0
        for one in planned:
            assert one.targets is not None
            places = self._places_of(one.targets, one.change)
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
    def _computed(
        self, planned: Sequence[Planned], projected: list[Tensor] | None = None
    ) -> Iterator[Tensor]:
        """Yield the planned rows of h⁰ and of each layer, one plan after the other.

        projected: a list to which new projections are appended, if projections are stored.
        """
        with self._in_precision():
            rows = torch.cat([self._embedded(one) for one in planned])
            yield rows
            for index in range(self.model.num_layers):
                if self.projections is not None and len(planned) == 1:
                    rows, new = self.projections.computed(
                        self._assembly, planned[0], rows, index
                    )
                    if projected is not None:
                        projected.append(new)
                    if not len(rows):
                        rows = self._states[index + 1][:0]
                else:
                    rows = self._propagated(planned, rows, index)
                yield rows

    def _embedded(self, one: Planned) -> Tensor:
        nodes = torch.from_numpy(one.rows[0])
        if not len(nodes):
            return self._states[0][:0]
        labels, is_new = self.observed[nodes], torch.isin(nodes, one.nodes)
        labels[is_new] = one.labels[torch.searchsorted(one.nodes, nodes[is_new])]
        x = join_features(self._features(one.change, nodes), one.propagated)
        x = None if x is None else x.to(self.device)
        return self.model.embed(x, labels.to(self.device)).cpu()

    def _features(self, change: Change, nodes: Tensor) -> Tensor | SparseFeatures | None:
        """Return the features of some nodes after a change."""
        x = self.graph.x
        if x is None or change.featured is None or change.x is None:
            return None if x is None else x[nodes]
        order = torch.argsort(change.featured)
        featured = change.featured[order]
        at = torch.searchsorted(featured, nodes).clamp(max=len(featured) - 1)
        new = torch.nonzero(featured[at] == nodes).squeeze(1)
        rows = x[torch.where(featured[at] == nodes, 0, nodes)]
        return with_rows(rows, len(nodes), new, change.x[order[at[new]]])

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
        found[self.held] = rows[: len(self.held)]
        return found

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        with matmuls_in(self.precision), autocast(self.device, self.precision):
            yield


def _grown(rows: Tensor, count: int, value: float) -> Tensor:
    """Return rows with further ones that contain `value`: [count, …]."""
    more = rows.new_full((count - len(rows), *rows.shape[1:]), value)
    return torch.cat((rows, more))


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

"""The stored graph, inputs and states of the nodes that an engine answers for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.errors import NonFiniteError
from unimp.graph.changed import with_rows
from unimp.graph.csr import pick_entries
from unimp.graph.features import SparseFeatures, join_features, rows_of, split_features
from unimp.graph.graph import Graph
from unimp.inference.exact import layer_states
from unimp.inference.incremental.assembly import Assembly, Planned
from unimp.inference.incremental.changes import Change
from unimp.inference.incremental.projections import Projections, with_room
from unimp.inference.incremental.reach import NO_NODES, Nodes, Reach
from unimp.model.gcn import with_convolution_weights
from unimp.model.node_model import NodeModel
from unimp.model.propagated_labels import LabelSums
from unimp.tasks.labels import UNLABELED
from unimp.tasks.metrics import non_finite_rows
from unimp.training.precision import autocast, matmuls_in


class Wiring(NamedTuple):
    """A graph, and what is derived from its edges."""

    graph: Graph
    reach: Reach
    assembly: Assembly


class Stored:
    """One row per stored node of each input, of each layer and of the logits.

    Node i of the stored graph is node held[i] of the task; all nodes are stored unless `around` is
    given. Arrays may have room for more nodes than the graph has.
    """

    def __init__(
        self,
        model: NodeModel,
        graph: Graph,
        observed: Tensor,
        *,
        around: Tensor | None,
        hold_projections: bool | None,
        chunk_edges: int,
        device: torch.device | str,
        precision: Precision,
    ) -> None:
        self.model = model.eval()
        self.device, self.precision, self.chunk_edges = device, precision, chunk_edges
        self.num_nodes = graph.num_nodes  # of the task
        self.labels = observed.clone()
        self.is_whole = around is None
        self.held = torch.arange(self.num_nodes)
        self._place = self._placed()
        self.graph, self.reach, self.assembly = self._wired(graph.to("cpu"))
        x = self.model.features(self.graph, self.labels)
        # Propagated labels depend on the edges and the labels of the whole task.
        self._edges = replace(self.graph, x=None, edge_attr=None)
        self._all_labels, self._recent = self.labels, LabelSums()
        self.rows: list[Tensor] | None = None  # the stored rows of each layer; None: all
        self.leaving = NO_NODES
        if around is not None:
            self._narrow(around)
            x = None if x is None else rows_of(x, self.held)
        with self.in_precision():
            self.states = list(
                layer_states(
                    self.model,
                    self.graph,
                    x,
                    self.labels,
                    chunk_edges=self.chunk_edges,
                    device=self.device,
                    rows=self.rows,
                )
            )
            wanted = hold_projections if self.is_whole and str(device) == "cpu" else False
            self.projections = Projections.of(self.model, self.states, wanted=wanted)
        self.logits = self.read_out(self.states[-1])
        known = self.rows[-1] if self.rows else torch.arange(len(self.logits))
        refuse_non_finite(self.logits[known], self.held[known])
        self.channel = split_features(x)[1]  # the propagated labels

    def _placed(self) -> Tensor:
        place = torch.full((self.num_nodes,), -1)
        place[self.held] = torch.arange(len(self.held))
        return place

    def _wired(self, graph: Graph, degrees: tuple[Nodes, Nodes] | None = None) -> Wiring:
        """Prepare a graph; `degrees` are those of the larger graph that it is a part of."""
        reach = Reach(graph)
        degrees = degrees or (reach.in_degree, reach.out_degree)
        by_degree = self.model.weighs_by_degree
        assembly = Assembly(graph, reach, degrees if by_degree else None, self.chunk_edges)
        return Wiring(graph, reach, assembly)

    def _narrow(self, around: Tensor) -> None:
        """Keep the part of the graph that some nodes depend on."""
        wanted = np.unique(self._place[around].numpy())
        needed = self.reach.backward(wanted, self.model.num_layers)
        self.rows = [torch.from_numpy(np.searchsorted(needed[0], r)) for r in needed[1:]]
        nodes = torch.from_numpy(needed[0])
        if self.model.weighs_by_degree:
            self.leaving = self._edges_out_of(needed[0])
        degrees = self.reach.in_degree[needed[0]], self.reach.out_degree[needed[0]]
        self.held, self.labels = self.held[nodes], self.labels[nodes]
        self._place = self._placed()
        part = self.graph.induced_subgraph(nodes)
        self.graph, self.reach, self.assembly = self._wired(part, degrees)

    def _edges_out_of(self, nodes: Nodes) -> Nodes:
        """Return the edges from `nodes` to other nodes, as increasing numbers that combine the
        position of the source and the task's number of the target. No stored row depends on these
        edges, but degrees count them."""
        count, slots = pick_entries(self.reach.out_indptr, nodes)
        target = self.reach.target[slots]
        out = ~np.isin(target, nodes)
        source = np.repeat(np.arange(len(nodes)), count)[out]
        return np.sort(source * self.num_nodes + self.held.numpy()[target[out]])

    @property
    def num_edges(self) -> int:
        """The edges of the whole task."""
        return self._edges.num_edges

    def here(self, nodes: Tensor) -> Tensor:
        """Map node numbers of the task to those of the stored graph; −1 for other nodes."""
        return self._place[nodes]

    def reserve(self, num_nodes: int) -> None:
        """Make room for the rows of more nodes, and for some that may follow."""
        if num_nodes <= self.reach.num_nodes:
            return
        if num_nodes > len(self.logits):
            room = with_room(num_nodes)
            self.states = [_grown(rows, room, torch.nan) for rows in self.states]
            self.logits = _grown(self.logits, room, torch.nan)
            self.labels = _grown(self.labels, room, UNLABELED)
            if self.channel is not None:
                self.channel = _grown(self.channel, room, torch.nan)
            if self.projections is not None:
                self.projections.reserve(room)
            self._place = torch.arange(room)
        self.reach.reserve(len(self.logits))
        self.assembly.reserve()

    def propagated_labels(self, change: Change) -> Tensor:
        """Propagate the labels after a change over the whole graph; return the stored rows."""
        bare = replace(change, featured=None, x=None, edge_attr=None)
        graph, labels = bare.graph_from(self._edges), change.labels_from(self._all_labels)
        found = self.model.propagated(graph, labels, self._recent)
        return found if self.is_whole else found[self.held]

    def embedded(self, one: Planned) -> Tensor:
        """Compute the planned rows of h⁰."""
        nodes = torch.from_numpy(one.rows[0])
        if not len(nodes):
            return self.states[0][:0]
        labels, is_new = self.labels[nodes], torch.isin(nodes, one.nodes)
        labels[is_new] = one.labels[torch.searchsorted(one.nodes, nodes[is_new])]
        x = join_features(self._features(one.change, nodes), one.propagated)
        x = None if x is None else x.to(self.device)
        return self.model.embed(x, labels.to(self.device)).cpu()

    def _features(self, change: Change, nodes: Tensor) -> Tensor | SparseFeatures | None:
        """Return the features of some nodes after a change."""
        x = self.graph.x
        if x is None or change.featured is None or change.x is None:
            return None if x is None else rows_of(x, nodes)
        order = torch.argsort(change.featured)
        featured = change.featured[order]
        at = torch.searchsorted(featured, nodes).clamp(max=len(featured) - 1)
        is_new = featured[at] == nodes
        new = torch.nonzero(is_new).squeeze(1)
        rows = rows_of(x, torch.where(is_new, 0, nodes))
        return with_rows(rows, len(nodes), new, change.x[order[at[new]]])

    def propagated(self, planned: Sequence[Planned], before: Tensor, index: int) -> Tensor:
        """Compute layer `index` of the planned rows from new rows and stored ones."""
        held, done = self.states[index], []
        for part in self.assembly.parts(planned, index):
            own = held.index_select(0, part.nodes)
            is_new = part.own >= 0
            own[is_new] = before[part.own[is_new]]
            h = torch.cat((own, held.index_select(0, part.held), before[part.fresh]))
            done.append(
                self.model.propagate(h.to(self.device), part.hop.to(self.device), index).cpu()
            )
        return torch.cat(done) if done else self.states[index + 1][:0]

    def read_out(self, h: Tensor) -> Tensor:
        with torch.no_grad(), self.in_precision():
            return self.model.read_out(h.to(self.device)).float().cpu()

    @contextmanager
    def in_precision(self) -> Iterator[None]:
        with matmuls_in(self.precision), autocast(self.device, self.precision):
            yield

    def wiring_after(self, change: Change) -> Wiring | None:
        """Return the graph after a change; None if it stays the same."""
        if not change.changes_graph:
            return None
        if not change.changes_edges:  # only features
            graph = change.graph_from(self.graph)
            assembly = copy(self.assembly)
            assembly.graph = graph
            return Wiring(graph, self.reach, assembly)
        if not self.model.weighs_by_degree:
            return self._wired(change.graph_from(self.graph))
        # The weights of all edges are computed again, so that none are given for added edges.
        graph = replace(change, edge_attr=None).graph_from(self.graph.without_edge_attr())
        return self._wired(with_convolution_weights(graph))

    def apply(
        self,
        one: Planned,
        wiring: Wiring | None,
        computed: Sequence[Tensor],
        projected: Sequence[Tensor],
        logits: Tensor,
    ) -> None:
        """Store the rows that were computed for a change of the whole graph."""
        for state, nodes, rows in zip(self.states, one.rows, computed, strict=True):
            state.index_copy_(0, torch.from_numpy(nodes), rows)
        if self.projections is not None:
            self.projections.store(one, projected)
        self.logits.index_copy_(0, torch.from_numpy(one.rows[-1]), logits)
        self.labels[one.nodes] = one.labels
        if self.channel is not None and one.propagated is not None:
            self.channel[torch.from_numpy(one.rows[0])] = one.propagated
        if wiring is not None:
            self.num_nodes += one.change.new_nodes
            self.held = torch.arange(self.num_nodes)
            self.graph, self.reach, self.assembly = wiring
            if one.change.changes_edges:
                self._edges = replace(self.graph, x=None, edge_attr=None)
        self._all_labels = self.labels[: self.num_nodes]

    def to_task(self, rows: Tensor) -> Tensor:
        """Expand one row per stored node to one row per node of the task; others are NaN."""
        found = rows.new_full((self.num_nodes, rows.shape[1]), torch.nan)
        found[self.held] = rows[: len(self.held)]
        return found


def _grown(rows: Tensor, count: int, value: float) -> Tensor:
    """Return rows with further ones that contain `value`: [count, …]."""
    more = rows.new_full((count - len(rows), *rows.shape[1:]), value)
    return torch.cat((rows, more))


def refuse_non_finite(logits: Tensor, nodes: Tensor) -> None:
    """Raise NonFiniteError if logits [n, classes] of the nodes [n] are not finite."""
    if rows := non_finite_rows(logits):
        bad: list[int] = torch.unique(nodes[rows]).tolist()
        shown = ", ".join(map(str, bad[:5]))
        raise NonFiniteError(
            f"the scores of {len(bad):,} nodes are not finite, such as those of node {shown}. "
            "Check the weights and the features.",
            bad,
        )

"""Logits that follow a change: of the rows held, only those that it reaches are computed anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from unimp.errors import GraphError
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.graph.reorder import Reordered
from unimp.inference.changes import Change, refuse_self_loops
from unimp.inference.exact import bounded_runs, exact_logits, layer_states
from unimp.inference.reach import NOBODY, Nodes, Reach, pick
from unimp.model.gcn import convolution_weight, with_convolution_weights
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import UNLABELED
from unimp.training.precision import Precision, autocast, matmuls_in

TOGETHER = 2_000_000
"""Edges of changes that are computed in one go: enough to fill a processor, few enough to hold."""


@dataclass(frozen=True, eq=False)
class _Planned:
    """A change as it is here: nodes numbered as in the graph held."""

    nodes: Tensor  # whose labels change, in rising order
    labels: Tensor  # what they become
    gone: Tensor  # [2, m] edges that are there, and are taken away
    targets: Tensor | None  # as the task numbers them
    rows: list[Nodes]  # to compute anew, of h⁰ and of each layer's output
    cost: int


@dataclass(frozen=True, eq=False)
class _Piece:
    """The in-edges of some rows of one plan."""

    rows: Nodes  # [T]
    count: Nodes  # [T] in-edges of each
    source: Nodes  # [E] nodes
    found: Nodes  # [E] where the source's row stands among those computed anew; −1: it is held
    own: Nodes  # [T] the same for the row itself
    slots: Nodes  # [E] where the edges stand in the graph
    weight: Tensor | None  # [E, 1] what degrees that changed make of the edges; None: none did


@dataclass(frozen=True, eq=False)
class _Part:
    """A hop of pieces, and where the rows of its sources are: own ones, held, computed anew."""

    nodes: Tensor  # [T] the targets
    own: Tensor  # [T] where their rows stand among those computed anew; −1: they are held
    held: Tensor  # sources whose rows are held
    fresh: slice  # sources whose rows are computed anew
    hop: Hop


class Live:
    """The state of every node after every layer, and what becomes of it.

    A change of a label reaches a node's out-neighbors in the first layer, theirs in the next, and
    so on; a target rests on its in-neighbors in the last layer, theirs in the one before. A row is
    computed anew where the two meet, by the model's own layer over all its in-edges, so that the
    answer is that of computing everything again, up to rounding.

    An edge is taken away as if it had never been there: a graph convolution's degrees follow.
    A node's edge to itself is no neighbor and cannot be taken away.

    around: hold only what the logits of these nodes rest on; others are NaN.
    """

    def __init__(
        self,
        model: NodeModel,
        reordered: Reordered,
        observed: Tensor,
        *,
        around: Tensor | None = None,
        chunk_edges: int = TOGETHER,
        device: torch.device | str = "cpu",
        precision: Precision = "fp32",
    ) -> None:
        if not model.by_layer:
            raise GraphError(
                f"{type(model).__name__} cannot be run one layer at a time, so that there are no "
                "states to hold; use Whole, which computes everything anew"
            )
        self.model = model.eval()
        self.device, self.precision, self.chunk_edges = device, precision, chunk_edges
        self._task_nodes = reordered.graph.num_nodes
        graph, observed = reordered.graph.to("cpu"), reordered.to_here(observed)
        self.is_whole = around is None
        # Node i here is the task's numbers[i].
        self._numbers = torch.arange(graph.num_nodes)
        if reordered.order is not None:
            self._numbers = reordered.order
        self._place = self._placed()
        self._prepare(graph)
        self._rows: list[Tensor] | None = None
        if around is not None:
            graph, observed = self._narrow(graph, observed, around)
        self.graph, self.observed = graph, observed.clone()
        self._find()

    def _placed(self) -> Tensor:
        place = torch.full((self._task_nodes,), -1)
        place[self._numbers] = torch.arange(len(self._numbers))
        return place

    def _prepare(self, graph: Graph) -> None:
        self.reach = Reach(graph)
        self._in_degree, self._out_degree = self.reach.in_degree, self.reach.out_degree
        self._scratch = np.full(graph.num_nodes, -1)
        self._plans: MutableMapping[Change, _Planned] = WeakKeyDictionary()

    def _narrow(self, graph: Graph, observed: Tensor, around: Tensor) -> tuple[Graph, Tensor]:
        """The part of the graph that some nodes rest on; degrees stay those of the whole."""
        wanted = np.unique(self._place[around].numpy())
        rests_on = self.reach.backward(wanted, self.model.num_layers)
        nodes = torch.from_numpy(rests_on[0])
        self._rows = [torch.from_numpy(np.searchsorted(rests_on[0], r)) for r in rests_on[1:]]
        in_degree, out_degree = self._in_degree[rests_on[0]], self._out_degree[rests_on[0]]
        self._numbers = self._numbers[nodes]
        self._place = self._placed()
        graph = graph.induced_subgraph(nodes)
        self._prepare(graph)
        self._in_degree, self._out_degree = in_degree, out_degree
        return graph, observed[nodes]

    def _find(self) -> None:
        """Compute the states of all rows."""
        with self._in_precision():
            self._states = list(
                layer_states(
                    self.model,
                    self.graph,
                    self.observed,
                    chunk_edges=self.chunk_edges,
                    device=self.device,
                    rows=self._rows,
                )
            )
            self._logits = self._read_out(self._states[-1])

    @property
    def held(self) -> Tensor:
        """The nodes whose states are held, as the task numbers them."""
        return self._numbers

    @property
    def logits(self) -> Tensor:
        return self._to_task(self._logits)

    @cached_property
    def without_labels(self) -> Tensor:
        nothing = torch.full_like(self.observed, UNLABELED)
        if self._rows is not None:
            everyone = self._numbers[self._rows[-1]] if self._rows else self._numbers
            (found,) = self.after([Change(self._numbers)], [everyone])
            logits = self._logits.new_full(self._logits.shape, torch.nan)
            logits[self._place[everyone]] = found
            return self._to_task(logits)
        with self._in_precision():
            logits = exact_logits(
                self.model,
                self.graph,
                nothing,
                chunk_edges=self.chunk_edges,
                device=self.device,
            )
        return self._to_task(logits.float())

    def state(self, layer: int, nodes: Tensor) -> Tensor:
        """Rows of what goes into a layer, for nodes numbered as here."""
        return self._states[layer][nodes].to(self.device)

    def here(self, nodes: Tensor) -> Tensor:
        """Nodes as the task numbers them → as this graph does; −1 for what is not held."""
        return self._place[nodes]

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        answers: list[Tensor] = []
        planned: list[_Planned] = []
        cost = 0
        for change, wanted in zip(changes, targets, strict=True):
            one = self._planned(change, wanted)
            if planned and cost + one.cost > min(TOGETHER, self.chunk_edges):
                answers += self._answer(planned)
                planned, cost = [], 0
            planned.append(one)
            cost += one.cost
        return answers + self._answer(planned)

    def commit(self, change: Change) -> None:
        if not self.is_whole:
            raise GraphError("only states of all nodes can follow a change for good; hold them all")
        planned = self._plan(change, None)
        if planned.gone.numel():
            self.graph = self.graph.without_edges(*planned.gone)
            self._prepare(self.graph)
            if self.model.weighs_by_degree:
                self.graph = with_convolution_weights(self.graph)
            planned = replace(planned, gone=planned.gone[:, :0])
        for layer, rows in enumerate(self._computed([planned])):
            nodes = torch.from_numpy(planned.rows[layer])
            self._states[layer] = self._states[layer].clone()
            self._states[layer][nodes] = rows
        nodes = torch.from_numpy(planned.rows[-1])
        self._logits[nodes] = self._read_out(self._states[-1][nodes])
        self.observed[planned.nodes] = planned.labels
        self._plans.clear()
        self.__dict__.pop("without_labels", None)

    def cost(self, change: Change, targets: Tensor) -> int:
        """Edges and rows that the answer to a change takes."""
        return self._planned(change, targets).cost

    def _planned(self, change: Change, targets: Tensor) -> _Planned:
        """As `_plan`; what was found for a change is kept while that is, as it is asked for twice
        where its cost is asked first."""
        known = self._plans.get(change)
        if known is None or known.targets is not targets:
            known = self._plans[change] = self._plan(change, targets)
        return known

    def _plan(self, change: Change, targets: Tensor | None) -> _Planned:
        """What a change comes to here, and the rows to compute for it."""
        nodes, labels = self._relabeled(change)
        gone = self._gone(change)
        changed = nodes.numpy() if self.model.takes_labels else NOBODY
        rewired = gone[1].numpy()
        if self.model.weighs_by_degree and len(rewired):
            # Their sources have fewer out-edges, which weigh more from now on.
            rewired = np.concatenate((rewired, self.reach.targets(np.unique(gone[0].numpy()))))
        wanted = None if targets is None else np.unique(self._places_of(targets).numpy())
        rewired = np.unique(rewired).astype(np.int64)
        rows = self.reach.rows(
            changed, rewired, wanted, self.model.num_layers, alone=self._alone(gone)
        )
        return _Planned(nodes, labels, gone, targets, rows, self.reach.cost(rows))

    def _relabeled(self, change: Change) -> tuple[Tensor, Tensor]:
        """Nodes whose label will be another, in rising order, and what it will be."""
        if change.nodes is None:
            return torch.empty(0, dtype=torch.int64), self.observed[:0]
        nodes = self.here(change.nodes)
        now = self.observed[nodes.clamp(min=0)]
        labels = torch.full_like(now, UNLABELED)
        if change.labels is not None:
            labels = change.labels.to(labels)
        # A label that is as it was, or that is too far away to be held, changes nothing.
        other = labels != now if labels.ndim == 1 else (labels != now).any(1)
        kept = torch.nonzero(other & (nodes >= 0)).squeeze(1)
        kept = kept[torch.argsort(nodes[kept])]
        return nodes[kept], labels[kept]

    def _places_of(self, targets: Tensor) -> Tensor:
        places = self.here(targets)
        if bool((places < 0).any()):
            node = int(targets[places < 0][0])
            raise GraphError(f"node {node} is not among those whose states are held")
        return places

    def _gone(self, change: Change) -> Tensor:
        """The edges taken away that are there, as this graph numbers nodes: [2, m], as often as
        they are there."""
        if change.without is None or change.without.numel() == 0:
            return torch.empty(2, 0, dtype=torch.int64)
        refuse_self_loops(change.without)
        gone: Tensor = self.here(change.without)
        gone = gone[:, (gone >= 0).all(0)]
        targets = np.unique(gone[1].numpy())
        count, slots = pick(self.reach.in_indptr, targets)
        there = self._pairs(self.reach.source[slots], np.repeat(targets, count))
        there = there[np.isin(there, self._pairs(*gone.numpy()))]
        return torch.from_numpy(np.stack(divmod(there, self.reach.num_nodes)))

    def _pairs(self, source: Nodes, target: Nodes) -> Nodes:
        """A number for each pair of nodes."""
        return source.astype(np.int64) * self.reach.num_nodes + target

    def _alone(self, gone: Tensor) -> Nodes:
        """Nodes of which all edges from others are gone."""
        targets, many = np.unique(gone[1].numpy(), return_counts=True)
        count, slots = pick(self.reach.in_indptr, targets)
        others = self.reach.source[slots] != np.repeat(targets, count)
        left = np.bincount(np.repeat(np.arange(len(targets)), count)[others], minlength=len(many))
        alone: Nodes = targets[left == many]
        return alone

    def _answer(self, planned: Sequence[_Planned]) -> list[Tensor]:
        """The logits of each one's targets."""
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
                anew = rows[at] == places
                logits[anew] = found[at[anew]]
            answers.append(logits)
            begin += len(rows)
        return answers

    @torch.no_grad()
    def _computed(self, planned: Sequence[_Planned]) -> Iterator[Tensor]:
        """The planned rows of h⁰ and of each layer, those of one plan after those of another."""
        with self._in_precision():
            parts = [self._embedded(one) for one in planned]
            rows = torch.cat(parts)
            yield rows
            for index in range(self.model.num_layers):
                rows = self._propagated(planned, rows, index)
                yield rows

    def _embedded(self, one: _Planned) -> Tensor:
        nodes = torch.from_numpy(one.rows[0])
        if not len(nodes):
            return self._states[0][:0]
        labels = one.labels[torch.searchsorted(one.nodes, nodes)]
        x = None if self.graph.x is None else self.graph.x[nodes].to(self.device)
        return self.model.embed(x, labels.to(self.device)).cpu()

    def _propagated(self, planned: Sequence[_Planned], before: Tensor, index: int) -> Tensor:
        """Layer `index` of the planned rows, from those computed before and those held."""
        held, done = self._states[index], []
        for part in self._parts(planned, index):
            own = held[part.nodes]
            anew = part.own >= 0
            own[anew] = before[part.own[anew]]
            h = torch.cat((own, held[part.held], before[part.fresh]))
            done.append(
                self.model.propagate(h.to(self.device), part.hop.to(self.device), index).cpu()
            )
        return torch.cat(done) if done else self._states[index + 1][:0]

    def _parts(self, planned: Sequence[_Planned], index: int) -> Iterator[_Part]:
        """The in-edges of the planned rows of a layer, as hops of bounded size."""
        pieces: list[_Piece] = []
        edges = first = 0
        for one in planned:
            rows, inputs = one.rows[index + 1], one.rows[index]
            for begin, end in bounded_runs(self.reach.in_degree[rows], self.chunk_edges):
                piece = self._piece(one, rows[begin:end], inputs, first)
                if pieces and edges + len(piece.source) > self.chunk_edges:
                    yield self._joined(pieces)
                    pieces, edges = [], 0
                pieces.append(piece)
                edges += len(piece.source)
            first += len(inputs)
        if pieces:
            yield self._joined(pieces)

    def _piece(self, one: _Planned, rows: Nodes, inputs: Nodes, first: int) -> _Piece:
        """The in-edges of some rows of a plan whose inputs, from `first` on, are computed anew."""
        count, slots = pick(self.reach.in_indptr, rows)
        source, place = self.reach.source[slots], self._scratch
        place[inputs] = np.arange(first, first + len(inputs))
        found, own = place[source], place[rows]
        place[inputs] = -1
        weight = None
        if one.gone.shape[1]:
            target = np.repeat(rows, count)
            kept = ~np.isin(self._pairs(source, target), self._pairs(*one.gone.numpy()))
            if self.model.weighs_by_degree:
                weight = self._reweighted(one, source, target)[torch.from_numpy(kept)]
            count = np.bincount(np.repeat(np.arange(len(rows)), count)[kept], minlength=len(rows))
            source, found, slots = source[kept], found[kept], slots[kept]
        return _Piece(rows, count, source, found, own, slots, weight)

    def _reweighted(self, one: _Planned, source: Nodes, target: Nodes) -> Tensor:
        """The weights of a graph convolution, with the degrees that are left."""
        in_degree, out_degree = self._in_degree[target], self._out_degree[source]
        for ends, gone, degree in zip(
            (source, target), one.gone.numpy(), (out_degree, in_degree), strict=True
        ):
            nodes, many = np.unique(gone, return_counts=True)
            at = np.searchsorted(nodes, ends).clip(max=len(nodes) - 1)
            degree -= np.where(nodes[at] == ends, many[at], 0)
        return convolution_weight(torch.from_numpy(in_degree), torch.from_numpy(out_degree))

    def _joined(self, pieces: Sequence[_Piece]) -> _Part:
        """Several pieces as one hop: targets first, then sources held, then sources anew."""
        rows, own, source, found, count, slots = (
            np.concatenate([getattr(piece, name) for piece in pieces])
            for name in ("rows", "own", "source", "found", "count", "slots")
        )
        is_held = found < 0
        held = self.reach.distinct(source[is_held])
        number = self._scratch
        number[held] = np.arange(len(rows), len(rows) + len(held))
        place = number[source]
        number[held] = -1
        fresh = slice(0, 0)
        if not is_held.all():
            anew = found[~is_held]
            fresh = slice(int(anew.min()), int(anew.max()) + 1)
            place[~is_held] = anew + (len(rows) + len(held) - fresh.start)
        num_sources = len(rows) + len(held) + fresh.stop - fresh.start
        dtype = np.int32 if max(len(source), num_sources) < 2**31 else np.int64
        indptr = np.zeros(len(rows) + 1, dtype=dtype)
        np.cumsum(count, out=indptr[1:])
        attr = self.graph.edge_attr_of(torch.from_numpy(slots))
        begin = 0
        for piece in pieces:
            if piece.weight is not None and attr is not None:
                attr[begin : begin + len(piece.slots)] = piece.weight
            begin += len(piece.slots)
        hop = Hop(
            torch.from_numpy(indptr), torch.from_numpy(place.astype(dtype)), num_sources, attr
        )
        return _Part(
            torch.from_numpy(rows), torch.from_numpy(own), torch.from_numpy(held), fresh, hop
        )

    def _read_out(self, h: Tensor) -> Tensor:
        with torch.no_grad(), self._in_precision():
            return self.model.read_out(h.to(self.device)).float().cpu()

    def _to_task(self, rows: Tensor) -> Tensor:
        """One row a node held → one a node of the task, NaN for the others."""
        found = rows.new_full((self._task_nodes, rows.shape[1]), torch.nan)
        found[self._numbers] = rows
        return found

    @contextmanager
    def _in_precision(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(matmuls_in(self.precision))
            stack.enter_context(autocast(self.device, self.precision))
            yield

"""Logits that follow a change: of the rows held, only those that it reaches are computed anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.errors import GraphError
from unimp.graph.graph import Graph
from unimp.inference.exact import exact_logits, layer_states
from unimp.inference.incremental.assembly import Assembly, Planned
from unimp.inference.incremental.changes import Change, refuse_self_loops
from unimp.inference.incremental.reach import NOBODY, Nodes, Reach, pick
from unimp.model.gcn import with_convolution_weights
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import UNLABELED
from unimp.training.precision import autocast, matmuls_in

TOGETHER = 2_000_000
"""Edges of changes that are computed in one go: enough to fill a processor, few enough to hold."""


class IncrementalLogits:
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
        graph: Graph,
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
                "states to hold; use FullRecomputation, which computes everything anew"
            )
        self.model = model.eval()
        self.device, self.precision, self.chunk_edges = device, precision, chunk_edges
        self._task_nodes = graph.num_nodes
        self.observed = observed.clone()
        self.is_whole = around is None
        # Node i here is the task's numbers[i].
        self._numbers = torch.arange(self._task_nodes)
        self._place = self._placed()
        self._walk_on(graph.to("cpu"))
        self._rows: list[Tensor] | None = None
        self._leaving = NOBODY
        if around is not None:
            self._narrow(around)
        self._find()

    def _placed(self) -> Tensor:
        place = torch.full((self._task_nodes,), -1)
        place[self._numbers] = torch.arange(len(self._numbers))
        return place

    def _walk_on(self, graph: Graph, degrees: tuple[Nodes, Nodes] | None = None) -> None:
        """Take a graph; `degrees` are those of the whole that it is a part of, if it is."""
        self.graph, self.reach = graph, Reach(graph)
        degrees = degrees or (self.reach.in_degree, self.reach.out_degree)
        self._assembly = Assembly(
            graph, self.reach, degrees if self.model.weighs_by_degree else None, self.chunk_edges
        )
        self._plans: MutableMapping[Change, Planned] = WeakKeyDictionary()

    def _narrow(self, around: Tensor) -> None:
        """Keep the part of the graph that some nodes rest on."""
        wanted = np.unique(self._place[around].numpy())
        rests_on = self.reach.backward(wanted, self.model.num_layers)
        self._rows = [torch.from_numpy(np.searchsorted(rests_on[0], r)) for r in rests_on[1:]]
        nodes = torch.from_numpy(rests_on[0])
        if self.model.weighs_by_degree:
            self._leaving = self._edges_out_of(rests_on[0])
        degrees = self.reach.in_degree[rests_on[0]], self.reach.out_degree[rests_on[0]]
        self._numbers, self.observed = self._numbers[nodes], self.observed[nodes]
        self._place = self._placed()
        self._walk_on(self.graph.induced_subgraph(nodes), degrees)

    def _edges_out_of(self, nodes: Nodes) -> Nodes:
        """Edges from `nodes` to others: a number each, rising, of the source's place among them and
        the target as the task numbers it. Nobody here rests on them, but degrees count them."""
        count, slots = pick(self.reach.out_indptr, nodes)
        target = self.reach.target[slots]
        out = ~np.isin(target, nodes)
        source = np.repeat(np.arange(len(nodes)), count)[out]
        return np.sort(source * self._task_nodes + self._numbers.numpy()[target[out]])

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
                torch.full_like(self.observed, UNLABELED),
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
        planned: list[Planned] = []
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
        planned, before = self._plan(change, None), self.graph
        if planned.gone.numel():
            graph = self.graph.without_edges(*planned.gone)
            self._walk_on(with_convolution_weights(graph) if self._assembly.degrees else graph)
        try:
            computed = list(self._computed([replace(planned, gone=planned.gone[:, :0])]))
            logits = self._read_out(computed[-1])
        except BaseException:  # all of it is done, or nothing
            self._walk_on(before)
            raise
        for state, nodes, rows in zip(self._states, planned.rows, computed, strict=True):
            state[torch.from_numpy(nodes)] = rows
        self._logits[torch.from_numpy(planned.rows[-1])] = logits
        self.observed[planned.nodes] = planned.labels
        self._plans.clear()
        self.__dict__.pop("without_labels", None)

    def cost(self, change: Change, targets: Tensor) -> int:
        """Edges and rows that the answer to a change takes."""
        return self._planned(change, targets).cost

    def _planned(self, change: Change, targets: Tensor) -> Planned:
        """As `_plan`; what was found for a change is kept while that is, as it is asked for twice
        where its cost is asked first."""
        known = self._plans.get(change)
        if known is None or known.targets is not targets:
            known = self._plans[change] = self._plan(change, targets)
        return known

    def _plan(self, change: Change, targets: Tensor | None) -> Planned:
        """What a change comes to here, and the rows to compute for it."""
        nodes, labels = self._relabeled(change)
        gone, left = self._gone(change), self._left(change)
        changed = nodes.numpy() if self.model.takes_labels else NOBODY
        rewired = gone[1].numpy()
        if self.model.weighs_by_degree and len(rewired) + len(left):
            # Their sources have fewer out-edges, which weigh more from now on.
            sources = np.unique(np.concatenate((gone[0].numpy(), left)))
            rewired = np.concatenate((rewired, self.reach.targets(sources)))
        wanted = None if targets is None else np.unique(self._places_of(targets).numpy())
        rewired = np.unique(rewired).astype(np.int64)
        rows = self.reach.rows(
            changed, rewired, wanted, self.model.num_layers, alone=self._alone(gone)
        )
        return Planned(nodes, labels, gone, left, targets, rows, self.reach.cost(rows))

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
        held = places >= 0
        if self._rows:  # of the others only what these rest on is known
            held &= torch.isin(places, self._rows[-1])
        if not bool(held.all()):
            raise GraphError(
                f"node {int(targets[~held][0])} is not among those that answers are held for; name "
                "it in `around`, or hold all"
            )
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
        there = self.reach.pairs(self.reach.source[slots], np.repeat(targets, count))
        there = there[np.isin(there, self.reach.pairs(*gone.numpy()))]
        return torch.from_numpy(np.stack(divmod(there, self.reach.num_nodes)))

    def _left(self, change: Change) -> Nodes:
        """Sources of the edges taken away that lead out of what is held, as often as they do."""
        if change.without is None or not len(self._leaving):
            return NOBODY
        source, target = self.here(change.without[0]).numpy(), change.without[1].numpy()
        gone = np.unique((source * self._task_nodes + target)[source >= 0])
        first, end = (np.searchsorted(self._leaving, gone, side) for side in ("left", "right"))
        return np.repeat(gone // self._task_nodes, end - first)

    def _alone(self, gone: Tensor) -> Nodes:
        """Nodes of which all edges from others are gone."""
        targets, many = np.unique(gone[1].numpy(), return_counts=True)
        count, slots = pick(self.reach.in_indptr, targets)
        others = self.reach.source[slots] != np.repeat(targets, count)
        left = np.bincount(np.repeat(np.arange(len(targets)), count)[others], minlength=len(many))
        alone: Nodes = targets[left == many]
        return alone

    def _answer(self, planned: Sequence[Planned]) -> list[Tensor]:
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
    def _computed(self, planned: Sequence[Planned]) -> Iterator[Tensor]:
        """The planned rows of h⁰ and of each layer, those of one plan after those of another."""
        with self._in_precision():
            parts = [self._embedded(one) for one in planned]
            rows = torch.cat(parts)
            yield rows
            for index in range(self.model.num_layers):
                rows = self._propagated(planned, rows, index)
                yield rows

    def _embedded(self, one: Planned) -> Tensor:
        nodes = torch.from_numpy(one.rows[0])
        if not len(nodes):
            return self._states[0][:0]
        labels = one.labels[torch.searchsorted(one.nodes, nodes)]
        x = None if self.graph.x is None else self.graph.x[nodes].to(self.device)
        return self.model.embed(x, labels.to(self.device)).cpu()

    def _propagated(self, planned: Sequence[Planned], before: Tensor, index: int) -> Tensor:
        """Layer `index` of the planned rows, from those computed before and those held."""
        held, done = self._states[index], []
        for part in self._assembly.parts(planned, index):
            own = held[part.nodes]
            anew = part.own >= 0
            own[anew] = before[part.own[anew]]
            h = torch.cat((own, held[part.held], before[part.fresh]))
            done.append(
                self.model.propagate(h.to(self.device), part.hop.to(self.device), index).cpu()
            )
        return torch.cat(done) if done else self._states[index + 1][:0]

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

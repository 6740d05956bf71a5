"""Update logits after a change by computing only the rows that the change affects."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import cached_property
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.errors import GraphError
from unimp.graph.graph import Graph
from unimp.inference.incremental.assembly import Planned
from unimp.inference.incremental.changes import Change, Update, nothing
from unimp.inference.incremental.planning import places_of, plan
from unimp.inference.incremental.stored import Stored, refuse_non_finite
from unimp.inference.incremental.together import EDGES_PER_PASS, hidden_together, only_hides
from unimp.inference.logits import predict_logits
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import UNLABELED

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
        self.model, self.device, self._chunk_edges = model, device, chunk_edges
        self._structure = structure
        self._stored = Stored(
            model,
            graph,
            observed,
            around=around,
            hold_projections=hold_projections,
            chunk_edges=chunk_edges,
            device=device,
            precision=precision,
        )
        self._plans: MutableMapping[Change, Planned] = WeakKeyDictionary()

    @property
    def graph(self) -> Graph:
        """The stored graph, as the model prepared it."""
        return self._stored.graph

    @property
    def held(self) -> Tensor:
        """The number in the task of each node of the stored graph."""
        return self._stored.held

    @property
    def observed(self) -> Tensor:
        """The labels of the stored nodes that are inputs."""
        return self._stored.labels[: len(self.held)]

    @property
    def holds_projections(self) -> bool:
        return self._stored.projections is not None

    @property
    def projection_bytes(self) -> int:
        """The memory of the stored projections."""
        return self._stored.projections.nbytes if self._stored.projections is not None else 0

    @property
    def logits(self) -> Tensor:
        return self._stored.to_task(self._stored.logits)

    @cached_property
    def without_labels(self) -> Tensor:
        stored = self._stored
        if stored.rows is not None:
            targets = self.held[stored.rows[-1]] if stored.rows else self.held
            (found,) = self.after([Change(torch.arange(stored.num_nodes))], [targets])
            logits = stored.logits.new_full(stored.logits.shape, torch.nan)
            logits[stored.here(targets)] = found
            return stored.to_task(logits)
        return predict_logits(
            self.model,
            self.graph,
            torch.full_like(self.observed, UNLABELED),
            chunk_edges=self._chunk_edges,
            device=self.device,
            precision=stored.precision,
        )

    def state(self, layer: int, nodes: Tensor) -> Tensor:
        """Return the inputs of a layer for nodes in the numbers of the stored graph."""
        return self._stored.states[layer][nodes].to(self.device)

    def here(self, nodes: Tensor) -> Tensor:
        """Map node numbers of the task to those of the stored graph; −1 for other nodes."""
        return self._stored.here(nodes)

    def after(self, changes: Sequence[Change], targets: Sequence[Tensor]) -> list[Tensor]:
        stored = self._stored
        if stored.projections is not None and stored.channel is None and len(changes) > 1:
            found = all(map(only_hides, changes)) and hidden_together(stored, changes, targets)
            if found:
                return found
        answers: list[Tensor] = []
        planned: list[Planned] = []
        cost = 0
        for change, wanted in zip(changes, targets, strict=True):
            one = self._planned(change, wanted)
            if planned and cost + one.cost > min(EDGES_PER_PASS, self._chunk_edges):
                answers += self._answer(planned)
                planned, cost = [], 0
            planned.append(one)
            cost += one.cost
        return answers + self._answer(planned)

    @property
    def is_local(self) -> bool:
        return self._stored.channel is None  # propagated labels change nearly everywhere

    def prepare(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        stored = self._stored
        if not stored.is_whole:
            raise GraphError(
                "a change can be committed only if all states are stored; omit `around`"
            )
        one, projected = plan(stored, change, None, structure=self._structure), list[Tensor]()
        computed = []
        for rows in self._computed([one], projected):
            computed.append(rows)
            between()
        logits, nodes = stored.read_out(computed[-1]), torch.from_numpy(one.rows[-1])
        refuse_non_finite(logits, nodes)
        before = stored.logits[nodes]
        differs = torch.nonzero(logits.ne(before).any(1)).squeeze(1)
        wiring = stored.wiring_after(one.change)

        def apply() -> None:
            stored.apply(one, wiring, computed, projected, logits)
            self._plans.clear()
            self.__dict__.pop("without_labels", None)

        return Update(nodes[differs], before[differs], logits[differs], apply)

    def commit(self, change: Change, between: Callable[[], None] = nothing) -> Update:
        return self.prepare(change, between).applied()

    def cost(self, change: Change, targets: Tensor) -> int:
        """Return the number of edges and rows that are computed for a change."""
        return self._planned(change, targets).cost

    @property
    def propagation_cost(self) -> int:
        """The cost of propagating labels over the whole graph, which every change needs, in edges
        of a layer; 0 if propagated labels are not inputs."""
        channel = self._stored.channel
        if channel is None:
            return 0
        return self._stored.num_edges * channel.shape[1] // COLUMNS_PER_EDGE

    def _planned(self, change: Change, targets: Tensor) -> Planned:
        """Return the plan of a change, cached as long as the change exists: asking for its cost
        first needs the same plan."""
        known = self._plans.get(change)
        if known is None or known.targets is not targets:
            known = plan(self._stored, change, targets, structure=self._structure)
            self._plans[change] = known
        return known

    def _answer(self, planned: Sequence[Planned]) -> list[Tensor]:
        """Return the logits of the targets of each plan."""
        if not planned:
            return []
        last = deque(self._computed(planned), maxlen=1).pop()
        answers, begin = [], 0
        for one in planned:
            assert one.targets is not None
            places = places_of(self._stored, one.targets, one.change)
            logits = self._stored.logits[places]
            rows = torch.from_numpy(one.rows[-1])
            if len(rows):
                found = self._stored.read_out(last[begin : begin + len(rows)])
                at = torch.searchsorted(rows, places).clamp(max=len(rows) - 1)
                is_new = rows[at] == places
                logits[is_new] = found[at[is_new]]
            refuse_non_finite(logits, one.targets)
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
        stored = self._stored
        with stored.in_precision():
            rows = torch.cat([stored.embedded(one) for one in planned])
            yield rows
            for index in range(self.model.num_layers):
                if stored.projections is None or len(planned) > 1:
                    rows = stored.propagated(planned, rows, index)
                else:
                    found = stored.projections.computed(stored.assembly, planned[0], rows, index)
                    rows = found.rows if len(found.rows) else stored.states[index + 1][:0]
                    if projected is not None:
                        projected.append(found.projected)
                yield rows

"""Ridge regression on propagated features, which is solved instead of trained."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from unimp.errors import ModelError
from unimp.graph.features import Features, split_features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.gcn import convolve, with_convolution_weights
from unimp.model.layers import project
from unimp.model.propagated_labels import LabelSums, PropagatedLabels
from unimp.model.ridge_problem import Array, LeastSquares, Solution, best_of, factor_of
from unimp.model.solved_model import KnownLabels, Solved, SolvedModel, cross_fitted
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Sizes

AVERAGE_HOPS = (2, 4, 8, 16)
CONCAT_HOPS = (1, 2, 3)
"""The numbers of hops that `auto` chooses from."""
STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-8, 7))
"""The strengths that `auto` chooses from."""
WITHOUT_VALIDATION = 1.0
"""The strength where `auto` has no validation labels."""
LABEL_SIZES = (1.0, 0.3, 3.0)
"""The lengths of rows of propagated labels, relative to rows of features, to choose from."""


class Ridge(SolvedModel):
    """A linear map of propagated features that is fitted to one-hot labels by least squares.

        Â = D^-½ (A + I) D^-½
        average   logits = (1/(K+1)) Σ_k Âᵏ X W + b        k = 0 … K
        concat    logits = Σ_k Âᵏ X W_k + b
        with labels as inputs          … + L V             L: see `PropagatedLabels`

        min_W,b  Σ_{i in train} ‖logits_i − y_i‖² + λ‖W‖²        λ = strength · mean_i ‖z_i − z̄‖²

    y_i is a one-hot row, or −1 and 1 for binary tasks; z_i are the features that are multiplied by
    W. K and the strength are those with the best score on validation; the squared error decides
    between equal scores. All weights are then multiplied by one factor, so that the softmax of the
    logits gives probabilities. Averages over hops are as in SSGC (Zhu and Koniusz, 2021).

    With labels as inputs, K is chosen without them. Then V = 0 and several sizes of L relative to Z
    are compared on validation; a larger L is penalized less. When a train node is fitted, its row
    of L comes from the labels of other folds, so it does not contain the node's own label.

    Prediction multiplies X by the weights first and sums in Horner's form, so that it never
    propagates more than `classes` columns:  z_0 + Â(z_1 + Â(z_2 + …)),  z_k = X W_k.
    Between hops, a row is [sum | z of the following hops | L V].
    """

    takes_edge_features = False
    weighs_by_degree = adds_self_loops = True
    steps: Tensor
    chosen: Tensor

    def __init__(
        self,
        sizes: Sizes,
        *,
        hops: int | Literal["auto"] = "auto",
        hop_features: Literal["average", "concat"] = "average",
        strength: float | Literal["auto"] = "auto",
        use_labels: bool = False,
    ) -> None:
        super().__init__()
        if sizes.features == 0:
            raise ModelError("ridge needs node features, but the task has none")
        self.average, self.strength = hop_features == "average", strength
        self.candidates = (
            (AVERAGE_HOPS if self.average else CONCAT_HOPS) if hops == "auto" else (hops,)
        )
        terms = 1 if self.average else self.candidates[-1] + 1
        self.weight = nn.Parameter(torch.empty(sizes.features, terms, sizes.classes))
        self.bias = nn.Parameter(torch.zeros(sizes.classes))
        bound = (
            3 / sizes.features
        ) ** 0.5  # on a device without memory, normal_ imports a compiler
        nn.init.uniform_(self.weight, -bound, bound)
        # Buffers, because these are results that are stored with the weights.
        self.register_buffer("steps", torch.tensor(self.candidates[0]))
        # The strength, the factor of the logits, and the size of L, which is 0 without labels.
        self.register_buffer("chosen", torch.ones(3, dtype=torch.float64))
        self.takes_labels = self.takes_propagated_labels = use_labels
        self.propagated_labels = PropagatedLabels(sizes, sizes.classes) if use_labels else None

    @property
    def num_layers(self) -> int:  # type: ignore[override]
        return int(self.steps)

    def prepare(self, graph: Graph) -> Graph:
        return with_convolution_weights(graph)

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        assert self.propagated_labels is not None
        return self.propagated_labels.of(graph, observed, recent)

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        x, propagated = split_features(x)
        assert x is not None
        if self.average:
            table = self.weight.expand(-1, 2, -1).flatten(1)
        else:
            table = self.weight[:, : self.num_layers + 1].flip(1).flatten(1)  # the last hop first
        rows = project(x, table.t())
        if self.propagated_labels is None:
            return rows
        assert propagated is not None
        return torch.cat((rows, self.propagated_labels(propagated)), 1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        classes = len(self.bias)
        rest = h[: hop.num_targets, classes:]
        total = convolve(h[:, :classes].contiguous(), hop) + rest[:, :classes]
        return torch.cat((total, rest if self.average else rest[:, classes:]), 1)

    def read_out(self, h: Tensor) -> Tensor:
        classes = len(self.bias)
        logits = h[:, :classes] + self.bias
        return logits if self.propagated_labels is None else logits + h[:, -classes:]

    @torch.no_grad()
    def solve(
        self, graph: Graph, known: KnownLabels, *, seed: int, seconds: float = math.inf
    ) -> Solved:
        until = time.perf_counter() + seconds
        graph, has_val = graph.to("cpu"), known.val.numel() > 0
        problem = LeastSquares(graph, known, len(self.bias), average=self.average)
        # Without validation labels nothing can be chosen.
        hops = self.candidates if has_val else self.candidates[:1]
        strengths: Sequence[float] = STRENGTHS if has_val else (WITHOUT_VALIDATION,)
        if self.strength != "auto":
            strengths = (self.strength,)
        best, count = best_of(problem.solutions(hops, strengths, until=until))
        if self.propagated_labels is not None:
            labels = self._beside(graph, known, seed)
            sizes = LABEL_SIZES if has_val else LABEL_SIZES[:1]
            found = problem.solutions((best.hops,), strengths, labels, sizes)
            with_labels, more = best_of(found)
            best, count = max(best, with_labels, key=lambda one: one.quality), count + more
            if not has_val:
                best = with_labels
        self._take(best, factor_of(best, known))
        chosen = f"the best of {count} settings on validation" if count > 1 else "as set"
        labels_used = ""
        if self.takes_labels:
            labels_used = " without labels," if best.label_weight is None else " with labels,"
        how = f"solved with {best.hops} hops,{labels_used} strength {best.strength:.2g}, {chosen}"
        if problem.ended_early:
            how += "; other numbers of hops were left out to keep the time limit"
        return Solved(how, problem.ended_early)

    @torch.no_grad()
    def solve_again(self, graph: Graph, known: KnownLabels, *, seed: int) -> None:
        graph, (strength, factor, size) = graph.to("cpu"), self.chosen.tolist()
        problem = LeastSquares(graph, known, len(self.bias), average=self.average)
        labels = self._beside(graph, known, seed) if size else None
        [found] = problem.solutions((int(self.steps),), (strength,), labels, (size,))
        self._take(found, factor)

    def _beside(self, graph: Graph, known: KnownLabels, seed: int) -> Array:
        """Propagated labels of the train nodes, from other folds, and of the validation nodes."""
        rows = cross_fitted(known, partial(self.propagated, graph), seed=seed)
        observed = reveal_only(known.train, known.labels)
        labels = torch.cat((rows, self.propagated(graph, observed)[known.val]))
        assert self.propagated_labels is not None
        return self.propagated_labels.inputs(labels).double().numpy()

    def _take(self, best: Solution, factor: float) -> None:
        """Set the weights of a solution, multiplied by a factor."""
        self.chosen.copy_(torch.tensor([best.strength, factor, best.label_size]))
        weight = torch.from_numpy(best.weight * factor)
        self.steps.fill_(best.hops)
        self.weight.zero_()
        self.weight[:, : weight.shape[1]] = weight / (best.hops + 1 if self.average else 1)
        self.bias.copy_(torch.from_numpy(best.bias * factor))
        if self.propagated_labels is not None:
            self.propagated_labels.linear.bias.zero_()
            self.propagated_labels.linear.weight.zero_()
            if best.label_weight is not None:
                label_weight = torch.from_numpy(best.label_weight * factor)
                self.propagated_labels.linear.weight.copy_(label_weight.t())

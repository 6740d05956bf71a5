"""The least squares problem behind ridge regression on propagated features."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.model.least_squares import Linear, Products, solve_by_gradients
from unimp.model.solved_model import KnownLabels
from unimp.ops.row_sums import sum_rows
from unimp.tasks.labels import UNLABELED
from unimp.tasks.means import FEW_NODES
from unimp.tasks.metrics import score

Array = NDArray[np.float64]

MAX_SIDE = 3500
MAX_ENTRIES = 250_000_000
"""Larger matrices, by their smaller side or by their entries, are not computed: the system is then
solved by conjugate gradients."""
MAX_STEPS, FEWEST_STEPS = 100, 10
WORK = 1e10
"""Conjugate gradients take at most MAX_STEPS steps. If these need more than WORK multiplications,
they take fewer steps, but at least FEWEST_STEPS."""
BLOCK = 64
"""Columns that are propagated at a time; limits memory."""


@dataclass(frozen=True, eq=False)
class Solution:
    hops: int
    strength: float
    label_size: float  # 0 without labels
    weight: Array  # [F, terms, C]
    label_weight: Array | None  # [Q, C]
    bias: Array  # [C]
    deviation: float  # standard deviation of the outputs of the train nodes
    val: Array  # outputs of the validation nodes: [m, C]
    quality: tuple[float, float]  # score and negative squared error on validation


class LabelsBeside:
    """Propagated labels beside the features, centered and divided by their length."""

    def __init__(self, labels: Array | None, count: int, num_train: int) -> None:
        self.given = labels is not None
        rows = np.zeros((count, 0)) if labels is None else labels
        self.middle = rows[:num_train].mean(0)
        rows = rows - self.middle
        self.length = math.sqrt(_positive(np.square(rows[:num_train]).sum() / num_train))
        self.rows = rows / self.length

    def scaled(self, weight: Array, scale: float) -> tuple[Array, Array] | None:
        """V of the labels as they were given, and V l̄."""
        if not self.given:
            return None
        weight = weight * (scale / self.length)
        return weight, self.middle @ weight


class LeastSquares:
    """The least squares problem of a graph and its known labels, in double precision."""

    def __init__(self, graph: Graph, known: KnownLabels, classes: int, *, average: bool) -> None:
        from scipy.sparse import csr_array

        x, weight = graph.x, graph.edge_attr_of(None)
        assert x is not None
        assert weight is not None  # created by `with_convolution_weights`
        self.known, self.average = known, average
        self.x: Any = (
            x.to_scipy().astype(np.float64) if isinstance(x, SparseFeatures) else x.double().numpy()
        )
        # Row i of Â: √(d_i/d_j) divided by the number of in-edges.
        weight = weight.double()[:, 0] / graph.in_degree.double()[graph.target.long()]
        entries = (weight.numpy(), graph.source.numpy(), graph.indptr.numpy())
        self.matrix = csr_array(entries, shape=(graph.num_nodes, graph.num_nodes))
        self.spread, self.back = product_with(self.matrix), product_with(self.matrix.T.tocsr())
        self.nodes = torch.cat((known.train, known.val)).numpy()
        self.num_train = known.train.numel()
        target = _targets(known.labels[torch.from_numpy(self.nodes)], classes)
        self.target, self.val_target = np.split(target, [self.num_train])
        # A missing entry of a binary task does not count in the mean, and is fitted to it.
        seen = ~np.isnan(self.target)
        self.mean = np.nansum(self.target, 0) / seen.sum(0).clip(min=1)
        self.centered = np.where(seen, self.target - self.mean, 0.0)
        self.ended_early = False  # whether some numbers of hops were left out for lack of time
        self._computed: dict[int, Array] = {}  # rows of the known nodes, per number of hops

    def solutions(
        self,
        hops: Sequence[int],
        strengths: Sequence[float],
        labels: Array | None = None,
        label_sizes: Sequence[float] = (0.0,),
        *,
        until: float = math.inf,
    ) -> Iterator[Solution]:
        """Solve for each number of hops, each size of the labels and each strength.

        until: a time of `time.perf_counter`. The first number of hops is always solved. Each
        further one is solved only if twice the time of the previous one is left. Conjugate
        gradients ignore this limit.

        labels: further columns of the train nodes and then the validation nodes, which are not
        propagated: [n + m, Q]; label_sizes: lengths of their rows relative to those of features.
        """
        beside = LabelsBeside(labels, len(self.nodes), self.num_train)
        columns = self.x.shape[1] * (1 if self.average else hops[-1] + 1) + beside.rows.shape[1]
        slots = len(hops) if self.average else 1
        side = min(self.num_train, columns)
        if side <= MAX_SIDE and len(self.nodes) * columns * slots <= MAX_ENTRIES:
            last = 0.0
            for number, rows in self._rows(hops):
                began = time.perf_counter()
                if last and began + 2 * last > until:
                    self.ended_early = True
                    return
                yield from self._direct(number, rows, strengths, beside, label_sizes)
                last = time.perf_counter() - began
        else:
            # Conjugate gradients are slow, so only some settings are compared.
            middle = len(hops) // 2
            for number in hops[::2] if self.average else hops[middle : middle + 1]:
                yield from self._by_gradients(number, strengths, beside, label_sizes[0])

    def _direct(
        self,
        hops: int,
        rows: Array,
        strengths: Sequence[float],
        beside: LabelsBeside,
        label_sizes: Sequence[float],
    ) -> Iterator[Solution]:
        """rows: of the train nodes, then of the validation nodes: [n + m, terms, F]."""
        flat = rows.reshape(len(rows), -1)
        middle = flat[: self.num_train].mean(0)
        flat = flat - middle
        train, val = np.split(flat, [self.num_train])
        beside_train, beside_val = np.split(beside.rows, [self.num_train])
        unit = _positive(np.square(train).sum() / self.num_train)
        penalties = [unit * one for one in strengths]
        products = Products(train, beside_train, self.centered)
        for size in label_sizes:
            scale = size * math.sqrt(unit)
            found = products.weights(scale, penalties)
            for strength, (own, other, squares) in zip(strengths, found, strict=True):
                yield self._solution(
                    (hops, strength, size),
                    own.reshape(*rows.shape[1:], -1),
                    middle @ own,
                    beside.scaled(other, scale),
                    squares,
                    val @ own + scale * beside_val @ other,
                )

    def _by_gradients(
        self, hops: int, strengths: Sequence[float], beside: LabelsBeside, size: float
    ) -> Iterator[Solution]:
        terms, features = 1 if self.average else hops + 1, self.x.shape[1]
        own, train = terms * features, slice(self.num_train)
        scale = 0.0
        times, times_transposed = (
            (product_with(self.x), product_with(self.x.T.tocsr()))
            if hasattr(self.x, "tocsr")
            else (self.x.__matmul__, self.x.T.__matmul__)
        )

        def outputs(weight: Array) -> Array:
            """Z W of the known nodes, by Horner's form: [n + m, C]."""
            by_term = weight[:own].reshape(terms, features, -1)
            start = times(by_term[-1])
            total = start
            for hop in reversed(range(hops)):
                start = start if self.average else times(by_term[hop])
                total = self.spread(total) + start
            rows = total[self.nodes] / (hops + 1 if self.average else 1)
            return rows + scale * beside.rows @ weight[own:]  # type: ignore[no-any-return]

        def forward(weight: Array) -> Array:
            rows = outputs(weight)[train]
            return rows - rows.mean(0)  # type: ignore[no-any-return]

        def adjoint(rows: Array) -> Array:
            rows = rows - rows.mean(0)
            total = np.zeros((self.matrix.shape[0], rows.shape[1]))
            total[self.nodes[train]] = rows
            start, parts = total, []
            for _ in range(hops):
                if self.average:
                    total = self.back(total) + start
                else:
                    parts.append(times_transposed(total))
                    total = self.back(total)
            parts.append(times_transposed(total) / (hops + 1 if self.average else 1))
            return np.concatenate((*parts, scale * beside.rows[train].T @ rows))

        # The mean squared length of a centered row, estimated with random signs.
        signs = np.random.Generator(np.random.PCG64(0)).choice((-1.0, 1.0), (own, 32))
        signs = np.pad(signs, ((0, beside.rows.shape[1]), (0, 0)))
        unit = _positive(np.square(forward(signs)).sum(0).mean() / self.num_train)
        scale = size * math.sqrt(unit)
        penalties = [unit * one for one in strengths]
        entries = self.x.nnz if hasattr(self.x, "nnz") else self.x.size
        per_step = 2 * self.centered.shape[1] * (entries * terms + self.matrix.nnz * hops)
        steps = min(MAX_STEPS, max(FEWEST_STEPS, int(WORK / per_step)))
        weights = solve_by_gradients(forward, adjoint, self.centered, penalties, steps)
        for strength, weight in zip(strengths, weights, strict=True):
            found = outputs(weight)
            middle = found[train].mean(0)
            found = found - middle
            yield self._solution(
                (hops, strength, size if beside.given else 0.0),
                weight[:own].reshape(terms, features, -1),
                middle,
                beside.scaled(weight[own:], scale),
                float(np.square(found[train]).sum()),
                found[self.num_train :],
            )

    def _solution(
        self,
        setting: tuple[int, float, float],
        weight: Array,
        middle: Array,
        label_weight: tuple[Array, Array] | None,
        squares: float,
        val: Array,
    ) -> Solution:
        """middle: W z̄; squares and val: the sum of squared outputs of the train nodes, and the
        outputs of the validation nodes, both without the mean; label_weight: V and V l̄."""
        val = val + self.mean
        error = float(np.nansum(np.square(val - self.val_target)))
        labels = self.known.labels[self.known.val]
        value = score(self.known.metric, torch.from_numpy(val), labels) if len(val) else 0.0
        quality = (0.0 if math.isnan(value) else value, -error)
        bias, of_labels = self.mean - middle, None
        if label_weight is not None:
            of_labels, shift = label_weight
            bias = bias - shift
        deviation = math.sqrt(squares / self.centered.size + float(np.var(self.mean)))
        weight = np.moveaxis(weight, 0, 1)
        return Solution(*setting, weight, of_labels, bias, deviation, val, quality)

    def _rows(self, hops: Sequence[int]) -> Iterator[tuple[int, Array]]:
        """Yield the propagated features of the known nodes for each number of hops.

        Columns of X are propagated to the nodes, or columns of the identity from the nodes back to
        all nodes, whichever are fewer.
        """
        if not set(hops) <= self._computed.keys():
            self._compute_rows(hops)
        for number in hops:
            yield number, self._computed[number]

    def _compute_rows(self, hops: Sequence[int]) -> None:
        count, width = len(self.nodes), self.x.shape[1]
        found = np.empty((count, len(hops) if self.average else hops[-1] + 1, width))
        if width <= count:
            for begin in range(0, width, BLOCK):
                columns = slice(begin, begin + BLOCK)
                part = self.x[:, columns]
                part = part if isinstance(part, np.ndarray) else part.toarray()
                for slot, rows in self._slots(self.spread, part, hops):
                    found[:, slot, columns] = rows[self.nodes]
        else:
            for begin in range(0, count, BLOCK):
                chosen = self.nodes[begin : begin + BLOCK]
                part = np.zeros((self.matrix.shape[0], len(chosen)))
                part[chosen, np.arange(len(chosen))] = 1.0
                for slot, rows in self._slots(self.back, part, hops):
                    found[begin : begin + BLOCK, slot] = (self.x.T @ rows).T
        for slot, number in enumerate(hops):
            terms = slice(slot, slot + 1) if self.average else slice(0, number + 1)
            self._computed[number] = found[:, terms]

    def _slots(
        self, spread: Linear, part: Array, hops: Sequence[int]
    ) -> Iterator[tuple[int, Array]]:
        """Yield averages of Mᵏ part up to each number of hops, or every Mᵏ part."""
        total = part
        if not self.average:
            yield 0, part
        for hop in range(1, hops[-1] + 1):
            part = spread(part)
            if not self.average:
                yield hop, part
                continue
            total = total + part
            if hop in hops:
                yield hops.index(hop), total / (hop + 1)


def product_with(matrix: Any) -> Linear:
    """The product of a sparse SciPy matrix with dense columns, on all cores."""
    indices = (torch.from_numpy(part.astype(np.int64)) for part in (matrix.indptr, matrix.indices))
    indptr, column = indices
    weight = torch.from_numpy(matrix.data)

    def product(rows: Array) -> Array:
        given = torch.from_numpy(np.ascontiguousarray(rows))
        return sum_rows(indptr, column, weight, given).numpy()

    return product


def best_of(found: Iterable[Solution]) -> tuple[Solution, int]:
    """The solution with the best quality, the first one of equals, and the number of solutions."""
    best, count = None, 0
    for one in found:
        count += 1
        if best is None or one.quality > best.quality:
            best = one
    assert best is not None
    return best, count


def _targets(labels: Tensor, classes: int) -> Array:
    """One-hot rows, or −1 and 1 for binary tasks and NaN where an entry is missing: [n, C]."""
    if labels.ndim == 1:
        return F.one_hot(labels.long(), classes).double().numpy()
    signs = 2.0 * labels.double() - 1.0
    return torch.where(labels == UNLABELED, torch.nan, signs).numpy()


def _positive(value: float) -> float:
    return float(value) if value > 0 else 1.0  # all rows are equal, so any penalty gives W = 0


def factor_of(found: Solution, known: KnownLabels) -> float:
    """The factor of the outputs that makes validation labels most likely.

    With few validation labels, the outputs of train nodes get a standard deviation of 2, which is a
    probability of about 0.98 for a class if the labels are fitted exactly.
    """
    usual = 2.0 / _positive(found.deviation)
    if len(found.val) < FEW_NODES:
        return usual
    outputs, labels = torch.from_numpy(found.val), known.labels[known.val]
    seen = labels != UNLABELED

    def loss(factor: float) -> float:
        if labels.ndim == 1:
            return float(F.cross_entropy(factor * outputs, labels.long()))
        return float(
            F.binary_cross_entropy_with_logits(factor * outputs[seen], labels[seen].double())
        )

    return min((usual * 2.0**power for power in range(-4, 5)), key=loss)

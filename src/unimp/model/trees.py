"""Gradient-boosted trees on the features and the labels of a node's neighborhood."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unimp.errors import ModelError
from unimp.graph.features import Features, SparseFeatures, split_features
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.propagated_labels import FLOOR, STEPS, LabelSums, propagated_labels
from unimp.model.singular_vectors import singular_vectors
from unimp.model.solved_model import KnownLabels, Solved, SolvedModel, cross_fitted
from unimp.ops.row_sums import sum_rows
from unimp.tasks.labels import UNLABELED, reveal_only
from unimp.tasks.task import Sizes

MAX_FEATURES = 64
"""Wider features are projected to this number of columns."""
MAX_TASKS = 128
"""The largest number of binary tasks; each needs its own classifier."""
LEAVES, L2, COLUMNS_PER_SPLIT = 31, 1e-3, 0.25
MOST_ROUNDS, FEWEST_ROUNDS, ROUNDS_WITHOUT_VALIDATION = 300, 20, 100
PATIENCE = 20
"""Boosting ends after this many rounds without a lower validation loss."""
WORK = 4e9
"""Rounds are limited so that rounds × trees per round × rows × columns is at most this number."""
LEAF = -1
"""The left and the right child of a leaf."""
PER_NODE, PER_TREE = ("value", "feature", "threshold", "left", "right"), ("root", "score")
INDICES = ("feature", "left", "right", "root", "score")
"""The tensors that store the trees, and those that contain numbers of columns, nodes or scores."""
ROWS = 65_536
"""Rows that are projected at a time."""


class Trees(SolvedModel):
    """Gradient-boosted trees on one row of neighborhood statistics per node.

        z_i = [mean_j mean_k x_k | mean_j x_j | x_i | max_j x_j | log(1 + d_i) | s_i]
        logits_i = b + Σ_t tree_t(z_i)

    j are the d_i in-neighbors of i, and k those of j; means and maxima of no nodes are 0. s_i are
    the labels that `propagated` spreads over 1, 2, 5 and 10 steps. Features with more than
    MAX_FEATURES columns are first projected onto their largest singular vectors.

    The trees are fitted by scikit-learn's HistGradientBoostingClassifier. For a train node, s is
    computed from the labels of the other folds, so that its own label is never part of its row. The
    number of rounds is chosen by the validation log-loss. Each binary task has its own classifier,
    whose rows contain the propagated labels of this task only.

    All trees are stored in one list of nodes, parents before children, as plain tensors. Rows are
    computed in double precision on the CPU, so that every device returns the same answer.
    Between hops, a row is [x | s], then [mean_j x_j | x | max_j x_j | log(1 + d) | s].
    """

    takes_edge_features = False

    projection: Tensor | None
    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    root: Tensor
    score: Tensor
    baseline: Tensor
    to_logits: Tensor

    def __init__(self, sizes: Sizes, *, use_features: bool = True, use_labels: bool = True) -> None:
        super().__init__()
        if use_features and sizes.features == 0:
            raise ModelError("the task has no node features; use the inputs A,Y")
        if sizes.multilabel and sizes.classes > MAX_TASKS:
            raise ModelError(
                f"trees need one classifier per binary task, for at most {MAX_TASKS} tasks, but "
                f"there are {sizes.classes}; choose another model"
            )
        self.takes_labels = self.takes_propagated_labels = use_labels
        self.classes, self.multilabel = sizes.classes, sizes.multilabel
        self.num_layers = 2 if use_features else 1
        self.width = min(sizes.features, MAX_FEATURES) if use_features else 0
        is_wide = use_features and sizes.features > MAX_FEATURES
        self.register_buffer(
            "projection", torch.zeros(sizes.features, self.width) if is_wide else None
        )
        # Before it is fitted, the model is one tree with one leaf, whose value is 0.
        self.value = nn.Parameter(torch.zeros(1), requires_grad=False)  # [nodes]
        self.register_buffer("feature", torch.zeros(1, dtype=torch.int32))  # [nodes] column of z
        self.register_buffer("threshold", torch.zeros(1))  # [nodes] z ≤ threshold: left child
        self.register_buffer("left", torch.full((1,), LEAF, dtype=torch.int32))  # [nodes]
        self.register_buffer("right", torch.full((1,), LEAF, dtype=torch.int32))  # [nodes]
        self.register_buffer("root", torch.zeros(1, dtype=torch.int32))  # [trees] first node
        self.register_buffer("score", torch.zeros(1, dtype=torch.int32))  # [trees] sum it is in
        self.register_buffer("baseline", torch.zeros(sizes.classes))
        self.register_buffer("to_logits", torch.eye(sizes.classes))  # [sums, classes]

    @property
    def shared(self) -> int:
        """The number of columns of z before the propagated labels."""
        return 4 * self.width + 1

    @property
    def columns(self) -> int:
        """The number of columns of z."""
        per_step = 2 * self.classes if self.multilabel else self.classes + 1
        return self.shared + (len(STEPS) * per_step if self.takes_labels else 0)

    def solve(
        self, graph: Graph, known: KnownLabels, *, seed: int, seconds: float = math.inf
    ) -> Solved:
        rounds = self._grow(graph, known, seed, [None] * self.classes)
        how = "chosen by the validation loss" if len(known.val) else "fixed without validation"
        return Solved(f"{rounds} rounds of boosting, {how}")

    def solve_again(self, graph: Graph, known: KnownLabels, *, seed: int) -> None:
        per_score = torch.bincount(self.score.long(), minlength=self.classes).tolist()
        self._grow(graph, known, seed, per_score if self.multilabel else per_score[:1])

    def _grow(
        self, graph: Graph, known: KnownLabels, seed: int, rounds: Sequence[int | None]
    ) -> int:
        """Grow trees for the train labels, and return the number of rounds.

        rounds: per binary task, or one number for classes; None: chosen on validation.
        """
        graph = graph.to("cpu")
        if self.projection is not None:
            assert graph.x is not None
            self.projection.copy_(singular_vectors(graph.x, self.width, seed))
        labels, train, val = known.labels, known.train, known.val
        h = self.embed(self.features(graph, reveal_only(train, labels)), labels)
        for index in range(self.num_layers):
            h = self.propagate(h, graph.hop, index)
        rows, val_rows = h[train].float(), h[val].float().numpy()
        if self.takes_labels:
            rows[:, self.shared :] = cross_fitted(known, partial(self.propagated, graph), seed=seed)
        y, y_val = labels[train].numpy(), labels[val].numpy()
        if self.multilabel:
            grown = [
                grow(
                    rows.numpy(),
                    y[:, task],
                    val_rows,
                    y_val[:, task],
                    self._own(task),
                    2,
                    seed,
                    rounds[task],
                )
                for task in range(self.classes)
            ]
            baseline = [one.baseline[1] - one.baseline[0] for one in grown]
            to_logits = np.eye(self.classes)
        else:
            every = np.arange(self.columns)
            grown = [grow(rows.numpy(), y, val_rows, y_val, every, self.classes, seed, rounds[0])]
            baseline, to_logits = list(grown[0].baseline), grown[0].to_logits
        self._store(grown)
        self.baseline.copy_(torch.tensor(baseline))
        self.to_logits.copy_(torch.from_numpy(to_logits))
        return max(len(one.rounds) for one in grown)

    def propagated(self, graph: Graph, observed: Tensor, recent: LabelSums | None = None) -> Tensor:
        """Propagate observed labels, with the mass m of a node divided by the share of observed
        labels: folds and predictions then have equal masses, however many labels are known."""
        observed = observed.cpu()
        rows = propagated_labels(
            graph.to("cpu"), observed, self.classes, dtype=torch.float64, recent=recent
        )
        rate = (observed != UNLABELED).reshape(len(observed), -1).float().mean(0).clamp(min=FLOOR)
        masses = rows.view(len(rows), len(STEPS), -1)[:, :, self.classes :]
        masses += rate.log() / math.log(FLOOR)
        return rows

    def _own(self, task: int) -> np.ndarray[Any, Any]:
        """The columns of z without the propagated labels of other binary tasks."""
        own = np.arange(self.shared + task, self.columns, self.classes)
        return np.concatenate((np.arange(self.shared), own))

    def _store(self, grown: Sequence[Boosted]) -> None:
        """Store fitted trees as tensors; without any, one leaf of value 0 is stored."""
        trees = [
            (number + score, nodes, one.columns)
            for number, one in enumerate(grown)
            for nodes_of_round in one.rounds
            for score, nodes in enumerate(nodes_of_round)
        ]
        if not trees:
            trees = [(0, np.zeros(1, dtype=[*NODE_FIELDS]), np.zeros(1, dtype=np.int64))]
            trees[0][1]["is_leaf"] = 1
        sizes = np.array([len(nodes) for _, nodes, _ in trees])
        root = np.cumsum(sizes) - sizes
        nodes = np.concatenate([nodes[[*NODE_NAMES]] for _, nodes, _ in trees])
        first, is_leaf = np.repeat(root, sizes), nodes["is_leaf"].astype(bool)
        feature = np.concatenate([columns[nodes["feature_idx"]] for _, nodes, columns in trees])
        tensors = {
            "value": torch.from_numpy(np.where(is_leaf, nodes["value"], 0.0)).float(),
            "feature": torch.from_numpy(np.where(is_leaf, 0, feature)).int(),
            "threshold": torch.from_numpy(
                np.where(is_leaf, 0.0, rounded_down(nodes["num_threshold"]))
            ).float(),
            "left": torch.from_numpy(np.where(is_leaf, LEAF, nodes["left"] + first)).int(),
            "right": torch.from_numpy(np.where(is_leaf, LEAF, nodes["right"] + first)).int(),
            "root": torch.from_numpy(root).int(),
            "score": torch.tensor([score for score, _, _ in trees], dtype=torch.int32),
        }
        self.take_shapes(tensors)
        state = self.state_dict()
        for name, value in tensors.items():
            state[name].copy_(value)

    def take_shapes(self, tensors: Mapping[str, Tensor]) -> None:
        for names in (PER_NODE, PER_TREE):
            stored = [tensors[name] for name in names if name in tensors]
            shapes = {tuple(one.shape) for one in stored}
            if len(stored) < len(names) or len(shapes) > 1 or stored[0].ndim != 1 or not shapes:
                raise ModelError(f"{', '.join(names)} must be lists of equal length")
            if not stored[0].numel():
                raise ModelError(f"{', '.join(names)} are empty")
        self._check_trees({name: tensors[name].cpu().long().numpy() for name in INDICES})
        for name in PER_NODE + PER_TREE:
            own: Tensor = getattr(self, name)
            own.data = own.new_empty(tensors[name].shape)

    def _check_trees(self, stored: Mapping[str, Any]) -> None:
        """Refuse nodes that do not form trees: a traversal of them might not end."""
        left, right, root = stored["left"], stored["right"], stored["root"]
        node, count = np.arange(len(left)), len(left)
        split = (left != LEAF) | (right != LEAF)
        if root[0] != 0 or (np.diff(root) <= 0).any() or root[-1] >= count:
            raise ModelError("root does not contain the first nodes of the trees in order")
        end = np.append(root[1:], count)[np.searchsorted(root, node, side="right") - 1]
        for name, child in (("left", left), ("right", right)):
            wrong = split & ((child <= node) | (child >= end))
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                raise ModelError(
                    f"{name} child {child[at]} of node {at} is not a later node of its tree"
                )
        children = np.sort(np.concatenate((left[split], right[split])))
        if not np.array_equal(children, np.setdiff1d(node, root)):
            raise ModelError("a node of a tree is not the child of exactly one other node")
        for name, limit in (("feature", self.columns), ("score", self.classes)):
            numbers = stored[name]
            if numbers.min() < 0 or numbers.max() >= limit:
                raise ModelError(
                    f"{name} contains {numbers.min()} to {numbers.max()}, but it must be in "
                    f"0..{limit - 1}"
                )

    def embed(self, x: Features | None, observed: Tensor) -> Tensor:
        x, propagated = split_features(x)
        parts = []
        if self.width:
            assert x is not None
            parts.append(project(x, self.projection))
        if propagated is not None:
            parts.append(propagated.cpu().double())
        h = torch.cat(parts, 1) if parts else torch.zeros(len(observed), 0).double()
        return h.to(observed.device)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        rows, edges = h.cpu(), hop.to("cpu")
        own, rest = rows[: hop.num_targets], [rows[: hop.num_targets]]
        x, degree = rows[:, : self.width].contiguous(), edges.indptr.diff()[:, None]
        one = torch.ones(hop.num_edges, dtype=rows.dtype)
        # A sum that is divided by the degree gives the exact mean of equal numbers.
        mean = sum_rows(edges.indptr, edges.source, one, x) / degree.clamp(min=1)
        if index == 0:
            rest = [own[:, : self.width], _maximum(edges, x), degree.double().log1p()]
            rest.append(own[:, self.width :])
        return torch.cat((mean, *rest), 1).to(h.device)

    def read_out(self, h: Tensor) -> Tensor:
        """Compute logits from rows z: [N, columns] → [N, classes]."""
        sums = self._sums(h.cpu().float().numpy())
        logits = torch.from_numpy(sums) @ self.to_logits.cpu().double()
        return (logits + self.baseline.cpu().double()).float().to(h.device)

    def _sums(self, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The sum of the leaf values of all trees with the same score: [N, classes] float64.

        Each node of a tree divides its rows between its two children.
        """
        columns = np.ascontiguousarray(rows.T)
        sums = np.zeros((self.classes, len(rows)))
        feature, left, right, root, score = (
            t.tolist() for t in (self.feature, self.left, self.right, self.root, self.score)
        )
        value, threshold = self.value.double().tolist(), self.threshold.cpu().numpy()
        everything = np.arange(len(rows))
        for tree, first in enumerate(root):
            end = root[tree + 1] if tree + 1 < len(root) else len(left)
            total, reached = sums[score[tree]], {first: everything}
            for node in range(first, end):
                here = reached.pop(node)
                if left[node] == LEAF:
                    total[here] += value[node]
                    continue
                goes_left = columns[feature[node]][here] <= threshold[node]
                reached[left[node]] = here[goes_left]
                reached[right[node]] = here[~goes_left]
        return sums.T


NODE_NAMES = ("value", "feature_idx", "num_threshold", "left", "right", "is_leaf")
NODE_FIELDS = tuple(zip(NODE_NAMES, ("f8", "i8", "f8", "u4", "u4", "u1"), strict=True))
"""The fields of scikit-learn's tree nodes that predictions depend on; no value is missing."""


class Boosted(NamedTuple):
    """The trees of one fitted classifier."""

    rounds: list[list[Any]]  # scikit-learn's arrays of nodes, per round and score
    columns: np.ndarray[Any, Any]  # the columns of z that the classifier was fitted on
    baseline: np.ndarray[Any, Any]  # [classes]
    to_logits: np.ndarray[Any, Any]  # [classes, classes]: logits = baseline + scores · to_logits


def grow(
    rows: Any,
    y: Any,
    val_rows: Any,
    y_val: Any,
    columns: Any,
    classes: int,
    seed: int,
    fixed: int | None = None,
) -> Boosted:
    """Fit one classifier to the rows with a known label, and keep the best number of rounds.

    fixed: the number of rounds; None: the best one on validation, of a limited number.
    A class without a train label has the score of a class with half a label. Two classes share one
    score, as in scikit-learn: the difference of their logits.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier  # importing it takes a second

    rows, y = rows[y != UNLABELED][:, columns], y[y != UNLABELED]
    counts = np.bincount(y, minlength=classes)
    present = np.flatnonzero(counts)
    share = np.log(np.maximum(counts, 0.5) / max(1, len(y)))
    # As scikit-learn does, the logarithms of the shares are centered.
    baseline = share - share[present].mean() if len(present) else share
    to_logits = np.zeros((classes, classes))
    if len(present) < 2:
        return Boosted([], columns, baseline, to_logits)
    scores = 1 if len(present) == 2 else len(present)
    to_logits[np.arange(scores), present[-scores:]] = 1.0
    if scores == 1:
        to_logits[0, present] = (-0.5, 0.5)
    judged = np.isin(y_val, present)
    most = WORK / (scores * rows.shape[0] * rows.shape[1])
    rounds = int(min(MOST_ROUNDS, max(FEWEST_ROUNDS, most)))
    validates = bool(judged.any())
    booster = HistGradientBoostingClassifier(
        learning_rate=min(0.3, max(0.1, 10 / rounds)),
        max_iter=rounds if validates else fixed or min(rounds, ROUNDS_WITHOUT_VALIDATION),
        max_leaf_nodes=LEAVES,
        min_samples_leaf=min(20, max(1, len(y) // 20)),
        l2_regularization=L2,
        max_features=COLUMNS_PER_SPLIT,
        early_stopping=validates,
        n_iter_no_change=PATIENCE,
        scoring="loss",
        random_state=seed,
    )
    if validates:
        booster.fit(rows, y, X_val=val_rows[judged][:, columns], y_val=y_val[judged])
        best = 1 + int(np.argmax(booster.validation_score_[1:]))
    else:
        booster.fit(rows, y)
        best = booster.n_iter_
    trees = [[tree.nodes for tree in trees] for trees in booster._predictors[:best]]
    return Boosted(trees, columns, baseline, to_logits)


def rounded_down(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The largest float32 that is at most each number: x ≤ both is equal for a float32 x."""
    near = numbers.astype(np.float32)
    return np.where(near > numbers, np.nextafter(near, np.float32(-np.inf)), near)


def _maximum(hop: Hop, rows: Tensor) -> Tensor:
    """Compute the maximum over in-neighbors, or 0 if there are none: [S, F] → [T, F]."""
    if not hop.num_edges:
        return rows.new_zeros(hop.num_targets, rows.shape[1])
    one = torch.ones(hop.num_edges, dtype=rows.dtype)
    matrix = torch.sparse_csr_tensor(hop.indptr, hop.source, one, (hop.num_targets, len(rows)))
    return torch.sparse.mm(matrix, rows, "amax")  # type: ignore[no-any-return]


def project(x: Tensor | SparseFeatures, projection: Tensor | None) -> Tensor:
    """Compute the product of features and a projection (None: the features), as float64 on CPU."""
    x = x.to("cpu")
    if isinstance(x, SparseFeatures):
        matrix = torch.eye(x.shape[1]) if projection is None else projection.cpu()
        return sum_rows(x.indptr, x.column, x.value.double(), matrix.double())
    if projection is None:
        return x.double()
    matrix = projection.double().cpu()
    return torch.cat([rows.double() @ matrix for rows in torch.split(x, ROWS)])

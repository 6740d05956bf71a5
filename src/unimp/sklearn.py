"""`UniMPClassifier`: a scikit-learn classifier for the nodes of a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)
from torch import Tensor

from unimp.config.arguments import check_argument
from unimp.config.presets import PRESETS, of_one_model
from unimp.config.recipe import Recipe, Settings, read_settings
from unimp.data.catalog import prepare_graph
from unimp.errors import ArgumentError, RecipeError, TaskError, UnimpError
from unimp.graph.graph import Graph
from unimp.graph.node_view import NodeView
from unimp.model.table import inputs_of
from unimp.runs.experiment import run
from unimp.runs.preparation import preparation
from unimp.runs.run import Run
from unimp.tasks.classes import as_labels, codes_of, encode_classes
from unimp.tasks.known import SEVERAL_CLASSES, one_class
from unimp.tasks.labels import UNLABELED, Split
from unimp.tasks.metrics import score
from unimp.tasks.task import Task

DEFAULT = Recipe()

OF_ONE_MODEL = {
    "model": "model.name",
    "inputs": "model.inputs",
    "layers": "model.layers",
    "width": "model.width",
    "heads": "model.heads",
    "dropout": "model.dropout",
    "input_dropout": "model.input_dropout",
    "attention_dropout": "model.attention_dropout",
    "label_rate": "mask.label_rate",
    "epochs": "train.epochs",
    "lr": "train.lr",
    "weight_decay": "train.weight_decay",
    "patience": "train.patience",
}
"""The arguments that are options of one model, and the names of these options."""

FEW_LABELS = 500
"""With at most so many known labels, "auto" chooses a small model and a short training."""
FOR_FEW_LABELS = {"width": 64, "epochs": 100}
"""What "auto" then means; with more labels, it means the default of a recipe."""
SCORED_FROM = 51  # the first epoch of such a training that validation may choose

Auto = Literal["auto"]


class UniMPClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Label the nodes of a graph from their features and from the labels already known.

        graph = unimp.Graph.from_edges(edge_index, x=features).symmetrize()
        classifier = UniMPClassifier().fit(graph.nodes[known], y[known])
        classifier.predict(graph.nodes[unknown])

    **X** is a view of nodes (`graph.nodes[rows]`). The model sees the features and edges of all
    nodes of the graph, but only the labels that are given for the view. A node outside of the view,
    or with an unknown y, is part of the graph without a label. Therefore
    `cross_val_score(classifier, graph.nodes[known], y[known])` never shows the model a label of a
    test fold. X may also be a plain matrix: it is a graph without edges, and labels are not inputs.

    **y** has one class per row, whole numbers or texts; −1, NaN, None and "" are unknown. Or it has
    one column per binary task: 0, 1, and −1 or NaN where it is missing.

    At prediction, every label that was given to `fit` is an input, including those of validation
    nodes, and so are `labels` that came later: {node: class}, or one label per node of the graph,
    unknown where nothing is new. Nothing is trained again. On another graph than that of `fit`,
    only `labels` are inputs. A label that is an input is returned with probability 1, so score
    other nodes. The other probabilities are calibrated on the validation nodes.

    The arguments are options of a recipe with its defaults (`unimp recipe show`). With at most
    500 known labels, "auto" means 64 for `width` and 100 for `epochs`. Without patience and a time
    limit, validation then chooses the best of the last 50 epochs. This takes less time and scores
    about the same on small graphs. With more labels, "auto" means the default of a recipe. Four
    arguments are not options of a recipe: `preset`; `validation_fraction`, the stratified share of
    known labels that chooses the epoch (0: the last epoch is used, and all labels are trained on);
    `random_state`; and `settings`, any other options of a recipe, which take precedence over the
    arguments. Sample weights are not supported.

    With `preset` = quick, good or best, an ensemble of several models is trained within the time
    limit of the preset, or within `time_limit` (seconds, or a text such as "10m"). Arguments of a
    single model, such as `width`, are then refused.

    After `fit`: `classes_`; `transduction_`, the given or predicted label of each node of the
    graph; `n_features_in_`; `n_iter_`, the number of epochs, or of the members of an ensemble;
    `run_`, the underlying run.
    """

    def __init__(
        self,
        *,
        model: str = DEFAULT.model.name,
        inputs: str = DEFAULT.model.inputs,
        layers: int = DEFAULT.model.layers,
        width: int | Auto = "auto",
        heads: int = DEFAULT.model.heads,
        dropout: float = DEFAULT.model.dropout,
        input_dropout: float = DEFAULT.model.input_dropout,
        attention_dropout: float = DEFAULT.model.attention_dropout,
        label_rate: float = DEFAULT.mask.label_rate,
        epochs: int | Auto = "auto",
        lr: float = DEFAULT.train.lr,
        weight_decay: float = DEFAULT.train.weight_decay,
        patience: int = DEFAULT.train.patience,
        preset: Literal["quick", "good", "best"] | None = None,
        time_limit: float | str | None = None,
        validation_fraction: float = 0.1,
        device: str = DEFAULT.train.device,
        random_state: Any = None,
        settings: Settings = (),
    ) -> None:
        self.model = model
        self.inputs = inputs
        self.layers = layers
        self.width = width
        self.heads = heads
        self.dropout = dropout
        self.input_dropout = input_dropout
        self.attention_dropout = attention_dropout
        self.label_rate = label_rate
        self.epochs = epochs
        self.lr = lr
        self.weight_decay = weight_decay
        self.patience = patience
        self.preset = preset
        self.time_limit = time_limit
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.settings = settings

    def fit(self, X: Any, y: Any) -> Self:
        """Train on the labels y of the nodes X; all other nodes take part without a label."""
        if y is None:
            raise TaskError(
                "UniMPClassifier requires y to be passed, but the target y is None; give one label "
                "per row, -1 where it is unknown"
            )
        check_argument("UniMPClassifier", "preset", self.preset, Literal[*PRESETS] | None)
        check_argument("UniMPClassifier", "validation_fraction", self.validation_fraction, float)
        if not 0 <= self.validation_fraction < 1:
            raise RecipeError(
                f"validation_fraction is {self.validation_fraction}; it is a share of the known "
                "labels, from 0 to below 1"
            )
        with _our_errors():
            view = self._view(X, reset=True)
            check_consistent_length(view, y)
            codes, self.classes_ = _encoded(y)
            draw = check_random_state(self.random_state)
        labels = _labels_of_nodes(view, codes)
        known = np.flatnonzero(labels != UNLABELED if labels.ndim == 1 else (labels >= 0).any(1))
        if len(known) == 0:
            raise TaskError("no label in y is known; give at least one known label")
        classes = self.classes_.tolist()
        if what_is_wrong := one_class(torch.from_numpy(labels), len(classes), classes):
            raise TaskError(f"y: {what_is_wrong}. {SEVERAL_CLASSES}.")
        val = _held_out(known, labels, self.validation_fraction, draw)
        task = Task(
            name="nodes",
            graph=view.graph,
            labels=torch.from_numpy(labels),
            split=_split(np.setdiff1d(known, val), val),
            metric="accuracy" if labels.ndim == 1 else "rocauc",
            num_classes=len(self.classes_),
        )
        if self.preset is None:
            settings = self._settings(len(known), matrix=not _is_graph(X), validated=len(val) > 0)
        else:
            settings = self._settings_of_ensemble()
        seed = int(draw.randint(2**31 - 1))
        self.graph_ = view.graph
        self.run_ = run(task, seed=seed, settings=settings, preset=self.preset)
        metrics = self.run_.metrics
        self.n_iter_ = len(metrics["ensemble"]["members"]) if self.preset else metrics["epochs"]
        self.transduction_ = self._most_likely(_probabilities(self.run_, task.labels))
        return self

    def predict_proba(self, X: Any, labels: Any = None) -> NDArray[np.float64]:
        """Probabilities of the nodes X: [rows, classes], or [rows, tasks] for class 1."""
        check_is_fitted(self)
        with _our_errors():
            view = self._view(X, reset=False)
        at_hand, known = self._run_on(
            view.graph, same=_is_graph(X) and self._is_at_hand(view.graph)
        )
        if labels is not None:
            if hasattr(labels, "__array__"):  # a Series of pandas, or a tensor
                with _our_errors():
                    labels = np.asarray(labels)
            check_argument("UniMPClassifier", "labels", labels, Mapping | Sequence | np.ndarray)
            if isinstance(labels, np.ndarray) and labels.ndim == 0:
                raise TaskError("labels is one value; give one label per node, or {node: label}")
            if len(labels) and not _is_graph(X):
                raise TaskError(
                    "labels need nodes of a graph, but X is a plain matrix; leave them out"
                )
            if len(labels):
                with _our_errors():
                    new = self._codes(labels, known)
                known = torch.where(new == UNLABELED, known, new)
        return _probabilities(at_hand, known)[view.numbers]

    def predict(self, X: Any, labels: Any = None) -> NDArray[Any]:
        """The most likely class of each of the nodes X, or 0 and 1 for each binary task."""
        return self._most_likely(self.predict_proba(X, labels))

    def score(self, X: Any, y: Any) -> float:
        """Accuracy over the known labels in y, or the mean ROC-AUC of binary tasks."""
        check_is_fitted(self)
        with _our_errors():
            check_consistent_length(X.nodes if isinstance(X, Graph) else X, y)
            entries = _encoded(y)[0] if self.run_.task.is_multilabel else column_or_1d(as_labels(y))
        if self.run_.task.is_multilabel:
            probabilities = torch.from_numpy(self.predict_proba(X))
            _refuse_nothing_known(entries)
            return score("rocauc", probabilities, torch.from_numpy(entries))
        guess = self.predict(X)
        codes, classes = encode_classes(entries)
        _refuse_nothing_known(codes)
        known = codes != UNLABELED
        # A class that `fit` has not seen counts as an error, as in scikit-learn.
        return float(np.mean(guess[known] == classes[codes[known]]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _view(self, X: Any, *, reset: bool) -> NodeView:
        """X as nodes of a graph: a view, all nodes of a graph, or a matrix without edges."""
        if _is_graph(X):
            view: NodeView = X.nodes if isinstance(X, Graph) else X
            validate_data(self, view, reset=reset, skip_check_array=True)
            return view
        x = validate_data(self, X, reset=reset, accept_sparse="csr", dtype=np.float32)
        return Graph.from_edges(np.empty((2, 0), dtype=np.int64), x=x).nodes

    def _settings_of_ensemble(self) -> dict[str, Any]:
        """The options that an ensemble has in common; refuses those of a single model."""
        usual, given = DEFAULT.settings(), dict(read_settings(self.settings))
        for name, option in OF_ONE_MODEL.items():
            if getattr(self, name) not in ("auto", usual[option]):
                given.setdefault(option, getattr(self, name))
        if alone := of_one_model(given):
            raise RecipeError(
                f"preset={self.preset!r} trains an ensemble, but {', '.join(alone)} would describe "
                "a single model; leave these options out, or set preset=None"
            )
        return {"ensemble.portfolio": self.preset, **self._shared(), **given}

    def _shared(self) -> dict[str, Any]:
        limit = {} if self.time_limit is None else {"train.time_limit": self.time_limit}
        return {"train.device": self.device, **limit}

    def _settings(self, num_known: int, *, matrix: bool, validated: bool) -> dict[str, Any]:
        """Every option of the recipe that follows from the arguments and `settings`."""
        given = {name: getattr(self, name) for name in OF_ONE_MODEL}
        further = dict(read_settings(self.settings))
        chosen = FOR_FEW_LABELS if num_known <= FEW_LABELS else {}
        for name in FOR_FEW_LABELS:
            if isinstance(given[name], str) and given[name] == "auto":
                given[name] = chosen.get(name, DEFAULT.settings()[OF_ONE_MODEL[name]])
        options = {
            **{option: given[name] for name, option in OF_ONE_MODEL.items()},
            # The norm of the inputs would leave nothing of one column, and little of a few.
            "model.feature_encoder": True,
            **self._shared(),
        }
        recipe = DEFAULT.with_settings(options).with_settings(further)
        by_default = chosen and self.epochs == "auto" and "train.epochs" not in further
        # Early epochs may score well by chance, but a training that may end early needs them.
        late = by_default and not (recipe.train.patience or recipe.train.time_limit)
        first = (SCORED_FROM if late else 1) if validated else recipe.train.epochs  # else the last
        recipe = recipe.with_settings({"train.eval_from": first, **further})
        if matrix:
            inputs = inputs_of(recipe.model)
            if "X" not in inputs:
                raise RecipeError(
                    "X is a plain matrix, but the model uses only edges and labels; give nodes of "
                    "a graph, or set inputs='X,A'"
                )
            if "Y" in inputs:
                recipe = recipe.with_settings({"model.inputs": "X,A"})
        return recipe.settings()

    def _is_at_hand(self, graph: Graph) -> bool:
        """Whether this is the graph of `fit`, or an equal one."""
        if graph is self.graph_:
            return True
        ours, theirs = self.graph_.arrays, graph.arrays
        return [_kind(a) for a in ours] == [_kind(a) for a in theirs] and all(
            a is None or b is None or torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
        )

    def _run_on(self, graph: Graph, *, same: bool) -> tuple[Run, Tensor]:
        """The run on a graph, and the labels of its nodes that were given to `fit`."""
        task = self.run_.task
        if same:
            return self.run_, task.labels
        if graph.num_edge_features != self.graph_.num_edge_features:
            raise TaskError(
                f"the graph has {graph.num_edge_features} edge features; that of fit had "
                f"{self.graph_.num_edge_features}"
            )
        unknown = task.labels.new_full((graph.num_nodes, *task.labels.shape[1:]), UNLABELED)
        # A task needs a train label; this one is a placeholder that nothing reads.
        one_label = unknown.clone()
        one_label[0] = 0
        placeholder = replace(
            task,
            graph=prepare_graph(graph, **preparation(self.run_.recipe)),
            labels=one_label,
            split=_split(np.zeros(1, dtype=np.int64)),
        )
        return replace(self.run_, task=placeholder), unknown

    def _codes(self, labels: Any, like: Tensor) -> Tensor:
        """Labels that came later, as class numbers of all nodes."""
        if isinstance(labels, Mapping):
            for node in labels:
                number = isinstance(node, int | np.integer) and not isinstance(node, bool)
                if not number or not 0 <= node < len(like):
                    raise TaskError(
                        f"a label is given for node {node!r}; nodes are numbers from 0 to "
                        f"{len(like) - 1}"
                    )
            numbers, given = np.array(list(labels), dtype=np.int64), list(labels.values())
        else:
            numbers, given = np.arange(len(like)), labels
        codes = np.full(tuple(like.shape), UNLABELED, dtype=np.int64)
        found = codes_of(given, self.classes_) if like.ndim == 1 else _encoded(given)[0]
        if found.shape != (len(numbers), *codes.shape[1:]):
            raise TaskError(
                f"labels have shape {found.shape}; expected {codes.shape}, one per node of the "
                "graph, unknown where nothing is new; or give {node: label}"
            )
        codes[numbers] = found
        return torch.from_numpy(codes).to(like.dtype)

    def _most_likely(self, probabilities: NDArray[np.float64]) -> NDArray[Any]:
        """The classes as in y, or 0 and 1 for binary tasks."""
        if self.run_.task.is_multilabel:
            return (probabilities > 0.5).astype(np.int64)
        named: NDArray[Any] = self.classes_[probabilities.argmax(1)]
        return named


def _probabilities(run: Run, known: Tensor) -> NDArray[np.float64]:
    """Probabilities of all nodes, given the known labels, which have probability 1."""
    given = run.answers(run.outputs(known), known)
    probabilities: NDArray[np.float64] = given.double().numpy()
    if known.ndim == 1:
        probabilities /= probabilities.sum(1, keepdims=True)  # in double, as metrics check it
    return probabilities


@contextmanager
def _our_errors() -> Iterator[None]:
    """Raise errors of scikit-learn's validation as errors of this package, with their messages."""
    try:
        yield
    except UnimpError:
        raise
    except TypeError as error:
        raise ArgumentError(str(error)) from error
    except (ValueError, RuntimeError) as error:  # RuntimeError: a tensor that requires grad
        raise TaskError(str(error)) from error


def _is_graph(X: Any) -> bool:
    return isinstance(X, NodeView | Graph)


def _kind(array: Tensor | None) -> object:
    return None if array is None else (array.dtype, array.shape)


def _encoded(y: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """y as class numbers [rows] or as 0, 1 and −1 [rows, tasks]; and the classes or tasks."""
    y = as_labels(y)
    if y.dtype.kind == "f":
        assert_all_finite(y, allow_nan=True, input_name="y")
    if y.ndim == 2 and y.shape[1] > 1:
        entries = np.where(np.isnan(y), UNLABELED, y) if y.dtype.kind == "f" else y
        if y.dtype.kind not in "fiub" or not np.isin(entries, (UNLABELED, 0, 1)).all():
            raise TaskError(
                "y has several columns, which must contain 0, 1 and -1 (unknown), one column per "
                "binary task; for one class per row, give a single column"
            )
        return entries.astype(np.int64), np.arange(y.shape[1])
    return encode_classes(y if y.ndim == 1 else column_or_1d(y, warn=True))


def _refuse_nothing_known(codes: NDArray[np.int64]) -> None:
    if (codes == UNLABELED).all():
        raise TaskError("no label in y is known, so nothing can be scored; give known labels")


def _split(train: NDArray[np.int64], val: NDArray[np.int64] | None = None) -> Split:
    none = np.empty(0, dtype=np.int64)
    return Split(*map(torch.from_numpy, (train, none if val is None else val, none)))


def _labels_of_nodes(view: NodeView, codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labels of all nodes of the graph: known for rows of the view, unknown elsewhere."""
    labels = np.full((view.graph.num_nodes, *codes.shape[1:]), UNLABELED, dtype=np.int64)
    labels[view.numbers] = codes
    clash = np.unique(np.nonzero(labels[view.numbers] != codes)[0])
    if len(clash):
        raise TaskError(
            f"node {view.numbers[clash[0]]} appears in several rows with different labels; give "
            "it one label"
        )
    return labels


def _held_out(
    known: NDArray[np.int64], labels: NDArray[np.int64], share: float, draw: np.random.RandomState
) -> NDArray[np.int64]:
    """Nodes that choose the epoch: about this share of each class, but never all of it."""
    strata = labels[known] if labels.ndim == 1 else np.zeros(len(known), dtype=np.int64)
    shuffled = draw.permutation(len(known))
    order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    first = np.ones(len(order), dtype=bool)
    first[1:] = strata[order][1:] != strata[order][:-1]
    rest = known[order[~first]]
    count = min(round(share * len(known)), len(rest))
    return np.sort(rest[((np.arange(count) + 0.5) * len(rest) / max(count, 1)).astype(np.int64)])

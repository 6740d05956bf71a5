"""Call every public function with wrong arguments and show that each call is refused clearly.

    python proofs/misuse.py --cases 2500         → proofs/results/misuse.json

A case is a valid call in which one or two arguments are replaced by a value from a list of wrong
values: other types, numbers out of range, NaN, masks, arrays of another shape, texts. Each case
must raise an error of this package that names the problem. If the values happen to be valid, the
call must give a finite result. An exception of another library is a failure, and so is an accepted
wrong value.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import random
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse
import torch
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

import unimp
from unimp.analysis.table import Table
from unimp.data.files import write_atomically
from unimp.tracking.origin import code_origin

RESULTS = Path(__file__).resolve().parent / "results" / "misuse.json"
NODES, CLASSES, WIDTH = 24, 3, 4
SECONDS = 30  # the longest time of a call
SETTINGS = ["train.device=cpu", "model.width=4", "model.layers=1", "model.heads=1"]
SETTINGS += ["train.epochs=2"]

Is = Callable[[Any], bool]
"""Whether a value is valid for an argument."""


def wrong_values() -> dict[str, Any]:
    """Values that are wrong for most arguments, by name."""
    return {
        "None": None,
        "True": True,
        "zero": 0,
        "minus one": -1,
        "minus five": -5,
        "one": 1,
        "a fraction": 1.5,
        "NaN": math.nan,
        "infinity": math.inf,
        "2**40": 2**40,
        "2**70": 2**70,
        "empty text": "",
        "text": "nonsense",
        "NUL": "a\0b",
        "long text": "x" * 5000,
        "bytes": b"nonsense",
        "empty list": [],
        "list of fractions": [0.5],
        "list of texts": ["a", "b"],
        "ragged list": [[1], [2, 3]],
        "list of None": [None] * NODES,
        "set": {1, 2},
        "empty dict": {},
        "dict": {"nonsense": "nonsense"},
        "dict of numbers": {999: 999},
        "object": object(),
        "class": int,
        "function": wrong_values,
        "generator": (number for number in (1, 2)),
        "complex": 1j,
        "date": datetime.date(2020, 1, 1),
        "namespace": SimpleNamespace(shape=(NODES,), nodes=3),
        "array": np.arange(5),
        "mask": np.ones(NODES, dtype=bool),
        "mask tensor": torch.ones(NODES, dtype=torch.bool),
        "array of NaN": np.full(NODES, np.nan),
        "array of fractions": np.full(NODES, 0.5),
        "array of large numbers": np.full(NODES, 2**40),
        "array of huge numbers": np.full(NODES, 2**64 - 1, dtype=np.uint64),
        "array of low numbers": np.full(NODES, -2),
        "array of texts": np.array(["a"] * NODES),
        "array of objects": np.array([object()] * NODES, dtype=object),
        "array of dates": np.array(["2020-01-01"] * NODES, dtype="datetime64[D]"),
        "complex array": np.full(NODES, 1j),
        "big-endian array": np.full(NODES, 99, dtype=">i4"),
        "0-d array": np.array(3),
        "3-d array": np.zeros((2, 2, 2)),
        "empty array": np.empty(0),
        "tensor": torch.arange(5),
        "half tensor": torch.full((NODES,), 0.5, dtype=torch.bfloat16),
        "0-d tensor": torch.tensor(7),
        "sparse tensor": torch.eye(NODES).to_sparse(),
        "large tensor": torch.full((NODES, CLASSES), 257),
        "matrix of NaN": np.full((NODES, WIDTH), np.nan, dtype=np.float32),
        "matrix of infinity": np.full((NODES, WIDTH), np.inf),
        "Arrow table": pa.table({"id": [1, 2], "x": [1.0, 2.0]}),
        "table of NaN": {"id": ["m1"], "a": [math.nan], "kind": [3]},
    }


def number(low: float = -math.inf, high: float = math.inf, *, whole: bool = True) -> Is:
    """Numbers from low to high."""

    def valid(value: Any) -> bool:
        kinds = (int, np.integer) if whole else (int, float, np.number)
        return isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= high

    return valid


def one_of(*values: Any) -> Is:
    return lambda value: any(value is one or (type(value) is type(one) and value == one)
                             for one in values)  # fmt: skip


def text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def never(value: Any) -> bool:
    return False


def either(*rules: Is) -> Is:
    return lambda value: any(rule(value) for rule in rules)


def whole_array(*shape: int, low: int, high: int) -> Is:
    """Arrays of whole numbers of a shape, from low to high."""

    def valid(value: Any) -> bool:
        if isinstance(value, set | dict | str):
            return False
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            array = np.asarray(value)
            if array.dtype.kind in "iu" and array.shape == shape:
                return bool((array >= low).all() and (array <= high).all())
        return False

    return valid


def numbers_like(*shape: int) -> Is:
    """Arrays of finite numbers of a shape."""

    def valid(value: Any) -> bool:
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            array = np.asarray(value)
            return array.dtype.kind in "fiub" and array.shape == shape and bool(
                np.isfinite(array).all()
            )  # fmt: skip
        return False

    return valid


none = one_of(None)
flag = one_of(True, False)
empty = one_of("", [], (), {})


def nothing(value: Any) -> bool:
    """An empty array or list."""
    is_array = isinstance(value, np.ndarray | Tensor) and value.ndim == 1
    return (is_array or isinstance(value, list)) and len(value) == 0


def a_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def a_callable(value: Any) -> bool:
    return callable(value)


@dataclass(frozen=True)
class Call:
    """A public function, arguments with which it works, and which other values it accepts."""

    name: str
    function: Callable[..., Any]
    arguments: dict[str, Any]
    valid: dict[str, Is]


class World:
    """One small trained run with names, its folder, and a fitted classifier."""

    def __init__(self, folder: Path) -> None:
        draw = np.random.default_rng(0)
        self.folder = folder
        self.edges = draw.integers(0, NODES, (2, 80))
        self.x = draw.normal(size=(NODES, WIDTH)).astype(np.float32)
        self.graph = unimp.Graph.from_edges(self.edges, x=self.x)
        self.labels = torch.arange(NODES) % CLASSES
        self.split = unimp.Split(range(12), range(12, 18), range(18, NODES))
        self.task = unimp.Task(
            "small",
            self.graph,
            self.labels,
            self.split,
            "accuracy",
            CLASSES,
            class_names=("a", "b", "c"),
            node_names=tuple(f"n{i}" for i in range(NODES)),
        )
        self.nodes = {
            "id": [f"n{i}" for i in range(NODES)],
            "age": [float(i % 5) for i in range(NODES)],
            "label": ["red" if i % 2 else "blue" for i in range(NODES)],
        }
        ends = [[f"n{i}" for i in row] for row in self.edges.tolist()]
        self.links = {"source": ends[0], "target": ends[1]}
        tables = unimp.task_from_tables(self.nodes, self.links, label="label", directed=True)
        self.run = unimp.run(self.task, out=folder / "run", settings=SETTINGS, report=False)
        self.of_tables = unimp.run(tables, settings=SETTINGS)
        self.classifier = self.fresh_classifier().fit(self.graph, self.labels.numpy())

    def fresh_classifier(self, **options: Any) -> unimp.UniMPClassifier:
        small = {"layers": 1, "width": 4, "heads": 1, "epochs": 1, "random_state": 0}
        return unimp.UniMPClassifier(**{"device": "cpu", **small, **options})

    def calls(self) -> list[Call]:
        """Every public function with valid arguments."""
        return [*self.of_values(), *self.of_models(), *self.of_files(), *self.of_run(),
                *self.of_classifier()]  # fmt: skip

    def of_values(self) -> list[Call]:
        known = torch.arange(NODES) < 12
        generator = torch.Generator().manual_seed(0)
        labels = whole_array(NODES, low=-1, high=CLASSES - 1)
        task = vars(self.task)
        anything = either(none, numbers_like(NODES, WIDTH), numbers_like(NODES, CLASSES))
        hop = self.graph.hop
        operand = torch.ones(NODES, 2, 3)
        sparse = unimp.SparseFeatures.from_scipy(scipy.sparse.csr_array(self.x))
        return [
            Call(
                "Graph.from_edges",
                unimp.Graph.from_edges,
                {"edge_index": self.edges, "x": self.x, "num_nodes": NODES, "edge_attr": None},
                {
                    "edge_index": never,
                    "x": either(anything, numbers_like(NODES)),
                    "num_nodes": none,
                    "edge_attr": none,
                },
            ),
            Call("Graph.symmetrize", self.graph.symmetrize, {"merge": "mean"}, {"merge": never}),
            Call("Graph.with_features", self.graph.with_features, {"x": self.x},
                 {"x": either(anything, numbers_like(NODES))}),
            Call("Split", unimp.Split, {"train": [0], "val": [1], "test": [2]},
                 dict.fromkeys(("train", "val", "test"), either(nothing, self.is_nodes))),
            Call(
                "Task",
                unimp.Task,
                {key: task[key] for key in task if key not in ("tables",)},
                {
                    "name": text,
                    "graph": never,
                    "labels": labels,
                    "split": never,
                    "metric": never,
                    "num_classes": never,
                    "class_names": none,
                    "node_names": none,
                    "groups": either(none, whole_array(NODES, low=-(2**63), high=2**63 - 1)),
                    "positions": none,
                },
            ),
            Call("LabelMask", unimp.LabelMask, {"observed": known, "hidden": ~known},
                 {"observed": never, "hidden": never}),
            Call(
                "mask_labels",
                unimp.mask_labels,
                {"known": known, "label_rate": 0.5, "generator": generator, "groups": None},
                {
                    "known": lambda v: isinstance(v, Tensor) and v.dtype == torch.bool,
                    "label_rate": number(0, 1, whole=False),
                    "generator": never,
                    "groups": none,
                },
            ),
            Call("LabelMask.reveal", unimp.LabelMask(known, ~known).reveal,
                 {"labels": self.labels},
                 {"labels": lambda v: isinstance(v, Tensor) and v.shape[:1] == (NODES,)
                  and v.layout == torch.strided}),
            Call(
                "SparseFeatures",
                unimp.SparseFeatures,
                {key: getattr(sparse, key) for key in ("indptr", "column", "value", "shape")},
                dict.fromkeys(("indptr", "column", "value", "shape"), never),
            ),
            Call("SparseFeatures.from_scipy", unimp.SparseFeatures.from_scipy,
                 {"matrix": scipy.sparse.csr_array(self.x)}, {"matrix": never}),
            Call(
                "Hop",
                unimp.Hop,
                {"indptr": hop.indptr, "source": hop.source, "num_sources": NODES,
                 "edge_attr": None},
                {"indptr": a_tensor, "source": a_tensor, "num_sources": number(),
                 "edge_attr": either(none, a_tensor)},  # kernels check the values
            ),
            Call(
                "graph_attention",
                unimp.graph_attention,
                {"query": operand, "key": operand, "value": operand, "hop": hop,
                 "edge_weight": None, "edge_bias": None, "dropout": 0.0, "seed": 0,
                 "backend": "reference"},
                {
                    "edge_weight": none,
                    "edge_bias": none,
                    "dropout": number(0, 0.999, whole=False),
                    "seed": either(number(-(2**63), 2**63 - 1),
                                   lambda v: isinstance(v, Tensor) and v.ndim == 0),
                },
            ),
        ]  # fmt: skip

    def of_models(self) -> list[Call]:
        sizes = self.task.sizes
        positive, share = number(1, 10_000), number(0, 0.999, whole=False)
        unimp_rules: dict[str, Is] = {
            "layers": positive, "width": positive, "heads": positive, "dropout": share,
            "input_dropout": either(none, share), "attention_dropout": share, "residual": never,
            "gate_bias": flag, "backend": never, "layer": never, "label_width": positive,
            "use_labels": flag,
        }  # fmt: skip
        logits = {
            "model": self.run.model, "graph": self.graph, "observed": self.labels,
            "regime": "exact", "chunk_edges": 100, "parts": 2, "passes": 1, "seed": 0,
            "device": "cpu", "precision": "fp32",
        }  # fmt: skip
        return [
            Call(
                "UniMP",
                lambda **options: unimp.UniMP(**options),
                {"sizes": sizes, "layers": 1, "width": 4, "heads": 1, "dropout": 0.1,
                 "input_dropout": None, "attention_dropout": 0.0, "residual": "gated",
                 "gate_bias": True, "backend": "auto", "layer": "transformer", "label_width": 4,
                 "use_labels": True},
                unimp_rules,
            ),
            Call(
                "TransformerConv",
                unimp.TransformerConv,
                {"in_channels": 4, "out_channels": 4, "heads": 1, "concat": True, "beta": False,
                 "dropout": 0.0, "edge_dim": None, "bias": True, "flow": "source_to_target"},
                {"in_channels": either(number(1, 10_000), one_of(-1)),
                 "out_channels": number(1, 10_000), "heads": number(1, 10_000), "concat": flag,
                 "beta": flag, "dropout": share, "bias": flag,
                 "edge_dim": either(none, one_of(-1), number(1, 10_000))},
            ),
            Call(
                "MaskedLabels",
                unimp.MaskedLabels,
                {"module": nn.Linear(4, 3), "sizes": sizes, "width": 4, "inputs": "X,A,Y",
                 "combine": "add", "reach": 1, "edge_features": False, "input_norm": False,
                 "input_dropout": 0.0},
                {"width": positive, "reach": number(0, 10_000),
                 "edge_features": flag, "input_norm": flag, "input_dropout": share},
            ),
            Call(
                "predict_logits",
                unimp.predict_logits,
                logits,
                {"observed": lambda v: isinstance(v, Tensor)
                 and whole_array(NODES, low=-1, high=2)(v),
                 "chunk_edges": number(1), "parts": number(1), "passes": number(1),
                 "seed": number(0, 2**32 - 1), "device": none},
            ),
        ]  # fmt: skip

    def of_files(self) -> list[Call]:
        table = {
            "nodes": self.nodes, "edges": self.links, "label": "label", "id": "id",
            "source": "source", "target": "target", "directed": True,
            "features": {"age": "numeric"}, "edge_features": {}, "split": "", "train_share": 0.5,
            "val_share": 0.2, "group": "", "text_width": 8, "name": "tables", "metric": "accuracy",
            "seed": 0, "unknown_ids": "refuse", "decimal": ".", "label_separator": "",
        }  # fmt: skip
        return [
            Call(
                "run",
                unimp.run,
                {"recipe": self.task, "seed": 0, "seeds": None, "out": None, "settings": SETTINGS,
                 "preset": None, "model": None, "on_epoch": lambda epoch: None,
                 "on_run": lambda run: None, "progress": False, "log": (), "report": False},
                {
                    "seed": number(0, 2**32 - 1),
                    "seeds": either(none, self.is_seeds),
                    "out": one_of(None, "nonsense"),
                    "settings": either(empty, nothing),
                    "preset": one_of(None, ""),
                    "model": none,
                    "on_epoch": a_callable,
                    "on_run": a_callable,
                    "progress": either(none, flag),
                    "log": empty,
                    "report": flag,
                },
            ),
            Call("load_run", unimp.load_run,
                 {"folder": self.folder / "run", "device": "cpu", "model": None},
                 {"model": none, "folder": one_of("nonsense")}),
            Call(
                "load_task",
                unimp.load_task,
                {"name": "synthetic", "split": 0, "scale": 0.002, "bundle": "", "features": "",
                 "metric": None, "node_features": "sum", "symmetrize": False,
                 "scale_rows": False, "self_loops": False},
                {"split": number(0, 2**32 - 1), "scale": number(0.0001, 2, whole=False),
                 "bundle": one_of(""), "features": one_of(""), "metric": none,
                 "symmetrize": flag, "scale_rows": flag, "self_loops": flag},
            ),
            Call("load_recipe", unimp.load_recipe, {"name": "debian", "settings": ()},
                 {"settings": either(empty, nothing)}),
            Call("Recipe", unimp.Recipe, {"name": "a", "about": "", "train": {}, "model": {}},
                 {"name": text, "about": text, "train": empty, "model": empty}),
            Call("Recipe.with_settings", unimp.Recipe().with_settings, {"settings": ()},
                 {"settings": either(empty, nothing)}),
            Call("save_npz", unimp.save_npz,
                 {"task": self.task, "path": self.folder / "saved.npz", "force": True},
                 {"force": one_of(True)}),
            Call(
                "task_from_tables",
                unimp.task_from_tables,
                table,
                {"directed": either(none, flag), "features": either(none, empty),
                 "edge_features": either(none, empty), "split": one_of("", None),
                 "train_share": either(none, number(0.1, 0.8, whole=False)),
                 "val_share": either(none, number(0, 0.5, whole=False)), "group": one_of("", None),
                 "text_width": either(none, number(1, 10_000)), "name": text, "metric": none,
                 "seed": number(0, 2**32 - 1), "unknown_ids": none, "decimal": none,
                 "label_separator": either(none, text), "label": none, "id": none,
                 "source": none, "target": none},
            ),
        ]  # fmt: skip

    def of_run(self) -> list[Call]:
        run = self.run
        labels = either(none, self.is_later_labels)
        rules = {"labels": labels, "reveal": none}
        given = {"labels": None, "reveal": None}
        count = number(1)
        outputs = run.outputs(run.observed_labels())
        scores = numbers_like(NODES, CLASSES)
        observed = lambda v: isinstance(v, Tensor) and whole_array(NODES, low=-1, high=2)(v)  # noqa: E731
        new = {"nodes": {"id": ["m1"], "age": [1.0], "label": [None]},
               "edges": {"source": ["m1"], "target": ["n1"]}, "unknown_ids": "refuse"}  # fmt: skip
        return [
            Call("Run.evaluate", run.evaluate, {"reveal": "train"}, {}),
            Call("Run.predict", run.predict, given, rules),
            Call("Run.predictions", run.predictions, given | {"probabilities": None},
                 rules | {"probabilities": either(none, flag)}),
            Call(
                "Run.explain",
                run.explain,
                given | {"node": "n3", "about": "a", "top": 3, "exact": 2, "budget": 1000},
                rules | {"about": none, "top": number(1, 2**60), "exact": number(0, 2**60),
                         "budget": either(none, number(0, 2**60))},
            ),
            Call("Run.audit", run.audit,
                 given | {"folds": 2, "by_group": False, "on_part": lambda done, total: None},
                 rules | {"folds": either(none, one_of(0), number(2)),
                          "by_group": one_of(False), "on_part": lambda v: v is int}),
            Call("Run.suggest", run.suggest, given | {"number": 3, "smooth": False},
                 rules | {"number": count, "smooth": either(none, flag)}),
            Call("Run.extended", self.of_tables.extended, new,
                 {"nodes": none, "edges": none, "unknown_ids": never}),
            Call("Run.observed_labels", run.observed_labels, given, rules),
            Call("Run.observed_share", run.observed_share, {"rate": 0.5},
                 {"rate": number(0, 1, whole=False)}),
            Call("Run.logits", run.logits, {"observed": self.labels}, {"observed": observed}),
            Call("Run.outputs", run.outputs, {"observed": self.labels}, {"observed": observed}),
            Call("Run.probabilities_of", run.probabilities_of, {"outputs": outputs},
                 {"outputs": scores}),
            Call("Run.incremental", run.incremental, {"observed": None, "around": None},
                 {"observed": either(none, observed),
                  "around": either(none, self.is_around)}),
            Call("Run", lambda **fields: unimp.Run(**fields),
                 {key: getattr(run, key)
                  for key in ("recipe", "seed", "task", "model", "metrics", "device", "folder")},
                 {"seed": number(0, 2**32 - 1), "folder": none,
                  "metrics": lambda v: isinstance(v, dict)}),
        ]  # fmt: skip

    def of_classifier(self) -> list[Call]:
        graph, y = self.graph, self.labels.numpy()
        options = self.fresh_classifier().get_params()
        share, count = number(0, 0.999, whole=False), number(1, 10_000)
        matrix = numbers_like(NODES, WIDTH)
        valid: dict[str, Is] = {
            "layers": count, "width": count, "heads": count, "dropout": share,
            "input_dropout": share, "attention_dropout": share, "label_rate": share,
            "epochs": number(1, 100), "lr": number(1e-9, 1e30, whole=False),
            "weight_decay": number(0, 1e30, whole=False), "patience": number(0),
            "validation_fraction": share, "random_state": either(none, flag, number(0, 2**32 - 1)),
            "settings": either(empty, nothing),
        }  # fmt: skip
        # Search libraries give numbers as arrays without dimensions.
        valid = {
            name: lambda v, rule=rule: rule(v.item() if getattr(v, "ndim", None) == 0 else v)
            for name, rule in valid.items()
        }
        labels = either(none, nothing, empty, self.is_labels_of_classifier)
        return [
            Call("UniMPClassifier(…).fit",
                 lambda **more: self.fresh_classifier(**more).fit(graph, y), options, valid),
            Call("UniMPClassifier.fit", lambda X, y: self.fresh_classifier().fit(X, y),  # noqa: N803
                 {"X": graph, "y": y},
                 {"X": either(matrix, numbers_like(NODES, CLASSES)), "y": self.is_y}),
            Call("UniMPClassifier.predict", self.classifier.predict, {"X": graph, "labels": None},
                 {"X": matrix, "labels": labels}),
            Call("UniMPClassifier.predict_proba", self.classifier.predict_proba,
                 {"X": graph, "labels": None}, {"X": matrix, "labels": labels}),
            Call("UniMPClassifier.score", self.classifier.score, {"X": graph, "y": y},
                 {"X": matrix, "y": self.is_y}),
        ]  # fmt: skip

    def is_nodes(self, value: Any) -> bool:
        """Different node numbers; a split does not know how many nodes there are."""
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            array = np.asarray(value)
            flat = array.reshape(-1).tolist()
            return array.dtype.kind in "iu" and len(set(flat)) == len(flat) and max(flat) < 2**63
        return False

    def is_seeds(self, value: Any) -> bool:
        """Several valid seeds; the sets, and the dictionary with the key 999, contain some."""
        if isinstance(value, np.ndarray | Tensor):
            numbers = value.tolist() if value.ndim == 1 else []
            return bool(numbers) and all(number(0, 2**32 - 1)(one) for one in numbers)
        return isinstance(value, set) or (isinstance(value, dict) and 999 in value)

    def is_later_labels(self, value: Any) -> bool:
        return value == {} if isinstance(value, dict) else whole_array(NODES, low=-1, high=2)(value)

    def is_labels_of_classifier(self, value: Any) -> bool:
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            array = np.asarray(value)
            nan = array.dtype.kind == "f" and bool(np.isnan(array).all())
            return array.shape == (NODES,) and (nan or list(array) == [None] * NODES)
        return False

    def is_around(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value.dtype == torch.int64 and bool(
            (value < NODES).all()
        )  # fmt: skip

    def is_y(self, value: Any) -> bool:
        """One class per node; the labels of a classifier may be any whole numbers or texts."""
        with contextlib.suppress(ValueError, TypeError, RuntimeError):
            array = np.asarray(value)
            return array.shape == (NODES,) and array.dtype.kind in "biuU"
        return False


@dataclass(frozen=True)
class Case:
    """A call with one or two arguments replaced."""

    call: Call
    replaced: tuple[tuple[str, str], ...]  # argument → name of the wrong value

    def __str__(self) -> str:
        return f"{self.call.name}({', '.join(f'{a} = {v}' for a, v in self.replaced)})"


def cases(world: World, count: int) -> Iterator[Case]:
    """Every argument with every wrong value in a random order, and then pairs of arguments."""
    draw, values = random.Random(0), list(wrong_values())
    calls = world.calls()
    single = [
        Case(call, ((argument, value),))
        for call in calls
        for argument in call.arguments
        for value in values
        if not is_left_out(call, argument, value)
    ]
    draw.shuffle(single)
    yield from single[:count]
    made = len(single)
    while made < count:
        call = draw.choice([one for one in calls if len(one.arguments) > 2])
        names = draw.sample(list(call.arguments), 2)
        replaced = tuple((name, draw.choice(values)) for name in names)
        if not any(is_left_out(call, *one) for one in replaced):
            made += 1
            yield Case(call, replaced)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Interrupt a call that takes longer."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"the call took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def is_left_out(call: Call, argument: str, value: str) -> bool:
    """Whether a wrong value would be called, or would train for long."""
    is_called = argument.startswith("on_") or argument == "model"
    if call.name == "run" and argument == "settings":
        return value in ("empty list", "empty dict", "empty array")
    return is_called and value in ("class", "function")


def result_of(case: Case) -> str:
    """`refused` or `accepted`; raises AssertionError for anything else."""
    values = wrong_values()
    arguments = case.call.arguments | {name: values[value] for name, value in case.replaced}
    rules = [(case.call.valid.get(name, never), values[value]) for name, value in case.replaced]
    is_valid = all(rule(value) for rule, value in rules if not hasattr(value, "__next__"))
    try:
        with limited(SECONDS):
            found = case.call.function(**arguments)
    except (unimp.UnimpError, NotFittedError) as error:
        message = str(error)
        assert len(message) > 25, f"{case}: the message is too short: {message!r}"
        assert "Traceback" not in message, f"{case}: {message}"
        return "refused"
    except Exception as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    assert is_valid, f"{case}: a wrong value was accepted"
    assert is_finite(found), f"{case}: the result is not finite"
    return "accepted"


def is_finite(found: Any) -> bool:
    """Whether a result contains no number that is NaN or infinite."""
    if isinstance(found, Table):
        columns = (found[name].drop_null().to_numpy() for name in found.column_names)
        return all(is_finite(column) for column in columns)
    if isinstance(found, np.ndarray):
        return found.dtype.kind != "f" or bool(np.isfinite(found).all())
    if isinstance(found, Tensor):
        return bool(torch.isfinite(found).all())
    if isinstance(found, dict):
        return all(is_finite(value) for value in found.values())
    return not isinstance(found, float) or math.isfinite(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2500)
    wanted = parser.parse_args().cases
    counts: Counter[str] = Counter()
    functions: dict[str, Counter[str]] = {}
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        world = World(Path(place))
        for case in cases(world, wanted):
            try:
                outcome = result_of(case)
            except AssertionError as error:
                outcome = "failed"
                failures.append(str(error))
                print(error, flush=True)
            counts[outcome] += 1
            functions.setdefault(case.call.name, Counter())[outcome] += 1
    result = {
        "command": f"python proofs/misuse.py --cases {wanted}",
        "code": code_origin(),
        "cases": sum(counts.values()),
        "refused_with_a_clear_message": counts["refused"],
        "valid_and_answered": counts["accepted"],
        "failed": len(failures),
        "failures": failures,
        "by_function": {name: dict(sorted(functions[name].items())) for name in sorted(functions)},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_atomically(RESULTS, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
    print(f"{result['cases']} cases, {len(failures)} failed: {RESULTS}")
    raise SystemExit(bool(failures))


if __name__ == "__main__":
    main()

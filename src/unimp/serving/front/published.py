"""The predictions of all nodes at one version, in memory, with prepared JSON per node."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unimp.serving.events import MOVED, Predicted
from unimp.serving.wire import Message

SHOWN_CLASSES = 9
DIGITS = 7

MOST_PREPARED = 20_000
"""Nodes whose JSON is kept."""

Label = str | list[str] | None


class Prepared(NamedTuple):
    """The JSON of a node, and the version of its label."""

    body: bytes
    label_version: int


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


class Published:
    """The state that the engine has published: all events up to `version`."""

    def __init__(self, hello: Message, generation: int = 0) -> None:
        self.generation = generation
        self.version: int = hello["version"]
        self.first = self.version
        """Changes since an earlier version are not known."""
        self.about: dict[str, Any] = dict(hello["about"])
        self.near: bool = hello["near"]
        self.pulls: bool = hello["pulls"]
        """Whether the engine answers for a few nodes faster than for all."""
        self.classes: list[str] = hello["classes"]
        self.several: bool = self.about["several"]
        self.ids: list[str] = list(hello["ids"])
        self.numbers = {name: number for number, name in enumerate(self.ids)}
        self.labels: dict[str, tuple[Label, int]] = {n: (la, v) for n, la, v in hello["labels"]}
        self._base: NDArray[np.int64] = hello.arrays["base"]
        self.population: list[str] = [self.ids[n] for n in hello.arrays["population"].tolist()]
        self.probabilities: NDArray[np.float32] = hello.arrays["probabilities"]
        self.confidence: NDArray[np.float32] = hello.arrays["confidence"]
        self.observed: NDArray[np.uint8] = hello.arrays["observed"]
        self._learned = frozenset(hello.arrays["learned"].tolist())
        self._announced = self.probabilities.copy()
        self.moved_at = np.full(len(self.ids), self.version, dtype=np.int64)
        self._prepared: dict[int, Prepared] = {}

    def update(self, message: Message) -> list[int]:
        """Take rows that changed; return the nodes whose change is worth announcing."""
        for name in message["added"]:
            self.numbers[name] = len(self.ids)
            self.ids.append(name)
            self.population.append(name)
        self._grow(len(message["added"]))
        self.version = message["version"]
        self.about["num_edges"] = message["num_edges"]
        nodes, rows = message.arrays["nodes"], message.arrays["probabilities"]
        self.probabilities[nodes] = rows
        self.confidence[nodes] = message.arrays["confidence"]
        self.observed[nodes] = message.arrays["observed"]
        moved = _moved(self._announced[nodes], rows, self.several)
        labeled = []
        for name, label, version in message["labels"]:
            self.labels[name] = (label, version)
            labeled.append(self.numbers[name])
        chosen = np.union1d(nodes[moved], np.array(labeled, dtype=np.int64))
        self._announced[chosen] = self.probabilities[chosen]
        self.moved_at[chosen] = self.version
        # A label often changes most rows a little, so those that stay the same are kept.
        same = np.ones(len(self.ids), dtype=bool)
        same[nodes] = False
        self._prepared = {n: one for n, one in self._prepared.items() if same[n]}
        found: list[int] = chosen.tolist()
        return found

    def _grow(self, more: int) -> None:
        if not more:
            return
        empty = np.full((more, len(self.classes)), -1, np.float32)  # differs from every row
        self.probabilities = np.concatenate((self.probabilities, empty))
        self._announced = np.concatenate((self._announced, empty))
        self.confidence = np.concatenate((self.confidence, np.full(more, np.nan, np.float32)))
        self.observed = np.concatenate((self.observed, np.zeros(more, np.uint8)))
        self.moved_at = np.concatenate((self.moved_at, np.full(more, self.version, np.int64)))

    def label(self, number: int) -> tuple[Label, int]:
        """The label of a node in force, and the event that decides it."""
        decided = self.labels.get(self.ids[number])
        if decided is not None and decided[1]:
            return decided
        return self.run_label(number), 0

    def run_label(self, number: int) -> Label:
        """The label that the run itself contains."""
        if number >= len(self._base):
            return None
        row = self._base[number]
        if (row < 0).all():
            return None
        if self.several:
            return [self.classes[c] for c in np.flatnonzero(row == 1).tolist()]
        return self.classes[int(row[0])]

    def prepared(self, number: int) -> Prepared:
        """The JSON of a node, which is kept until the node changes."""
        found = self._prepared.get(number)
        if found is None:
            if len(self._prepared) >= MOST_PREPARED:
                self._prepared.clear()
            node = self.node(number)
            found = self._prepared[number] = Prepared(to_json(node), node["label_version"])
        return found

    def node(self, number: int) -> dict[str, Any]:
        """A node as in `schemas.Node`."""
        label = self.label(number)
        row = self.probabilities[number], self.confidence[number], self.observed[number]
        return self.describe(self.ids[number], label, *row)

    def describe(
        self, name: str, label: tuple[Label, int], row: Any, confidence: Any, observed: Any
    ) -> dict[str, Any]:
        """A node from one row of an answer."""
        count = min(SHOWN_CLASSES, len(row))
        top = np.argpartition(-row, count - 1)[:count]
        top = top[np.lexsort((top, -row[top]))]
        return {
            "id": name,
            "label": label[0],
            "label_version": label[1],
            "prediction": self.predicted(row),
            "confidence": None if math.isnan(confidence) else round(float(confidence), DIGITS),
            "observed": bool(observed),
            "classes": [
                {"class": self.classes[c], "probability": round(float(row[c]), DIGITS)}
                for c in top.tolist()
            ],
        }

    def predicted(self, row: NDArray[np.float32]) -> str | list[str]:
        """The most likely class, or the names of all binary tasks above one half."""
        if self.several:
            return [self.classes[c] for c in np.flatnonzero(row > 0.5).tolist()]
        return self.classes[int(row.argmax())]

    def before_label(self, name: str) -> Predicted | None:
        """What the model predicts for a node that gets a label now; None if that is not known.

        While the engine is behind, this is the prediction that everybody was shown: it reflects the
        published version, which is stored with it. It is informed if the model has seen a label of
        the node, as an input or in its training.
        """
        number = self.numbers.get(name)
        if number is None:
            return None
        row, confidence = self.probabilities[number], float(self.confidence[number])
        label = self.predicted(row)
        informed = bool(self.observed[number]) or number in self._learned
        chance = float(row.max()) if math.isnan(confidence) else confidence
        return Predicted(
            label=tuple(sorted(label)) if isinstance(label, list) else label,
            probability=min(max(chance, 0.0), 1.0),
            generation=self.generation,
            version=self.version,
            informed=informed,
        )

    def find(
        self,
        *,
        q: str = "",
        prediction: str = "",
        label: str = "",
        state: str = "all",
        sort: str = "id",
    ) -> NDArray[np.int64]:
        """The numbers of nodes that match, in order."""
        chosen = np.ones(len(self.ids), dtype=bool)
        if state != "all":
            chosen &= self.observed.astype(bool) == (state == "labeled")
        if prediction:
            column = self._class(prediction)
            if column is None:
                chosen[:] = False
            elif self.several:
                chosen &= self.probabilities[:, column] > 0.5
            else:
                chosen &= self.probabilities.argmax(1) == column
        found = np.flatnonzero(chosen)
        if q:
            wanted = q.casefold()
            found = self._where(found, lambda n: wanted in self.ids[n].casefold())
        if label:
            found = self._where(found, lambda n: _has(self.label(n)[0], label))
        if sort in ("confidence", "-confidence"):
            values = np.nan_to_num(self.confidence[found], nan=2.0)
            sign = -1 if sort == "-confidence" else 1
            found = found[np.argsort(np.where(values > 1, np.inf, sign * values), kind="stable")]
        return found

    def _where(self, numbers: NDArray[np.int64], test: Any) -> NDArray[np.int64]:
        return np.array([n for n in numbers.tolist() if test(n)], dtype=np.int64)

    def _class(self, name: str) -> int | None:
        return self.classes.index(name) if name in self.classes else None

    def doubtful(self, most: int) -> list[str]:
        """The nodes without a label about which the model is least certain."""
        values = np.where(np.isnan(self.confidence), np.inf, self.confidence)
        values = np.where(self.observed.astype(bool), np.inf, values)
        order = np.argsort(values, kind="stable")[:most]
        return [self.ids[n] for n in order.tolist() if np.isfinite(values[n])]

    def changed_since(self, version: int, after: tuple[int, int], most: int) -> list[int]:
        """Nodes announced after a version, in order of announcement, behind `after` (version,
        number)."""
        found = np.flatnonzero(self.moved_at > version)
        order = found[np.lexsort((found, self.moved_at[found]))]
        at = self.moved_at[order]
        rest = order[(at > after[0]) | ((at == after[0]) & (order > after[1]))]
        chosen: list[int] = rest[:most].tolist()
        return chosen

    def table(self, numbers: Sequence[int] | None = None) -> Any:
        """Predictions as an Arrow table: node, label, prediction, confidence, observed, p_…"""
        import pyarrow as pa

        chosen = range(len(self.ids)) if numbers is None else numbers
        place = np.array(list(chosen), dtype=np.int64)
        confidence = self.confidence[place]
        columns: dict[str, Any] = {
            "node": pa.array([self.ids[n] for n in chosen], pa.string()),
            "label": pa.array(_texts(self.label(n)[0] for n in chosen), pa.string()),
            "prediction": pa.array(
                _texts(self.predicted(self.probabilities[n]) for n in chosen), pa.string()
            ),
            "confidence": pa.array(confidence, mask=np.isnan(confidence)),
            "observed": pa.array(self.observed[place].astype(bool)),
        }
        for c, name in enumerate(self.classes):
            columns[f"p_{name}"] = pa.array(self.probabilities[place, c])
        return pa.table(columns)


def _moved(
    before: NDArray[np.float32], after: NDArray[np.float32], several: bool
) -> NDArray[np.bool_]:
    moved: NDArray[np.bool_] = np.abs(before - after).max(1, initial=0) > MOVED
    if several:
        moved |= ((before > 0.5) != (after > 0.5)).any(1)
    else:
        moved |= before.argmax(1) != after.argmax(1)
    return moved


def _has(label: Label, name: str) -> bool:
    return name in label if isinstance(label, list) else label == name


def _texts(labels: Iterable[Label]) -> list[str | None]:
    """Labels in one cell; several names are separated by semicolons."""
    return [";".join(label) if isinstance(label, list) else label for label in labels]

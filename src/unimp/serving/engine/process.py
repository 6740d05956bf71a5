"""The loop of the engine process.

One thread owns the model. It answers requests of the front before it applies stored events, and
exact answers for a few nodes also between the steps of that, so that they do not wait for the rows
of all others. Events that arrive meanwhile are applied together, next. Another thread only reads
messages from the front. When the front ends, the pipe ends, and the process exits.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from unimp.ensemble.model import Ensemble
from unimp.errors import TaskError, UnimpError, UnknownNodeError
from unimp.model.node_model import count_parameters
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.loading import load_run
from unimp.runs.run import Run
from unimp.serving.engine.applied import Applied, Rows
from unimp.serving.engine.estimate import check_memory
from unimp.serving.engine.questions import Questions
from unimp.serving.reader import Reader
from unimp.serving.wire import Message, receive, send
from unimp.tasks.labels import Split

LOG = logging.getLogger("unimp.serving.engine")
HEAVY = 0.5
"""A commit that changes this share of all rows is followed by a pause, in which requests are
answered and events collect for the next one."""
LONGEST_PAUSE = 0.5
NICENESS = 5
"""Reading and storing come before computing, if there are too few cores for all of it."""
ROUNDING = 2e-6
"""A probability that differs by less from the published one is not published again. One label
changes most rows of a dense graph, but most of them by less than this."""
SETTLE = 0.02
"""Seconds between a stored event and the computation of all rows. Whoever stored it often asks for
an exact answer at once, which is then computed first."""


class Process:
    """The engine of one run and one model."""

    def __init__(self, run: Run, split: Split, reader: Reader, out: BinaryIO) -> None:
        """split: the nodes that the model was trained on."""
        self._out = out
        self._learned = torch.cat((split.train, split.val))
        self._inbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._applied = Applied(run, reader)
        self._questions = Questions(self._applied)
        self._head = 0  # the last version that the front reported
        self._published = torch.empty(0)  # [N, classes] the probabilities that the front has
        self._not_before = 0.0
        self._postponed: deque[Message] = deque()  # requests that arrived during a push
        self._answers: dict[str, Callable[[Message], Message]] = {
            "pull": self._pull,
            "check": self._check,
            "suggest": self._suggest,
            "explain": self._explain,
            "picture": self._picture,
            "what-if": self._what_if,
            "details": self._details,
        }

    def start(self) -> None:
        """Apply the stored events, and send the first predictions."""
        self._applied.apply()
        self._hello()

    def run(self, given: BinaryIO) -> None:
        """Serve until the front ends."""
        thread = threading.Thread(target=self._read, args=(given,), daemon=True)
        thread.start()
        while True:
            if self._postponed:
                self._answer(self._postponed.popleft())
                continue
            behind = self._applied.version < self._head
            wait = max(0.0, self._not_before - time.monotonic()) if behind else None
            try:
                message = self._inbox.get(timeout=wait) if wait != 0 else self._inbox.get_nowait()
            except queue.Empty:
                self._publish()
                continue
            if message is None:
                return
            self._take(message)

    def _between(self) -> None:
        """Answer requests for a few nodes between two steps of a push; the others wait for it."""
        while not self._inbox.empty():
            message = self._inbox.get()
            if message is None:
                os._exit(0)
            if message["kind"] in ("pull", "stored"):
                self._take(message)
            else:
                self._postponed.append(message)

    def _read(self, given: BinaryIO) -> None:
        while (message := receive(given)) is not None:
            self._inbox.put(message)
        self._inbox.put(None)

    def _take(self, message: Message) -> None:
        if message["kind"] == "stored":
            if self._applied.version >= self._head:
                self._not_before = max(self._not_before, time.monotonic() + SETTLE)
            self._head = max(self._head, message["version"])
        else:
            self._answer(message)

    def _answer(self, message: Message) -> None:
        """Answer a request; an error is an answer too."""
        try:
            found = self._answers[message["kind"]](message)
        except UnknownNodeError as error:
            found = Message({"unknown": error.node})
        except UnimpError as error:
            found = Message({"refused": str(error)})
        except Exception as error:
            LOG.exception("A request failed: %s", message["kind"])
            found = Message({"failed": f"{type(error).__name__}: {error}"})
        self._send({"kind": "answer", "request": message["request"], **found.values}, found.arrays)

    def _send(self, values: dict[str, Any], arrays: Any = None) -> None:
        send(self._out, Message(values, arrays or {}))

    def _hello(self) -> None:
        applied = self._applied
        run, task = applied.run, applied.run.task
        entries = run.model.entries if isinstance(run.model, Ensemble) else ()
        rows = applied.rows(torch.arange(len(applied.ids)), applied.live.logits, applied.observed)
        self._published = rows.probabilities.clone()
        scores = {
            protocol: {name: value if value == value else None for name, value in found.items()}
            for protocol, found in run.metrics["scores"].items()
        }
        values = {
            "kind": "hello",
            "version": applied.version,
            "ids": applied.ids,
            "classes": list(applied.classes),
            "labels": [[name, *applied.label_of(name)] for name in applied.labels],
            "about": {
                "name": run.recipe.name,
                "task": task.name,
                "model": "ensemble" if entries else run.recipe.model.name,
                "members": [{"name": one.name, "weight": one.weight} for one in entries],
                "metric": task.metric,
                "several": applied.several,
                "takes_labels": run.takes_labels,
                "num_edges": applied.graph.num_edges,
                "parameters": count_parameters(run.model),
                "scores": scores,
                "features": applied.additions.node_forms,
                "edge_features": applied.additions.edge_forms,
                "directed": not applied.additions.both_ways,
            },
            "near": applied.additions.near,
            "pulls": applied.live.is_local,
        }
        base = applied.base.numpy().astype(np.int64).reshape(len(applied.base), -1)
        population = self._questions.population().numpy()
        more = {"base": base, "population": population, "learned": self._learned.numpy()}
        self._send(values, {**_arrays(rows), **more})

    def _publish(self) -> None:
        """Apply all stored events, and send the rows that changed."""
        applied, started = self._applied, time.monotonic()
        pending, update, fresh = applied.apply(self._between)
        numbers = [applied.numbers[name] for name in pending.labels]
        labeled = torch.tensor(numbers, dtype=torch.int64)
        nodes = torch.unique(torch.cat((update.nodes, labeled)))
        rows = applied.rows(nodes, applied.live.logits[nodes], applied.observed[nodes])
        rows = self._unpublished(rows, labeled)
        took = time.monotonic() - started
        self._send(
            {
                "kind": "published",
                "version": applied.version,
                "added": fresh,
                "num_edges": applied.graph.num_edges,
                "labels": [[name, *applied.label_of(name)] for name in pending.labels],
                "seconds": took,
            },
            _arrays(rows),
        )
        if len(update.nodes) > HEAVY * len(applied.ids):
            self._not_before = time.monotonic() + min(LONGEST_PAUSE, took)

    def _unpublished(self, rows: Rows, labeled: Tensor) -> Rows:
        """The rows that the front does not have yet, within ROUNDING, and those of `labeled`."""
        more = len(self._applied.ids) - len(self._published)
        new = self._published.new_full((more, self._published.shape[1]), torch.nan)
        self._published = torch.cat((self._published, new)) if more else self._published
        difference = (rows.probabilities - self._published[rows.nodes]).abs().amax(1)
        # A new node differs from NaN by NaN.
        chosen = rows.some(~(difference <= ROUNDING) | torch.isin(rows.nodes, labeled))
        self._published[chosen.nodes] = chosen.probabilities
        return chosen

    def _pull(self, message: Message) -> Message:
        """Exact rows at the newest version, before all rows are."""
        applied = self._applied
        pending = applied.refresh()
        numbers = applied.numbers_of(message["ids"])
        rows = applied.answer(torch.tensor(numbers, dtype=torch.int64))
        labels = [applied.label_of(name, pending=True) for name in message["ids"]]
        return Message({"version": pending.version, "labels": labels}, _arrays(rows))

    def _check(self, message: Message) -> Message:
        """Refuse new nodes and edges that the transforms of the run cannot encode."""
        additions = self._applied.additions
        nodes, edges = message["nodes"], message["edges"]
        if edges and additions.near:
            raise TaskError(
                "the edges of this run come from nearest neighbors, and so do those of new nodes. "
                "Give nodes only."
            )
        if nodes:
            additions.features([node["id"] for node in nodes], [node["values"] for node in nodes])
        for edge in edges:
            additions.edge_features([(edge["source"], edge["target"])], [edge["values"]])
        return Message({"version": self._applied.version})

    def _suggest(self, message: Message) -> Message:
        found = self._questions.suggest(message["number"])
        return Message({"version": self._applied.version, "suggestions": found})

    def _explain(self, message: Message) -> Message:
        self._current()
        found = self._questions.explain(message["node"], message["about"])
        return Message({"version": self._applied.version, "explanation": found})

    def _picture(self, message: Message) -> Message:
        self._current()
        found = self._questions.picture(message["node"], message["about"], message["layout"])
        return Message({"version": self._applied.version, "svg": found})

    def _what_if(self, message: Message) -> Message:
        self._current()
        counts, before, after = self._questions.what_if(message["labels"], message["nodes"])
        arrays = {f"before_{name}": array for name, array in _arrays(before).items()}
        return Message(
            {
                "version": self._applied.version,
                "ids": [self._applied.ids[n] for n in before.nodes.tolist()],
                **counts,
            },
            {**arrays, **_arrays(after)},
        )

    def _details(self, message: Message) -> Message:
        self._current()
        found = self._questions.details(message["node"])
        return Message({"version": self._applied.version, **found})

    def _current(self) -> None:
        """Apply stored events first, for answers that need the whole state."""
        if self._applied.version < self._head:
            self._publish()


def _arrays(rows: Rows) -> dict[str, Any]:
    return {
        "nodes": rows.nodes.numpy().astype(np.int64),
        "probabilities": rows.probabilities.numpy(),
        "confidence": rows.confidence.numpy(),
        "observed": rows.observed.numpy().astype(np.uint8),
    }


def load_with_split(folder: Path, generation: Path | None) -> tuple[Run, Split]:
    """The run with the model of a generation, and the split that this model was trained on.

    Nodes keep their numbers in all generations, and new ones follow.
    """
    run = load_run(folder)
    if generation is None:
        return run, run.task.split
    other = load_run(generation)
    return replace(run, model=other.model, metrics=other.metrics), other.task.split


def lower_priority(niceness: int) -> None:
    """Let other processes use the processor first."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(niceness)


def end_with_front() -> None:
    """Ignore signals that a terminal or a supervisor sends to all processes of the service.

    The front decides when this process ends, by closing its input.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def own_stdout() -> BinaryIO:
    """The stream to the front; whatever is printed from now on must not damage it."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out


def main() -> None:
    """Serve a run on stdin and stdout."""
    end_with_front()
    given, out = sys.stdin.buffer, own_stdout()
    logging.basicConfig(level=logging.WARNING, format="engine: %(levelname)s: %(message)s")
    keep_freed_memory()
    folder, *more = map(Path, sys.argv[1:])
    with Reader(folder) as reader:
        try:
            run, split = load_with_split(folder, more[0] if more else None)
            send(out, Message({"kind": "estimate", "detail": check_memory(run)}))
            process = Process(run, split, reader, out)
            process.start()
            gc.freeze()
            gc.enable()
            lower_priority(NICENESS)  # only now, because until then nothing can be read
            process.run(given)
        except UnimpError as error:
            send(out, Message({"kind": "failed", "detail": str(error)}))
            sys.exit(1)
        except BrokenPipeError:
            sys.exit(0)

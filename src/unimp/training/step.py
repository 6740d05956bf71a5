"""One step of training; on a GPU recorded once, where steps are alike, and replayed.

A step of a small model is some two hundred kernels of a few microseconds each, and a GPU then waits
for whoever asks for them. A CUDA graph asks for all of them at once. What a step works on must stay
where it is, so each batch is put into place: see `training/place.py`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.model.node_model import NodeModel
from unimp.tasks.labels import UNLABELED
from unimp.training.batching import Batch
from unimp.training.objective import masked_label_loss
from unimp.training.place import Place, place_for
from unimp.training.precision import autocast

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Step:
    """Forward pass, loss of the hidden labels, backward pass, and the optimizer's step."""

    model: NodeModel
    optimizer: torch.optim.Optimizer
    labels: Tensor  # of all nodes, on the device
    precision: Precision

    def __call__(self, batch: Batch) -> Tensor:
        """The loss, detached; on CPU a loss that is no number is not learned from."""
        with autocast(self.labels.device, self.precision):
            logits = self.model(batch.x, batch.observed, batch.hops)
        labels = self.labels[batch.seeds]
        loss = masked_label_loss(logits.float(), labels, batch.hidden)
        if self.model.regularizer_weight:
            spread = self.model.regularizer(batch.x, batch.observed, batch.hops)
            extra = masked_label_loss(spread.float(), labels, batch.hidden)
            loss = loss + self.model.regularizer_weight * extra
        # Asking a GPU would stop it; there a loss that is no number is found out after the epoch.
        if loss.device.type == "cpu" and not bool(loss.isfinite()):
            return loss.detach()
        self.optimizer.zero_grad(set_to_none=True)
        # In this thread: waking another one, and being woken by it, takes longer than it saves.
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


class ReplayedStep:
    """A step on GPU: taken as it is while batches differ, recorded when they fit, then replayed.

    The first steps in a place are taken as they are: what is compiled or allocated on first use
    must not be part of the recording. A model that cannot be recorded, as it asks the GPU for a
    value, trains on as before.
    """

    TAKEN = 3
    """Steps before one is recorded."""

    def __init__(self, step: Step) -> None:
        self._padding = len(step.labels)  # one more node, of which nothing is known
        unknown = torch.full_like(step.labels[:1], UNLABELED)
        self.step = replace(step, labels=torch.cat((step.labels, unknown)))
        self._stream = torch.cuda.Stream(step.labels.device)  # type: ignore[no-untyped-call]
        self._place: Place | None = None  # what the recording works on
        self._taken = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss: Tensor | None = None
        self._gave_up = False

    def __call__(self, batch: Batch) -> Tensor:
        if self._gave_up:
            return self.step(batch)
        if self._place is None or not self._place.put(batch):
            self._taken, self._graph = 0, None
            self._place = place_for(batch, self._place, self._padding)
        if self._graph is None and self._taken < self.TAKEN:
            self._taken += 1
            with torch.cuda.device(self._stream.device):
                return self._beside(self._place.batch())
        if self._graph is None and not self._record(self._place.batch()):
            return self.step(batch)
        assert self._graph is not None
        assert self._loss is not None
        self._graph.replay()
        return self._loss

    def _beside(self, batch: Batch) -> Tensor:
        """A step on the stream that will be recorded: autograd keeps to the stream it began on."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            loss = self.step(batch)
        current.wait_stream(self._stream)
        return loss

    def _record(self, batch: Batch) -> bool:
        self.step.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        generator = torch.cuda.default_generators[batch.nodes.device.index]
        before = generator.clone_state()
        try:
            with (
                torch.cuda.device(self._stream.device),
                torch.cuda.graph(graph, stream=self._stream),
            ):
                self._loss = self.step(batch)
        except RuntimeError as error:
            generator.graphsafe_set_state(before)  # it would wait for the recording to go on
            logger.warning("training step by step, as the model cannot be recorded: %s", error)
            self._gave_up, self._place = True, None
            return False
        self._graph = graph
        return True

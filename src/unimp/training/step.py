"""One training step; on a GPU, similar steps are recorded once and then replayed.

A step of a small model consists of about two hundred kernels of a few microseconds each, so the GPU
waits for their launches. A CUDA graph launches all of them at once. The recorded tensors must keep
their addresses, so each batch is copied into static memory: see `training/place.py`.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.model.node_model import NodeModel
from unimp.ops.dropout import drawn_per_node
from unimp.tasks.labels import UNLABELED
from unimp.training.batch import Batch
from unimp.training.objective import (
    ONE_PASS,
    Consistency,
    FurtherLoss,
    consistency_loss,
    masked_label_loss,
)
from unimp.training.place import Place, place_for
from unimp.training.precision import autocast
from unimp.training.ranks import ALONE, Ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Step:
    """Forward passes, the loss of the hidden labels, a backward pass, and an optimizer step.

        loss = 1/S Σ_s ( masked_label_loss(z_s) + further(z_s) )
               + weight · share · consistency_loss(z_1 … z_S)

    The S passes have different dropout. The consistency loss covers all seeds of the batch. Several
    processes add their gradients before the optimizer step.
    """

    model: NodeModel
    optimizer: torch.optim.Optimizer
    labels: Tensor  # labels of all nodes, on the device
    precision: Precision
    consistency: Consistency = ONE_PASS
    further: FurtherLoss | None = None
    padding: int = UNLABELED  # the number of the node that fills unused rows of a place
    ranks: Ranks = ALONE
    share: Tensor | None = None  # the part of the weight in this epoch; a recorded step reads it

    def __call__(self, batch: Batch) -> Tensor:
        """Train on a batch and return the loss; on CPU, a non-finite loss changes nothing."""
        if self.ranks.size > 1:
            return self._together(batch)
        loss = self._loss(batch)
        # Checking on a GPU would stall it; there, a non-finite loss is detected after the epoch.
        if loss.device.type == "cpu" and not bool(loss.isfinite()):
            return loss.detach()
        self._backward(loss)
        self.optimizer.step()
        return loss.detach()

    def _together(self, batch: Batch) -> Tensor:
        """Take a step with the gradients of all processes; some may have no hidden node."""
        loss, labels = None, self.labels[batch.seeds[batch.hidden]]
        if batch.hidden.numel():
            loss = self._loss(batch)
            self._backward(loss)
        else:
            self.optimizer.zero_grad(set_to_none=True)
        count = (labels != UNLABELED).sum()
        mean = self.ranks.add_gradients(list(self.model.parameters()), loss, count)
        if bool(mean.isfinite()):
            self.optimizer.step()
        return mean

    def _backward(self, loss: Tensor) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        # In this thread, because handing over to another thread takes longer than it saves.
        with torch.autograd.set_multithreading_enabled(False):
            loss.backward()  # type: ignore[no-untyped-call]

    def _loss(self, batch: Batch) -> Tensor:
        with autocast(self.labels.device, self.precision), _draws_of(batch):
            inputs = batch.x, batch.observed, batch.hops
            passes = [_at_least_float(self.model(*inputs)) for _ in range(self.consistency.samples)]
        labels = self.labels[batch.seeds]
        losses = [masked_label_loss(logits, labels, batch.hidden) for logits in passes]
        loss = torch.stack(losses).mean()
        if self.further is not None:
            extra = torch.stack([self.further(logits, batch.seeds) for logits in passes])
            loss = loss + extra.mean()
        if self.consistency.weight:
            extra = consistency_loss(
                torch.stack(passes),
                batch.seeds != self.padding,
                temperature=self.consistency.temperature,
                multilabel=labels.ndim > 1,
            )
            weight: float | Tensor = self.consistency.weight
            loss = loss + (weight if self.share is None else weight * self.share) * extra
        if self.model.regularizer_weight:
            with _draws_of(batch):
                spread = self.model.regularizer(batch.x, batch.observed, batch.hops)
            extra = masked_label_loss(_at_least_float(spread), labels, batch.hidden)
            loss = loss + self.model.regularizer_weight * extra
        return loss


def _draws_of(batch: Batch) -> AbstractContextManager[None]:
    """Draw dropout per node if the batch has a seed for it."""
    return nullcontext() if batch.draws is None else drawn_per_node(batch.nodes, batch.draws)


def _at_least_float(logits: Tensor) -> Tensor:
    """Logits in single precision, or in double precision if the model is."""
    return logits if logits.dtype == torch.float64 else logits.float()


class ReplayedStep:
    """A step on GPU that is recorded when batches fit one place, and then replayed.

    The first steps in a place run normally, because compilation and allocation on first use must
    not be part of the recording. A model that cannot be recorded, because it reads a value back
    from the GPU, continues to train normally.
    """

    WARMUP = 3
    """Steps that run normally before a step is recorded."""

    def __init__(self, step: Step) -> None:
        # An additional node without a known label; it would change rows that depend on it.
        self._padding = None if step.model.mixes_rows else len(step.labels)
        unknown = torch.full_like(step.labels[:1], UNLABELED)
        labels = torch.cat((step.labels, unknown))
        self.step = replace(step, labels=labels, padding=len(step.labels))
        self._stream = torch.cuda.Stream(step.labels.device)  # type: ignore[no-untyped-call]
        self._place: Place | None = None  # the tensors that the recording works on
        self._warmed_up = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss: Tensor | None = None
        self._gave_up = False

    def __call__(self, batch: Batch) -> Tensor:
        if self._gave_up:
            return self.step(batch)
        if self._place is None or not self._place.put(batch):
            self._warmed_up, self._graph = 0, None
            self._place = place_for(batch, self._place, self._padding)
        if self._graph is None and self._warmed_up < self.WARMUP:
            self._warmed_up += 1
            with torch.cuda.device(self._stream.device):
                return self._step_on_stream(self._place.batch())
        if self._graph is None and not self._record(self._place.batch()):
            return self.step(batch)
        assert self._graph is not None
        assert self._loss is not None
        self._graph.replay()
        return self._loss

    def _step_on_stream(self, batch: Batch) -> Tensor:
        """Run a step on the stream that will be recorded: autograd stays on its first stream."""
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
            generator.graphsafe_set_state(before)  # the failed recording left it in capture mode
            logger.warning("The model cannot be recorded; steps run one by one: %s", error)
            self._gave_up, self._place = True, None
            return False
        self._graph = graph
        return True

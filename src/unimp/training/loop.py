"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from unimp.errors import TrainingError
from unimp.model.node_model import NodeModel
from unimp.training.batching import Batch, Batches
from unimp.training.precision import Precision, matmuls_in
from unimp.training.step import ReplayedStep, Step

Scores = Mapping[str, float]  # "train", "val", "test" → score


@dataclass(frozen=True)
class Schedule:
    """How long to train, when to score, and when to stop early."""

    epochs: int
    eval_from: int = 1  # the first epoch that is scored
    eval_every: int = 1  # the last epoch is always scored
    patience: int = 0  # epochs without a better validation score before stopping; 0: never
    time_limit: float = 0.0  # seconds after which no epoch is begun; 0: none

    def scores_at(self, epoch: int) -> bool:
        due = epoch >= self.eval_from and (epoch - self.eval_from) % self.eval_every == 0
        return due or epoch == self.epochs


@dataclass(frozen=True)
class Epoch:
    """One line of the history."""

    epoch: int
    loss: float
    seconds: float
    scores: Scores | None = None

    def as_line(self) -> dict[str, Any]:
        line = asdict(self)
        return {**{k: v for k, v in line.items() if k != "scores"}, **(self.scores or {})}


@dataclass
class Fit:
    """What training came to; the model itself holds the chosen state."""

    history: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None
    stopped: str = "all epochs done"
    failed: bool = False  # the loss stopped being a number; the model holds the last good state


def fit(
    model: NodeModel,
    batches: Batches,
    labels: Tensor,
    schedule: Schedule,
    *,
    lr: float,
    weight_decay: float,
    evaluate: Callable[[], Scores],
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    replay: bool = True,
) -> Fit:
    """Train `model` in place and leave it in its best state by validation score.

    Adam with coupled L2, as in the paper. `evaluate` scores the model as it is; of equal
    validation scores the latest epoch counts. If the loss stops being a finite number, training
    stops at that step (on GPU, or if a weight does, after that epoch) and the model gets its last
    good state back: the best one scored, or else the one before the epoch that failed. `precision`
    is that of the forward pass; weights, loss and optimizer are in single precision. `replay`: on
    GPU, record a step that stays the same and replay it.
    """
    on_gpu = torch.device(device).type == "cuda"
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=lr,
        weight_decay=weight_decay,
        fused=on_gpu or None,
        capturable=on_gpu,  # so that its step can be recorded
    )
    step = Step(model, optimizer, labels.to(device), precision)
    take = ReplayedStep(step) if on_gpu and replay else step
    result, started = Fit(), time.perf_counter()
    best_state = _state(model)
    for epoch in range(1, schedule.epochs + 1):
        begun = time.perf_counter()
        if schedule.time_limit and begun - started > schedule.time_limit:
            result.stopped = f"time limit of {schedule.time_limit:g} s after epoch {epoch - 1}"
            break
        if result.best is None:
            best_state = _state(model)
        with matmuls_in(precision):
            loss = _train_epoch(model, batches, take, epoch, device)
        if not math.isfinite(loss):
            result.stopped, result.failed = f"the loss became {loss} in epoch {epoch}", True
            break
        if not _is_finite(model):  # a finite loss can have a gradient that is not
            result.stopped, result.failed = f"a weight became non-finite in epoch {epoch}", True
            break
        scores = evaluate() if schedule.scores_at(epoch) else None
        record = Epoch(epoch, loss, time.perf_counter() - begun, scores)
        result.history.append(record)
        if scores is not None and (
            result.best is None or _validation(scores) >= _validation(result.best.scores)
        ):
            result.best, best_state = record, _state(model)
        on_epoch(record)
        # Decided where a score came: between scores nothing was learned about being better.
        waited = epoch - result.best.epoch if scores is not None and result.best else 0
        if schedule.patience and waited >= schedule.patience:
            result.stopped = f"no better validation score in {schedule.patience} epochs"
            break
    if result.best is not None or result.failed:
        model.load_state_dict(best_state)
    return result


def _train_epoch(
    model: NodeModel,
    batches: Batches,
    take: Callable[[Batch], Tensor],
    epoch: int,
    device: torch.device | str,
) -> float:
    """One pass over the batches; the mean loss over hidden nodes, not finite if one was not."""
    model.train()
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    for batch in batches.epoch(epoch):
        hidden_here = batch.hidden.numel()
        if hidden_here == 0:  # a small part may hold no hidden node
            continue
        loss = take(batch.to(device))
        if loss.device.type == "cpu" and not math.isfinite(loss.item()):
            return loss.item()
        total, count = total + loss * hidden_here, count + hidden_here
    if count == 0:
        raise TrainingError(
            "no label is hidden, so there is nothing to predict; lower mask.label_rate or add "
            "training labels"
        )
    return total.item() / count


def _validation(scores: Scores | None) -> float:
    """The validation score; the lowest there is where no validation label can be scored."""
    value = math.nan if scores is None else scores.get("val", math.nan)
    return -math.inf if math.isnan(value) else value


@torch.no_grad()
def _is_finite(model: NodeModel) -> bool:
    largest = torch.nn.utils.get_total_norm(list(model.parameters()), norm_type=math.inf)
    return bool(largest.isfinite())


def _state(model: NodeModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}

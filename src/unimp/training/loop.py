"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from unimp.config.choices import Precision
from unimp.errors import NonFiniteError, TrainingError
from unimp.model.node_model import NodeModel
from unimp.training.batching import Batch, Batches
from unimp.training.precision import matmuls_in
from unimp.training.step import ReplayedStep, Step

Scores = Mapping[str, float]  # "train", "val", "test" → score


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
    spent_before: float = 0.0  # seconds of training before it was resumed
    failed: bool = False  # the loss stopped being a number; the model holds the last good state


@dataclass(frozen=True)
class Schedule:
    """How long to train, when to score, and when to stop early."""

    epochs: int
    eval_from: int = 1  # the first epoch that is scored
    eval_every: int = 1  # the last epoch is always scored
    patience: int = 0  # epochs without as good a validation score before stopping; 0: never
    time_limit: float = 0.0  # seconds that training and what follows it may take; 0: any
    spent_before: float = 0.0  # seconds of the limit that were gone when training began
    scorings_after: int = 0  # how often all nodes are predicted after training

    def scores_at(self, epoch: int) -> bool:
        due = epoch >= self.eval_from and (epoch - self.eval_from) % self.eval_every == 0
        return due or epoch == self.epochs

    def ended(self, fit: Fit, *, spent: float, scoring: float) -> str:
        """Why no further epoch is begun after `spent` seconds; empty: one is.

        Of the limit is kept what another epoch like the last ones takes, and what follows
        training, where predicting all nodes takes `scoring` seconds.
        """
        last = fit.history[-1] if fit.history else None
        # Decided where a score came: between scores nothing was learned about being better.
        waited = last.epoch - fit.best.epoch if last and last.scores is not None and fit.best else 0
        if self.patience and waited >= self.patience:
            return f"no better validation score in {self.patience} epochs"
        if last and last.epoch >= self.epochs:
            return "all epochs done"
        another = max((epoch.seconds for epoch in fit.history[-3:]), default=0.0)
        after = self.scorings_after * (scoring or another)
        if self.time_limit and self.spent_before + spent + another + after > self.time_limit:
            done = last.epoch if last else 0
            return f"time limit of {self.time_limit:g} s after epoch {done} of {self.epochs}"
        return ""


@dataclass
class Position:
    """Where training is, between two steps."""

    epoch: int = 1
    step: int = 0  # batches of this epoch that are done
    loss: float | Tensor = 0.0  # summed over the hidden nodes of these
    hidden: int = 0  # how many they were
    seconds: float = 0.0  # that this epoch has taken
    spent: float = 0.0  # that training has taken in all
    scoring: float = 0.0  # that the last scoring took


@dataclass(frozen=True)
class TrainingState:
    """All that the rest of training depends on: gone on from here, it ends in the same weights.

    Masks, parts and sampled neighbors are functions of (seed, epoch, step), so their random
    states are the position.
    """

    tensors: Mapping[str, Tensor]  # weights.…, best.…, optimizer.…, random.…
    position: Position
    history: Sequence[Epoch]
    best: int | None  # the epoch of `best.…`; None: none was scored, and it is the last good state


Keep = Callable[[Callable[[], TrainingState], bool], None]
"""Called between steps with what gives the state there, and whether training has ended."""


def fit(
    model: NodeModel,
    batches: Batches,
    labels: Tensor,
    schedule: Schedule,
    *,
    lr: float,
    weight_decay: float,
    evaluate: Callable[[], Scores],  # raises NonFiniteError where logits are no numbers
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    replay: bool = True,
    resume: TrainingState | None = None,
    keep: Keep = lambda state, ended: None,
) -> Fit:
    """Train on the hidden labels of each batch, and leave the model at its best validation score.

    `labels` are those of all nodes; only those of hidden nodes are looked at. A loss that is not a
    finite number ends the run at once and the last good state is kept. On ties of the validation
    score the latest epoch is kept. `precision` is of the forward pass: weights, the loss and the
    optimizer stay in single precision. `replay`: on GPU, record a step that stays the same and
    replay it. Training goes on from `resume`, if given; `keep` may store what to go on from.
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
    # Nothing is recorded yet when a state is restored, so a recording works on what was restored.
    take = ReplayedStep(step) if on_gpu and replay else step
    result, at = Fit(), Position()
    best_state = _state(model)
    if resume is not None:
        best_state = _restore(resume, model, optimizer, device)
        at = Position(**vars(resume.position))
        result.spent_before = resume.position.spent
        result.history = list(resume.history)
        result.best = next((e for e in result.history if e.epoch == resume.best), None)
    started = time.perf_counter() - at.spent

    def state() -> TrainingState:
        at.spent = time.perf_counter() - started
        position = Position(**{**vars(at), "loss": float(at.loss)})
        tensors = _tensors(model, best_state, optimizer, device)
        best = result.best.epoch if result.best else None
        return TrainingState(tensors, position, tuple(result.history), best)

    while at.step or not (
        ended := schedule.ended(result, spent=time.perf_counter() - started, scoring=at.scoring)
    ):
        begun = time.perf_counter() - at.seconds
        if result.best is None and at.step == 0:
            best_state = _state(model)
        with matmuls_in(precision):
            for loss in _steps(model, batches, take, at, device):
                if not math.isfinite(loss):
                    break
                at.seconds = time.perf_counter() - begun
                keep(state, False)
            else:
                loss = float(at.loss) / _some(at.hidden)
        epoch = at.epoch
        if not math.isfinite(loss):
            ended, result.failed = f"the loss became {loss} in epoch {epoch}", True
            break
        if not _is_finite(model):  # a finite loss can have a gradient that is not
            ended, result.failed = f"a weight became non-finite in epoch {epoch}", True
            break
        trained = time.perf_counter()
        try:
            scores = evaluate() if schedule.scores_at(epoch) else None
        except NonFiniteError as error:
            ended, result.failed = f"{error} in epoch {epoch}", True
            break
        now = time.perf_counter()
        record = Epoch(epoch, loss, now - begun, scores)
        result.history.append(record)
        if scores is not None:
            at.scoring = now - trained
            if result.best is None or _validation(scores) >= _validation(result.best.scores):
                result.best, best_state = record, _state(model)
        at = Position(epoch + 1, scoring=at.scoring)
        on_epoch(record)
        keep(state, False)
    result.stopped = ended
    if not result.failed:
        keep(state, True)
    if result.best is not None or result.failed:
        model.load_state_dict(best_state)
    return result


def _steps(
    model: NodeModel,
    batches: Batches,
    take: Callable[[Batch], Tensor],
    at: Position,
    device: torch.device | str,
) -> Iterator[float]:
    """The rest of an epoch, step by step; the loss of each where asking for it stops nobody.

    Where it does, on a GPU, 0: a loss that is no number is then found in the sum.
    """
    model.train()
    at.loss = torch.as_tensor(at.loss, dtype=torch.float64, device=device)
    for batch in batches.epoch(at.epoch, at.step):
        at.step += 1
        hidden_here = batch.hidden.numel()
        if hidden_here == 0:  # a small part may hold no hidden node
            continue
        loss = take(batch.to(device))
        at.loss, at.hidden = at.loss + loss * hidden_here, at.hidden + hidden_here
        yield loss.item() if loss.device.type == "cpu" else 0.0


def _some(hidden: int) -> int:
    if hidden == 0:
        raise TrainingError(
            "no label is hidden, so there is nothing to predict; lower mask.label_rate or add "
            "training labels"
        )
    return hidden


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


def _tensors(
    model: NodeModel,
    best_state: Mapping[str, Tensor],
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """What training goes on from, by name, on CPU, nothing shared with what goes on."""
    tensors = {f"weights.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best_state.items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.device(device).type == "cuda":
        tensors["random.cuda"] = torch.cuda.get_rng_state(device)
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors.items()}


def _restore(
    state: TrainingState,
    model: NodeModel,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Put weights, moments and random states back; the best state so far is returned."""

    def part(kind: str) -> dict[str, Tensor]:
        named = ((name.partition("."), value) for name, value in state.tensors.items())
        return {name: value for (first, _, name), value in named if first == kind}

    model.load_state_dict(part("weights"))
    moments: dict[int, dict[str, Tensor]] = {}
    for place, value in part("optimizer").items():
        index, _, name = place.partition(".")
        moments.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    random = part("random")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], device)
    return {name: value.to(device) for name, value in part("best").items()}

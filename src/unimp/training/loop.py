"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unimp.config.choices import Precision, Rate, Select
from unimp.errors import NonFiniteError, TrainingError
from unimp.model.node_model import NodeModel
from unimp.training.average import WeightAverage
from unimp.training.batch import Batch, Batches
from unimp.training.objective import ONE_PASS, Consistency, FurtherLoss
from unimp.training.precision import matmuls_in
from unimp.training.ranks import ALONE, Ranks
from unimp.training.step import ReplayedStep, Step

Scores = Mapping[str, float]  # "val", "test" → score; "val_loss" if an epoch is chosen by it


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
    """The result of training; the model itself is left in the chosen state."""

    history: list[Epoch] = field(default_factory=list)
    best: Epoch | None = None  # the best epoch by validation; None: none was scored
    stopped: str = "all epochs done"  # why training ended
    cut_short: bool = False  # the time limit ended training before the last epoch
    failed: bool = False  # the loss became non-finite; the model is in the last good state
    spent_before: float = 0.0  # seconds of training before it was resumed
    ensemble: Mapping[str, Any] | None = None  # the leaderboard, if several members were trained
    teacher: Mapping[str, Any] | None = None  # the teacher and its scores, if there was one
    best_score: float = -math.inf  # on validation, of all epochs
    progress: int = 0  # the last epoch that was at least as good as all before it

    def keep_if_better(self, epoch: Epoch, schedule: Schedule) -> bool:
        """Keep a scored epoch as the best one if it is; count it as progress if its score is best.

        The validation loss often rises while the score still improves, so training should not stop
        then, even if the epoch with the lowest loss is kept.
        """
        is_best = schedule.quality(epoch) >= schedule.quality(self.best)
        if is_best:
            self.best = epoch
        score = replace(schedule, select="score").quality(epoch)
        if is_best or (math.isfinite(score) and score >= self.best_score):
            self.progress = epoch.epoch
        self.best_score = max(score, self.best_score)
        return is_best


class End(NamedTuple):
    """Why training ends."""

    reason: str
    cut_short: bool = False
    failed: bool = False


@dataclass(frozen=True)
class Schedule:
    """How long to train, when to score, and when to stop early."""

    epochs: int
    eval_from: int = 1  # the first epoch that is scored
    eval_every: int = 1  # the last epoch is always scored; after a time limit, if no other was
    patience: int = 0  # stop after so many epochs without an equal or better one; 0: never
    select: Select = "score"  # what makes an epoch better
    rate: Rate = "constant"  # how the learning rate changes
    time_limit: float = 0.0  # seconds for training and the scoring after it; 0: no limit
    spent_before: float = 0.0  # seconds of the limit that had passed when training started
    scorings_after: int = 0  # how often all nodes are predicted after training

    def scores_at(self, epoch: int) -> bool:
        due = epoch >= self.eval_from and (epoch - self.eval_from) % self.eval_every == 0
        return due or epoch == self.epochs

    def rate_at(self, epoch: int) -> float:
        """The learning rate of an epoch, as a share of the first one."""
        if self.rate == "constant":
            return 1.0
        return (1.0 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2.0

    def quality(self, epoch: Epoch | None) -> float:
        """A number that is larger for a better epoch; −∞ if no validation label can be scored."""
        scores = (epoch and epoch.scores) or {}
        name, sign = ("val_loss", -1.0) if self.select == "loss" else ("val", 1.0)
        value = sign * scores.get(name, math.nan)
        return -math.inf if math.isnan(value) else value

    def end(self, fit: Fit, *, spent: float, scoring: float) -> End | None:
        """Return why no further epoch is started after `spent` seconds; None: one is started.

        The time limit reserves time for another epoch like the last ones and for the predictions
        after training, each of which takes `scoring` seconds. If no epoch was scored yet, it also
        reserves time to score the last one. The first epoch is always trained: an untrained model
        is not a result.
        """
        if not fit.history:
            return None
        last = fit.history[-1]
        # Only a scored epoch shows whether the model became better.
        waited = last.epoch - fit.progress if last.scores is not None and fit.best else 0
        if self.patience and waited >= self.patience:
            better = "equal or better validation score" + " or loss" * (self.select == "loss")
            return End(f"no {better} in {self.patience} epochs")
        if last.epoch >= self.epochs:
            return End("all epochs done")
        another = max(epoch.seconds for epoch in fit.history[-3:])
        after = (self.scorings_after + (fit.best is None)) * (scoring or another)
        if self.time_limit and self.spent_before + spent + another + after > self.time_limit:
            return End(
                f"cut short by the time limit of {self.time_limit:g} s after {last.epoch} of "
                f"{self.epochs} epochs",
                cut_short=True,
            )
        return None


@dataclass
class Position:
    """The position of training between two steps."""

    epoch: int = 1
    step: int = 0  # completed batches of this epoch
    loss: float | Tensor = 0.0  # summed over the hidden nodes of these batches
    hidden: int = 0  # the number of these nodes
    seconds: float = 0.0  # time of this epoch so far
    spent: float = 0.0  # time of training in total
    scoring: float = 0.0  # time of the last scoring


@dataclass(frozen=True)
class TrainingState:
    """The complete state of training: resumed from it, training ends with the same weights.

    Masks, parts and sampled neighbors are functions of (seed, epoch, step), so the position
    replaces their random states.
    """

    tensors: Mapping[str, Tensor]  # weights.…, best.…, ema.…, optimizer.…, random.…
    position: Position
    history: Sequence[Epoch]
    best: int | None  # the epoch of `best.…`; None: none was scored, `best.…` is the last good one

    def part(self, kind: str) -> dict[str, Tensor]:
        """The tensors of one kind, such as `weights`, by the rest of their names."""
        named = ((name.partition("."), value) for name, value in self.tensors.items())
        return {name: value for (first, _, name), value in named if first == kind}


Keep = Callable[[Callable[[], TrainingState], bool], None]
"""Called between steps with a function that returns the state, and whether training has ended."""


def fit(
    model: NodeModel,
    batches: Batches,
    labels: Tensor,
    schedule: Schedule,
    *,
    lr: float,
    weight_decay: float,
    ema: float = 0.0,
    evaluate: Callable[[], Scores],  # raises NonFiniteError if logits are not finite
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    consistency: Consistency = ONE_PASS,
    further: FurtherLoss | None = None,
    replay: bool = True,
    resume: TrainingState | None = None,
    keep: Keep = lambda state, ended: None,
    ranks: Ranks = ALONE,
) -> Fit:
    """Train on the hidden labels of each batch, and leave the model at its best epoch.

    `labels` contains the labels of all nodes; only those of hidden nodes are used. If a loss is
    not finite, training stops at once and the model returns to the last good state. Of equally good
    epochs, the latest wins. With `ema`, the moving average of the weights with this decay is scored
    and stored instead of the weights. `precision` applies to the forward pass: weights, loss
    and optimizer stay in single precision. `further` is added to the loss of each step. `replay`:
    on a GPU, record a step that does not change and replay it. Training continues from `resume`, if
    given; `keep` may store such a state. `ranks`: the processes that train this model together; all
    of them call this function with their own batches.
    """
    on_gpu = torch.device(device).type == "cuda"
    optimizer = torch.optim.Adam(
        model.parameters(),
        # A recorded step reads a rate that changes from a tensor.
        lr=torch.tensor(lr, device=device) if on_gpu and schedule.rate != "constant" else lr,
        weight_decay=weight_decay,
        fused=True,  # one call for all weights: with one call each, small models wait for Python
        capturable=on_gpu,  # so that its step can be recorded
    )
    share = torch.ones((), device=device)
    step = Step(
        model,
        optimizer,
        labels.to(device),
        precision,
        consistency,
        further,
        ranks=ranks,
        share=share if consistency.warmup else None,
    )
    # A state is restored before the first recording, so that the recording uses restored tensors.
    take = ReplayedStep(step) if on_gpu and replay and ranks.size == 1 else step
    result, at = Fit(), Position()
    average = WeightAverage(model, ema)
    best_state = _state(model)
    if resume is not None:
        best_state = _restore(resume, model, optimizer, device)
        average.restore(resume.part("ema"))
        at = Position(**vars(resume.position))
        result.spent_before = resume.position.spent
        result.history = list(resume.history)
        for done in result.history:
            if done.scores is not None:
                result.keep_if_better(done, schedule)
    started = time.perf_counter() - at.spent

    def state() -> TrainingState:
        at.spent = time.perf_counter() - started
        position = Position(**{**vars(at), "loss": float(at.loss)})
        tensors = _tensors(model, best_state, average, optimizer, device)
        best = result.best.epoch if result.best else None
        return TrainingState(tensors, position, tuple(result.history), best)

    def end_now() -> End | None:
        spent = time.perf_counter() - started
        return _agreed(schedule.end(result, spent=spent, scoring=at.scoring), ranks)

    # A training without a scored epoch has no result yet, so it trains at least one more epoch.
    end = None if at.step or result.best is None else end_now()
    while end is None:
        ranks.check_weights(model)
        epoch_started = time.perf_counter() - at.seconds
        if result.best is None and at.step == 0:
            with average.in_model():
                best_state = _state(model)
        _set_rate(optimizer, lr * schedule.rate_at(at.epoch))
        share.fill_(consistency.share_at(at.epoch))
        with matmuls_in(precision):
            for loss in _steps(model, batches, take, at, device):
                average.update()
                if not math.isfinite(loss):
                    break
                at.seconds = time.perf_counter() - epoch_started
                keep(state, False)
            else:
                loss = float(at.loss) / _require_hidden(at.hidden)
        epoch = at.epoch
        if not math.isfinite(loss):
            end = End(f"the loss became {loss} in epoch {epoch}", failed=True)
            break
        if not _is_finite(model):  # a finite loss can have a gradient that is not finite
            end = End(f"a weight became non-finite in epoch {epoch}", failed=True)
            break
        trained = time.perf_counter()
        record = Epoch(epoch, loss, trained - epoch_started)
        result.history.append(record)
        is_scored = schedule.scores_at(epoch)
        if not is_scored:
            end = end_now()
            is_scored = end is not None and result.best is None
        if is_scored:
            with average.in_model():
                try:
                    scores = _scores(evaluate, ranks)
                except NonFiniteError:
                    result.history.pop()
                    end = End(f"the scores became non-finite in epoch {epoch}", failed=True)
                    break
                now = time.perf_counter()
                record = result.history[-1] = Epoch(epoch, loss, now - epoch_started, scores)
                at.scoring = now - trained
                if result.keep_if_better(record, schedule):
                    best_state = _state(model)
            end = end or end_now()
        at = Position(epoch + 1, scoring=at.scoring)
        on_epoch(record)
        keep(state, False)
    result.stopped, result.cut_short, result.failed = end
    if not result.failed:
        keep(state, True)
    model.load_state_dict(best_state)
    return result


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _steps(
    model: NodeModel,
    batches: Batches,
    take: Callable[[Batch], Tensor],
    at: Position,
    device: torch.device | str,
) -> Iterator[float]:
    """Take the remaining steps of an epoch, and yield the loss of each.

    On a GPU, reading each loss would wait for the device, so that 0 is yielded instead: a loss that
    is not finite is then found in the sum.
    """
    model.train()
    at.loss = torch.as_tensor(at.loss, dtype=torch.float64, device=device)
    for batch in batches.epoch(at.epoch, at.step):
        at.step += 1
        hidden_here = batch.num_hidden
        if hidden_here == 0:  # a small part may contain no hidden node
            continue
        loss = take(batch.to(device))
        del batch  # so that its memory is free when the next batches are prepared
        at.loss, at.hidden = at.loss + loss * hidden_here, at.hidden + hidden_here
        yield loss.item() if loss.device.type == "cpu" else 0.0


def _agreed(end: End | None, ranks: Ranks) -> End | None:
    """Why training ends. The first process decides, because clocks differ between processes."""
    if ranks.size == 1:
        return end
    agreed = ranks.agreed(end, soon=True)
    return None if agreed is None else End(*agreed)


def _scores(evaluate: Callable[[], Scores], ranks: Ranks) -> Scores:
    """The scores that the first process computes."""
    if ranks.size == 1:
        return evaluate()
    found: Scores | str = ""
    if ranks.is_first:
        try:
            found = dict(evaluate())
        except NonFiniteError as error:
            found = str(error)
    agreed: Scores | str = ranks.agreed(found)
    if isinstance(agreed, str):
        raise NonFiniteError(agreed)
    return agreed


def _require_hidden(hidden: int) -> int:
    if hidden == 0:
        raise TrainingError(
            "no label is hidden, so nothing can be predicted. Hide a larger share of the labels, "
            "or add training labels."
        )
    return hidden


@torch.no_grad()
def _is_finite(model: NodeModel) -> bool:
    # As one vector: on a small model, one call per weight takes longer than the copy.
    weights = torch.cat([weight.flatten() for weight in model.parameters()])
    # If the sum is finite, so are all weights. This is faster, but the sum may overflow.
    return math.isfinite(weights.sum().item()) or bool(weights.isfinite().all())


def _state(model: NodeModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _tensors(
    model: NodeModel,
    best_state: Mapping[str, Tensor],
    average: WeightAverage,
    optimizer: torch.optim.Optimizer,
    device: torch.device | str,
) -> dict[str, Tensor]:
    """Copy everything that training resumes from to the CPU, by name."""
    tensors = {f"weights.{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"best.{name}": value for name, value in best_state.items()}
    tensors |= {f"ema.{name}": value for name, value in average.tensors().items()}
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
    """Restore weights, moments and random states, and return the best state so far."""
    model.load_state_dict(state.part("weights"))
    moments: dict[int, dict[str, Tensor]] = {}
    for place, value in state.part("optimizer").items():
        index, _, name = place.partition(".")
        moments.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    random = state.part("random")
    torch.set_rng_state(random["cpu"])
    if "cuda" in random:
        torch.cuda.set_rng_state(random["cuda"], device)
    return {name: value.to(device) for name, value in state.part("best").items()}

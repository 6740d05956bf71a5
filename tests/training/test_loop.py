"""The loop: when it scores, which state it keeps, and why it stops."""

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unimp.config.options import BatchOptions
from unimp.config.recipe import Recipe
from unimp.data.synthetic import synthetic_task
from unimp.errors import NonFiniteError, TrainingError
from unimp.graph.hop import Hop
from unimp.model.node_model import NodeModel
from unimp.runs.experiment import run
from unimp.training.batch import Batch
from unimp.training.batching import make_batches
from unimp.training.loop import Epoch, Fit, Schedule, TrainingState, fit
from unimp.training.masks import Masks

LABELS = torch.tensor([0, 1, 0, 1])


class OneVector(NodeModel):
    """The same logits for all nodes: its parameter. The simplest thing that can be trained."""

    takes_labels = takes_edge_features = False
    num_layers = 0

    def __init__(self, start: Sequence[float] = (0.5, -0.25)) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(start))

    def embed(self, x: Any, observed: Tensor) -> Tensor:
        return self.logits.expand(observed.shape[0], -1)

    def propagate(self, h: Tensor, hop: Hop, index: int) -> Tensor:
        raise AssertionError

    def read_out(self, h: Tensor) -> Tensor:
        return h


class OneBatch:
    """One batch per epoch in which all nodes are hidden; it records the requested epochs."""

    def __init__(self, hidden: Tensor | None = None) -> None:
        self.hidden = torch.arange(4) if hidden is None else hidden
        self.epochs: list[int] = []

    def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
        self.epochs.append(epoch)
        yield Batch(torch.arange(4), 4, None, torch.full((4,), -1), self.hidden, ())


class FailsInEpoch(OneVector):
    """Its loss becomes NaN (or its gradient infinite) in the given epoch."""

    def __init__(self, epoch: int, *, what: str = "loss") -> None:
        super().__init__()
        self.at, self.what, self.steps = epoch, what, 0

    def read_out(self, h: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            if self.steps == self.at:
                # √0 is 0, and its slope is not a finite number.
                return h * math.nan if self.what == "loss" else h + (h - h.detach()).sqrt()
        return h


def script(values: Sequence[float]) -> Callable[[], dict[str, float]]:
    remaining = iter(values)
    return lambda: {"val": next(remaining), "test": 0.0}


def fitted(
    values: Sequence[float],
    *,
    model: NodeModel | None = None,
    batches: Any = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **schedule: Any,
) -> Fit:
    return fit(
        model or OneVector(),
        batches or OneBatch(),
        LABELS,
        Schedule(**{"epochs": len(values), **schedule}),
        lr=0.1,
        weight_decay=0.0,
        evaluate=script(values),
        on_epoch=on_epoch,
    )


def states_by_epoch(model: NodeModel) -> tuple[dict[int, Tensor], Callable[[Epoch], None]]:
    states: dict[int, Tensor] = {}

    def keep(epoch: Epoch) -> None:
        states[epoch.epoch] = next(model.parameters()).detach().clone()

    return states, keep


@pytest.mark.parametrize(
    ("values", "best"),
    [((0.1, 0.3, 0.2), 2), ((0.3, 0.3, 0.2), 2), ((0.2, 0.2, 0.2), 3), ((0.3, 0.1, 0.3), 3)],
)
def test_the_model_is_left_at_its_best_validation_score_ties_to_the_latest_epoch(
    values: tuple[float, ...], best: int
) -> None:
    model = OneVector((2.0, -2.0))
    states, keep = states_by_epoch(model)
    result = fitted(values, model=model, on_epoch=keep)
    assert result.best is not None
    assert result.best.epoch == best
    assert torch.equal(model.logits, states[best])
    assert len({tuple(state.tolist()) for state in states.values()}) == len(values)
    assert not result.failed
    assert result.stopped == "all epochs done"


@pytest.mark.parametrize("scores", [{"test": 0.5}, {"val": math.nan, "test": 0.5}])
def test_without_a_validation_score_the_latest_epoch_is_kept(scores: dict[str, float]) -> None:
    result = fit(
        OneVector(),
        OneBatch(),
        LABELS,
        Schedule(epochs=3),
        lr=0.1,
        weight_decay=0.0,
        evaluate=lambda: scores,
    )
    assert result.best is not None
    assert result.best.epoch == 3


def test_training_stops_after_patience_epochs_without_a_better_score() -> None:
    result = fitted([0.1, 0.5, 0.4, 0.4, 0.4, 0.9], patience=3)
    assert [epoch.epoch for epoch in result.history] == [1, 2, 3, 4, 5]
    assert result.best is not None
    assert result.best.epoch == 2
    assert "3 epochs" in result.stopped


def test_an_equal_score_renews_patience() -> None:
    result = fitted([0.5, 0.4, 0.5, 0.4, 0.4, 0.4], patience=2)
    assert [epoch.epoch for epoch in result.history] == [1, 2, 3, 4, 5]


def test_patience_shorter_than_the_time_between_scores_waits_for_a_score() -> None:
    result = fitted([0.1, 0.2, 0.1, 0.9], epochs=40, eval_every=10, patience=3)
    assert [e.epoch for e in result.history if e.scores is not None] == [1, 11, 21]
    assert result.history[-1].epoch == 21


def limited(
    time_limit: float, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Fit, list[int]]:
    """A run with a time limit in which every epoch takes ten seconds, and the epochs it trained."""
    now = 0.0

    class Slow(OneBatch):
        def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
            nonlocal now
            now += 10.0
            yield from super().epoch(epoch)

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("unimp.training.loop.time", clock)
    batches = Slow()
    of_fit = {name: options.pop(name) for name in ("on_epoch", "keep", "resume") if name in options}
    result = fit(
        OneVector(),
        batches,
        LABELS,
        Schedule(**{"epochs": 100, "time_limit": time_limit, **options}),
        lr=0.1,
        weight_decay=0.0,
        evaluate=lambda: {"val": now},
        **of_fit,
    )
    return result, batches.epochs


def test_no_epoch_is_started_that_would_end_after_the_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, epochs = limited(25.0, monkeypatch)
    assert epochs == [1, 2]  # a third would end after 30 s
    assert [epoch.seconds for epoch in result.history] == [10.0, 10.0]
    assert result.cut_short
    assert "25 s" in result.stopped
    assert "2 of 100" in result.stopped


@pytest.mark.parametrize("schedule", [{}, {"eval_from": 50}, {"spent_before": 99.0}])
def test_a_time_limit_that_is_too_short_trains_one_epoch_and_says_that_it_was_cut_short(
    schedule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result, epochs = limited(1.0, monkeypatch, scorings_after=5, **schedule)
    assert epochs == [1]
    assert result.cut_short
    assert not result.failed
    assert "1 of 100" in result.stopped
    assert result.best == result.history[0]
    assert result.best.scores == {"val": 10.0}


def test_a_time_limit_that_ends_training_before_the_first_score_scores_the_last_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Epoch] = []
    result, epochs = limited(
        75.0, monkeypatch, scorings_after=2, eval_from=50, on_epoch=seen.append
    )
    assert epochs == [1, 2, 3, 4]  # a fifth, its score and two predictions would end after 80 s
    assert [epoch.epoch for epoch in result.history if epoch.scores is not None] == [4]
    assert result.best == result.history[-1]
    assert seen == result.history
    assert result.cut_short


def test_training_that_is_resumed_after_the_time_limit_has_a_scored_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: list[TrainingState] = []

    def keep(state: Callable[[], TrainingState], ended: bool) -> None:
        states.append(state())

    limited(65.0, monkeypatch, eval_from=50, keep=keep)
    between = next(one for one in states if one.position.epoch == 3 and one.position.step == 0)
    result, epochs = limited(5.0, monkeypatch, eval_from=50, resume=between)
    assert epochs == [3]
    assert [epoch.epoch for epoch in result.history if epoch.scores is not None] == [3]
    assert result.best == result.history[-1]


def test_a_run_that_reaches_its_last_epoch_is_not_cut_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result, epochs = limited(1.0, monkeypatch, epochs=1)
    assert epochs == [1]
    assert not result.cut_short


@pytest.mark.parametrize(
    ("schedule", "scored"),
    [
        ({"epochs": 4}, [1, 2, 3, 4]),
        ({"epochs": 100, "eval_from": 50, "eval_every": 10}, [50, 60, 70, 80, 90, 100]),
        ({"epochs": 7, "eval_every": 3}, [1, 4, 7]),
        ({"epochs": 8, "eval_every": 3}, [1, 4, 7, 8]),
        ({"epochs": 5, "eval_from": 9}, [5]),
    ],
)
def test_epochs_are_scored_on_schedule_and_the_last_one_always(
    schedule: dict[str, int], scored: list[int]
) -> None:
    result = fitted([0.1] * 100, **schedule)
    assert [e.epoch for e in result.history] == list(range(1, schedule["epochs"] + 1))
    assert [e.epoch for e in result.history if e.scores is not None] == scored


def test_a_line_of_history_contains_the_scores_if_there_are_any() -> None:
    assert Epoch(3, 0.5, 1.0, {"val": 0.25}).as_line() == {
        "epoch": 3,
        "loss": 0.5,
        "seconds": 1.0,
        "val": 0.25,
    }
    assert Epoch(3, 0.5, 1.0).as_line() == {"epoch": 3, "loss": 0.5, "seconds": 1.0}


def test_a_non_finite_loss_stops_the_run_and_the_best_scored_state_is_kept() -> None:
    model, batches = FailsInEpoch(4), OneBatch()
    states, keep = states_by_epoch(model)
    result = fitted([0.1, 0.3, 0.2, 0.9, 0.9], model=model, batches=batches, on_epoch=keep)
    assert result.failed
    assert result.stopped == "the loss became nan in epoch 4"
    assert batches.epochs == [1, 2, 3, 4]
    assert [epoch.epoch for epoch in result.history] == [1, 2, 3]
    assert torch.equal(model.logits, states[2])


def test_before_any_score_the_state_before_the_failing_epoch_is_kept() -> None:
    model = FailsInEpoch(4)
    states, keep = states_by_epoch(model)
    result = fitted([0.1] * 9, model=model, on_epoch=keep, eval_from=9)
    assert result.failed
    assert result.best is None
    assert torch.equal(model.logits, states[3])


def test_a_loss_that_fails_within_an_epoch_undoes_the_steps_before_it_in_that_epoch() -> None:
    class TwoBatches(OneBatch):
        def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
            yield from super().epoch(epoch)
            yield from super().epoch(epoch)

    model = FailsInEpoch(4)
    states, keep = states_by_epoch(model)
    result = fitted([0.1] * 9, model=model, batches=TwoBatches(), on_epoch=keep, eval_from=9)
    assert result.stopped == "the loss became nan in epoch 2"
    assert torch.equal(model.logits, states[1])


@pytest.mark.parametrize("eval_from", [1, 9])
def test_a_finite_loss_with_a_non_finite_gradient_does_not_spoil_the_kept_state(
    eval_from: int,
) -> None:
    model = FailsInEpoch(3, what="gradient")
    states, keep = states_by_epoch(model)
    # The spoiled epoch would even have the best score.
    result = fitted([0.1, 0.1, 0.9, 0.9], model=model, on_epoch=keep, eval_from=eval_from)
    assert result.failed
    assert "non-finite in epoch 3" in result.stopped
    assert torch.equal(model.logits, states[2])


def test_logits_that_are_not_finite_end_the_run_with_the_last_good_state() -> None:
    model = OneVector()
    states, keep = states_by_epoch(model)
    scored = script([0.5, 0.4])

    def evaluate() -> dict[str, float]:
        if len(states) == 2:
            raise NonFiniteError("a logit became non-finite")
        return dict(scored())

    result = fit(
        model,
        OneBatch(),
        LABELS,
        Schedule(epochs=9),
        lr=0.1,
        weight_decay=0.0,
        evaluate=evaluate,
        on_epoch=keep,
    )
    assert result.failed
    assert result.stopped == "the scores became non-finite in epoch 3"
    assert torch.equal(model.logits, states[1])


def test_one_step_is_adam_with_the_decay_added_to_the_gradient() -> None:
    lr, decay, start = 0.1, 0.5, torch.tensor([0.5, -0.25])
    model = OneVector(start.tolist())
    fit(
        model,
        OneBatch(),
        LABELS,
        Schedule(epochs=2),
        lr=lr,
        weight_decay=decay,
        evaluate=script([0.1, 0.2]),
    )
    # The labels are half 0, half 1: the gradient of the mean cross-entropy is softmax(z) − ½.
    z, first, second = start.double(), torch.zeros(2).double(), torch.zeros(2).double()
    for step in (1, 2):
        gradient = torch.softmax(z, 0) - 0.5 + decay * z
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        move = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8)
        z = z - lr * move
    torch.testing.assert_close(model.logits.detach(), z.float(), rtol=1e-5, atol=1e-6)
    # Decoupled decay, as in AdamW, would have shrunk the weights by lr · decay on top.
    assert not torch.allclose(model.logits.detach(), z.float() * (1 - lr * decay), atol=1e-4)


def test_the_loss_of_an_epoch_is_the_mean_over_its_hidden_nodes() -> None:
    class Uneven(OneBatch):
        def epoch(self, epoch: int, begin: int = 0) -> Iterator[Batch]:
            for hidden in ([0], [1, 3], []):
                chosen = torch.tensor(hidden, dtype=torch.int64)
                yield Batch(torch.arange(4), 4, None, torch.full((4,), -1), chosen, ())

    model = OneVector((1.0, 0.0))
    result = fit(
        model,
        Uneven(),
        LABELS,
        Schedule(epochs=1),
        lr=1e-9,
        weight_decay=0.0,
        evaluate=script([0.1]),
    )
    of_class = -torch.log_softmax(torch.tensor([1.0, 0.0]), 0)
    expected = float(of_class[0] + 2 * of_class[1]) / 3
    assert result.history[0].loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
def test_if_no_label_is_hidden_there_is_nothing_to_train(regime: Any) -> None:
    task = synthetic_task(num_nodes=40, num_edges=60, num_classes=2, num_features=3)
    known = torch.zeros(40, dtype=torch.bool)
    known[task.split.train] = True
    masks = Masks(known, 1.0, redraw="epoch", seed=0)
    for prune in (False, True):
        batches = make_batches(
            task.graph,
            task.labels,
            masks,
            BatchOptions(regime=regime, prune=prune, parts=2),
            num_layers=0,
        )
        with pytest.raises(TrainingError, match="no label is hidden"):
            fitted([0.1], batches=batches, model=OneVector())


SMALL = (
    "task.scale=0.03",
    "model.width=8",
    "model.layers=2",
    "train.epochs=4",
    "train.lr=0.01",
    "train.device=cpu",
    "batch.parts=3",
    "batch.batch_size=4",
    "batch.fanout=[4]",
    "batch.workers=2",
)


@pytest.mark.parametrize("regime", ["full", "partition", "neighbors"])
@pytest.mark.parametrize("redraw", ["step", "epoch"])
def test_the_same_seed_gives_the_same_history_to_the_last_bit(regime: str, redraw: str) -> None:
    recipe = Recipe(name="small").with_settings(
        ["task.name=synthetic", *SMALL, f"batch.regime={regime}", f"mask.redraw={redraw}"]
    )

    def history(seed: int) -> tuple[list[tuple[float, Any]], list[Tensor]]:
        epochs: list[tuple[float, Any]] = []
        done = run(recipe, seed=seed, on_epoch=lambda e: epochs.append((e.loss, e.scores)))
        assert done.model is not None
        return epochs, list(done.model.state_dict().values())

    epochs, weights = history(3)
    torch.rand(7)  # random numbers that others draw do not matter
    again, same_weights = history(3)
    assert len(epochs) == 4
    assert epochs == again
    assert all(torch.equal(a, b) for a, b in zip(weights, same_weights, strict=True))
    assert history(4)[0] != epochs


def test_a_run_leaves_the_random_state_of_torch_as_it_found_it() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(Recipe(name="small").with_settings(["task.name=synthetic", *SMALL]))
    assert torch.equal(torch.rand(3), expected)


def by_loss(values: Sequence[float], **schedule: Any) -> Fit:
    """Train with these validation losses, while the validation score only falls."""
    remaining, score = iter(values), 1.0

    def evaluate() -> dict[str, float]:
        nonlocal score
        score -= 0.01
        return {"val": score, "val_loss": next(remaining)}

    return fit(
        OneVector(),
        OneBatch(),
        LABELS,
        Schedule(epochs=len(values), select="loss", **schedule),
        lr=0.1,
        weight_decay=0.0,
        evaluate=evaluate,
    )


@pytest.mark.parametrize(
    ("values", "best"), [((0.5, 0.3, 0.4), 2), ((0.3, 0.5, 0.3), 3), ((0.5, math.nan, 0.6), 1)]
)
def test_the_epoch_with_the_lowest_validation_loss_can_be_chosen(
    values: tuple[float, ...], best: int
) -> None:
    result = by_loss(values)
    assert result.best is not None
    assert result.best.epoch == best
    assert result.best.as_line()["val_loss"] == values[best - 1]


def test_patience_follows_the_validation_loss() -> None:
    result = by_loss([0.9, 0.5, 0.6, 0.6, 0.6, 0.1], patience=3)
    assert [epoch.epoch for epoch in result.history] == [1, 2, 3, 4, 5]
    assert result.best is not None
    assert result.best.epoch == 2
    assert "loss" in result.stopped
    assert "3 epochs" in result.stopped


@pytest.mark.parametrize("resumed", [False, True])
def test_a_better_score_renews_the_patience_of_a_choice_by_loss(resumed: bool) -> None:
    """The loss is best in epoch 1, but the score improves until epoch 3."""
    schedule = Schedule(epochs=9, patience=2, select="loss")
    result = Fit()
    for number, (score, loss) in enumerate([(0.3, 0.1), (0.4, 0.2), (0.5, 0.3), (0.4, 0.4)], 1):
        assert schedule.end(result, spent=0.0, scoring=0.0) is None
        epoch = Epoch(number, 1.0, 0.1, {"val": score, "val_loss": loss})
        result.history.append(epoch)
        result.keep_if_better(epoch, schedule)
    assert result.best is not None
    assert result.best.epoch == 1
    result.history.append(Epoch(5, 1.0, 0.1, {"val": 0.4, "val_loss": 0.4}))
    if resumed:
        history, result = result.history, Fit()
        for epoch in history:
            result.keep_if_better(epoch, schedule)
        result.history = history
    end = schedule.end(result, spent=0.0, scoring=0.0)
    assert end is not None
    assert "2 epochs" in end.reason


def test_a_score_that_is_not_defined_does_not_renew_the_patience() -> None:
    schedule, result = Schedule(epochs=9, patience=1, select="loss"), Fit()
    for number, loss in enumerate([0.1, 0.2], 1):
        epoch = Epoch(number, 1.0, 0.1, {"val": math.nan, "val_loss": loss})
        result.history.append(epoch)
        result.keep_if_better(epoch, schedule)
    assert schedule.end(result, spent=0.0, scoring=0.0) is not None


def test_a_cosine_schedule_scales_the_rate_of_each_epoch() -> None:
    schedule = Schedule(epochs=4, rate="cosine")
    assert schedule.rate_at(1) == 1.0
    assert schedule.rate_at(3) == pytest.approx(0.5)
    rates = [schedule.rate_at(epoch) for epoch in range(1, 5)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0.0
    assert {Schedule(epochs=4).rate_at(epoch) for epoch in range(1, 5)} == {1.0}


def test_a_step_of_adam_has_the_rate_of_its_epoch() -> None:
    """With a constant gradient, a step of Adam changes a weight by the learning rate."""

    class Slope(OneVector):
        def read_out(self, h: Tensor) -> Tensor:
            return h + 1000.0 * torch.tensor([-1.0, 1.0])  # every label is 0: the slope is constant

    steps: list[float] = []
    model = Slope()
    before = model.logits[0].item()

    def note(epoch: Epoch) -> None:
        nonlocal before
        steps.append(model.logits[0].item() - before)
        before = model.logits[0].item()

    schedule = Schedule(epochs=4, rate="cosine")
    fit(
        model,
        OneBatch(),
        torch.zeros(4, dtype=torch.int64),
        schedule,
        lr=0.1,
        weight_decay=0.0,
        evaluate=lambda: {"val": 0.0},
        on_epoch=note,
    )
    assert steps == pytest.approx([0.1 * schedule.rate_at(e) for e in range(1, 5)], rel=1e-3)


def averaged(
    *, decay: float, epochs: int, **options: Any
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The weights after each epoch, those that are scored, and those that are left at the end."""
    model = OneVector((2.0, -2.0))
    raw: list[Tensor] = []
    scored: list[Tensor] = []

    def evaluate() -> dict[str, float]:
        scored.append(model.logits.detach().clone())
        return {"val": 0.0}

    fit(
        model,
        OneBatch(),
        LABELS,
        Schedule(epochs, **options),
        lr=0.1,
        weight_decay=0.0,
        ema=decay,
        evaluate=evaluate,
        on_epoch=lambda epoch: raw.append(model.logits.detach().clone()),
    )
    return raw, scored, model.logits.detach()


def test_the_moving_average_of_the_weights_is_scored_and_left_in_the_model() -> None:
    raw, scored, left = averaged(decay=0.5, epochs=9)
    average = torch.tensor([2.0, -2.0])
    for step, weights in enumerate(raw):
        decay = min(0.5, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weights
        torch.testing.assert_close(scored[step], average)
    assert torch.equal(left, scored[-1])
    assert not torch.equal(left, raw[-1])


def test_averaging_does_not_change_training() -> None:
    plain, scored, left = averaged(decay=0.0, epochs=5)
    with_average, *_ = averaged(decay=0.9, epochs=5)
    assert all(map(torch.equal, plain, with_average))
    assert all(map(torch.equal, plain, scored))
    assert torch.equal(left, plain[-1])


def test_the_average_is_scored_if_a_time_limit_ends_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(now=0.0)

    def perf_counter() -> float:
        clock.now += 1.0
        return clock.now

    monkeypatch.setattr("unimp.training.loop.time", SimpleNamespace(perf_counter=perf_counter))
    raw, scored, left = averaged(decay=0.5, epochs=9, eval_from=9, time_limit=1.0)
    assert len(raw) == len(scored) == 1
    assert torch.equal(left, scored[0])
    torch.testing.assert_close(left, 0.1 * torch.tensor([2.0, -2.0]) + 0.9 * raw[0])

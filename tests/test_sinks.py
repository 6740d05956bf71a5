"""Sinks: what each is told, that each is closed, and that nothing is imported unasked."""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unimp.errors import RecipeError, UnimpError
from unimp.recipe import Recipe
from unimp.run import run
from unimp.sinks import opened_sinks, tell_epoch
from unimp.training.loop import Epoch

RECIPE = Recipe(name="small").with_settings(
    [
        "task.name=synthetic",
        "task.scale=0.02",
        "model.width=4",
        "train.epochs=4",
        "train.eval_every=2",
        "train.device=cpu",
    ]
)


class Recorder:
    """Stands for wandb, mlflow and SummaryWriter: it keeps what is called."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> "Recorder":
            self.calls.append((name, (arguments, options)))
            return self

        return call

    def named(self, name: str) -> list[Any]:
        return [arguments for called, arguments in self.calls if called == name]


@pytest.mark.parametrize("log", ["wandb", "mlflow"])
def test_every_epoch_and_the_scores_are_told_and_the_sink_is_closed(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Recorder()
    monkeypatch.setitem(sys.modules, log, fake)  # type: ignore[arg-type]
    done = run(RECIPE, seed=2, out=tmp_path / "run", log=[log, log])
    told = fake.named({"wandb": "log", "mlflow": "log_metrics"}[log])
    assert [options["step"] for _, options in told] == [1, 2, 3, 4, 4]
    assert {"loss", "val", "test"} <= told[0][0][0].keys()
    assert "val" not in told[1][0][0]
    assert told[-1][0][0]["final/train/test"] == done.metrics["scores"]["train"]["test"]
    assert fake.calls[-1][0] == {"wandb": "finish", "mlflow": "end_run"}[log]
    begun = {"wandb": "init", "mlflow": "start_run"}[log]
    ((_, options),) = fake.named(begun)
    assert "small seed 2" in options.values()


@pytest.mark.skipif(find_spec("tensorboard") is None, reason="needs tensorboard")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_what_was_told(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses: list[float] = []
    run(
        RECIPE,
        out=tmp_path / "run",
        log=["tensorboard"],
        on_epoch=lambda epoch: losses.append(epoch.loss),
    )
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [e.step for e in events.Scalars("loss")] == [1, 2, 3, 4]
    assert [e.value for e in events.Scalars("loss")] == pytest.approx(losses)
    assert [e.step for e in events.Scalars("val")] == [1, 3, 4]


def test_tensorboard_is_told_numbers_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = Recorder()
    module = SimpleNamespace(SummaryWriter=fake.writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)  # type: ignore[arg-type]
    with opened_sinks(["tensorboard"], RECIPE, 0, tmp_path) as sinks:
        tell_epoch(sinks, Epoch(3, 0.5, 1.0, {"val": 0.25, "test": float("nan")}))
    scalars = [arguments for arguments, _ in fake.named("add_scalar")]
    assert scalars == [("loss", 0.5, 3), ("seconds", 1.0, 3), ("val", 0.25, 3)]
    assert fake.named("close")


@pytest.mark.parametrize("log", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_not_here_is_told_with_its_extra(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"tensorboard": "torch.utils.tensorboard"}.get(log, log)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    with pytest.raises(UnimpError, match=rf'pip install "unimp\[{log}\]"'):
        run(RECIPE, out=tmp_path / "run", log=[log])
    assert not (tmp_path / "run").exists()


def test_a_sink_of_another_name_answers_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no sink 'tensorbord'; did you mean 'tensorboard'"):
        run(RECIPE, out=tmp_path / "run", log=["tensorbord"])
    assert not (tmp_path / "run").exists()

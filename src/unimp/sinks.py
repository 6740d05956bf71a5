"""Where epochs are told beside history.jsonl: TensorBoard, Weights & Biases, MLflow.

Nothing is imported, and nobody contacted, unless it is asked for by name.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unimp.errors import RecipeError, UnimpError, nearest_names

if TYPE_CHECKING:
    from unimp.recipe import Recipe
    from unimp.training.loop import Epoch

Values = Mapping[str, float]


@dataclass(frozen=True)
class Sink:
    """One place that epochs are told."""

    tell: Callable[[Values, int], None]  # values of an epoch
    close: Callable[[], None]


@contextmanager
def opened_sinks(
    names: Sequence[str], recipe: Recipe, seed: int, folder: Path | None
) -> Iterator[list[Sink]]:
    """The sinks of these names; each is closed, however the run ends."""
    for name in names:
        if name not in SINKS:
            raise RecipeError(f"no sink {name!r}; {nearest_names(name, SINKS)}")
    with ExitStack() as stack:
        sinks: list[Sink] = []
        for name in dict.fromkeys(names):
            sink = SINKS[name](recipe, seed, folder)
            stack.callback(sink.close)
            sinks.append(sink)
        yield sinks


def tell_epoch(sinks: Sequence[Sink], epoch: Epoch) -> None:
    values = {"loss": epoch.loss, "seconds": epoch.seconds, **(epoch.scores or {})}
    for sink in sinks:
        sink.tell({k: v for k, v in values.items() if math.isfinite(v)}, epoch.epoch)


def tell_scores(sinks: Sequence[Sink], metrics: Mapping[str, Any]) -> None:
    """What the run came to: the scores of each protocol."""
    scores = {
        f"final/{protocol}/{name}": value
        for protocol, values in metrics["scores"].items()
        for name, value in values.items()
    }
    for sink in sinks:
        sink.tell(scores, metrics["epochs"])


def tensorboard(recipe: Recipe, seed: int, folder: Path | None) -> Sink:
    """Event files in the run's folder; what a run that goes on repeats is shown once."""
    module = _imported("torch.utils.tensorboard", "tensorboard")
    place = folder or Path("runs") / f"{recipe.name}-seed-{seed}"
    writer = module.SummaryWriter(log_dir=str(place / "tensorboard"))

    def tell(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return Sink(tell, writer.close)


def wandb(recipe: Recipe, seed: int, folder: Path | None) -> Sink:
    """A run of the project `unimp`; one that goes on is the same run there."""
    module = _imported("wandb", "wandb")
    known_as = hashlib.sha1(f"{folder and folder.resolve()} {seed}".encode()).hexdigest()[:16]
    run = module.init(
        project="unimp",
        name=f"{recipe.name} seed {seed}",
        config={**recipe.model_dump(), "seed": seed},
        id=known_as if folder else None,
        resume="allow" if folder else None,
        dir=str(folder) if folder else None,
    )
    return Sink(lambda values, step: run.log(dict(values), step=step), run.finish)


def mlflow(recipe: Recipe, seed: int, folder: Path | None) -> Sink:
    """A run where MLFLOW_TRACKING_URI says; one that goes on is another run of the same name."""
    module = _imported("mlflow", "mlflow")
    module.start_run(run_name=f"{recipe.name} seed {seed}")
    options = recipe.model_dump(exclude={"name", "about"})
    named = {f"{section}.{key}": v for section in options for key, v in options[section].items()}
    module.log_params({**named, "seed": seed})
    return Sink(
        lambda values, step: module.log_metrics(dict(values), step=step),
        module.end_run,
    )


SINKS: dict[str, Callable[[Recipe, int, Path | None], Sink]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnimpError(
            f"--log {extra} needs a package that is not here ({error}); "
            f'pip install "unimp[{extra}]"'
        ) from error

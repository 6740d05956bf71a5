"""Where epochs are told beside history.jsonl: TensorBoard, Weights & Biases, MLflow.

Nothing is imported, and nobody contacted, unless it is asked for by name; what is sent is options,
epochs and scores, and no file of the run. Which run it is there is kept in the folder, so that one
that goes on goes on there too. A sink that fails is left behind: training goes on without it.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from unimp.data.files import write_atomically
from unimp.errors import RecipeError, UnimpError, nearest_names

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe
    from unimp.training.loop import Epoch

Values = Mapping[str, float]
Ending = Literal["finished", "interrupted", "failed"]

KNOWN_AS = "sinks.json"
"""The file in a run's folder that says which run it is in each sink."""


@dataclass(frozen=True)
class Place:
    """The run that a sink is to tell of."""

    recipe: Recipe
    seed: int
    folder: Path | None
    known_as: str | None  # which run it was in this sink before, if it goes on
    say: Callable[[str], None]

    @property
    def title(self) -> str:
        return f"{self.recipe.name} seed {self.seed}"


@dataclass(frozen=True)
class Sink:
    """One place that epochs are told."""

    tell: Callable[[Values, int], None]  # values of an epoch
    close: Callable[[Ending], None]
    known_as: str | None = None  # which run it is there; None: its files are in the folder


class Sinks:
    """The sinks of a run that are open."""

    def __init__(self, folder: Path | None, goes_on: bool, say: Callable[[str], None]) -> None:
        self.ending: Ending = "finished"
        self._open: dict[str, Sink] = {}
        self._lost: set[str] = set()
        self._folder, self._say = folder, say
        self._known_as: dict[str, str] = {}
        if folder is not None and goes_on and (folder / KNOWN_AS).is_file():
            self._known_as = _names_in(folder / KNOWN_AS, say)

    def open(self, name: str, recipe: Recipe, seed: int) -> None:
        place = Place(recipe, seed, self._folder, self._known_as.get(name), self._say)
        try:
            self._open[name] = SINKS[name](place)
        except UnimpError:
            raise
        except (Exception, SystemExit) as error:  # whatever these libraries raise
            raise UnimpError(
                f"--log {name} cannot be opened: {str(error).strip().rstrip('.')}; {HINTS[name]}"
            ) from error

    def tell_epoch(self, epoch: Epoch) -> None:
        self._keep_names()
        self._tell(
            {"loss": epoch.loss, "seconds": epoch.seconds, **(epoch.scores or {})}, epoch.epoch
        )

    def tell_scores(self, metrics: Mapping[str, Any]) -> None:
        """What the run came to: the scores of each protocol."""
        if metrics["failed"]:
            self.ending = "failed"
        scores = {  # MLflow takes no plus sign in a name
            f"final/{protocol.replace('+', '_and_')}/{name}": value
            for protocol, values in metrics["scores"].items()
            for name, value in values.items()
        }
        self._tell(scores, metrics["epochs"])

    def close(self) -> None:
        for name, sink in self._open.items():
            with self._left_behind(name):
                sink.close(self.ending)

    def _tell(self, values: Values, step: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name, sink in self._open.items():
            if name not in self._lost:
                with self._left_behind(name):
                    sink.tell(finite, step)

    @contextmanager
    def _left_behind(self, name: str) -> Iterator[None]:
        """A sink that fails is told no more; hours of training do not depend on it."""
        try:
            yield
        except (Exception, SystemExit) as error:  # some end the program, where they could raise
            if name not in self._lost:
                self._say(f"--log {name} failed and is told no more: {error}")
            self._lost.add(name)

    def _keep_names(self) -> None:
        """Once training has begun: a run that never did is not gone on with."""
        names = {name: sink.known_as for name, sink in self._open.items() if sink.known_as}
        if self._folder is not None and not names.items() <= self._known_as.items():
            self._known_as |= names
            text = json.dumps(self._known_as, indent=1) + "\n"
            write_atomically(self._folder / KNOWN_AS, text.encode())


def _names_in(path: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Which run it is in each sink; none, with a line, where the file does not say."""
    found: Any = None
    with suppress(ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(found, dict) and all(isinstance(name, str) for name in found.values()):
        return found
    say(f"{path} is damaged: in the sinks this is a new run")
    return {}


@contextmanager
def opened_sinks(
    names: Sequence[str],
    recipe: Recipe,
    seed: int,
    folder: Path | None,
    *,
    goes_on: bool = False,
    say: Callable[[str], None] = warnings.warn,
) -> Iterator[Sinks]:
    """The sinks of these names; each is closed, however the run ends, and told how.

    goes_on: whether the run was begun before, and so in these sinks too.
    """
    for name in names:
        if name not in SINKS:
            raise RecipeError(f"no sink {name!r}; {nearest_names(name, SINKS)}")
    sinks = Sinks(folder, goes_on, say)
    try:
        for name in dict.fromkeys(names):
            sinks.open(name, recipe, seed)
        yield sinks
    except KeyboardInterrupt:
        sinks.ending = "interrupted"
        raise
    except BaseException:
        sinks.ending = "failed"
        raise
    finally:
        sinks.close()


def tensorboard(place: Place) -> Sink:
    """Event files in the run's folder."""
    module = _imported("torch.utils.tensorboard", "tensorboard")
    folder = place.folder or Path("runs") / f"{place.recipe.name}-seed-{place.seed}"
    writers: list[Any] = []

    def tell(values: Values, step: int) -> None:
        if not writers:  # what was told before of this step and later ones is told again
            log_dir = str(folder / "tensorboard")
            writers.append(module.SummaryWriter(log_dir=log_dir, purge_step=step))
        for name, value in values.items():
            writers[0].add_scalar(name, value, step)

    def close(ending: Ending) -> None:
        for writer in writers:
            writer.close()

    return Sink(tell, close)


def wandb(place: Place) -> Sink:
    """A run of the project `unimp`, or of WANDB_PROJECT; one that goes on is the same run there."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # to whom nobody asked to talk
    module = _imported("wandb", "wandb")
    if module.run is not None:
        raise UnimpError("--log wandb: a W&B run is open in this process; wandb.finish() ends it")
    known_as = place.known_as or secrets.token_hex(8)
    run = module.init(
        project=os.environ.get("WANDB_PROJECT") or "unimp",
        name=place.title,
        config={**place.recipe.model_dump(), "seed": place.seed},
        id=known_as,
        resume="allow",
        dir=str(place.folder.resolve()) if place.folder else None,
    )
    codes = {"finished": 0, "interrupted": 255, "failed": 1}  # as W&B itself has them
    return Sink(
        lambda values, step: run.log(dict(values), step=step),
        lambda ending: run.finish(exit_code=codes[ending]),
        known_as,
    )


def mlflow(place: Place) -> Sink:
    """A run where MLFLOW_TRACKING_URI says, else in MLflow's own files here; one that goes on is
    the same run there. Within a run of yours it is a part of that."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # to whom nobody asked to talk
    module = _imported("mlflow", "mlflow")
    run, told = _mlflow_run(module, place)

    def tell(values: Values, step: int) -> None:
        fresh = {k: v for k, v in values.items() if step > told or k.startswith("final/")}
        if fresh:
            module.log_metrics(fresh, step=step)

    states = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
    return Sink(tell, lambda ending: module.end_run(states[ending]), run.info.run_id)


def _mlflow_run(module: Any, place: Place) -> tuple[Any, int]:
    """MLflow's run of this name, and the last epoch that it was told before."""
    nested = module.active_run() is not None
    if place.known_as is not None:
        if not (gone := _gone_from_mlflow(module, place.known_as)):
            history = module.MlflowClient().get_metric_history(place.known_as, "loss")
            run = module.start_run(run_id=place.known_as, nested=nested)
            return run, max((point.step for point in history), default=0)
        place.say(f"mlflow: its run is not there any more ({gone}); this is a new one")
    run = module.start_run(run_name=place.title, nested=nested)
    options = place.recipe.model_dump(exclude={"name", "about"})
    named = {f"{section}.{key}": v for section in options for key, v in options[section].items()}
    module.log_params({**named, "seed": place.seed})
    return run, 0


def _gone_from_mlflow(module: Any, known_as: str) -> str:
    """Why a run cannot be gone on with; empty where it can. An error that may pass is raised."""
    try:
        stage = module.MlflowClient().get_run(known_as).info.lifecycle_stage
    except module.MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return str(error)
    return f"run {known_as} was deleted" if stage == "deleted" else ""


SINKS: dict[str, Callable[[Place], Sink]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}

HINTS = {
    "tensorboard": "leave it out, and the run is trained all the same",
    "wandb": "see wandb login, or set WANDB_MODE=offline to send nothing now",
    "mlflow": "MLFLOW_TRACKING_URI says where it is; without it, it is a file here",
}
"""What may help where one cannot be opened."""


def _imported(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnimpError(
            f"--log {extra} needs a package that is not here ({error}); "
            f'pip install "unimp[{extra}]"'
        ) from error

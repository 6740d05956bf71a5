"""Send metrics to TensorBoard, Weights & Biases or MLflow, in addition to history.jsonl.

A tracker is imported and contacted only if it is requested by name. It receives options, epochs and
scores, and no file of the run. The id of the run in W&B and MLflow is stored in the run folder, so
that a resumed run continues there as the same run. A tracker that fails is dropped, and training
continues without it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from unimp.config.run_files import TRACKERS as IDS_FILE
from unimp.data.files import read_regular, write_atomically
from unimp.errors import RecipeError, UnimpError, nearest_names

if TYPE_CHECKING:
    from unimp.config.recipe import Recipe
    from unimp.training.loop import Epoch

MOST_BYTES = 1 << 20  # of the file with the ids of a run
TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Each is a module of this package with a class `Run`, and an extra to install."""

Values = Mapping[str, float]
Ending = Literal["finished", "interrupted", "failed"]


@dataclass(frozen=True)
class Place:
    """The run that a tracker is opened for."""

    recipe: Recipe
    seed: int
    folder: Path | None = None
    resumed: bool = False
    report: Callable[[str], None] = warnings.warn
    previous_id: str | None = None  # the id in this tracker, if the run is resumed


class Trackers:
    """The trackers of one run: opened on entry, and closed however the block ends."""

    def __init__(self, names: Sequence[str], place: Place) -> None:
        for name in names:
            if name not in TRACKERS:
                raise RecipeError(f"{name!r} is not a tracker; {nearest_names(name, TRACKERS)}")
        self._names, self._place, self._failed = dict.fromkeys(names), place, False
        self._open: dict[str, Any] = {}
        self._dropped: set[str] = set()
        self._ids: dict[str, str] = {}

    def __enter__(self) -> Trackers:
        self._ids = _stored_ids(self._place) if self._names and self._place.resumed else {}
        try:
            for name in self._names:
                self._open[name] = _opened(name, self._place, self._ids.get(name))
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, error: type[BaseException] | None, *rest: object) -> None:
        ending: Ending = "failed" if error or self._failed else "finished"
        if error is not None and issubclass(error, KeyboardInterrupt):
            ending = "interrupted"
        for name in self._open:
            self._call(name, "close", ending)

    def epoch(self, epoch: Epoch) -> None:
        # Ids are not stored earlier: a run that never started training is not resumed.
        ids = {name: run.id for name, run in self._open.items() if run.id}
        if self._place.folder is not None and not ids.items() <= self._ids.items():
            self._ids |= ids
            text = json.dumps(self._ids, indent=1) + "\n"
            write_atomically(self._place.folder / IDS_FILE, text.encode())
        values = {"loss": epoch.loss, "seconds": epoch.seconds, **(epoch.scores or {})}
        self._send("epoch", values, epoch.epoch)

    def scores(self, metrics: Mapping[str, Any]) -> None:
        """Send the final scores of each protocol, given the metrics of the run."""
        self._failed = metrics["failed"]
        scores = {  # MLflow does not allow a plus sign in a name
            f"final/{protocol.replace('+', '_and_')}/{name}": value
            for protocol, values in metrics["scores"].items()
            for name, value in values.items()
        }
        self._send("scores", scores, metrics["epochs"])

    def _send(self, method: str, values: Values, epoch: int) -> None:
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        for name in self._open:
            if name not in self._dropped:
                self._call(name, method, finite, epoch)

    def _call(self, name: str, method: str, *arguments: Any) -> None:
        try:
            getattr(self._open[name], method)(*arguments)
        except (Exception, SystemExit) as error:  # some end the program where they could raise
            if name not in self._dropped:
                self._place.report(f"--log {name} failed; training continues without it: {error}")
            self._dropped.add(name)


def read_ids(path: Path) -> dict[str, str]:
    """The ids that a run stored; raise OSError or ValueError if the file contains anything else."""
    ids = TypeAdapter(dict[str, str]).validate_json(read_regular(path, MOST_BYTES))
    if not ids or not ids.keys() <= {*TRACKERS}:
        raise ValueError(f"it must contain the id of a run in {' or '.join(TRACKERS)}")
    return ids


def _stored_ids(place: Place) -> dict[str, str]:
    path = (place.folder or Path()) / IDS_FILE
    try:
        return read_ids(path)
    except FileNotFoundError:
        pass
    except (OSError, ValueError):
        place.report(f"{path} is damaged, so this becomes a new run in the trackers")
    return {}


def _opened(name: str, place: Place, previous_id: str | None) -> Any:
    module = import_module(f"unimp.tracking.{name}")
    try:
        return module.Run(replace(place, previous_id=previous_id))
    except UnimpError:
        raise
    except ImportError as error:
        raise UnimpError(
            f"--log {name} needs a package that is not installed ({error}). Install it with "
            f'pip install "unimp[{name}]"'
        ) from error
    except (Exception, SystemExit) as error:  # these libraries raise errors of many types
        why = str(error).strip().rstrip(".")
        raise UnimpError(f"--log {name} cannot be opened: {why}. {module.HINT}.") from error

"""TensorBoard: event files in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from unimp.tracking.trackers import Ending, Place, Values

HINT = "Training works without it"


class Run:
    """The event files of one run."""

    id = None

    def __init__(self, place: Place) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = place.folder or Path("runs") / f"{place.recipe.name}-seed-{place.seed}"
        self._folder, self._open = str(folder / "tensorboard"), cast("Any", SummaryWriter)
        self._writer: Any = None

    def epoch(self, values: Values, epoch: int) -> None:
        if self._writer is None:  # a resumed run replaces the epochs from here on
            self._writer = self._open(self._folder, purge_step=epoch)
        for name, value in values.items():
            self._writer.add_scalar(name, value, epoch)

    scores = epoch

    def close(self, ending: Ending) -> None:
        if self._writer is not None:
            self._writer.close()

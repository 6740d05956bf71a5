"""Weights & Biases: one run in the project `unimp`, or in the project that WANDB_PROJECT names."""

from __future__ import annotations

import os
import secrets

from unimp.errors import UnimpError
from unimp.tracking.trackers import Ending, Place, Values

HINT = "Run wandb login, or set WANDB_MODE=offline to send nothing now"
EXIT_CODES = {"finished": 0, "interrupted": 255, "failed": 1}  # those that W&B uses itself


class Run:
    """One run in W&B; a resumed run keeps its id."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # the user did not request them
        import wandb

        if wandb.run is not None:
            raise UnimpError(
                "--log wandb: a W&B run is already open in this process. Call wandb.finish() first."
            )
        self.id = place.previous_id or secrets.token_hex(8)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "unimp",
            name=f"{place.recipe.name} seed {place.seed}",
            config={**place.recipe.model_dump(), "seed": place.seed},
            id=self.id,
            resume="allow",
            dir=str(place.folder.resolve()) if place.folder else None,
        )

    def epoch(self, values: Values, epoch: int) -> None:
        self._run.log(dict(values), step=epoch)

    scores = epoch

    def close(self, ending: Ending) -> None:
        self._run.finish(exit_code=EXIT_CODES[ending])

"""MLflow: one run at MLFLOW_TRACKING_URI, or in MLflow's own files in the current folder."""

from __future__ import annotations

import os

from unimp.tracking.trackers import Ending, Place, Values

HINT = "MLFLOW_TRACKING_URI names the server; without it, MLflow uses files in this folder"
STATES = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


class Run:
    """One run in MLflow, inside the run of the caller if there is one; a resumed run continues."""

    def __init__(self, place: Place) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # the user did not request it
        import mlflow

        self._mlflow, self._last_epoch = mlflow, 0
        nested = mlflow.active_run() is not None
        if place.previous_id is not None and not self._is_missing(place):
            history = mlflow.MlflowClient().get_metric_history(place.previous_id, "loss")
            self._last_epoch = max((point.step for point in history), default=0)
            self.id = mlflow.start_run(run_id=place.previous_id, nested=nested).info.run_id
            return
        self.id = mlflow.start_run(
            run_name=f"{place.recipe.name} seed {place.seed}", nested=nested
        ).info.run_id
        mlflow.log_params({**place.recipe.settings(), "seed": place.seed})

    def _is_missing(self, place: Place) -> bool:
        """Return whether the earlier run was deleted; raise an error that may be temporary."""
        try:
            found = self._mlflow.MlflowClient().get_run(place.previous_id)
            reason = "it was deleted" if found.info.lifecycle_stage == "deleted" else ""
        except self._mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            reason = str(error)
        if reason:
            place.report(f"mlflow: run {place.previous_id} is missing ({reason}); starting another")
        return bool(reason)

    def epoch(self, values: Values, epoch: int) -> None:
        if epoch > self._last_epoch:  # the run before it was resumed has sent the others
            self.scores(values, epoch)

    def scores(self, values: Values, epoch: int) -> None:
        if values:
            self._mlflow.log_metrics(dict(values), step=epoch)

    def close(self, ending: Ending) -> None:
        self._mlflow.end_run(STATES[ending])

"""Several seeds of one recipe, and their summary."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from unimp.analysis.table import Table
from unimp.config.run_files import SUMMARY
from unimp.runs.folder.files import write_json
from unimp.runs.run import Run
from unimp.tasks.means import mean_and_std, mean_text


@dataclass(frozen=True)
class Runs(Sequence[Run]):
    """The runs of several seeds, in the order of the seeds."""

    runs: tuple[Run, ...]
    folder: Path | None = None

    @property
    def summary(self) -> Table:
        """Mean and standard deviation over seeds: one row per label protocol and set."""
        import pyarrow as pa

        rows = [
            {"labels_as_inputs": protocol, "set": name, **values}
            for protocol, sets in self.scores.items()
            for name, values in sets.items()
        ]
        return Table(pa.Table.from_pylist(rows))

    @property
    def scores(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Per protocol and set: mean, unbiased standard deviation, and the value of each seed."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for protocol, sets in self.runs[0].metrics["scores"].items():
            found[protocol] = {}
            for name in sets:
                values = [run.metrics["scores"][protocol][name] for run in self.runs]
                mean, std = mean_and_std(values)
                found[protocol][name] = {"mean": mean, "std": std, "values": values}
        return found

    def with_summary(self) -> Runs:
        """Write summary.json into the folder of the runs, if they have one, and return them."""
        if self.folder is not None:
            first = self.runs[0]
            summary = {
                "recipe": first.recipe.name,
                "metric": first.task.metric,
                "seeds": [run.seed for run in self.runs],
                "scores": self.scores,
                "parameters": first.metrics["parameters"],
                "device": first.device,
                "command": sys.argv,
            }
            write_json(self.folder / SUMMARY, summary)
        return self

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, index: int | slice) -> Run | tuple[Run, ...]:
        return self.runs[index]

    def __len__(self) -> int:
        return len(self.runs)

    def __repr__(self) -> str:
        first = self.runs[0]
        lines = [f"Runs({first.recipe.name!r}, {len(self)} seeds, {first.task.metric} in %)"]
        for protocol, sets in self.scores.items():
            text = ", ".join(f"{n} {mean_text(values['values'])}" for n, values in sets.items())
            inputs = f"{protocol} labels" if first.takes_labels else "no labels"
            lines.append(f"  {inputs} as inputs: {text}")
        return "\n".join(lines + ([f"  stored in {self.folder}"] if self.folder else []))

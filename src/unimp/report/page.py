"""The page: results first, then charts, then where the numbers come from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from unimp.config.recipe import DECLARED, Recipe
from unimp.inference.reliability import calibration_in_words
from unimp.report import maps, plots
from unimp.report.drawing import STYLES
from unimp.report.evidence import Evidence
from unimp.report.explanation import newest
from unimp.report.groups import Comparison, Group, compare, differing, values_of
from unimp.report.plots import CROWD, METRICS, PARTS
from unimp.report.rendering import render
from unimp.tasks.means import mean_and_std


def page_html(runs: Sequence[Evidence]) -> str:
    """The page about some runs: one self-contained HTML file."""
    comparisons = compare(runs)
    abouts = {run.recipe.about for run in runs}
    return render(
        "report.html",
        title=_title(comparisons),
        about=abouts.pop() if len(abouts) == 1 else "",
        sections=[Section(one) for one in comparisons],
        runs=runs,
        protocols=dict.fromkeys(str(run.manifest.get("protocol", "")) for run in runs),
    )


class Section:
    """The values that the templates show about the recipes for one task."""

    def __init__(self, comparison: Comparison) -> None:
        self.groups, self.runs = comparison.groups, comparison.runs
        self.task, self.metric = comparison.task, METRICS[comparison.metric]
        self.metric_key = comparison.metric
        self.drawn = plots.drawn(self.groups)
        self.trained = [(style, g) for style, g in self.drawn if any(r.history for r in g.runs)]
        by_score = sorted(self.drawn, key=lambda entry: -np.nan_to_num(entry[1].mean("val")))
        self.ranked = [group for _, group in by_score]

    @property
    def tie(self) -> bool:
        """Whether a recipe that charts leave out is as good as one that they show."""
        means = sorted((float(np.nan_to_num(g.mean("val"))) for g in self.groups), reverse=True)
        return len(means) > STYLES and math.isclose(means[STYLES - 1], means[STYLES])

    @property
    def majority(self) -> float | None:
        """The score of always predicting the most frequent class of the test nodes."""
        every = [run.nodes for run in self.runs if run.nodes is not None]
        labels = [n.label for n in every if n.part == "test" and n.prediction is not None]
        shares = [float(np.bincount(label.astype(np.int64)).max()) / len(label) for label in labels]
        return mean_and_std(shares)[0] if shares and self.metric_key == "accuracy" else None

    @property
    def missing(self) -> dict[str, str]:
        """Why tasks cannot be loaded, by their names."""
        return {run.recipe.task.name: run.missing for run in self.runs if run.missing}

    @property
    def no_label_rates(self) -> dict[str, list[str]]:
        """The recipes without a label-rate curve, by the reason."""
        reasons: dict[str, dict[str, None]] = {}
        for _, group in self.drawn:
            for run in group.runs:
                if run.no_label_rates and not run.missing:
                    reasons.setdefault(run.no_label_rates, {})[group.name] = None
        return {reason: list(names) for reason, names in reasons.items()}

    @property
    def map_of(self) -> tuple[Evidence, list[maps.Panel]] | None:
        """The maps of the first run of the best recipe whose nodes have positions."""
        for run in (run for group in self.ranked for run in group.runs):
            if run.places is not None:
                part = PARTS[run.nodes.part] if run.nodes else "test"
                return run, maps.panels(run.places, takes_labels=run.takes_labels, part=part)
        return None

    @property
    def calibrations(self) -> list[str]:
        """One line per recipe on how its confidence was calibrated."""
        return [
            f"{group.name}, {calibration_in_words([r.metrics['calibration'] for r in group.runs])}"
            for _, group in self.drawn
        ]

    @property
    def confusions(self) -> list[tuple[Group, list[str], plots.Matrix]]:
        """The confusion matrices, that of the best recipe first."""
        found = [(group, plots.confusion_of(group)) for group in self.ranked]
        return [(group, *matrix) for group, matrix in found if matrix is not None]

    @property
    def ties(self) -> int:
        """How many recipes have the best validation score; 0 if there is none."""
        best, *others = (group.mean("val") for group, *_ in self.confusions)
        return 0 if math.isnan(best) else 1 + sum(math.isclose(best, other) for other in others)

    @property
    def explanations(self) -> dict[str, Any]:
        named = [
            (f"{g.name}, seed {run.manifest['seed']}", run) for g in self.groups for run in g.runs
        ]
        return newest([(name, run.explanations) for name, run in named])

    @property
    def option_table(self) -> dict[str, Any]:
        """The options in which recipes differ; of one recipe, those that are not the default."""
        usual = values_of(Recipe())
        values = [values_of(group.recipe) for group in self.groups]
        unlike = differing([group.recipe for group in self.groups])
        return {
            "differ": bool(unlike),
            "keys": unlike or [key for key in usual if values[0][key] != usual[key]],
            "usual": usual,
            "recipes": list(zip(self.groups, values, strict=True)),
            "help": {key: declared.description for key, declared in DECLARED.items()},
            "crowded": len(self.groups) > CROWD,
        }


def _title(comparisons: Sequence[Comparison]) -> str:
    groups = [group for one in comparisons for group in one.groups]
    if len(groups) == 1:
        several = "s" if len(groups[0].runs) > 1 else ""
        return f"{groups[0].name}, seed{several} {groups[0].seeds}"
    tasks = [one.task for one in comparisons]
    named = " and ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    return f"{len(groups)} recipes on {named}"

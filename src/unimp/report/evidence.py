"""What a page shows of one run: its folder's files, and what only the task and the model can tell.

The files alone give scores, curves, and for classes the predictions beside the labels. The task
adds in-edges and known in-neighbors, and for binary tasks the labels; the model adds the label-rate
curve. Where they are not there any more the page says so and does without.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from unimp.analysis.predictions import known_in_neighbors
from unimp.config.recipe import Recipe
from unimp.errors import RunError, UnimpError
from unimp.report.kept import Explanations, kept_explanations
from unimp.report.measures import Array
from unimp.runs.folder.files import read_run
from unimp.runs.folder.names import CHECKPOINT
from unimp.runs.preparation import task_of
from unimp.runs.run import Run, load_run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import is_known, mask_of
from unimp.tasks.task import Task

LABEL_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
QUICK = 2.0  # seconds that a label-rate curve may add to `unimp train`


@dataclass(frozen=True)
class ScoredNodes:
    """The nodes of the test set whose labels are known (of the val set, where there are none).

    Classes: label, prediction and confidence are [n]. Binary tasks: label and probability are
    [n, T].
    """

    part: str  # "test" or "val"
    names: tuple[str, ...]  # of classes or binary tasks
    label: Array
    probability: Array
    prediction: Array | None = None  # None: binary tasks
    in_edges: Array | None = None  # [n]; None: the task is not there
    known_neighbors: Array | None = None  # [n]; in-neighbors whose label is observed


@dataclass(frozen=True)
class Evidence:
    """One run, as far as it can be told."""

    folder: Path
    recipe: Recipe
    metrics: Mapping[str, Any]
    manifest: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    sizes: Mapping[str, int]  # nodes, and of these in train, val and test
    classes: int = 0  # or binary tasks; 0: only the task could tell
    nodes: ScoredNodes | None = None
    label_rates: Sequence[tuple[float, float]] = ()  # share of train labels revealed, score
    missing: str = ""  # why the task's part is not here
    no_label_rates: str = ""  # why the curve is not here
    explanations: Explanations = field(default_factory=Explanations)  # those asked for

    @property
    def takes_labels(self) -> bool:
        """Whether labels are inputs: only then is there a second protocol."""
        return "train+val" in self.metrics["scores"]

    @property
    def own_model(self) -> str:
        """The name of a model of one's own, of which the recipe says nothing; else empty."""
        return str(self.manifest.get("model") or "")

    def score(self, part: str, protocol: str = "train") -> float | None:
        """A score, where there is one."""
        value = self.metrics["scores"].get(protocol, {}).get(part)
        return None if value is None else float(value)


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The run folders among `places` and within them, each once; seed-2 comes before seed-10."""
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise RunError(f"there is no folder {place}")
        if (place / "manifest.json").is_file():
            found.append(place)
            continue
        within = [path.parent for path in place.rglob("manifest.json")]
        if not within:
            raise RunError(
                f"{place} holds no finished run: there is no manifest.json in it or below it"
            )
        found += sorted(within, key=_natural)
    return list({path.resolve(): path for path in found}.values())


def find_unfinished(places: Sequence[Path]) -> list[Path]:
    """The folders among `places` and within them whose run was begun and not finished."""
    found = {path.parent for place in places for path in place.rglob(CHECKPOINT)}
    return sorted((f for f in found if not (f / "manifest.json").is_file()), key=_natural)


def gather(folder: Path, run: Run | None = None, *, label_rates: bool | None = None) -> Evidence:
    """Everything there is about a run; `run` saves loading its data and weights again.

    label_rates: whether to make the curve, by predicting with other shares of the train labels
    revealed; None: only if that takes less than QUICK seconds.
    """
    recipe, metrics, manifest = read_run(folder)
    evidence = Evidence(
        folder,
        recipe,
        metrics,
        manifest,
        _read_history(folder),
        {},
        explanations=kept_explanations(folder),
    )
    task, no_model = None, ""
    try:
        run = run or load_run(folder)
        task = run.task
    except (UnimpError, OSError) as error:
        task = _task_alone(evidence) if evidence.own_model else None
        no_model = str(error)
        evidence = evidence if task else replace(evidence, missing=no_model)
    evidence = _with_predictions(evidence, task)
    if not evidence.takes_labels:
        return replace(evidence, no_label_rates="its model takes no labels as inputs")
    if run is None or evidence.nodes is None or evidence.score(evidence.nodes.part) is None:
        reason = no_model or evidence.missing or "there is nothing to score"
        return replace(evidence, no_label_rates=reason)
    needed = (len(LABEL_RATES) - 1) * _slowest_pass(evidence)
    if label_rates or (label_rates is None and needed < QUICK):
        return replace(evidence, label_rates=label_rate_curve(run, evidence.nodes.part))
    return replace(evidence, no_label_rates="not made here; unimp report makes it")


def label_rate_curve(run: Run, part: str) -> list[tuple[float, float]]:
    """Scores with a share of the train labels revealed, each share a part of the next.

    What a trained model makes of fewer labels; nothing is retrained.
    """
    task, curve = run.task, []
    for rate in LABEL_RATES:
        if rate == 1.0:
            curve.append((rate, float(run.metrics["scores"]["train"][part])))
            continue
        scores = run.outputs(run.observed_share(rate))
        curve.append((rate, score_split(scores, task, "train")[part]))
    return [(rate, value) for rate, value in curve if math.isfinite(value)]


def _task_alone(evidence: Evidence) -> Task | None:
    """The task of a run whose model is one's own, and needs more than its folder to be loaded."""
    try:
        task = task_of(evidence.recipe, evidence.manifest["seed"])
    except (UnimpError, OSError):
        return None
    return task if task.data_hash() == evidence.manifest["data_hash"] else None


def _read_history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "history.jsonl"
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {path}: {error}") from error


def _with_predictions(evidence: Evidence, task: Task | None) -> Evidence:
    """Add what predictions.parquet says of the scored nodes, and what the task says of them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    path = evidence.folder / "predictions.parquet"
    try:
        table = pyarrow.parquet.ParquetFile(path).read()  # read_table would import pandas
    except (OSError, pa.ArrowInvalid) as error:
        return replace(evidence, missing=evidence.missing or f"cannot read {path.name}: {error}")
    sets = {part: pc.equal(table["set"], part).to_numpy() for part in ("train", "val", "test")}
    sizes = {"nodes": table.num_rows, **{part: int(chosen.sum()) for part, chosen in sets.items()}}
    evidence = replace(evidence, sizes=sizes, classes=task.num_classes if task else 0)
    classes = "label" in table.column_names
    if classes:
        known = pc.is_valid(table["label"]).to_numpy()
    elif task is not None:
        known = is_known(task.labels).numpy()
    else:
        return evidence
    part = next((p for p in ("test", "val") if bool((sets[p] & known).any())), None)
    if part is None:
        return evidence
    rows = np.flatnonzero(sets[part] & known)
    if classes:
        chosen = table.select(["label", "prediction", "confidence"]).take(pa.array(rows))
        names = pc.unique(pa.chunked_array([*chosen["label"].chunks, *chosen["prediction"].chunks]))
        nodes = ScoredNodes(
            part,
            tuple(names.to_pylist()),
            pc.index_in(chosen["label"], names).to_numpy(),
            chosen["confidence"].to_numpy(),
            pc.index_in(chosen["prediction"], names).to_numpy(),
        )
    else:
        assert task is not None
        columns = [name for name in table.column_names if name.startswith("p_")]
        chances = np.stack([table[name].to_numpy()[rows] for name in columns], 1)
        names = tuple(name.removeprefix("p_") for name in columns)
        nodes = ScoredNodes(part, names, task.labels.numpy()[rows], chances)
    if task is not None:
        trained = mask_of(task.split.train, task.graph.num_nodes)
        nodes = replace(
            nodes,
            in_edges=task.graph.in_degree.numpy()[rows],
            known_neighbors=known_in_neighbors(task.graph, trained).numpy()[rows],
        )
    return replace(evidence, nodes=nodes)


def _slowest_pass(evidence: Evidence) -> float:
    """Seconds that a prediction takes at most: an epoch that ended with one took longer."""
    scored = [line["seconds"] for line in evidence.history if "val" in line or "test" in line]
    return float(min(scored, default=evidence.metrics["seconds"]))


def _natural(path: Path) -> list[tuple[int, float, str]]:
    """Names in the order people expect: numbers by their size, 0.125 before 0.5."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(1, float(p), "") if number % 2 else (0, 0.0, p) for number, p in enumerate(parts)]

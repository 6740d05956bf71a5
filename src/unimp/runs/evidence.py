"""Gather what a report shows about a run from its folder, its task and its model."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unimp.analysis.predictions import known_in_neighbors
from unimp.config.run_files import (
    CHECKPOINT,
    MANIFEST,
    MEMBERS,
    PREDICTIONS,
    REFIT,
    is_finished,
    is_started,
)
from unimp.errors import RunError, UnimpError
from unimp.report.evidence import Evidence, PlacedNodes, ScoredNodes
from unimp.runs.folder.explanations import stored_explanations
from unimp.runs.folder.files import read_history, read_part, read_run
from unimp.runs.folder.schemas import FIX
from unimp.runs.loading import load_run
from unimp.runs.preparation import data_hash_of, task_of
from unimp.runs.run import Run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import is_known, mask_of
from unimp.tasks.names import class_names
from unimp.tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
QUICK = 2.0  # seconds that a label-rate curve may add to `unimp train`


def find_runs(places: Sequence[Path]) -> list[Path]:
    """The folders of finished runs at and below `places`, each once; seed-2 is before seed-10."""
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            raise RunError(f"there is no folder {place}")
        if (place / MANIFEST).is_file():
            found.append(place)
            continue
        # The members of an ensemble are parts of its run.
        within = [p.parent for p in place.rglob(MANIFEST) if not _is_member(p.parent)]
        if not within:
            raise RunError(
                f"{place} contains no finished run: there is no {MANIFEST} in it or below it"
            )
        found += sorted(within, key=_natural)
    return list({path.resolve(): path for path in found}.values())


def _is_member(folder: Path) -> bool:
    """Whether a run is a member of the ensemble in the folder above."""
    inside = folder.parent.name in (MEMBERS, REFIT)
    return inside and (is_finished(folder.parents[1]) or is_started(folder.parents[1]))


def find_unfinished(places: Sequence[Path]) -> list[Path]:
    """The folders at and below `places` whose run was started and not finished."""
    found = {path.parent for place in places for path in place.rglob(CHECKPOINT)}
    return sorted((f for f in found if not (f / MANIFEST).is_file()), key=_natural)


def gather(folder: Path, run: Run | None = None, *, label_rates: bool | None = None) -> Evidence:
    """Everything that is known about a run; pass `run` to avoid loading it again.

    label_rates: whether to compute the curve, which predicts with several shares of the train
    labels revealed; None: only if that takes less than QUICK seconds.
    """
    recipe, metrics, manifest = read_run(folder)
    stored = stored_explanations(folder)
    history = read_history(folder, manifest)
    evidence = Evidence(folder, recipe, metrics, manifest, history, explanations=stored)
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
        return replace(evidence, no_label_rates="its model does not take labels as inputs")
    if run is not None and run.is_refitted:
        reason = "it was trained again on validation labels"
        return replace(evidence, no_label_rates=reason)
    if run is None or evidence.nodes is None or evidence.score(evidence.nodes.part) is None:
        reason = no_model or evidence.missing or "there are no labels to score"
        return replace(evidence, no_label_rates=reason)
    needed = (len(LABEL_RATES) - 1) * _slowest_pass(evidence)
    if label_rates or (label_rates is None and needed < QUICK):
        return replace(evidence, label_rates=label_rate_curve(run, evidence.nodes.part))
    return replace(evidence, no_label_rates="it takes long; run unimp report to compute it")


def label_rate_curve(run: Run, part: str) -> list[tuple[float, float]]:
    """Scores of the trained model with a share of the train labels revealed.

    Each set of revealed labels contains the smaller ones. Nothing is trained again.
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
    """The task of a run with a custom model, which cannot be loaded from the folder alone."""
    try:
        task = task_of(evidence.recipe, evidence.manifest["seed"])
    except (UnimpError, OSError):
        return None
    same = data_hash_of(evidence.recipe, task) == evidence.manifest["data_hash"]
    return task if same else None


def _with_predictions(evidence: Evidence, task: Task | None) -> Evidence:
    """Add the scored nodes of predictions.parquet, and what the task knows about them."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    data = read_part(evidence.folder / PREDICTIONS, evidence.manifest)
    try:  # read_table would import pandas
        table = pyarrow.parquet.ParquetFile(pa.BufferReader(data)).read()
    except (OSError, pa.ArrowInvalid) as error:
        raise RunError(f"cannot read {evidence.folder / PREDICTIONS}: {error}. {FIX}") from error
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
    rows = np.flatnonzero(sets[part] & known) if part else np.arange(0)
    if task is not None and classes and task.positions is not None:
        evidence = replace(evidence, places=_placed(table, task, sets["train"], rows))
    if part is None:
        return evidence
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


def _placed(table: pa.Table, task: Task, train: Any, scored: Any) -> PlacedNodes:
    """Positions, labels and predictions of all nodes; `scored` are the rows that are scored."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert task.positions is not None
    names = tuple(str(name) for name in class_names(task))
    value_set = pa.array(names)
    labels, predictions = (
        pc.fill_null(pc.index_in(table[column], value_set), -1).to_numpy()
        for column in ("label", "prediction")
    )
    right = np.full(len(labels), -1)
    right[scored] = labels[scored] == predictions[scored]
    confidence = pc.fill_null(table["confidence"], math.nan).to_numpy()
    return PlacedNodes(
        task.positions.numpy(),
        names,
        known=np.where(train, labels, -1),
        prediction=np.where(np.isfinite(confidence), predictions, -1),
        confidence=confidence,
        right=right,
    )


def _slowest_pass(evidence: Evidence) -> float:
    """An upper bound of the seconds per prediction: an epoch that ended with one took longer."""
    scored = [line["seconds"] for line in evidence.history if "val" in line or "test" in line]
    return float(min(scored, default=evidence.metrics["seconds"]))


def _natural(path: Path) -> list[tuple[int, float, str]]:
    """A key that sorts numbers in names by size: 0.125 before 0.5, 2 before 10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(1, float(p), "") if number % 2 else (0, 0.0, p) for number, p in enumerate(parts)]

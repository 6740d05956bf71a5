"""Gather what a report shows about a run from its folder, its task and its model."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from unimp.config.run_files import (
    CHECKPOINT,
    MANIFEST,
    MEMBERS,
    REFIT,
    WEIGHTS,
    is_finished,
    is_started,
)
from unimp.errors import RunError, UnimpError
from unimp.report.evidence import Evidence, PlacedNodes, ScoredNodes
from unimp.runs.folder.explanations import stored_explanations
from unimp.runs.folder.facts import LABEL_RATES, Facts, store_facts, stored_facts
from unimp.runs.folder.files import check_part, check_task, failure_of, read_history, read_run
from unimp.runs.folder.predictions import read_predictions
from unimp.tasks.known import is_known
from unimp.training.interruption import signals_held

if TYPE_CHECKING:
    import pyarrow as pa

    from unimp.runs.run import Run

LOG = logging.getLogger("unimp")
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


def gather(
    folder: Path, run: Run | None = None, *, label_rates: bool | None = None, store: bool = False
) -> Evidence:
    """Everything that is known about a run; pass `run` to avoid loading it again.

    label_rates: whether to show the label-rate curve, which needs predictions with several shares
    of the train labels revealed; None: only if it is stored, or if computing it takes less than
    QUICK seconds. store: whether to store what was computed from the task and the model. The next
    call then loads neither of them, nor torch; it only checks that they are still those of the run.
    """
    recipe, metrics, manifest = read_run(folder)
    stored = stored_explanations(folder)
    history = read_history(folder, manifest)
    evidence = Evidence(folder, recipe, metrics, manifest, history, explanations=stored)
    table = read_predictions(folder, manifest, _shown)
    before = facts = stored_facts(folder, manifest, table.num_rows)
    if facts is None or (run is None and not _is_unchanged(evidence)):
        facts, run, reason = _computed(evidence, run)
        evidence = replace(evidence, missing="" if facts else reason, no_label_rates=reason)
    elif run is None and (failure := failure_of(metrics)):  # `load_run` states it otherwise
        LOG.warning(f"{folder}: {failure}")
    evidence = _with_predictions(evidence, table, facts)
    if reason := _no_curve(evidence):
        evidence = replace(evidence, no_label_rates=reason)
    elif facts is not None and label_rates is not False and facts.label_rates is None:
        needed = (len(LABEL_RATES) - 1) * _slowest_pass(evidence)
        if label_rates or needed < QUICK:
            facts, evidence = _with_curve(facts, evidence, run)
    if facts is not None and not evidence.no_label_rates:
        if label_rates is not False and facts.label_rates is not None:
            evidence = replace(evidence, label_rates=facts.label_rates)
        else:
            reason = "it takes long; run unimp report to compute it"
            evidence = replace(evidence, no_label_rates=reason)
    if store and facts is not None and facts is not before:
        with suppress(OSError):  # the folder may be read-only
            store_facts(folder, manifest, facts)
    return evidence


def _shown(columns: Sequence[str]) -> list[str]:
    """The columns of predictions.parquet that a report uses."""
    if "label" in columns:
        return ["set", "label", "prediction", "confidence"]
    return ["set", *(name for name in columns if name.startswith("p_"))]


def _is_unchanged(evidence: Evidence) -> bool:
    """Whether the stored task and the weights of a run are those that it wrote."""
    try:
        check_task(evidence.recipe, evidence.manifest)
        check_part(evidence.folder / WEIGHTS, evidence.manifest)
    except (UnimpError, OSError):
        return False
    return True


def _computed(evidence: Evidence, run: Run | None) -> tuple[Facts | None, Run | None, str]:
    """The facts about a run from its task, the run, and the reason if it cannot be loaded."""
    with signals_held():  # torch ignores an interrupted import of numpy, and later code fails
        from unimp.runs.facts import facts_of, task_alone
        from unimp.runs.loading import load_run

    try:
        run = run or load_run(evidence.folder)
    except (UnimpError, OSError) as error:
        task = task_alone(evidence.recipe, evidence.manifest) if evidence.own_model else None
        return facts_of(task) if task else None, None, str(error)
    return facts_of(run.task), run, ""


def _no_curve(evidence: Evidence) -> str:
    """Why a run has no label-rate curve; empty if it can have one."""
    if not evidence.takes_labels:
        return "its model does not take labels as inputs"
    if (evidence.metrics.get("ensemble") or {}).get("refitted"):
        return "it was trained again on validation labels"
    if evidence.nodes is None or evidence.score(evidence.nodes.part) is None:
        return evidence.no_label_rates or "no known label can be scored"
    return evidence.no_label_rates


def _with_curve(facts: Facts, evidence: Evidence, run: Run | None) -> tuple[Facts, Evidence]:
    """Add the label-rate curve, or why the model that computes it cannot be loaded."""
    with signals_held():
        from unimp.runs.facts import label_rate_curve
        from unimp.runs.loading import load_run

    assert evidence.nodes is not None
    try:
        run = run or load_run(evidence.folder)
    except (UnimpError, OSError) as error:
        return facts, replace(evidence, no_label_rates=str(error))
    return replace(facts, label_rates=label_rate_curve(run, evidence.nodes.part)), evidence


def _with_predictions(evidence: Evidence, table: pa.Table, facts: Facts | None) -> Evidence:
    """Add the scored nodes of predictions.parquet, and what the task knows about them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    sets = {part: pc.equal(table["set"], part).to_numpy() for part in ("train", "val", "test")}
    sizes = {"nodes": table.num_rows, **{part: int(chosen.sum()) for part, chosen in sets.items()}}
    if facts is not None and len(facts.in_edges) != table.num_rows:
        facts = None
    evidence = replace(evidence, sizes=sizes, classes=len(facts.names) if facts else 0)
    classes = "label" in table.column_names
    if classes:
        known = pc.is_valid(table["label"]).to_numpy()
    elif facts is not None and facts.labels is not None:
        known = is_known(facts.labels)
    else:
        return evidence
    part = next((p for p in ("test", "val") if bool((sets[p] & known).any())), None)
    rows = np.flatnonzero(sets[part] & known) if part else np.arange(0)
    if facts is not None and classes and facts.positions is not None:
        evidence = replace(evidence, places=_placed(table, facts, sets["train"], rows))
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
        assert facts is not None
        assert facts.labels is not None
        columns = [name for name in table.column_names if name.startswith("p_")]
        chances = np.stack([table[name].to_numpy()[rows] for name in columns], 1)
        names = tuple(name.removeprefix("p_") for name in columns)
        nodes = ScoredNodes(part, names, facts.labels[rows], chances)
    if facts is not None:
        nodes = replace(
            nodes,
            in_edges=facts.in_edges[rows],
            known_neighbors=facts.known_neighbors[rows],
        )
    return replace(evidence, nodes=nodes)


def _placed(table: pa.Table, facts: Facts, train: Any, scored: Any) -> PlacedNodes:
    """Positions, labels and predictions of all nodes; `scored` are the rows that are scored."""
    import pyarrow as pa
    import pyarrow.compute as pc

    assert facts.positions is not None
    value_set = pa.array(facts.names)
    labels, predictions = (
        pc.fill_null(pc.index_in(table[column], value_set), -1).to_numpy()
        for column in ("label", "prediction")
    )
    right = np.full(len(labels), -1)
    right[scored] = labels[scored] == predictions[scored]
    confidence = pc.fill_null(table["confidence"], math.nan).to_numpy()
    return PlacedNodes(
        facts.positions,
        facts.names,
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

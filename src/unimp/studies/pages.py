"""What a study leaves: a page of Markdown, the same as JSON, and drawings of its figure."""

from __future__ import annotations

import math
import os
import platform
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.runs.folder.files import write_json
from unimp.studies.cells import Subject
from unimp.studies.paper import Number
from unimp.studies.study import (
    VERDICT,
    BySeed,
    Column,
    Findings,
    Outcomes,
    Row,
    Study,
    Table,
    deviation,
    mean,
    number_text,
    score_text,
)


def write_pages(
    study: Study,
    outcomes: Outcomes,
    findings: Findings,
    made: Mapping[str, Any],
    page: Path,
    drawing: Path | None,
) -> None:
    """Write a study's page, and the same as JSON beside it."""
    write_json(page.with_suffix(".json"), as_json(study, outcomes, findings, made))
    write_atomically(page, markdown(study, findings, made, drawing).encode())


def provenance(
    study: Study, subject: Subject, outcomes: Outcomes, findings: Findings
) -> dict[str, Any]:
    """Where numbers come from: task, seeds, protocol, command, hardware, versions."""
    manifests = [m for outcome in outcomes.values() for m in outcome.manifests.values()]
    devices = sorted({f"{m['device']}, threads: {m['threads']}" for m in manifests})
    versions = sorted(
        {
            f"unimp {m['versions']['unimp']}, torch {m['versions']['torch']}, "
            f"Python {m['versions']['python']}"
            for m in manifests
        }
    )
    here = f"cpu: {platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    now = f"unimp {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    train = subject.recipe.train
    options = subject.options if findings.uses_task else ()
    return {
        "task": named(subject.recipe.task.name) if findings.uses_task else "synthetic",
        "recipe": subject.recipe.name if findings.uses_task else "",
        "metric": subject.metric,
        "settings": [given for flag, given in pairwise(options) if flag == "--set"],
        "seeds": list(subject.seeds) if findings.uses_task else [0],
        "epochs": train.epochs,
        "quick": subject.quick and findings.uses_task,
        "protocol": findings.protocol,
        "command": shlex.join(["unimp", "reproduce", study.name, *options]),
        "hardware": devices or [here],
        "versions": versions or [now],
        "numpy": np.__version__,
        "paper": f"{study.place} of Shi et al., IJCAI 2021 (arXiv 2009.03509)",
    }


def named(task: str) -> str:
    """A task's name; of a file its name alone, as where it lies says nothing to a reader."""
    return Path(task).name if task.endswith(".npz") else task


def markdown(
    study: Study, findings: Findings, made: Mapping[str, Any], drawing: Path | None
) -> str:
    lines = [f"# {study.heading} ({study.place})", ""]
    if made["quick"]:
        lines += [f"**A quick look: {made['epochs']} epochs a run. Not a result.**", ""]
    if findings.uses_task:
        seeds = ", ".join(map(str, made["seeds"]))
        settings = f" with {', '.join(made['settings'])}" if made["settings"] else ""
        lines += [f"Task {made['task']}, recipe {made['recipe']}{settings}; seeds {seeds}."]
    lines += [f"Protocol: {findings.protocol}.", ""]
    if drawing is not None:
        lines += [f"![{study.title}]({drawing.name})", ""]
    for table in findings.tables:
        lines += [*table_lines(table), ""]
    if findings.claims:
        lines += ["| the paper says | where | ours | agrees |", "|---|---|---|---|"]
        for claim in findings.claims:
            lines.append(f"| {claim.sentence} | {claim.place} | {claim.ours} | {claim.agrees} |")
        lines += ["", findings.judged or VERDICT, ""]
    lines += [f"- {note}" for note in findings.notes]
    lines += [f"- {note}" for note in paper_notes(findings.tables)]
    lines += ["", f"`{made['command']}`", ""]
    lines.append(f"Made with {'; '.join(made['versions'])} on {'; '.join(made['hardware'])}.")
    return "\n".join(lines) + "\n"


def table_lines(table: Table) -> list[str]:
    """A table; the paper's numbers and the difference beside ours where it has any."""
    compared = [c for c in table.columns if any(c.key in row.paper for row in table.rows)]
    remarked = any(row.remark for row in table.rows)
    head = list(table.head)
    for column in table.columns:
        head.append(
            column.title + (" in %" if column.kind == "score" and "%" not in column.title else "")
        )
        if column in compared:
            head += [f"paper: {column.title}", "difference"]
    head += ["remark"] if remarked else []
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in table.rows:
        cells = list(row.words)
        for column in table.columns:
            cells.append(own_text(column, row.ours.get(column.key, {})))
            if column in compared:
                cells += [paper_text(column, row), difference_text(column, row)]
        cells += [row.remark] if remarked else []
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def own_text(column: Column, values: BySeed) -> str:
    if column.kind == "count":
        return f"{next(iter(values.values())):,.0f}" if values else "–"
    return score_text(values) if column.kind == "score" else number_text(values)


def paper_text(column: Column, row: Row) -> str:
    number = row.paper.get(column.key)
    if number is None:
        return "–"
    if column.kind == "count":
        return f"{number.value:,.0f}"
    spread = "" if number.std is None else f" ± {100 * number.std:.2f}"
    return f"{100 * number.value:.2f}{spread}"


def difference(column: Column, row: Row) -> float | None:
    """Ours less the paper's, in the units of both; None where one is missing or no number."""
    number, ours = row.paper.get(column.key), mean(row.ours.get(column.key, {}))
    return ours - number.value if number is not None and math.isfinite(ours) else None


def difference_text(column: Column, row: Row) -> str:
    gap = difference(column, row)
    if gap is None:
        return "–"
    return f"{gap:+,.0f}" if column.kind == "count" else f"{100 * gap:+.2f}"


def paper_notes(tables: Iterable[Table]) -> list[str]:
    """What must be said of single numbers of the paper."""
    return [
        f"The paper's {100 * n.value:.2f} ({', '.join(row.words)}): {n.note}."
        if column.kind == "score"
        else f"The paper's {n.value:,.0f} {column.title} ({', '.join(row.words)}): {n.note}."
        for table in tables
        for row in table.rows
        for column in table.columns
        if (n := row.paper.get(column.key, Number(0.0, None, ""))).note
    ]


def as_json(
    study: Study, outcomes: Outcomes, findings: Findings, made: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything the page says, and the values of each seed behind it."""
    tables = [
        {
            "head": list(table.head),
            "rows": [
                {
                    "words": list(row.words),
                    "ours": {k: summary(v) for k, v in row.ours.items()},
                    "paper": {k: asdict(n) for k, n in row.paper.items()},
                    "difference": {
                        c.key: difference(c, row) for c in table.columns if c.key in row.paper
                    },
                    "remark": row.remark,
                }
                for row in table.rows
            ],
        }
        for table in findings.tables
    ]
    figure = None
    if findings.figure is not None:
        f = findings.figure
        every = (*f.series, f.level) if f.level else f.series
        figure = {
            "x": f.x_label,
            "y": f.y_label,
            "series": {
                s.label: [{"x": p.x, "mark": p.mark, **summary(p.y)} for p in s.points]
                for s in every
            },
            "nodes": [count for _, count in f.counts],
        }
    return {
        "study": study.name,
        "title": study.title,
        **made,
        "tables": tables,
        "figure": figure,
        "claims": [asdict(claim) for claim in findings.claims],
        "notes": [*findings.notes, *paper_notes(findings.tables)],
        "cells": {
            name: {
                "train_share": outcome.cell.train_share,
                "recipe": outcome.cell.recipe.model_dump(),
                "failures": outcome.failures,
                "unfit": outcome.cell.unfit,
            }
            for name, outcome in outcomes.items()
        },
    }


def summary(values: BySeed) -> dict[str, Any]:
    """Mean, unbiased deviation, and the value of each seed."""
    return {"mean": mean(values), "std": deviation(values), "by_seed": dict(values)}

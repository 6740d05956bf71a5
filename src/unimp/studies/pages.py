"""The files of a study: its numbers as JSON, and a page and a drawing rendered from them."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
from collections.abc import Iterable, Mapping
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from unimp import __version__
from unimp.data.files import write_atomically
from unimp.runs.folder.files import write_json
from unimp.studies.cells import Subject, changed_settings, recipe_hash
from unimp.studies.drawing import figure_svg
from unimp.studies.study import VERDICT, Column, Findings, Outcomes, Row, Study, Table, mean
from unimp.tasks.means import mean_text
from unimp.tracking.origin import code_origin

FINDINGS = TypeAdapter(Findings)


def write_study(
    study: Study, subject: Subject, outcomes: Outcomes, findings: Findings, folder: Path
) -> Path:
    """Write the numbers, the page and the drawing of a study; return the path of the page."""
    path = folder / f"{study.name}.json"
    found = FINDINGS.dump_python(findings, mode="json", exclude_defaults=True)
    cells = {
        name: {
            "settings": changed_settings(outcome.cell.recipe, subject.recipe),
            "recipe_hash": recipe_hash(outcome.cell.recipe),
            "train_share": outcome.cell.train_share,
            "failures": outcome.failures,
            "unfit": outcome.cell.unfit,
        }
        for name, outcome in outcomes.items()
    }
    made = provenance(study, subject, outcomes, findings)
    stored = {"protocol": findings.protocol, "figure": None, "claims": [], **found, "cells": cells}
    write_json(path, {"study": study.name, "title": study.title, **made, **stored})
    return render(study, path)


def render(study: Study, path: Path) -> Path:
    """Write the page and the drawing of a study from its JSON file; return the page's path."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    findings = FINDINGS.validate_python(stored)
    page, figure, drawing = path.with_suffix(".md"), findings.figure, None
    if figure is not None and any(p.y for s in figure.series for p in s.points):
        drawing = path.with_suffix(".svg")
        write_atomically(drawing, figure_svg(study, findings, stored).encode())
    write_atomically(page, markdown(study, findings, stored, drawing).encode())
    return page


def provenance(
    study: Study, subject: Subject, outcomes: Outcomes, findings: Findings
) -> dict[str, Any]:
    """The origin of the numbers: task, seeds, command, hardware, versions, and commit."""
    manifests = [m for outcome in outcomes.values() for m in outcome.manifests.values()]
    devices = sorted({f"{m['device']}, threads: {m['threads']}" for m in manifests})
    here = f"cpu: {platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    now = {"unimp": __version__, "torch": torch.__version__, "python": platform.python_version()}
    used = [m["versions"] for m in manifests] or [now]
    versions = {f"unimp {v['unimp']}, torch {v['torch']}, Python {v['python']}" for v in used}
    # The code of the runs, and that of this page, which evaluates some of them again.
    code = [*(m["code"] for m in manifests if "code" in m), code_origin()]
    options = subject.options if findings.uses_task else ()
    task = subject.recipe.task.name if findings.uses_task else "synthetic"
    return {
        # Of a file only its name: its folder means nothing to other readers.
        "task": Path(task).name if task.endswith(".npz") else task,
        "recipe": subject.recipe.name if findings.uses_task else "",
        "metric": subject.metric,
        "settings": [given for flag, given in pairwise(options) if flag == "--set"],
        "seeds": list(subject.seeds) if findings.uses_task else [0],
        "epochs": subject.recipe.train.epochs,
        "quick": subject.quick and findings.uses_task,
        "command": shlex.join(["unimp", "reproduce", study.name, *options]),
        "hardware": devices or [here],
        "versions": sorted(versions),
        "numpy": np.__version__,
        "code": [origin for place, origin in enumerate(code) if origin not in code[:place]],
        "paper": f"{study.place} of Shi et al., IJCAI 2021 (arXiv 2009.03509)",
    }


def markdown(
    study: Study, findings: Findings, made: Mapping[str, Any], drawing: Path | None
) -> str:
    lines = [f"# {study.heading} ({study.place})", ""]
    if made["quick"]:
        lines += [f"**Quick check with {made['epochs']} epochs per run. Not a result.**", ""]
    if findings.uses_task:
        seeds = ", ".join(map(str, made["seeds"]))
        settings = f" with {', '.join(made['settings'])}" if made["settings"] else ""
        lines += [plain(f"Task {made['task']}, recipe {made['recipe']}{settings}; seeds {seeds}.")]
    lines += [f"Protocol: {plain(findings.protocol)}.", ""]
    if drawing is not None:
        lines += [f"![{study.title}]({drawing.name})", ""]
    for table in findings.tables:
        lines += [*table_lines(table), ""]
    if findings.claims:
        lines += ["| the paper says | where | ours | agrees |", "|---|---|---|---|"]
        for claim in findings.claims:
            cells = (claim.sentence, claim.place, claim.ours, claim.agrees)
            lines.append(f"| {' | '.join(map(plain, cells))} |")
        lines += ["", findings.judged or VERDICT, ""]
    lines += [f"- {plain(note)}" for note in (*findings.notes, *paper_notes(findings.tables))]
    lines += ["", f"`{' '.join(made['command'].replace('`', chr(39)).split())}`", ""]
    commits = [
        f"{code['commit'][:12]}{' with local changes' if code['dirty'] else ''}"
        for code in made.get("code", ())
        if code["commit"]
    ]
    at = f", at commit {' and '.join(commits)}" if commits else ""
    where = f"Made with {'; '.join(made['versions'])} on {'; '.join(made['hardware'])}{at}."
    lines.append(plain(where))
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """The text as Markdown shows it unchanged: names and settings may contain markup."""
    return " ".join(text.translate(_MARKUP).split())


_MARKUP = {ord(letter): f"&#{ord(letter)};" for letter in "<>[]`|\\"}


def table_lines(table: Table) -> list[str]:
    """A table in Markdown; where the paper has numbers, they and the differences follow ours."""
    compared = [c for c in table.columns if any(c.key in row.paper for row in table.rows)]
    remarked = any(row.remark for row in table.rows)
    head = list(table.head)
    for column in table.columns:
        is_percent = column.kind == "score" and "%" not in column.title
        head.append(f"{column.title} in %" if is_percent else column.title)
        if column in compared:
            head += [f"paper: {column.title}", "difference"]
    head += ["remark"] if remarked else []
    lines = ["| " + " | ".join(map(plain, head)) + " |", "|" + "---|" * len(head)]
    for row in table.rows:
        cells = list(row.words)
        for column in table.columns:
            cells.append(own_text(column, row))
            if column in compared:
                cells += paper_texts(column, row)
        cells += [row.remark] if remarked else []
        lines.append("| " + " | ".join(map(plain, cells)) + " |")
    return lines


def own_text(column: Column, row: Row) -> str:
    values = [*row.ours.get(column.key, {}).values()]
    if column.kind == "count":
        return f"{values[0]:,.0f}" if values else "–"
    return mean_text(values, percent=column.kind == "score")


def paper_texts(column: Column, row: Row) -> tuple[str, str]:
    """The number of the paper, and ours minus the paper's; dashes where there is none."""
    number, ours = row.paper.get(column.key), mean(row.ours.get(column.key, {}))
    if number is None:
        return "–", "–"
    difference = ours - number.value
    if column.kind == "count":
        texts = f"{number.value:,.0f}", f"{difference:+,.0f}"
    else:
        spread = "" if number.std is None else f" ± {100 * number.std:.2f}"
        texts = f"{100 * number.value:.2f}{spread}", f"{100 * difference:+.2f}"
    return texts[0], texts[1] if math.isfinite(ours) else "–"


def paper_notes(tables: Iterable[Table]) -> list[str]:
    """Notes on single numbers of the paper."""
    notes = []
    for table in tables:
        for row, column in product(table.rows, table.columns):
            number = row.paper.get(column.key)
            if number is not None and number.note:
                text = f"{number.value:,.0f} parameters"
                if column.kind == "score":
                    text = f"{100 * number.value:.2f}"
                notes.append(f"The paper's {text} ({', '.join(row.words)}): {number.note}.")
    return notes

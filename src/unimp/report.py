"""What people look at: one HTML file for a run, with no outside requests and no scripts."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unimp.graph.files import write_atomically
from unimp.recipe import Recipe, options
from unimp.run_folder import read_run

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #6b7280; --line: #d8dce2; --page: #fff;
  --loss: #b45309; --val: #1d4ed8; --test: #047857 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #363c44;
  --page: #15181c; --loss: #f0a54a; --val: #7aa2ff; --test: #4ccf9b } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page);
  max-width: 56rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem }
p.soft, td.soft, figcaption { color: var(--soft) }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
td { overflow-wrap: break-word } span.long { overflow-wrap: anywhere }
.score { font-size: 1.4rem; font-weight: 600 }
figure { margin: 0 } svg { width: 100%; height: auto }
svg text { fill: var(--soft); font-size: 11px }
svg .axis { stroke: var(--line) } svg path { fill: none; stroke-width: 1.8 }
.key { font-weight: 600 } .loss { color: var(--loss); stroke: var(--loss) }
.val { color: var(--val); stroke: var(--val) } .test { color: var(--test); stroke: var(--test) }
.key.loss, .key.val, .key.test { stroke: none }
@media (max-width: 40rem) { .recipe td:nth-child(3), .recipe th:nth-child(3) { display: none }
  svg text { font-size: 20px } }
"""


def write_report(folder: Path) -> Path:
    """Write report.html into a finished run's folder, from its other files alone."""
    recipe, metrics, manifest = read_run(folder)
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    path = folder / "report.html"
    text = report_html(recipe, metrics, manifest, [json.loads(line) for line in lines])
    write_atomically(path, text.encode())
    return path


def report_html(
    recipe: Recipe,
    metrics: Mapping[str, Any],
    manifest: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> str:
    """The page as text."""
    parts = [
        f"<h1>{_text(recipe.name)}, seed {manifest['seed']}</h1>",
        f"<p class=soft>{_text(recipe.about)}</p>",
        "<h2>Scores</h2>",
        _scores(metrics),
    ]
    if history:
        parts += ["<h2>Learning</h2>", _curves(history, metrics)]
    parts += ["<h2>Recipe</h2>", _recipe(recipe), "<h2>Manifest</h2>", _manifest(manifest)]
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>{_text(recipe.name)}, seed {manifest['seed']}</title><style>{STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _scores(metrics: Mapping[str, Any]) -> str:
    names = {"train": "train labels (the headline)", "train+val": "train and validation labels"}
    rows = [
        [
            _text(names[protocol]),
            _number(scores.get("val")),
            f"<span class=score>{_number(scores.get('test'))}</span>",
        ]
        for protocol, scores in metrics["scores"].items()
    ]
    table = _table(rows, ["labels as inputs", "validation", f"test {_text(metrics['metric'])}"])
    if metrics["best_epoch"]:
        best = f"best epoch {metrics['best_epoch']} of {metrics['epochs']}"
    else:
        best = (
            f"{metrics['epochs']} epochs, none scored" if metrics["epochs"] else "nothing trained"
        )
    return table + (
        f"<p class=soft>{best}; {_text(metrics['stopped'])}; "
        f"{metrics['parameters']:,} parameters; {metrics['seconds']:g} s</p>"
    )


def _curves(history: Sequence[Mapping[str, Any]], metrics: Mapping[str, Any]) -> str:
    """Loss, validation and test score by epoch, in one plot with an axis on each side."""
    left, right, top, bottom = 44.0, 676.0, 12.0, 232.0
    last: int = max(2, history[-1]["epoch"])
    losses: list[float] = [line["loss"] for line in history if line["loss"] is not None]
    scores: list[float] = [
        line[k] for line in history for k in ("val", "test") if line.get(k) is not None
    ]
    span_loss = (0.0, max(losses, default=1.0) * 1.05 or 1.0)
    low, high = (min(scores), max(scores)) if scores else (0.0, 1.0)
    pad = (high - low) * 0.05 or 0.01
    span_score = (low - pad, high + pad)

    def x(epoch: float) -> float:
        return left + (right - left) * (epoch - 1) / (last - 1)

    def y(value: float, span: tuple[float, float]) -> float:
        return bottom - (bottom - top) * (value - span[0]) / (span[1] - span[0])

    def path(key: str, span: tuple[float, float]) -> str:
        points = [(line["epoch"], line.get(key)) for line in history]
        drawn = " ".join(f"{x(e):.1f},{y(v, span):.1f}" for e, v in points if v is not None)
        return f"<path class={key} d='M{drawn}'/>" if drawn else ""

    marks = []
    for step in range(5):
        share = step / 4
        height = bottom - (bottom - top) * share
        loss = span_loss[0] + share * (span_loss[1] - span_loss[0])
        score = span_score[0] + share * (span_score[1] - span_score[0])
        epoch = round(1 + share * (last - 1))
        marks.append(f"<line class=axis x1={left} x2={right} y1={height:.1f} y2={height:.1f} />")
        marks.append(f"<text x={left - 6} y={height + 4:.1f} text-anchor=end>{loss:.2f}</text>")
        marks.append(f"<text x={x(epoch):.1f} y={bottom + 18} text-anchor=middle>{epoch}</text>")
        if scores:
            marks.append(f"<text x={right + 6} y={height + 4:.1f}>{score:.3f}</text>")
    if metrics["best_epoch"]:
        best = f"{x(metrics['best_epoch']):.1f}"
        marks.append(f"<line class=axis stroke-dasharray='4 3' x1={best} x2={best} "
                     f"y1={top} y2={bottom} />")  # fmt: skip
    lines = path("loss", span_loss) + path("test", span_score) + path("val", span_score)
    return (
        "<figure><svg viewBox='0 0 720 256' role=img aria-label='Learning curves'>"
        f"{''.join(marks)}{lines}</svg><figcaption>By epoch: <span class='key loss'>loss</span> on "
        "hidden labels (left axis), <span class='key val'>validation</span> and "
        f"<span class='key test'>test</span> {_text(metrics['metric'])} (right axis). Dashed: the "
        "epoch that was chosen, by validation.</figcaption></figure>"
    )


def _recipe(recipe: Recipe) -> str:
    values = recipe.model_dump()
    rows = [
        [
            f"{section}.{key}",
            f"<b>{_text(json.dumps(values[section][key]))}</b>"
            if values[section][key] != declared.default
            else _text(json.dumps(values[section][key])),
            _text(declared.description),
        ]
        for section, key, declared in options()
    ]
    return f"<div class=recipe>{_table(rows, ['option', 'value', 'what it does'])}</div>"


def _manifest(manifest: Mapping[str, Any]) -> str:
    rows = []
    for key, value in manifest.items():
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {entry}" for name, entry in value.items())
        elif isinstance(value, list):
            value = " ".join(str(entry) for entry in value)
        rows.append([_text(key.replace("_", " ")), f"<span class=long>{_text(value)}</span>"])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]], header: Sequence[str] = ()) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _text(value: object) -> str:
    return html.escape(str(value))

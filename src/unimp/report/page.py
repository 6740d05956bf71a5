"""The page: results first, then plots, then what they were made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unimp.config.recipe import options
from unimp.report import kept, plots, sections
from unimp.report.drawing import STYLES, escape, swatch
from unimp.report.evidence import Evidence
from unimp.report.explanation import PICTURE_STYLE
from unimp.report.groups import Comparison, Group, compare, defaults, differing, values_of
from unimp.report.markup import counted, figure, folded, names_or_count, table
from unimp.report.plots import METRICS, PARTS
from unimp.report.style import STYLE
from unimp.tasks.metrics import FEW_NODES, mean_and_std, mean_text


def page_html(runs: Sequence[Evidence]) -> str:
    """The page of some runs: one HTML file that asks for nothing outside itself."""
    comparisons = compare(runs)
    title = _title(comparisons)
    abouts = dict.fromkeys(run.recipe.about for run in runs)
    about = f"<p class='soft'>{escape(*abouts)}</p>" if len(abouts) == 1 else ""
    body = "".join(_comparison(one, titled=len(comparisons) > 1) for one in comparisons)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(title)}</title><style>{STYLE}{PICTURE_STYLE}</style></head><body>"
        f"<header><h1>{escape(title)}</h1>{about}</header>"
        f"<main>{body}{_protocol(runs)}{_manifests(runs)}</main></body></html>\n"
    )


def _title(comparisons: Sequence[Comparison]) -> str:
    groups = [group for one in comparisons for group in one.groups]
    if len(groups) == 1:
        several = "s" if len(groups[0].runs) > 1 else ""
        return f"{groups[0].name}, seed{several} {groups[0].seeds}"
    tasks = [one.task for one in comparisons]
    named = " and ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    return f"{len(groups)} recipes on {named}"


def _comparison(one: Comparison, *, titled: bool) -> str:
    """All sections about one task."""
    groups = plots.drawn(one.groups)
    return "".join(
        (
            f"<h2 class='task'>{escape(one.task)}, {METRICS[one.metric]}</h2>" if titled else "",
            _results(one, groups),
            sections.learning(one, groups),
            sections.neighborhoods(one, groups),
            sections.confidence(groups),
            sections.confusions(groups),
            sections.areas(groups),
            _explanations(one),
            _recipes(one.groups),
        )
    )


def _results(one: Comparison, groups: Sequence[tuple[int, Group]]) -> str:
    metric = METRICS[one.metric]
    header = [
        *("recipe", "model", "seeds", f"validation {metric}, %", f"test {metric}, %"),
        *("test, + val labels", "parameters", "s an epoch"),
    ]
    rows = [
        [
            escape(group.name),
            escape(_model(group)),
            group.seeds,
            mean_text(group.scores("val")),
            f"<b>{mean_text(group.scores('test'))}</b>",
            mean_text(group.scores("test", "train+val")),
            f"{group.runs[0].metrics['parameters']:,}",
            _pace(group),
        ]
        for group in one.groups
    ]
    body = [_facts(one), *(_failure(group, run) for group in one.groups for run in group.runs)]
    if len(one.groups) == 1:
        body.append(_tiles(one.groups[0], metric, _commonest(one)))
    always = _commonest(one)
    body.append(
        f"<h2>Results</h2><p class='soft'>{_inputs(one.groups)}"
        f"{f' To answer the same always would score: {always}.' if always else ''}"
        f"{' Mean ± unbiased standard deviation over seeds.' if len(one.runs) > 1 else ''}</p>"
        f"<div class='card'>{table(rows, header, numbers=range(3, 8), stacked=True)}</div>"
    )
    lost = {run.recipe.task.name: run.missing for run in one.runs if run.missing}
    for name, reason in lost.items():
        body.append(
            f"<p class='note'>The task {escape(name)} cannot be loaded here, so the plots that "
            f"need it are left out: {escape(reason)}.</p>"
        )
    if len(one.groups) > len(groups):
        body.append(f"<p class='soft'>Plots show {_chosen(one.groups)} by validation.</p>")
    if len(one.runs) > 1:
        seeds = plots.seed_scores(groups, one.metric)
        marks = "A mark is a run; the line is one standard deviation either way."
        body.append(
            f"<div class='map seeds'>{''.join(figure('Test score by seed', marks, seeds))}"
            "<div class='card' tabindex='0' role='region' aria-label='Every run'>"
            f"<h3>Every run</h3>{_every_run(one, groups)}"
            "<p class='hint'>It scrolls sideways.</p></div></div>"
        )
    else:
        body.append(f"<p class='soft'>{_ending(one.runs[0])}.</p>")
    return f"<section>{''.join(body)}</section>"


def _inputs(groups: Sequence[Group]) -> str:
    """Which labels the models were given, and whether scores are those of smoothed answers."""
    without = [group.name for group in groups if not group.takes_labels]
    smoothed = [group.name for group in groups if group.is_smoothed]
    if len(without) == len(groups):
        takes = "the model takes" if len(groups) == 1 else "the models take"
        words = f"No labels are inputs: {takes} none, so “+ val labels” has no score."
    else:
        words = "Train labels are inputs; “+ val labels” reveals validation's too, without "
        words += "retraining."
        words += f" No labels are inputs of {names_or_count(without)} (“–”)." if without else ""
    if smoothed:
        of = f" of {names_or_count(smoothed)}" if len(smoothed) < len(groups) else ""
        words += f" Scores{of} are after smoothing."
    return escape(words)


def _chosen(groups: Sequence[Group]) -> str:
    """Which recipes plots show: the best, unless one that is left out is as good as the last."""
    means = sorted((float(np.nan_to_num(group.mean("val"))) for group in groups), reverse=True)
    tie = math.isclose(means[STYLES - 1], means[STYLES])
    return f"{STYLES} among the best (some tie)" if tie else f"the best {STYLES}"


def _explanations(one: Comparison) -> str:
    """What `unimp explain` was asked about these runs."""
    return kept.section(
        [
            (f"{group.name}, seed {run.manifest['seed']}", run.explanations)
            for group in one.groups
            for run in group.runs
        ]
    )


def _facts(one: Comparison) -> str:
    """The task in a line."""
    run = one.runs[0]
    parts = [f"task <b>{escape(one.task)}</b>"]
    if run.sizes:
        sizes = " / ".join(f"{run.sizes[part]:,}" for part in ("train", "val", "test"))
        if any(other.sizes != run.sizes for other in one.runs if other.sizes):
            sizes += f" (seed {run.manifest['seed']}; others differ)"
        parts += [counted(run.sizes["nodes"], "node"), f"train / val / test {sizes}"]
    if run.classes:
        binary = run.nodes is not None and run.nodes.prediction is None
        parts.append(counted(run.classes, "binary task" if binary else "class"))
    found = f"<p class='soft'>{' · '.join(parts)}</p>"
    for part, what in (
        ("val", "the epoch that it chose is chance in part"),
        ("test", "one node more or less moves its score by points"),
    ):
        if 0 < run.sizes.get(part, 0) < FEW_NODES:
            are = "is" if run.sizes[part] == 1 else "are"
            found += (
                f"<p class='note'>Only {counted(run.sizes[part], 'node')} {are} in the "
                f"{PARTS[part]} set: {what}.</p>"
            )
    if run.sizes and run.nodes is None and not run.missing:
        found += (
            "<p class='note'>No label of a validation or test node is known: there is nothing to "
            "score.</p>"
        )
    return found


def _commonest(one: Comparison) -> str:
    """What always answering the commonest class of the test nodes would score, in words."""
    shares = []
    for run in one.runs:
        nodes = run.nodes
        if nodes is not None and nodes.part == "test" and nodes.prediction is not None:
            shares.append(float(np.bincount(nodes.label.astype(np.int64)).max()) / len(nodes.label))
    if one.metric != "accuracy" or not shares:
        return ""
    return f"commonest class {100 * mean_and_std(shares)[0]:.1f} %"


def _tiles(group: Group, metric: str, commonest: str) -> str:
    """The numbers one looks for first."""
    scored = next((PARTS[run.nodes.part] for run in group.runs if run.nodes), "test")
    inputs = "train labels" if group.takes_labels else "no labels"
    inputs += " as inputs (the headline)"
    chose = "chose the epoch that is scored"
    if group.is_smoothed:
        chose = "after smoothing; before it, chose the epoch"
    tiles = [
        (
            f"test {metric}",
            inputs + (f"; {commonest}" if commonest else ""),
            group.scores("test"),
        ),
        (f"validation {metric}", chose, group.scores("val")),
        (
            f"test {metric}",
            "train and validation labels as inputs",
            group.scores("test", "train+val"),
        ),
        (
            "calibration error",
            f"ECE of {scored} nodes, 15 bins",
            [one.error for one in plots.reliability_of(group.runs)],
        ),
    ]
    return (
        "<div class='tiles'>"
        + "".join(
            f"<div class='tile'><span>{title}, %</span><b>{with_small_spread(values)}</b>"
            f"<span>{note}</span></div>"
            for title, note, values in tiles
            if values
        )
        + "</div>"
    )


def _every_run(one: Comparison, groups: Sequence[tuple[int, Group]]) -> str:
    """A row for each run; its recipe by name, and by its shape where plots show it."""
    shapes = {group.name: swatch(style) for style, group in groups}
    several = len(one.groups) > 1
    header = ["seed", "validation", "test", "+ val labels", "best epoch", "seconds"]
    rows = [
        [
            *([shapes.get(group.name, "") + escape(group.name)] if several else []),
            str(run.manifest["seed"]),
            *(_cell(run.score(*key)) for key in (("val",), ("test",), ("test", "train+val"))),
            f"{run.metrics['best_epoch']} of {run.metrics['epochs']}"
            if run.metrics["best_epoch"]
            else "–",
            f"{run.metrics['seconds']:,.3g}" + (" (failed)" if run.metrics.get("failed") else ""),
        ]
        for group in one.groups
        for run in group.runs
    ]
    shift = int(several)
    return table(rows, [*(["recipe"] if several else []), *header], numbers=range(shift, shift + 6))


def _failure(group: Group, run: Evidence) -> str:
    """What became of a run whose training failed; nothing of the others."""
    if not run.metrics.get("failed"):
        return ""
    state = "of the state kept before" if run.metrics["epochs"] else "of an untrained model"
    mean = " and are part of the mean" if len(group.runs) > 1 else ""
    return (
        f"<p class='note'><b>{escape(group.name)}, seed {run.manifest['seed']}, failed</b>: "
        f"{escape(run.metrics['stopped'])}. Its scores are those {state}{mean}.</p>"
    )


def _ending(run: Evidence) -> str:
    metrics = run.metrics
    parts = [escape(metrics["stopped"]), f"{metrics['seconds']:g} s in all"]
    if metrics["best_epoch"]:
        which = "Best epoch" if run.score("val") is not None else "State kept: epoch"
        parts.insert(0, f"{which} {metrics['best_epoch']} of {metrics['epochs']}")
    elif metrics["epochs"]:
        parts.insert(0, f"{counted(metrics['epochs'], 'epoch')}, none scored")
    told = "; ".join(parts)
    return told[:1].upper() + told[1:]


def _recipes(groups: Sequence[Group]) -> str:
    """What was set, what differs, and every recipe whole."""
    help_of = {f"{s}.{k}": declared.description for s, k, declared in options()}
    usual = {key: value for key, value in defaults().items() if key != "task.name"}
    values = [values_of(group.recipe) for group in groups]
    unlike = differing([group.recipe for group in groups])
    keys = unlike or [key for key in usual if values[0][key] != usual[key]]
    names = [escape(group.name) for group in groups] if len(groups) > 1 else ["value"]
    words = "What the recipes set differently" if unlike else "What the recipe sets"
    crowded = len(groups) > plots.CROWD
    beside = [] if crowded else values
    rows = [
        [
            f"<code>{key}</code>",
            *(_value(one[key], usual[key]) for one in beside),
            _value(usual[key], usual[key]),
            escape(help_of[key]),
        ]
        for key in keys
    ]
    header = ["option", *([] if crowded else names), "default", "what it does"]
    listed = f"<div class='card'>{table(rows, header, stacked=True)}</div>"
    if crowded:  # a column for each recipe would be wider than any page
        each = [
            [name, *(_value(one[key], usual[key]) for key in keys)]
            for name, one in zip(names, values, strict=True)
        ]
        whole = table(each, ["recipe", *keys], stacked=True)
        listed = f"<div class='card'>{whole}</div><h3>The options</h3>{listed}"
    wholes = "".join(
        folded(
            f"The whole recipe{f': {escape(group.name)}' if len(groups) > 1 else ''}",
            f"<pre>{escape(group.recipe.to_toml())}</pre>",
        )
        for group in groups
    )
    return (
        f"<section><h2>Recipe</h2><p class='soft'>{words}, beside the default.</p>"
        f"{listed}{wholes}</section>"
    )


def _protocol(runs: Sequence[Evidence]) -> str:
    """How the numbers came about, in words."""
    said = dict.fromkeys(str(run.manifest.get("protocol", "")) for run in runs)
    none = (
        "" if all(run.takes_labels for run in runs) else " A model that takes no labels sees none."
    )
    first = " before smoothing" if any(run.recipe.smooth.form != "none" for run in runs) else ""
    stated = "".join(f"<li>As each run states it: {escape(words)}.</li>" for words in said if words)
    return (
        "<section><h2>Protocol</h2><ul>"
        "<li><b>Known</b> labels are those the task gives; <b>observed</b> ones are inputs of the "
        "model, <b>hidden</b> ones are withheld and predicted. In training each step hides a part "
        "of the train labels.</li>"
        "<li><b>train</b>, the headline: all train labels are observed; validation and test nodes "
        "are scored. <b>train+val</b>: validation labels are observed too, without retraining; "
        f"only test nodes are scored.{none}</li>"
        f"<li>The state kept is that of the best validation score{first} (of the last epoch "
        "scored, where no validation label is known). The plots below the results "
        "score test nodes (validation nodes where no test label is known) with train labels "
        "observed.</li>"
        "<li>Over several seeds: the mean ± the unbiased standard deviation. Plots of nodes pool "
        "the seeds; their intervals (Wilson, 95 %) count the nodes of one.</li>"
        f"{stated}</ul></section>"
    )


def _manifests(runs: Sequence[Evidence]) -> str:
    """Where each run came from."""
    if len(runs) == 1:
        return f"<section><h2>Manifest</h2><div class='card'>{_manifest(runs[0])}</div></section>"
    parts = [folded(escape(run.folder), _manifest(run)) for run in runs]
    return f"<section><h2>Manifests</h2>{''.join(parts)}</section>"


def _manifest(run: Evidence) -> str:
    rows = []
    for key, value in run.manifest.items():
        if value is None:
            continue
        if isinstance(value, Mapping):
            value = ", ".join(f"{name} {entry}" for name, entry in value.items())
        elif isinstance(value, list):
            value = " ".join(str(entry) for entry in value)
        rows.append([escape(key.replace("_", " ")), f"<span class='long'>{escape(value)}</span>"])
    return table(rows)


def _model(group: Group) -> str:
    if group.runs[0].own_model:
        return f"{group.runs[0].own_model}, a model of one's own"
    model = group.recipe.model
    takes = model.name in ("unimp", "gcn", "gat")
    return f"{model.name}, {model.inputs}" if takes else model.name


def _pace(group: Group) -> str:
    """Seconds an epoch; a dash where nothing is trained, or the run is too old to say."""
    mean, _ = mean_and_std([float(run.metrics.get("seconds_per_epoch", 0)) for run in group.runs])
    return f"{mean:.2g}" if mean else "–"


def _value(value: Any, usual: Any) -> str:
    written = f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>"
    return written if value == usual else f"<b>{written}</b>"


def _cell(score: float | None) -> str:
    return "–" if score is None else f"{100 * score:.2f}"


def with_small_spread(values: Sequence[float]) -> str:
    mean, plus_minus, spread = mean_text(values).partition(" ± ")
    return f"{mean}<small>{plus_minus}{spread}</small>" if spread else mean

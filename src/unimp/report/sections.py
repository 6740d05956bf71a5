"""The plots of one task, section by section, with the words that say how to read them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from unimp.inference.calibration import calibration_in_words
from unimp.report import plots
from unimp.report.drawing import escape, isolated, swatch
from unimp.report.groups import Comparison, Group
from unimp.report.markup import figure, folded, legend, names_or_count, panels, table
from unimp.report.plots import PARTS
from unimp.tasks.metrics import mean_text

Drawn = Sequence[tuple[int, Group]]
NUMBERS = "The same in numbers"
BANDS = ", bands one standard deviation either way, thin lines the single runs"
NAMED = 12  # of tasks without an area
LISTED = 300  # of classes, in a table


def learning(one: Comparison, groups: Drawn) -> str:
    """Loss and scores by epoch."""
    trained = [(style, group) for style, group in groups if any(r.history for r in group.runs)]
    if not trained:
        return ""
    several = any(len(group.runs) > 1 for _, group in trained)
    crowded = len(trained) > plots.CROWD
    chosen = any(run.score("val") is not None for _, group in trained for run in group.runs)
    words = "<p>The loss is that of the labels each step hides. "
    words += (
        "Shapes mark the epoch whose state was kept: the one of best validation score.</p>"
        if chosen
        else "No validation label is known, so the state of the last epoch scored was kept.</p>"
    )
    if several:
        words += "<p>Strong lines are means over seeds up to where the first of them stopped"
        words += "" if crowded else BANDS
        words += ".</p>"
    note = _before_smoothing([group for _, group in trained])
    found = figure("Loss by epoch", "", plots.loss_curves(trained))
    if len(groups) == 1:
        names = [(style, PARTS[part]) for style, part in enumerate(PARTS)]
        scores = plots.both_scores(trained[0][1], one.metric)
        found += figure("Scores by epoch", note + legend(names), scores)
        return panels("Learning", words, found)
    for part in PARTS:
        drawing = plots.score_curves(trained, part, one.metric)
        found += figure(f"{PARTS[part].capitalize()} score by epoch", note, drawing)
    return panels("Learning", words, found, legend=_legend(trained))


def neighborhoods(one: Comparison, groups: Drawn) -> str:
    """Label-rate curves, and accuracy by known in-neighbors and by in-edges."""
    band = "" if len(groups) > plots.CROWD else "Band: 95&nbsp;% (Wilson)."
    told = "an input" if all(group.takes_labels for _, group in groups) else "a train label"
    found = figure(
        "Revealing fewer labels",
        "The trained model is told a share of the train labels. Nothing is retrained.",
        plots.label_rates(groups, one.metric),
    )
    found += figure(
        "By known in-neighbors",
        f"In-neighbors whose label is {told}. {band}",
        plots.accuracy_by(groups, "known_neighbors", "known in-neighbors"),
    )
    found += figure(
        "By in-edges",
        f"How many edges lead to a node. {band}",
        plots.accuracy_by(groups, "in_edges", "in-edges"),
    )
    if not found:
        return ""
    words = (
        "<p>Bins double: 1, 2–3, 4–7 and so on; where room is short they are named by where they "
        f"begin. Those of fewer than {plots.FEWEST} nodes have a bar alone.</p>"
    )
    reasons: dict[str, dict[str, None]] = {}
    for _, group in groups:
        for run in group.runs:
            if run.no_label_rates and not run.missing:
                reasons.setdefault(run.no_label_rates, {})[group.name] = None
    for reason, names in reasons.items():
        named = names_or_count(list(names))
        words += f"<p>{escape(f'No label-rate curve for {named}: {reason}.')}</p>"
    return panels("Labels and neighborhoods", words, found, legend=_legend(groups))


def confidence(groups: Drawn) -> str:
    """Whether probabilities can be believed."""
    found = figure(
        "Reliability",
        "On the dotted line, what is said at 80&nbsp;% is right 80 times in a hundred. Bins of "
        f"fewer than {plots.FEWEST} have a bar alone.",
        plots.reliability_diagram(groups),
    )
    if not found:
        return ""
    found += figure(
        "The surest first",
        "How many are right if only the surest nodes are labeled.",
        plots.surest_first(groups),
    )
    rows = [
        [swatch(style) + escape(group.name), mean_text([one.error for one in found_of_group])]
        for style, group in groups
        if (found_of_group := plots.reliability_of(group.runs))
    ]
    words = (
        "<p>Below the line a model is surer than it should be, above it less sure. The expected "
        "calibration error (ECE) is the mean distance from it, over 15 bins of equal width by "
        "the probability given.</p>"
    )
    told = ""
    for _, group in groups:
        kept = [run.metrics["calibration"] for run in group.runs if "calibration" in run.metrics]
        if kept:
            told += f"<p>{escape(f'{group.name}, {calibration_in_words(kept)}')}.</p>"
    if len(rows) > 1:
        words += f"<div class='card'>{table(rows, ['recipe', 'ECE, %'], numbers=(1,))}</div>"
        told = folded("How each was calibrated", told) if told else ""
    return panels("Confidence", words + told, found)


def confusions(groups: Drawn) -> str:
    """What is taken for what: the best group by validation in full, the others folded."""
    found = [(group, plots.confusion_of(group)) for _, group in groups]
    shown = [(group, matrix) for group, matrix in found if matrix is not None]
    if not shown:
        return ""
    shown.sort(key=lambda entry: -np.nan_to_num(entry[0].mean("val")))
    (first, matrix), rest = shown[0], shown[1:]
    which = f" of {escape(first.name)}, {_rank([g for g, _ in shown])}," if rest else ""
    body = [
        "<section><h2>Confusions</h2>",
        f"<p class='soft'>Each row{which} is a class, the largest first, and says what its nodes "
        "were taken for: <b class='key right'>blue</b> on the diagonal is right, "
        "<b class='key wrong'>orange</b> beside it is wrong; the stronger, the larger the share. "
        f"Point at a cell for its numbers, or open “{NUMBERS}”.</p>",
        _confusion(*matrix, seeds=len(first.runs)),
    ]
    body += [
        folded(escape(group.name), _confusion(*matrix, seeds=len(group.runs)))
        for group, matrix in rest
    ]
    return "".join(body) + "</section>"


def areas(groups: Drawn) -> str:
    """ROC-AUC of each binary task."""
    found = plots.task_areas(groups)
    drawings = plots.area_rows(found)
    if not found:
        return ""
    words = "<p>Each row is a binary task, the best first; the dotted line is a guess."
    if any(len(group.runs) > 1 for _, group in groups):
        words += " Whiskers are one standard deviation over seeds."
    words += "</p>"
    without = [one for one in found if not any(one.by_style.values())]
    if without:
        named = ", ".join(escape(isolated(one.name)) for one in without[:NAMED])
        more = f" and {len(without) - NAMED:,} more" if len(without) > NAMED else ""
        words += f"<p>Without an area, as every scored node has it or none does: {named}{more}.</p>"
    rows = [
        [
            escape(one.name),
            f"{one.positives:,}",
            *(mean_text(one.by_style.get(style, ())) for style, _ in groups),
        ]
        for one in found
    ]
    names = [escape(group.name) for _, group in groups] if len(groups) > 1 else ["ROC-AUC, %"]
    header = ["task", "nodes that have it", *names]
    listed = table(rows, header, numbers=range(1, len(header)), stacked=True)
    figures = [f"<figure>{drawing}</figure>" for drawing in drawings]
    section = panels("ROC-AUC by task", words, figures, legend=_legend(groups))
    return section.removesuffix("</section>") + _in_numbers(listed) + "</section>"


def _rank(groups: Sequence[Group]) -> str:
    """What validation says of the first, which no other surpasses."""
    best, *others = (group.mean("val") for group in groups)
    if math.isnan(best):
        return "the first of the recipes"
    ties = 1 + sum(math.isclose(best, other) for other in others)
    return f"among the best by validation ({ties} tie)" if ties > 1 else "the best by validation"


def _before_smoothing(groups: Sequence[Group]) -> str:
    """Why curves end elsewhere than the results; nothing where nothing is smoothed."""
    smoothed = [group.is_smoothed for group in groups]
    if not any(smoothed):
        return ""
    whose = "" if all(smoothed) else ", where a recipe smooths"
    return f"Before smoothing{whose}; the results are after it."


def _confusion(names: Sequence[str], counts: plots.Matrix, *, seeds: int) -> str:
    over = f", over {seeds} seeds" if seeds > 1 else ""
    rows = [
        [_taken_for(label, guess), f"{count:,.0f}", f"{share:.0%}"]
        for label, guess, count, share in plots.largest_confusions(names, counts)
    ]
    big = " big" if len(names) > 16 else ""
    hint = "<p class='hint'>It scrolls sideways.</p>" if big else ""
    listed = table(rows, ["label → prediction", "nodes", "of its class"], numbers=(1, 2))
    if not rows:
        listed = "<p>None: every node is right.</p>"
    return (
        f"<div class='map{big}'><figure><figcaption><b>Label (row) and prediction (column)</b>"
        "</figcaption><div class='scroll' tabindex='0' role='region' aria-label='Confusion matrix'>"
        f"{plots.confusion_map(names, counts)}</div>{hint}</figure>"
        f"<div class='card'><h3>Largest confusions{over}</h3>{listed}</div></div>"
        + _in_numbers(_every_class(names, counts))
    )


def _every_class(names: Sequence[str], counts: plots.Matrix) -> str:
    """What the map shows, for those who cannot point at it."""
    rows = []
    for k, name in enumerate(names[:LISTED]):
        labeled, said = counts[k].sum(), counts[:, k].sum()
        rows.append(
            [
                escape(name),
                f"{labeled:,.0f}",
                f"{counts[k, k] / labeled:.1%}" if labeled else "–",
                f"{said:,.0f}",
                f"{counts[k, k] / said:.1%}" if said else "–",
            ]
        )
    header = [
        *("class", "nodes", "of these right (recall)"),
        *("so labeled", "of these right (precision)"),
    ]
    more = f"<p class='soft'>{len(names) - LISTED:,} smaller classes are left out.</p>"
    listed = table(rows, header, numbers=range(1, 5), stacked=True)
    return listed + (more if len(names) > LISTED else "")


def _in_numbers(listed: str) -> str:
    """A table that may be wider than the page, to open if one wants it."""
    region = f"<div class='scroll' tabindex='0' role='region' aria-label='{NUMBERS}'>"
    return folded(NUMBERS, f"{region}{listed}</div>")


def _taken_for(label: str, guess: str) -> str:
    return f"{escape(isolated(label))} → {escape(isolated(guess))}"


def _legend(groups: Drawn) -> str:
    return legend([(style, group.name) for style, group in groups])

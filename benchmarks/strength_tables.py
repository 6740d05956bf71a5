"""The tables and sentences of the benchmark of ensembles, from results/strength.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean

from results import FOLDER, put_between
from strength_gains import (
    Row,
    Rows,
    best_simple,
    chosen_member,
    earlier_scores,
    gain_of_labels,
    gain_of_shown,
    has_features,
    lever_gains,
    over_simple,
    scores_of,
    seconds_of,
)
from strength_sentences import (
    PRESETS,
    SHOWN,
    chain,
    mean_points,
    of_baselines,
    of_earlier,
    of_ensemble,
    of_expected,
    of_labels,
    of_optimism,
    of_presets,
    of_promise,
    of_refit,
    of_shown,
    of_students,
)
from strength_sets import ENSEMBLE, LEVERS, OF_LABELS, SETS
from unimp.data.files import write_atomically
from unimp.tasks.means import mean_text

RESULTS = FOLDER / "strength.json"
ROOT = Path(__file__).parent.parent


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


# Tables of scores and seconds.


def single_models(rows: Rows) -> list[str]:
    """The scores of single models with train labels as inputs."""
    lines = []
    for name in SETS:
        of_set, earlier = rows.get(name, []), earlier_scores(name)
        if not of_set and not earlier:
            continue
        seeds = [r["seed"] for r in of_set] or list(earlier)
        members = [mean_text(scores_of(of_set, member)) for member in SHOWN]
        was = mean_text([earlier[seed] for seed in seeds if seed in earlier])
        lines.append([name, str(len(seeds)), *members, was])
    return table(["set", "splits", *SHOWN.values(), "earlier UniMP"], lines)


def presets(rows: Rows) -> list[str]:
    """The scores of ensembles with train labels as inputs."""
    lines = []
    for name, of_set in rows.items():
        without = [w["test"] for r in of_set if (w := without_labels(r))]
        scores = {p: mean_text([r[p]["test"] for r in of_set if r[p]]) for p in PRESETS}
        lines.append(
            [
                name,
                mean_text([chosen_member(r)["test"] for r in of_set]),
                scores["quick"],
                scores["good"],
                mean_text(without),
                scores["best"],
                mean_text([r["student"] for r in of_set if "student" in r]),
                target_text(name),
            ]
        )
    head = ["set", "best member by validation", "`quick`", "`good`"]
    more = ["`best` without labels as inputs", "`best`", "student", "target of `best`"]
    return table([*head, *more], lines)


def without_labels(row: Row) -> dict[str, float] | None:
    """The scores of `best` without labels as inputs.

    This ensemble was trained separately if the row contains `best_without_labels`; otherwise it
    consists of the members of `best` that do not have labels as inputs.
    """
    found: dict[str, float] | None = row.get("best_without_labels", row["without"].get(OF_LABELS))
    return found


def target_text(name: str) -> str:
    of = SETS[name]
    if of.target is None:
        return "–"
    where = " on split 0" if name.endswith("-random") else ""
    further = [
        f"{value:g} {words}"
        for value, words in (
            (of.without_labels, "without labels as inputs"),
            (of.shown, "with validation labels"),
        )
        if value is not None
    ]
    return "; ".join([f"{of.target:g}{where}", *further])


def seconds(rows: Rows) -> list[str]:
    """The seconds of training on a GPU, on average over splits."""
    names = [name for name in SHOWN if name != "recipe"]
    lines = []
    for name, of_set in rows.items():
        on_gpu = [r for r in of_set if r["hardware"].startswith("NVIDIA")]
        members = [
            [m["seconds"] for r in on_gpu for m in r["members"] if m["name"] == name]
            for name in names
        ]
        ensembles = [[seconds_of(r, preset) for r in on_gpu] for preset in ("quick", "good")]
        best = [r["seconds"] for r in on_gpu]
        student = [r["seconds_of_student"] for r in on_gpu if "student" in r]
        cells = [
            seconds_text(values if 2 * len(values) >= len(on_gpu) else [])
            for values in (*members, *ensembles, best)
        ]
        lines.append([name, *cells, seconds_text(student)])
    words = [SHOWN[name] for name in names]
    return table(["set", *words, "`quick`", "`good`", "`best`", "student"], lines)


def seconds_text(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.1f}" if mean(values) < 10 else f"{mean(values):.0f}"


def baselines(rows: Rows) -> list[str]:
    """What each preset gains over the best simple baseline."""
    lines = []
    for name, of_set in rows.items():
        simple = best_simple(of_set)
        score = f"{SHOWN[simple]} {100 * mean(scores_of(of_set, simple)):.2f}"
        lines.append([name, score, *(over_simple(of_set, p).marked() for p in PRESETS)])
    return table(["set", "best simple baseline", *(f"`{p}` over it" for p in PRESETS)], lines)


NOTABLE = 0.05
"""A lever is named for a set if it changes the score by at least this many points."""


def missed(rows: Rows) -> list[str]:
    """The targets that were not reached, and what each lever gains on these sets."""
    lines = []
    for name, of_set in rows.items():
        of = SETS[name]
        part = [r for r in of_set if r["seed"] == 0] if name.endswith("-random") else of_set
        measured: list[tuple[str, float | None, list[float]]] = [
            (name, of.target, [r["best"]["test"] for r in part]),
            (
                f"{name}, without labels as inputs",
                of.without_labels,
                [w["test"] for r in part if (w := without_labels(r))],
            ),
            (
                f"{name}, with validation labels as further inputs",
                of.shown,
                [r["shown"] for r in part if r["shown"] is not None],
            ),
        ]
        lines += [
            [words, f"{target:g}", mean_text(scores), tried(name, of_set) if words == name else "–"]
            for words, target, scores in measured
            if target is not None and 100 * mean(scores) < target
        ]
    return table(["set", "target", "measured", "gain of each lever on this set"], lines)


def tried(name: str, of_set: list[Row]) -> str:
    """What each lever gains on a set, the largest first."""
    gains = {lever: lever_gains({name: of_set}, lever).get(name) for lever in LEVERS}
    known = {lever: g for lever, g in gains.items() if g and abs(g.points) >= NOTABLE}
    if not has_features(of_set):
        known.pop(OF_LABELS, None)  # nothing useful remains without labels
    order = sorted(known, key=lambda lever: -known[lever].points)
    return ", ".join(f"{lever} {known[lever].points:+.2f}" for lever in order)


PROTOCOLS: dict[str, Callable[[Row], float | None]] = {
    "train labels": lambda row: row["best"]["test"],
    "validation labels as further inputs": lambda row: row["shown"],
    "refitted on train and validation labels": lambda row: row["refit"],
}


def protocols(rows: Rows) -> list[str]:
    """The test scores of `best` for seed 0: one row per label protocol, a few sets at a time."""
    first = {name: r for name, of_set in rows.items() for r in of_set if "refit" in r}
    names, lines = list(first), []
    for begin in range(0, len(names), 7):
        part = names[begin : begin + 7]
        cells = [
            [words, *("–" if (v := of(first[n])) is None else f"{100 * v:.2f}" for n in part)]
            for words, of in PROTOCOLS.items()
        ]
        lines += [*table(["labels used by `best`", *part], cells), ""]
    return lines[:-1]


# Tables of gains.


def holm(chances: dict[str, float]) -> dict[str, float]:
    """p-values, corrected for their number by Holm's method."""
    corrected, largest = {}, 0.0
    for place, name in enumerate(sorted(chances, key=lambda name: chances[name])):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[name]))
        corrected[name] = largest
    return corrected


def levers(rows: Rows) -> list[str]:
    """What each lever gains, on average over the sets with several pairs."""
    found, chances = {}, {}
    for lever in (ENSEMBLE, *LEVERS):
        if lever == OF_LABELS:  # it has a table of its own
            continue
        gains = {name: g for name, g in lever_gains(rows, lever).items() if g.pairs > 1}
        if not gains:
            continue
        error = math.sqrt(sum(g.error**2 for g in gains.values())) / len(gains)
        found[lever] = (gains, mean_points(gains), error)
        distance = mean_points(gains) / error if error else 0.0
        chances[lever] = math.erfc(distance / math.sqrt(2)) / 2  # one-sided, normal
    corrected, lines = holm(chances), []
    for lever, (gains, points, error) in found.items():
        ends = [pick(gains, key=lambda n: gains[n].points) for pick in (max, min)]
        cells = [lever, str(len(gains)), f"{points:+.2f} ± {error:.2f}", f"{corrected[lever]:.3f}"]
        lines.append([*cells, *(f"{name} {gains[name]}" for name in ends)])
    head = ["lever", "sets", "mean gain", "p-value (Holm)", "largest gain", "smallest gain"]
    return table(head, lines)


def labels(rows: Rows) -> list[str]:
    """What labels gain on each set: for UniMP, for the ensemble, and if validation is shown."""
    of_ensemble, lines = lever_gains(rows, OF_LABELS), []
    for name, of_set in rows.items():
        gains = (gain_of_labels(of_set), of_ensemble.get(name), gain_of_shown(of_set))
        lines.append([name, *("–" if gain is None else gain.marked() for gain in gains)])
    head = [
        "set",
        "`unimp` over `unimp-features`",
        "`best` over `best` without labels as inputs",
        "`best` with validation labels as further inputs over `best`",
    ]
    return table(head, lines)


def items(*sentences: str) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


def write_tables(root: Path = ROOT) -> None:
    """Write all tables and sentences into the pages of this folder."""
    stored = json.loads(RESULTS.read_text("utf-8"))
    rows = {name: [r for r in stored if r["set"] == name] for name in SETS}
    rows = {name: sorted(some, key=lambda r: r["seed"]) for name, some in rows.items() if some}
    confirm = {name: some for name, some in rows.items() if SETS[name].confirm}
    develop = {name: some for name, some in rows.items() if not SETS[name].confirm}
    summary = items(
        of_ensemble(rows),
        of_presets(develop),
        of_baselines(rows),
        of_students(rows),
        of_optimism(rows),
    )
    findings = items(
        of_ensemble(rows),
        of_earlier(rows),
        of_presets(develop),
        of_labels(rows),
        of_shown(rows),
        of_refit(rows),
    )
    pages = {
        "docs/strength.md": {
            "summary": summary,
            "labels": items(of_labels(rows), of_shown(rows), of_refit(rows)),
            "chain": [of_expected(rows), chain("ogbn-arxiv-20k", rows["ogbn-arxiv-20k"])],
            "label gains": labels(rows),
            "protocols": protocols(rows),
            "levers": levers(develop),
            "confirmed": levers(confirm),
            "single models": single_models(rows),
            "presets": presets(rows),
            "baselines": baselines(rows),
            "seconds": seconds(rows),
            "missed": missed(rows),
        },
        "docs/findings.md": {"ensembles": findings},
        "README.md": {"promise": items(of_promise(rows))},
    }
    for page, blocks in pages.items():
        text = (root / page).read_text("utf-8")
        for mark, lines in blocks.items():
            text = put_between(text, f"<!-- strength: {mark} -->", "\n".join(lines))
        write_atomically(root / page, text.encode())

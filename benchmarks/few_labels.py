"""Compare one refit with training on folds, if there are few train and validation labels.

    python benchmarks/few_labels.py --jobs 2   → results/few_labels.json, table in docs/strength.md

For each graph, number of labels and seed, the same members are trained twice on the same random
labels, three quarters of which are train labels and one quarter validation labels.
After scoring, one ensemble is refitted on all of these labels (ensemble.folds=0), and the other is
trained on five folds of them (ensemble.folds=5). Both are scored on all other labels. There is no
time limit. Results that the file already contains are not computed again. Graphs that are not
bundled are read from `.npz` files in the folder UNIMP_DATA.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import unimp
from cases import fill, gain_text, parser_of
from results import FOLDER, put_between
from unimp.data.files import write_atomically
from unimp.tasks.means import mean_text

RESULTS = FOLDER / "few_labels.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
SETS = ("cora", "citeseer", "california")
KNOWN = (100, 400)
MEMBERS = ("label-propagation", "ridge", "sign", "gcn", "appnp", "unimp")
FOLDS = (0, 5)


class Case(NamedTuple):
    """One ensemble."""

    set: str
    known: int
    seed: int
    folds: int


def task_of(case: Case) -> unimp.Task:
    """A graph with a random split: `known` train and validation labels, and a test set."""
    task = unimp.load_task(case.set)
    labeled = torch.nonzero(task.labels >= 0).squeeze(1)
    draw = torch.Generator().manual_seed(case.seed)
    order = labeled[torch.randperm(len(labeled), generator=draw)]
    val, train, test = order.tensor_split([case.known // 4, case.known])
    return replace(task, split=unimp.Split(train, val, test), groups=None)


def train(case: Case) -> dict[str, Any]:
    """Train one ensemble on one thread, and return its scores before and after the refit."""
    torch.set_num_threads(1)
    settings = {
        "train.device": "cpu",
        "train.time_limit": 0.0,
        "ensemble.portfolio": "good",
        "ensemble.members": list(MEMBERS),
        "ensemble.copies": 1,
        "ensemble.jobs": 1,
        "ensemble.refit": "always",
        "ensemble.folds": case.folds,
    }
    run = unimp.run(
        task_of(case),
        seed=case.seed,
        preset="good",
        settings=settings,
        report=False,
        progress=False,
    )
    summary = run.metrics["ensemble"]
    return {
        "test": run.metrics["scores"]["refit"]["test"],
        "before": run.metrics["scores"]["train"]["test"],
        "val_folds": summary["val_folds"],
        "weights": {row["name"]: round(row["weight"], 3) for row in summary["members"]},
        "seconds": run.metrics["seconds"],
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | train and validation labels | splits | one refit, % | five folds, % "
        "| gain, points |",
        "|---" * 6 + "|",
    ]
    gains = []
    for name in SETS:
        for known in KNOWN:
            tests = {
                folds: {
                    row["seed"]: row["test"]
                    for row in rows
                    if (row["set"], row["known"], row["folds"]) == (name, known, folds)
                }
                for folds in FOLDS
            }
            seeds = sorted(set(tests[0]) & set(tests[5]))
            if not seeds:
                continue
            gains += (own := [100 * (tests[5][seed] - tests[0][seed]) for seed in seeds])
            scores = [mean_text([tests[folds][seed] for seed in seeds]) for folds in FOLDS]
            lines.append(
                f"| {name} | {known} | {len(seeds)} | {' | '.join(scores)} | {gain_text(own)} |"
            )
    better = sum(gain > 0 for gain in gains)
    lines += [
        "",
        f"The mean gain is {gain_text(gains)} points; folds have the higher score in {better} of "
        f"{len(gains)} comparisons. `{rows[0]['command']}` on {rows[0]['hardware']}.",
    ]
    return "\n".join(lines)


def main() -> None:
    options = parser_of(__doc__, seeds=5).parse_args()
    cases = [
        Case(name, known, seed, folds)
        for seed in range(options.seeds)
        for name in SETS
        for known in KNOWN
        for folds in FOLDS
    ]
    rows = fill(
        RESULTS, cases, train, shown=("before", "test"), jobs=options.jobs, minutes=options.minutes
    )
    text = table(rows)
    page = put_between(PAGE.read_text("utf-8"), "<!-- few labels -->", text)
    write_atomically(PAGE, page.encode())
    print(text)


if __name__ == "__main__":
    main()

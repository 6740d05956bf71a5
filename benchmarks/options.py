"""Compare the test scores of UniMP with and without an option, in pairs of the same split and seed.

    python benchmarks/options.py --jobs 2    → results/options.json, a table in docs/strength.md

The model is the member `unimp` of the presets, which has labels and propagated labels as inputs.
Each training has one thread, and a fixed number of epochs, of which the best on validation is
scored. Results that the file already contains are not computed again. Graphs that are not bundled
are read from `.npz` files in the folder UNIMP_DATA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from cases import fill, gain_text, parser_of
from results import FOLDER, put_between
from unimp.config.recipe import load_recipe
from unimp.data.files import write_atomically
from unimp.ensemble.portfolio import FRAME, PORTFOLIO, member_recipe
from unimp.runs.experiment import run

RESULTS = FOLDER / "options.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
EPOCHS = {
    "cora": 100,
    "citeseer": 100,
    "chameleon-filtered": 100,
    "actor": 60,
    "california": 80,
    "dblp": 80,
    "minesweeper": 200,
}
BASE = "none"
WITHOUT_LABELS = "without labels as inputs"
OPTIONS: dict[str, dict[str, Any]] = {
    BASE: {},
    WITHOUT_LABELS: {"model.inputs": "X,A", "model.propagated_labels": False},
    "without propagated labels": {"model.propagated_labels": False},
    "a new label rate in each step": {"mask.rate": "drawn"},
    "5 % wrong labels": {"mask.wrong_labels": 0.05},
    "features of 20 % of hidden nodes set to 0": {"mask.feature_drop": 0.2},
    "20 % of the edges left out": {"model.edge_dropout": 0.2},
    "consistency of two samples": {
        "train.samples": 2,
        "train.consistency": 0.5,
        "train.consistency_warmup": 0,
    },
    "batch norm": {"model.norm": "batch"},
    "moving average of weights": {"train.ema": 0.99},
}
ALL = ("cora", "chameleon-filtered", "actor", "california")
"""The tasks on which every option is compared."""
OF_LABELS = (BASE, WITHOUT_LABELS, "without propagated labels")
"""What is compared on the other tasks."""


class Case(NamedTuple):
    """One training."""

    recipe: str
    option: str
    seed: int


def train(case: Case) -> dict[str, Any]:
    """The scores of a training, on one thread."""
    torch.set_num_threads(1)
    member = next(one for one in PORTFOLIO if one.name == "unimp")
    settings = {
        **FRAME,
        **member.settings,
        "train.epochs": EPOCHS[case.recipe],
        "train.eval_every": 5,
        "train.patience": 0,
        "train.precision": "fp32",
        "train.device": "cpu",
        **OPTIONS[case.option],
    }
    recipe = member_recipe(load_recipe(case.recipe), member.name, settings)
    metrics = run(recipe, seed=case.seed, progress=False).metrics
    return {**metrics["scores"]["train"], "seconds": metrics["seconds"]}


def table(rows: list[dict[str, Any]]) -> str:
    """One row per option, and one column per task."""
    tasks = [name for name in EPOCHS if any(row["recipe"] == name for row in rows)]
    tests = {(row["recipe"], row["option"], row["seed"]): row["test"] for row in rows}
    lines = [f"| change of `unimp` | {' | '.join(tasks)} |", "|---" * (len(tasks) + 1) + "|"]
    for option in OPTIONS:
        cells = []
        for task in tasks:
            gains = [
                100 * (tests[task, option, seed] - tests[task, BASE, seed])
                for seed in range(100)
                if {(task, option, seed), (task, BASE, seed)} <= tests.keys()
            ]
            cells.append(f"{gain_text(gains)} ({len(gains)})" if len(gains) > 1 else "–")
        if option != BASE and set(cells) != {"–"}:
            lines.append(f"| {option} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"`{rows[0]['command']}` on {rows[0]['hardware']}."])


def main() -> None:
    options = parser_of(__doc__, seeds=10).parse_args()
    cases = [
        Case(recipe, option, seed)
        for seed in range(options.seeds)
        for recipe in EPOCHS
        for option in (OPTIONS if recipe in ALL else OF_LABELS)
    ]
    rows = fill(
        RESULTS, cases, train, shown=("val", "test"), jobs=options.jobs, minutes=options.minutes
    )
    text = table(rows)
    page = put_between(PAGE.read_text("utf-8"), "<!-- options -->", text)
    write_atomically(PAGE, page.encode())
    print(text)


if __name__ == "__main__":
    main()

"""Compare the scores of training in bf16 on CPU with those of training in fp32.

    python benchmarks/precision.py --jobs 2    → results/precision.json, a table in docs/speed.md

Members of the presets are trained with the same task, split, seed and number of epochs in both
precisions. Each row of the table contains the mean difference of the test scores and its standard
error. On some tasks, each seed has a different split. Results that the file already contains are
not computed again. Needs a CPU with AVX512-BF16 instructions. Graphs that are not bundled are read
from `.npz` files in the folder UNIMP_DATA.
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
from unimp.ops import native
from unimp.runs.experiment import run
from unimp.tasks.means import mean_text

RESULTS = FOLDER / "precision.json"
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"
PRECISIONS = ("fp32", "bf16")
EPOCHS = {
    ("debian", "unimp"): 40,
    ("amazon-computers", "unimp"): 50,
    ("arxiv-guesses", "unimp"): 20,
    ("california", "gcn"): 80,
    ("minesweeper", "gcn-deep-labels"): 200,
    ("cora", "grand-8"): 100,
}
"""The number of epochs for each recipe and member; the best epoch on validation is scored."""


class Case(NamedTuple):
    """One training."""

    recipe: str
    member: str
    seed: int
    precision: str


def train(case: Case) -> dict[str, Any]:
    """The scores of a training, on one thread."""
    torch.set_num_threads(1)
    member = next(one for one in PORTFOLIO if one.name == case.member)
    settings = {
        **FRAME,
        **member.settings,
        "train.epochs": EPOCHS[case.recipe, case.member],
        "train.eval_every": 5,
        "train.patience": 0,
        "train.precision": case.precision,
        "train.device": "cpu",
    }
    recipe = member_recipe(load_recipe(case.recipe), member.name, settings)
    metrics = run(recipe, seed=case.seed, progress=False).metrics
    kept = {"epochs": metrics["epochs"], "best_epoch": metrics["best_epoch"]}
    return {**metrics["scores"]["train"], **kept}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| task | member | epochs | seeds | test in fp32, % | test in bf16, % "
        "| bf16 − fp32, points |",
        "|---" * 7 + "|",
    ]
    for (recipe, member), epochs in EPOCHS.items():
        tests = {
            precision: {
                row["seed"]: row["test"]
                for row in rows
                if (row["recipe"], row["member"], row["precision"]) == (recipe, member, precision)
            }
            for precision in PRECISIONS
        }
        seeds = sorted(set(tests["fp32"]) & set(tests["bf16"]))
        if not seeds:
            continue
        pairs = [(tests["fp32"][seed], tests["bf16"][seed]) for seed in seeds]
        gain = gain_text([100 * (bf16 - fp32) for fp32, bf16 in pairs])
        scores = " | ".join(mean_text(list(column)) for column in zip(*pairs, strict=True))
        lines.append(f"| {recipe} | `{member}` | {epochs} | {len(seeds)} | {scores} | {gain} |")
    return "\n".join([*lines, "", f"`{rows[0]['command']}` on {rows[0]['hardware']}."])


def main() -> None:
    parser = parser_of(__doc__, seeds=10)
    tasks = sorted({recipe for recipe, _ in EPOCHS})
    parser.add_argument("--tasks", nargs="+", default=tasks, choices=tasks, help="Recipes.")
    options = parser.parse_args()
    if not native.multiplies_bf16():
        raise SystemExit("this CPU has no AVX512-BF16 instructions; run it on a CPU that has them")
    cases = [
        Case(recipe, member, seed, precision)
        for seed in range(options.seeds)
        for recipe, member in EPOCHS
        for precision in PRECISIONS
        if recipe in options.tasks
    ]
    shown = ("val", "test")
    rows = fill(RESULTS, cases, train, shown=shown, jobs=options.jobs, minutes=options.minutes)
    text = table(rows)
    page = put_between(PAGE.read_text("utf-8"), "<!-- results: precision -->", text)
    write_atomically(PAGE, page.encode())
    print(text)


if __name__ == "__main__":
    main()

"""Compare GRAND with and without the warm-up of the consistency loss.

    python benchmarks/warmup.py --jobs 2   → results/warmup.json, table in docs/strength.md

Members of the presets are trained on 100 or 400 random labels, a quarter of which are validation
labels, and on the public split. With and without the warm-up, they have the same labels and seeds.
Results that the file already contains are not computed again. The graphs are `.npz` files in the
folder UNIMP_DATA.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

import few_labels
import unimp
from cases import fill, gain_text, parser_of
from results import FOLDER, put_between
from unimp.data.files import write_atomically
from unimp.ensemble.portfolio import PORTFOLIO, settings_of
from unimp.tasks.means import mean_text

RESULTS = FOLDER / "warmup.json"
PAGE = Path(__file__).parent.parent / "docs" / "strength.md"
SETS = ("cora", "citeseer")
MEMBERS = ("grand-2", "grand-8")
PUBLIC = 0
KNOWN = {100: "100 random labels", 400: "400 random labels", PUBLIC: "public split"}
WARMUPS = (0, 100)


class Case(NamedTuple):
    """One training."""

    set: str
    known: int  # train and validation labels
    member: str
    seed: int
    warmup: int


def train(case: Case) -> dict[str, Any]:
    """Train one member on one thread."""
    torch.set_num_threads(1)
    if case.known == PUBLIC:
        task = unimp.load_task(case.set, scale_rows=True)
    else:
        task = few_labels.task_of(few_labels.Case(case.set, case.known, case.seed, 0))
    member = next(one for one in PORTFOLIO if one.name == case.member)
    settings = {
        **settings_of(member, task),
        "task.symmetrize": True,
        "train.consistency_warmup": case.warmup,
        "train.eval_from": 1,
        "train.device": "cpu",
        "train.precision": "auto",
    }
    run = unimp.run(task, seed=case.seed, settings=settings, report=False, progress=False)
    return {**run.metrics["scores"]["train"], "epoch": run.metrics["best_epoch"]}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| graph | labels | member | pairs | without warm-up, % | with warm-up, % | gain, points |",
        "|---" * 7 + "|",
    ]
    for name in SETS:
        for known, words in KNOWN.items():
            for member in MEMBERS:
                tests = {
                    warmup: {
                        row["seed"]: row["test"]
                        for row in rows
                        if (row["set"], row["known"], row["member"], row["warmup"])
                        == (name, known, member, warmup)
                    }
                    for warmup in WARMUPS
                }
                without, warm = (tests[warmup] for warmup in WARMUPS)
                seeds = sorted(without.keys() & warm.keys())
                if not seeds:
                    continue
                scores = [mean_text([of[seed] for seed in seeds]) for of in (without, warm)]
                gain = gain_text([100 * (warm[seed] - without[seed]) for seed in seeds])
                lines.append(
                    f"| {name} | {words} | `{member}` | {len(seeds)} | {' | '.join(scores)} "
                    f"| {gain} |"
                )
    return "\n".join([*lines, "", f"`{rows[0]['command']}` on {rows[0]['hardware']}."])


def main() -> None:
    options = parser_of(__doc__, seeds=3).parse_args()
    cases = [
        Case(name, known, member, seed, warmup)
        for seed in range(options.seeds)
        for name in SETS
        for known in KNOWN
        for member in MEMBERS
        for warmup in WARMUPS
    ]
    rows = fill(
        RESULTS, cases, train, shown=("val", "test"), jobs=options.jobs, minutes=options.minutes
    )
    page = put_between(PAGE.read_text("utf-8"), "<!-- warm-up -->", table(rows))
    write_atomically(PAGE, page.encode())


if __name__ == "__main__":
    main()

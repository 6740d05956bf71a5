"""Search the settings of the debian recipe by validation score, on splits that are not reported.

    python benchmarks/search.py --stage 3 --jobs 8      → benchmarks/results/debian-search.json

Without --stage, all stages run. Each stage sets every option that it does not vary, so that it does
not depend on the current recipe. Test scores are not used. Runs in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from results import provenance, trained
from unimp.data.files import write_atomically
from unimp.ops.allocator import keep_freed_memory

FILE = Path(__file__).parent / "results" / "debian-search.json"
FULL = "X,A,Y + edge features"
MODELS = {
    "X,A": ["model.inputs=X,A", "model.edge_features=false"],
    "X,A + edge features": ["model.inputs=X,A", "model.edge_features=true"],
    "X,A,Y": ["model.inputs=X,A,Y", "model.edge_features=false"],
    FULL: ["model.inputs=X,A,Y", "model.edge_features=true"],
}
# Every option that the recipe sets or has set, except the number of epochs.
COMMON = [
    "model.width=64",
    "model.gate=all",
    "model.attention_dropout=0",
    "train.lr=3e-3",
    "train.weight_decay=5e-4",
    "train.eval_every=5",
    "mask.label_rate=0.5",
    "mask.unit=node",
]


@dataclass(frozen=True)
class Stage:
    splits: list[int]
    common: list[str]
    settings: dict[str, list[list[str]]]  # for each model, in addition to the common ones


def grid(*choices: str) -> list[list[str]]:
    """All combinations of choices written as section.key=one,two."""
    parts = [choice.split("=") for choice in choices]
    each = [[f"{key}={value}" for value in values.split(",")] for key, values in parts]
    return [list(settings) for settings in product(*each)]


# A gate in the last layer or in all, weight decay, dropout and width; then more attention dropout
# where it had helped most.
FIRST = [
    ["model.gate=last", "train.weight_decay=5e-4"],
    ["model.gate=last", "train.weight_decay=1e-3"],
    ["model.gate=all", "train.weight_decay=1e-4"],
    ["model.gate=all", "train.weight_decay=5e-4"],
    ["model.gate=all", "train.weight_decay=1e-3"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.width=128"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.dropout=0.5", "model.input_dropout=0.5"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.3"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.5"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.7"],
    ["model.gate=all", "train.weight_decay=1e-4", "model.attention_dropout=0.3"],
    ["model.gate=all", "train.weight_decay=1e-4", "model.attention_dropout=0.5"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.3", "model.width=128"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.5", "model.width=128"],
]
# Near the best of the first stage, and one of them.
NEAR_BEST = ["train.weight_decay=5e-4,1e-4", "model.attention_dropout=0.3,0.5"]
ONE = ["train.weight_decay=1e-4", "model.attention_dropout=0.3", "mask.label_rate=0.5"]
STAGES = {
    1: Stage([10, 11], [*COMMON, "train.epochs=200"], {"X,A": FIRST, FULL: FIRST}),
    # Longer training and other label rates, which do not matter for X,A.
    2: Stage(
        [10, 11, 12],
        [*COMMON, "train.epochs=400"],
        {"X,A": grid(*NEAR_BEST), FULL: grid(*NEAR_BEST, "mask.label_rate=0.3,0.5,0.7,0.85")},
    ),
    # The labels of one source hidden together; the gain of X,A by width or by edge features.
    3: Stage(
        [10, 11, 12],
        [*COMMON, "train.epochs=300"],
        {
            "X,A": grid(*NEAR_BEST, "model.width=128"),
            "X,A + edge features": grid("train.weight_decay=1e-4", NEAR_BEST[1]),
            "X,A,Y": [[*ONE, "mask.unit=node"], [*ONE, "mask.unit=group"]],
            FULL: [
                *grid(*NEAR_BEST, "mask.label_rate=0.3,0.5,0.7", "mask.unit=group"),
                [*ONE, "mask.unit=group", "model.width=128"],
            ],
        },
    ),
}


def search(number: int, *, jobs: int) -> list[dict[str, Any]]:
    """Train the missing runs of a stage; return the runs of all stages."""
    tried: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    stage = STAGES[number]
    places: list[dict[str, Any]] = [
        {"stage": number, "split": split, "model": model, "settings": settings}
        for split in stage.splits
        for model in stage.settings
        for settings in stage.settings[model]
    ]
    places = [p for p in places if not any(p.items() <= row.items() for row in tried)]
    rows = [
        {"recipe": "debian", "settings": [*MODELS[p["model"]], *stage.common, *p["settings"]]}
        for p in places
    ]
    missing = [(index, place["split"]) for index, place in enumerate(places)]
    for index, _, metrics in trained(rows, missing, jobs=jobs, deadline=math.inf):
        found = {"val": metrics["scores"]["train"]["val"], "best_epoch": metrics["best_epoch"]}
        print(places[index], found, flush=True)
        tried.append({**places[index], **found, **provenance("search.py")})
        write_atomically(FILE, (json.dumps(tried, indent=1) + "\n").encode())
    return tried


def markdown(tried: list[dict[str, Any]], numbers: Iterable[int] = STAGES) -> str:
    """The table of each stage."""
    return "\n\n".join(f"Stage {number}:\n\n{table(tried, number)}" for number in numbers)


def table(tried: list[dict[str, Any]], number: int) -> str:
    """The mean validation accuracy of each setting of a stage, the best of each model in bold."""
    stage = STAGES[number]
    found: dict[str, dict[str, float]] = {}
    for model, several in stage.settings.items():
        for settings in several:
            place = {"stage": number, "model": model, "settings": settings}
            scores = {row["split"]: row["val"] for row in tried if place.items() <= row.items()}
            if set(scores) == set(stage.splits):
                words = ", ".join(word.partition(".")[2] for word in settings)
                found.setdefault(words, {})[model] = mean(scores.values())
    best = {
        model: max((row.get(model, 0.0) for row in found.values()), default=0.0)
        for model in stage.settings
    }
    lines = [f"| settings | {' | '.join(best)} |", "|---|" + "---|" * len(best)]
    for words, row in found.items():
        cells = [f"{100 * row[model]:.2f}" if model in row else "" for model in best]
        cells = [
            f"**{cell}**" if row.get(model) == best[model] else cell
            for model, cell in zip(best, cells, strict=True)
        ]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=STAGES, help="Run one stage only.")
    parser.add_argument("--jobs", type=int, default=1, help="Number of runs at a time.")
    arguments = parser.parse_args()
    keep_freed_memory()
    numbers = [arguments.stage] if arguments.stage else list(STAGES)
    for number in numbers:
        tried = search(number, jobs=arguments.jobs)
    print(markdown(tried, numbers))


if __name__ == "__main__":
    main()

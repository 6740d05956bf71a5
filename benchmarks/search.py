"""How the settings of the debian recipe were found: by validation alone, on splits not reported.

    python benchmarks/search.py --splits 10,11      → benchmarks/results/debian-search.json

Each setting is tried for the full model and for X,A, so that neither had a longer search. Test is
not looked at. A run that stands in the file already is not repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from results import provenance
from unimp.allocator import keep_freed_memory
from unimp.graph.files import write_atomically
from unimp.recipe import load_recipe
from unimp.run import run

FILE = Path(__file__).parent / "results" / "debian-search.json"
MODELS = {
    "X,A": ["model.inputs=X,A", "model.edge_features=false"],
    "X,A,Y + edge features": [],
}
COMMON = ["mask.label_rate=0.5", "train.lr=3e-3", "train.epochs=200", "model.width=64"]
PLAIN = "model.attention_dropout=0"
# A gate in the last layer or in all, weight decay, dropout and width; then, where attention dropout
# had helped most, more of it.
SETTINGS = [
    ["model.gate=last", "train.weight_decay=5e-4", PLAIN],
    ["model.gate=last", "train.weight_decay=1e-3", PLAIN],
    ["model.gate=all", "train.weight_decay=1e-4", PLAIN],
    ["model.gate=all", "train.weight_decay=5e-4", PLAIN],
    ["model.gate=all", "train.weight_decay=1e-3", PLAIN],
    ["model.gate=all", "train.weight_decay=5e-4", PLAIN, "model.width=128"],
    [
        "model.gate=all",
        "train.weight_decay=5e-4",
        PLAIN,
        "model.dropout=0.5",
        "model.input_dropout=0.5",
    ],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.3"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.5"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.7"],
    ["model.gate=all", "train.weight_decay=1e-4", "model.attention_dropout=0.3"],
    ["model.gate=all", "train.weight_decay=1e-4", "model.attention_dropout=0.5"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.3", "model.width=128"],
    ["model.gate=all", "train.weight_decay=5e-4", "model.attention_dropout=0.5", "model.width=128"],
]


def search(splits: list[int]) -> list[dict[str, Any]]:
    tried: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    for split in splits:
        for settings in SETTINGS:
            for model, inputs in MODELS.items():
                place = {"split": split, "model": model, "settings": settings}
                if any({key: row[key] for key in place} == place for row in tried):
                    continue
                recipe = load_recipe("debian", [*inputs, *COMMON, *settings])
                scores = run(recipe, seed=split).metrics["scores"]["train"]
                print(model, *settings, f"split {split}: {scores['val']:.4f}", flush=True)
                tried.append({**place, "val": scores["val"], **provenance("search.py")})
                write_atomically(FILE, (json.dumps(tried, indent=1) + "\n").encode())
    return tried


def markdown(tried: list[dict[str, Any]]) -> str:
    """Mean validation accuracy of each setting, the best of each model in bold."""
    splits = sorted({row["split"] for row in tried})
    found: dict[str, dict[str, float]] = {}
    for settings in SETTINGS:
        words = ", ".join(word.partition(".")[2] for word in settings if word != PLAIN)
        for model in MODELS:
            rows = [r for r in tried if r["model"] == model and r["settings"] == settings]
            if {r["split"] for r in rows} == set(splits):
                found.setdefault(words, {})[model] = mean(r["val"] for r in rows)
    best = {model: max(scores.get(model, 0.0) for scores in found.values()) for model in MODELS}
    lines = [f"| settings | {' | '.join(MODELS)} |", "|---|" + "---|" * len(MODELS)]
    for words, scores in found.items():
        cells = []
        for model in MODELS:
            value = scores.get(model)
            text = "" if value is None else f"{100 * value:.2f}"
            cells.append(f"**{text}**" if value == best[model] else text)
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--splits", default="10,11")
    keep_freed_memory()
    print(markdown(search([int(split) for split in parser.parse_args().splits.split(",")])))


if __name__ == "__main__":
    main()

"""Find when labels as inputs help and when they hurt, on generated graphs.

    python benchmarks/labels.py          → results/labels.json
    python benchmarks/labels.py --docs   → its tables in docs/findings.md

Each graph has 3,000 nodes, 15,000 edges, 5 classes and features that separate the classes in part.
One property varies at a time: the share of edges inside a class, the share of nodes with a known
label, or the share of known labels that are wrong. The settings were fixed beforehand and are the
same everywhere. A seed determines the graph and the model. Runs in the file are not repeated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from results import FOLDER, provenance, put_between
from unimp.data.files import write_atomically
from unimp.data.synthetic import synthetic_task
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.experiment import run
from unimp.runs.scoring import score_split
from unimp.tasks.labels import reveal_only
from unimp.tasks.task import Task

FINDINGS = Path(__file__).parent.parent / "docs" / "findings.md"
FILE = FOLDER / "labels.json"
SEEDS = range(5)
SETTINGS = [
    "model.layers=2", "model.width=16", "model.gate=all", "mask.label_rate=0.5", "train.epochs=150",
    "train.lr=1e-2", "train.weight_decay=5e-4", "train.eval_every=5",
]  # fmt: skip
USUAL = {"homophily": 0.6, "known": 0.1, "wrong": 0.0}
SWEEPS: dict[str, tuple[str, list[float]]] = {
    "homophily": ("share of edges inside a class", [0.1, 0.2, 0.4, 0.6, 0.8]),
    "known": ("share of nodes with a known label", [0.01, 0.03, 0.1, 0.3, 0.6]),
    "wrong": ("share of known labels that are wrong", [0.0, 0.1, 0.2, 0.4, 0.6]),
}
"""With five classes, a share of 0.2 means that edges carry no information."""


def task_of(homophily: float, known: float, wrong: float, seed: int) -> Task:
    task = synthetic_task(
        num_nodes=3000,
        num_edges=15_000,
        num_classes=5,
        num_features=16,
        feature_signal=1.0,
        homophily=homophily,
        split_shares=(known, 0.1, 0.3),
        seed=seed,
    )
    return replace(task, labels=spoiled(task, task.split.train, wrong, seed))


def spoiled(task: Task, nodes: Tensor, share: float, seed: int) -> Tensor:
    """The labels, with a share of those of `nodes` replaced by another class."""
    generator = torch.Generator().manual_seed(seed)
    count = round(share * len(nodes))
    chosen = nodes[torch.randperm(len(nodes), generator=generator)[:count]]
    labels = task.labels.clone()
    shift = torch.randint(1, task.num_classes, (count,), generator=generator)
    labels[chosen] = (labels[chosen] + shift) % task.num_classes
    return labels


def measure(place: dict[str, float], seed: int) -> dict[str, float]:
    """Test accuracy of X,A, and of X,A,Y with labels, without labels, or with wrong ones."""
    task = task_of(**place, seed=seed)
    without = run(task, seed=seed, settings=[*SETTINGS, "model.inputs=X,A"])
    with_labels = run(task, seed=seed, settings=[*SETTINGS, "model.inputs=X,A,Y"])

    def given(observed: Tensor) -> float:
        return score_split(with_labels.logits(observed), task, "train")["test"]

    train = task.split.train
    half_wrong = reveal_only(train, spoiled(task, train, 0.5, seed + 1))
    return {
        "X,A": without.metrics["scores"]["train"]["test"],
        "X,A,Y": given(reveal_only(train, task.labels)),
        "withheld": given(torch.full_like(task.labels, -1)),
        "half wrong": given(half_wrong),
    }


def fill() -> list[dict[str, Any]]:
    done: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    for seed in SEEDS:
        for varied, (_, values) in SWEEPS.items():
            for value in values:
                place = {**USUAL, varied: value}
                key = {"place": place, "seed": seed}
                if any(key.items() <= row.items() for row in done):
                    continue
                found = measure(place, seed)
                print(key, found, flush=True)
                done.append({**key, "test": found, **provenance("labels.py")})
                write_atomically(FILE, (json.dumps(done, indent=1) + "\n").encode())
    return done


def markdown(done: list[dict[str, Any]]) -> str:
    """One table per sweep: test accuracy, and the gain of labels over X,A, paired by seed."""
    parts = []
    for varied, (words, values) in SWEEPS.items():
        lines = [
            f"| {words} | X,A | X,A,Y | gain | labels withheld at prediction "
            "| half of them wrong at prediction |",
            "|---|---|---|---|---|---|",
        ]
        for value in values:
            rows = [r["test"] for r in done if r["place"] == {**USUAL, varied: value}]
            if len(rows) < 2:
                continue
            gains = [row["X,A,Y"] - row["X,A"] for row in rows]
            cells = [f"{100 * mean(row[key] for row in rows):.1f}" for key in ("X,A", "X,A,Y")]
            cells.append(f"{100 * mean(gains):+.1f} ± {100 * stdev(gains):.1f}")
            cells += [
                f"{100 * mean(row[key] for row in rows):.1f}" for key in ("withheld", "half wrong")
            ]
            lines.append(f"| {value:g} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--docs", action="store_true", help="Write the tables into docs.")
    arguments = parser.parse_args()
    keep_freed_memory()
    done = fill()
    print(markdown(done))
    if arguments.docs:
        text = FINDINGS.read_text("utf-8")
        write_atomically(
            FINDINGS, put_between(text, "<!-- results: labels -->", markdown(done)).encode()
        )


if __name__ == "__main__":
    main()

"""Show that `unimp audit` finds wrong labels, on `debian` with labels made wrong on purpose.

    python proofs/audit.py                        trains each seed → results/audit.json
    python proofs/audit.py --weights FOLDER       uses FOLDER/flipped-<seed>.safetensors

For each seed, 5 % of the train labels are replaced by another class at random, and the recipe is
trained on these labels. Then each train label is hidden alone and predicted from the others. At
least 60 % of the wrong labels must be among the first 10 % of the ranking. The score of the
ranking, log p(suggested) − log p(given), was chosen beforehand, on seed 5.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from unimp import __version__
from unimp.analysis.audit import Audit, audit
from unimp.config.recipe import Recipe, load_recipe
from unimp.data.files import write_atomically
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.context import Experiment
from unimp.runs.fitting import fit_model
from unimp.runs.preparation import task_of
from unimp.runs.run import Run
from unimp.tasks.task import Task
from unimp.tracking.origin import code_origin
from unimp.training.checkpoint import load_weights, save_weights

FILE = Path(__file__).parent / "results" / "audit.json"
SHARE, FIRST, REQUIRED = 0.05, 0.10, 0.60


def flipped(task: Task, seed: int, share: float = SHARE) -> tuple[Task, Tensor]:
    """The task with a share of its train labels replaced by another class, and their nodes."""
    generator = torch.Generator().manual_seed(1000 + seed)
    known = task.split.train
    count = round(share * known.numel())
    which = known[torch.randperm(known.numel(), generator=generator)[:count]]
    labels = task.labels.clone()
    other = torch.randint(1, task.num_classes, (count,), generator=generator)
    labels[which] = (labels[which] + other) % task.num_classes
    return replace(task, labels=labels), which


def trained(recipe: Recipe, task: Task, seed: int, weights: Path | None, keep: Path | None) -> Run:
    """A run on the given task, trained here or with stored weights."""
    torch.manual_seed(seed)
    model = build_model(recipe.model, task.sizes)
    if weights is not None:
        load_weights(model, weights / f"flipped-{seed}.safetensors")
    else:
        fit_model(Experiment(recipe, seed, "cpu"), model, task, data_hash="")
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            save_weights(model, keep / f"flipped-{seed}.safetensors")
    return Run(recipe, seed, task, model.eval(), {}, "cpu")


def found_first(ranking: Audit, wrong: Tensor, first: float = FIRST) -> float:
    """The share of wrong labels among the first part of a ranking."""
    head = ranking.nodes[: round(first * len(ranking))]
    return float(torch.isin(wrong, head).double().mean())


def prove(recipe: Recipe, seed: int, weights: Path | None, keep: Path | None) -> dict[str, Any]:
    task, wrong = flipped(task_of(recipe, seed), seed)
    run = trained(recipe, task, seed, weights, keep)
    began = time.perf_counter()
    answers = run.incremental(run.observed_labels(reveal="train"))
    alone = audit(answers, task, task.split.train, chances=run.probabilities_of, folds=0)
    seconds = time.perf_counter() - began
    quick = audit(answers, task, task.split.train, chances=run.probabilities_of, folds=20)
    places = torch.nonzero(torch.isin(alone.nodes, wrong)).squeeze(1)
    return {
        "seed": seed,
        "known": len(alone),
        "wrong": wrong.numel(),
        "found": {f"first {percent} %": found_first(alone, wrong, percent / 100)
                  for percent in (5, 10, 20)},
        "found_with_20_folds": {"first 10 %": found_first(quick, wrong)},
        "median_rank_of_wrong_labels": int(places.median()) + 1,
        "disagreements": alone.disagreements,
        "seconds": round(seconds, 1),
    }  # fmt: skip


def command(arguments: Sequence[str]) -> str:
    """The command of this proof, without folder names of this machine."""
    return re.sub(
        r"(?<![^\s=])[/~]\S*/(?=\S)", "", " ".join(("python proofs/audit.py", *arguments))
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, help="Use trained weights from this folder.")
    parser.add_argument("--keep", type=Path, help="Store the trained weights in this folder.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--set", nargs="*", default=[], help="Settings that change the recipe.")
    parser.add_argument("--out", type=Path, default=FILE)
    arguments = parser.parse_args()
    keep_freed_memory()
    recipe = load_recipe("debian", arguments.set)
    rows: list[dict[str, Any]] = []
    for seed in arguments.seeds:
        rows.append(prove(recipe, seed, arguments.weights, arguments.keep))
        print(json.dumps(rows[-1]), flush=True)
        shares = [row["found"]["first 10 %"] for row in rows]
        result = {
            "what": "wrong labels among the first 10 % of the audit's ranking",
            "required": REQUIRED,
            "mean": mean(shares),
            "minimum": min(shares),
            "passed": min(shares) >= REQUIRED,
            "recipe": recipe.name,
            "settings": arguments.set,
            "weights": "trained before" if arguments.weights else "trained by this command",
            "command": command(sys.argv[1:]),
            "unimp": __version__,
            "code": code_origin(),
            "torch": torch.__version__,
            "seeds": rows,
        }
        write_atomically(arguments.out, (json.dumps(result, indent=1) + "\n").encode())
    print(f"mean {100 * mean(shares):.1f} %, minimum {100 * min(shares):.1f} % (required: 60 %)")


if __name__ == "__main__":
    main()

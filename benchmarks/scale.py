"""Measure time and peak memory of training on synthetic graphs of a tenth of OGB's size.

    python benchmarks/scale.py products proteins        → benchmarks/results/scale.json

products: neighbor sampling and exact inference, as the recipe `products-paper`. proteins: random
partition, edge features and binary tasks, as `proteins-paper`. A few epochs suffice, because every
epoch costs the same. Each graph runs in a separate process, so that its peak memory is measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import torch

from unimp.config.recipe import load_recipe
from unimp.data.files import write_atomically
from unimp.inference.logits import predict_logits
from unimp.model.registry import build_model
from unimp.runs.context import Experiment
from unimp.runs.fitting import fit_model
from unimp.runs.preparation import seeded, task_of
from unimp.tasks.labels import reveal_only
from unimp.tasks.metrics import score
from unimp.tracking.origin import code_origin

PATH = Path(__file__).parent / "results" / "scale.json"


def measure(name: str, scale: float, epochs: int) -> dict[str, Any]:
    recipe = load_recipe(
        f"{name}-paper",
        [
            f"task.name=synthetic-{name}",
            f"task.scale={scale}",
            f"train.epochs={epochs}",
            f"train.eval_from={epochs}",
            "train.device=cpu",
        ],
    )
    task = task_of(recipe, 0)
    loaded = peak_memory()
    with seeded(0, "cpu"):
        model = build_model(recipe.model, task.sizes)
        fitted = fit_model(Experiment(recipe, 0, "cpu"), model, task, data_hash="")
    begun = time.perf_counter()
    observed = reveal_only(task.split.train, task.labels)
    graph = task.graph if model.takes_edge_features else task.graph.without_edge_attr()
    logits = predict_logits(model, graph, observed, **recipe.inference.model_dump())
    inference = time.perf_counter() - begun
    test = task.split.test
    return {
        "graph": repr(task.graph),
        "recipe": recipe.name,
        "epochs": epochs,
        "losses": [round(e.loss, 4) for e in fitted.history],
        # The last epoch includes scoring; inference is measured separately.
        "seconds_per_epoch": round(min(e.seconds for e in fitted.history), 2),
        "seconds_inference": round(inference, 2),
        "gib_task_loaded": round(loaded, 2),
        "gib_peak": round(peak_memory(), 2),
        "test_score": round(score(task.metric, logits[test], task.labels[test]), 4),
        "metric": task.metric,
    }


def peak_memory() -> float:
    """Peak memory of this process, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def in_own_process(name: str, scale: float, epochs: int) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (name, scale, epochs))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="+", choices=["products", "proteins", "arxiv"])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    results = json.loads(PATH.read_text(encoding="utf-8")) if PATH.exists() else {}
    for name in arguments.graphs:
        measured = in_own_process(name, arguments.scale, arguments.epochs)
        command = f"python benchmarks/scale.py {name} --scale {arguments.scale:g}"
        results[f"{name}-{arguments.scale:g}"] = {
            "command": f"{command} --epochs {arguments.epochs}",
            "hardware": f"{os.cpu_count()} CPU cores ({platform.machine()})",
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "code": code_origin(),
            **measured,
        }
        write_atomically(PATH, (json.dumps(results, indent=1) + "\n").encode())
        for key in ("seconds_per_epoch", "seconds_inference", "gib_peak"):
            print(f"figure {name}_{key} {measured[key]}")


if __name__ == "__main__":
    main()

"""How long an explanation takes on the graph of ogbn-arxiv, once the states of its nodes are held.

    UNIMP_DATA=… python benchmarks/explain.py          → results/explain.json

The recipe is `arxiv-labels`, with weights as they are drawn: time does not depend on them. Nodes
are drawn at random, and the largest hubs are added. An explanation is all that `unimp explain`
tells of a node: attention of each layer and rolled out, the exact effects of labels and edges, and
what remains without any.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import mean, median

import numpy as np
import torch

from measure import FOLDER, Figures
from unimp.allocator import keep_freed_memory
from unimp.inference.explain import explain
from unimp.preparation import task_of
from unimp.recipe import load_recipe
from unimp.run import Run

HUBS = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="arxiv-labels")
    parser.add_argument("--nodes", type=int, default=60, help="drawn at random, beside the hubs")
    arguments = parser.parse_args()
    keep_freed_memory()
    recipe = load_recipe(arguments.recipe)
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    run = Run(recipe, 0, task, recipe.build_model(task.sizes).eval(), {}, "cpu")
    began = time.perf_counter()
    answers = run.hold()
    held = time.perf_counter() - began
    began = time.perf_counter()
    answers.without_labels  # noqa: B018  (computed once, and kept)
    bare = time.perf_counter() - began
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(task.graph.num_nodes, generator=generator)[: arguments.nodes].tolist()
    hubs = torch.argsort(task.graph.in_degree, descending=True)[:HUBS].tolist()
    observed = run.observed_with(None)
    taken, busy, labels, edges = {}, {}, {}, {}
    explain(answers, task.graph, observed, drawn[0], chances=run.chances)  # warms up
    for node in [*drawn, *hubs]:
        began, worked = time.perf_counter(), time.process_time()
        found = explain(answers, task.graph, observed, node, chances=run.chances)
        taken[node] = time.perf_counter() - began
        busy[node] = time.process_time() - worked
        labels[node], edges[node] = found.exact_labels, found.exact_edges
    figures = Figures("explain", FOLDER)
    load = f"; other work on the machine: load {os.getloadavg()[0]:.1f}"
    times, hub_times = list(taken.values()), [taken[node] for node in hubs]
    of = f"{len(times)} nodes of {arguments.recipe}, {HUBS} of them the largest hubs"
    rows = {
        "hold-s": (held, "s to compute the states of all nodes, once", ""),
        "without-labels-s": (bare, "s to compute all logits without labels, once", ""),
        "median-s": (median(times), f"s an explanation, median of {of}{load}", "< 1"),
        "p95-s": (float(np.quantile(times, 0.95)), "s, 95th percentile of these", "< 1"),
        "worst-s": (max(times), "s, the slowest of these", "< 1"),
        "hub-median-s": (median(hub_times), f"s, median of the {HUBS} largest hubs", "< 1"),
        "median-cpu-s": (median(busy.values()), "s of processor time, both cores, median", ""),
        "worst-cpu-s": (max(busy.values()), "s of processor time, both cores, the slowest", ""),
        "exact-labels": (mean(labels.values()), "labels with an exact effect, mean", ""),
        "exact-edges": (mean(edges.values()), "edges with an exact effect, mean", ""),
        "hub-exact": (mean(labels[n] + edges[n] for n in hubs), "the same of both, of hubs", ""),
    }
    for name, (value, what, aim) in rows.items():
        figures.add(name, value, what, aim)


if __name__ == "__main__":
    main()

"""How long an explanation takes on the graph of ogbn-arxiv, once the states of its nodes are held.

    UNIMP_DATA=… python benchmarks/explain.py             → results/explain.json
    python benchmarks/explain.py --candidates RUN         whether shares find the largest effects
    python benchmarks/explain.py --docs                   → figures in docs/explaining.md

The recipe is `arxiv-labels`, with weights as they are drawn: time does not depend on them. Nodes
are drawn at random, and the largest hubs are added. An explanation is all that `unimp explain`
tells of a node: attention of each layer and rolled out, the exact effects of labels and edges, and
what remains without any.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from measure import FOLDER, Figures
from unimp.allocator import keep_freed_memory
from unimp.graph.files import write_atomically
from unimp.inference.explain import EXACT, explain
from unimp.preparation import task_of
from unimp.recipe import load_recipe
from unimp.trained import Run, load_run

ROOT = Path(__file__).parent.parent
HUBS = 10
MANY, STRONGEST = 120, 5


def measure_time(recipe_name: str, count: int, figures: Figures) -> None:
    recipe = load_recipe(recipe_name)
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
    drawn = torch.randperm(task.graph.num_nodes, generator=generator)[:count].tolist()
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
    load = f"; other work on the machine: load {os.getloadavg()[0]:.1f}"
    times, hub_times = list(taken.values()), [taken[node] for node in hubs]
    of = f"{len(times)} nodes of {recipe_name}, {HUBS} of them the largest hubs"
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


def measure_candidates(folder: Path, figures: Figures, nodes: int = 20) -> None:
    """Of the largest effects among many candidates, how many are among those with large shares."""
    run = load_run(folder, device="cpu")
    answers, observed, test = run.hold(), run.observed_with(None), run.task.split.test
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))
    found: list[float] = []
    for node in test[order[:nodes]].tolist():
        why = explain(
            answers, run.task.graph, observed, node, chances=run.chances,
            top=MANY, exact=MANY, budget=10**12,
        )  # fmt: skip
        for effects in (why.labels, why.edges):
            first = {id(one) for one in sorted(effects, key=lambda one: -one.share)[:EXACT]}
            found += [float(id(one) in first) for one in effects[:STRONGEST]]
    what = (
        f"share of the {STRONGEST} largest effects among {MANY} labels, and as many edges, that "
        f"are among the {EXACT} with the largest shares; {nodes} test nodes of {run.recipe.name}"
    )
    figures.add("found", mean(found), what, "")


def write_docs() -> None:
    """The figures of docs/explaining.md, from explain.json and proofs/results/audit.json."""
    times = json.loads((FOLDER / "explain.json").read_text("utf-8"))
    audited = json.loads((ROOT / "proofs" / "results" / "audit.json").read_text("utf-8"))
    shown = {
        "explain: median": f"{times['median-s']['value']:.2f}",
        "explain: worst": f"{times['worst-s']['value']:.2f}",
        "explain: found": f"{100 * times['found']['value']:.0f} %",
        "audit: mean": f"{100 * audited['mean']:.0f} %",
        "audit: least": f"{100 * audited['least']:.0f} %",
    }
    page = ROOT / "docs" / "explaining.md"
    text = page.read_text("utf-8")
    for name, value in shown.items():
        text = re.sub(f"(<!-- {name} -->).*?(<!-- end -->)", rf"\g<1>{value}\g<2>", text)
    write_atomically(page, text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="arxiv-labels")
    parser.add_argument("--nodes", type=int, default=60, help="drawn at random, beside the hubs")
    parser.add_argument("--candidates", type=Path, metavar="RUN", help="look at shares instead")
    parser.add_argument("--docs", action="store_true", help="write the figures into docs")
    arguments = parser.parse_args()
    keep_freed_memory()
    if arguments.docs:
        write_docs()
    elif arguments.candidates is not None:
        measure_candidates(arguments.candidates, Figures("explain", FOLDER))
    else:
        measure_time(arguments.recipe, arguments.nodes, Figures("explain", FOLDER))


if __name__ == "__main__":
    main()

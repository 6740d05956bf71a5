"""Time explanations on the graph of ogbn-arxiv: with the states of all nodes in memory, or alone.

    UNIMP_DATA=… python benchmarks/explain.py             → results/explain.json: elapsed time
    UNIMP_DATA=… python benchmarks/explain.py --threads 1   CPU time of one core
    python benchmarks/explain.py --candidates RUN         whether shares find the largest effects
    python benchmarks/explain.py --docs                   → numbers in docs/explaining.md

The recipe is `arxiv-labels` with initial weights, because time does not depend on them. Nodes are
drawn at random, and the largest hubs are added. An explanation contains everything that
`unimp explain` prints about a node: attention per layer and rolled out, the exact effects of labels
and edges, and the prediction without any of them.
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
from unimp.analysis.explain import EXACT, explain
from unimp.config.recipe import load_recipe
from unimp.data.files import write_atomically
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.loading import load_run
from unimp.runs.preparation import task_of
from unimp.runs.run import Run

ROOT = Path(__file__).parent.parent
HUBS = 10
MANY, STRONGEST = 120, 5
ALONE = 30


def measure_time(recipe_name: str, count: int, figures: Figures) -> None:
    recipe = load_recipe(recipe_name)
    task = task_of(recipe, 0)
    torch.manual_seed(0)
    run = Run(recipe, 0, task, build_model(recipe.model, task.sizes).eval(), {}, "cpu")
    observed = run.observed_labels(reveal="train")
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    began = clock()
    answers = run.incremental(observed)
    held, began = clock() - began, clock()
    answers.without_labels  # noqa: B018  (computed once and kept)
    bare = clock() - began
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randperm(task.graph.num_nodes, generator=generator)[:count].tolist()
    hubs = torch.argsort(task.graph.in_degree, descending=True)[:HUBS].tolist()
    taken, busy, labels, edges = {}, {}, {}, {}
    explain(answers, task, observed, drawn[0], chances=run.probabilities_of)  # warms up
    for node in [*drawn, *hubs]:
        began, worked = time.perf_counter(), time.process_time()
        found = explain(answers, task, observed, node, chances=run.probabilities_of)
        taken[node] = time.perf_counter() - began
        busy[node] = time.process_time() - worked
        labels[node], edges[node] = found.exact_labels, found.exact_edges
    # On a machine with other work, only CPU time measures the work itself.
    wall = (
        f"elapsed, on {torch.get_num_threads()} cores; load of the machine {os.getloadavg()[0]:.1f}"
    )
    kinds = {"": (taken, wall)}
    if torch.get_num_threads() == 1:
        kinds = {"core-": (busy, "time of one core")}
    of = f"{len(taken)} nodes of {recipe_name}, {HUBS} of them the largest hubs"
    for kind, (times, words) in kinds.items():
        every, of_hubs = list(times.values()), [times[node] for node in hubs]
        figures.add(f"{kind}hold-s", held, f"s to compute the states of all nodes; {words}")
        figures.add(f"{kind}without-labels-s", bare, f"s for all logits without labels; {words}")
        figures.add(f"{kind}median-s", median(every), f"s, median of {of}; {words}", "< 1")
        figures.add(f"{kind}p95-s", float(np.quantile(every, 0.95)), "s, 95th percentile", "< 1")
        figures.add(f"{kind}worst-s", max(every), "s, the slowest of these", "< 1")
        figures.add(f"{kind}hub-median-s", median(of_hubs), f"s, median of {HUBS} hubs", "< 1")
    if torch.get_num_threads() > 1:
        alone = []
        for node in drawn[:ALONE]:
            began = time.perf_counter()
            around = run.incremental(observed, around=torch.tensor([node]))
            explain(around, task, observed, node, chances=run.probabilities_of)
            alone.append(time.perf_counter() - began)
        what = f"s for one node, including the states that it depends on, median of {ALONE}; {wall}"
        figures.add("alone-median-s", median(alone), what, "< 1")
        figures.add(
            "alone-worst-s", max(alone), "s for one node including these, the slowest", "< 1"
        )
    figures.add("exact-labels", mean(labels.values()), "labels with an exact effect, mean")
    figures.add("exact-edges", mean(edges.values()), "edges with an exact effect, mean")
    figures.add("hub-exact", mean(labels[n] + edges[n] for n in hubs), "both, mean of the hubs")


def measure_candidates(folder: Path, figures: Figures, nodes: int = 20) -> None:
    """How many of the largest effects among many candidates have one of the largest shares."""
    run = load_run(folder, device="cpu")
    observed, test = run.observed_labels(reveal="train"), run.task.split.test
    answers = run.incremental(observed)
    order = torch.randperm(len(test), generator=torch.Generator().manual_seed(1))
    found: list[float] = []
    for node in test[order[:nodes]].tolist():
        why = explain(
            answers, run.task, observed, node, chances=run.probabilities_of,
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
    """Write the numbers of docs/explaining.md, from results/explain.json and proofs/audit.py."""
    times = json.loads((FOLDER / "explain.json").read_text("utf-8"))
    audited = json.loads((ROOT / "proofs" / "results" / "audit.json").read_text("utf-8"))
    shown = {
        "explain: median": f"{times['median-s']['value']:.2f}",
        "explain: worst": f"{times['worst-s']['value']:.2f}",
        "explain: alone": f"{times['alone-median-s']['value']:.2f}",
        "explain: alone, worst": f"{times['alone-worst-s']['value']:.2f}",
        "explain: found": f"{100 * times['found']['value']:.0f} %",
        "audit: mean": f"{100 * audited['mean']:.0f} %",
        "audit: least": f"{100 * audited['minimum']:.0f} %",
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
    parser.add_argument(
        "--nodes", type=int, default=60, help="Number of random nodes, in addition to the hubs."
    )
    parser.add_argument(
        "--threads", type=int, default=2, help="With 1 thread, CPU time is measured."
    )
    parser.add_argument(
        "--candidates", type=Path, metavar="RUN", help="Check candidates of this run instead."
    )
    parser.add_argument("--docs", action="store_true", help="Write the numbers into docs.")
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    if arguments.docs:
        write_docs()
    elif arguments.candidates is not None:
        measure_candidates(arguments.candidates, Figures("explain", FOLDER))
    else:
        measure_time(arguments.recipe, arguments.nodes, Figures("explain", FOLDER))


if __name__ == "__main__":
    main()

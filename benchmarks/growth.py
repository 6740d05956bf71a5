"""Measure how time and memory of training grow when nodes, edges or the width double.

    python benchmarks/growth.py                    on CPU, each process within 8 GB
    python benchmarks/growth.py --device cuda
    python benchmarks/growth.py --page             → the tables in docs/scale.md

    nodes    the full batch on graphs with 15 in-edges per node; nodes and edges double
    edges    the full batch on the same nodes; edges double
    width    the full batch on the same graph; the width of the hidden layers doubles
    papers   batches of 1,024 hidden nodes with 10, 10 and 10 sampled in-neighbors, on graphs of the
             shape of ogbn-papers100M; nodes and edges double

UniMP has 3 layers of 2 heads. The same layers from PyG are trained on the same batches. (PyG's own
sampler needs pyg-lib or torch-sparse.) On CPU, each case runs in its own process, which may
allocate at most --memory; a case that needs more fails. Figures are added to results/growth.json.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from measure import FOLDER, hop_of_size, place, wait
from papers import CLASSES as PAPERS_CLASSES
from papers import papers_task
from unimp.config.options import BatchOptions, bytes_of
from unimp.config.recipe import Recipe
from unimp.data.files import write_atomically
from unimp.data.memory import peak_memory
from unimp.graph.graph import Graph
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
from unimp.runs.preparation import choose_device
from unimp.tasks.labels import mask_of
from unimp.tasks.task import Sizes
from unimp.training.batching import make_batches
from unimp.training.masks import Masks
from unimp.training.step import Step

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
NODES, EDGES, FEATURES, CLASSES = 169_343, 2_484_941, 128, 40  # as ogbn-arxiv
HEADS, WIDTH = 2, 64
STEPS = 6  # of sampled batches that are measured


def cases(device: str) -> dict[str, list[dict[str, Any]]]:
    """The sizes of each series; those for a GPU are larger."""
    first = 2.0 if device == "cuda" else 1 / 16
    doubled = [first * 2**k for k in range(5)]
    base = {"nodes": round(NODES * 2 * first), "edges": round(EDGES * 2 * first), "width": WIDTH}
    largest = 1 / 8 if device == "cuda" else 1 / 64
    return {
        "nodes": [
            {"nodes": round(NODES * s), "edges": round(EDGES * s), "width": WIDTH} for s in doubled
        ],
        "edges": [base | {"edges": base["edges"] * 2**k} for k in range(5)],
        "width": [base | {"width": 16 * 2**k} for k in range(5)],
        "papers": [{"scale": largest / 2**k, "width": WIDTH} for k in (4, 3, 2, 1, 0)],
    }


@lru_cache(maxsize=1)  # the next case may have the same graph
def random_graph(nodes: int, edges: int, device: str) -> tuple[Graph, Tensor, Tensor]:
    """A graph with random features, the labels of its nodes, and which of them are known."""
    hop = hop_of_size(nodes, edges, device=device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(nodes, FEATURES, generator=generator)
    labels = torch.randint(CLASSES, (nodes,), generator=generator)
    known = torch.rand(nodes, generator=generator) < 0.54
    return Graph(hop.indptr, hop.source, None, x.to(device)), labels, known


papers_task = lru_cache(maxsize=1)(papers_task)


def measured(case: dict[str, Any], model_name: str, device: str) -> dict[str, Any]:
    """Seconds per epoch and peak memory of one case, in this process."""
    keep_freed_memory()
    classes = CLASSES
    if "scale" in case:
        task = papers_task(case["scale"], device)
        graph, labels, classes = task.graph, task.labels, PAPERS_CLASSES
        known = mask_of(task.split.train, len(labels))
        options = BatchOptions(regime="neighbors", fanout=[10], batch_size=1024)
    else:
        graph, labels, known = random_graph(case["nodes"], case["edges"], device)
        options = BatchOptions(regime="full", prune=False)
    masks = Masks(known, 0.625, redraw="epoch", seed=0)
    batches = make_batches(graph, labels, masks, options, num_layers=3, device=device)
    here = labels.to(device)
    torch.manual_seed(0)
    if model_name == "unimp":
        recipe = Recipe().with_settings(
            {"model.layers": 3, "model.heads": HEADS, "model.width": case["width"]}
        )
        sizes = Sizes(graph.num_features, 0, classes, False)
        model: nn.Module = build_model(recipe.model, sizes).to(device)
        take: Any = Step(model, torch.optim.Adam(model.parameters()), here, "fp32")
    else:
        from pyg_model import PyGModel, edges_of

        model = PyGModel(graph.num_features, classes, width=case["width"], heads=HEADS).to(device)
        optimizer = torch.optim.Adam(model.parameters())

        def take(batch: Any) -> None:
            optimizer.zero_grad(set_to_none=True)
            wanted = here[batch.seeds[batch.hidden]]
            logits = model(batch, edges_of(batch))[batch.hidden]
            nn.functional.cross_entropy(logits, wanted).backward()
            optimizer.step()

    model.train()
    hidden = int(masks.at(1, 0).hidden.sum())
    steps = math.ceil(hidden / 1024) if "scale" in case else 1
    taken: list[float] = []
    if device != "cpu":
        gc.collect()  # the previous case may still hold memory
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    while len(taken) < STEPS + 1:
        before = time.perf_counter()
        for batch in batches.epoch(len(taken) + 1):
            take(batch.to(device))
            wait(device)
            now = time.perf_counter()
            taken.append(now - before)
            before = now
            if len(taken) > STEPS:
                break
    peak = peak_memory() if device == "cpu" else torch.cuda.max_memory_allocated()
    step = statistics.median(taken[1:])
    return {
        "nodes": graph.num_nodes,
        "in_edges": graph.num_edges,
        "width": HEADS * case["width"],
        "seconds_per_step": float(f"{step:.3g}"),
        "seconds_per_epoch": float(f"{step * steps:.3g}"),
        "gib": round(peak / 2**30, 2),
    }


def tried(case: dict[str, Any], model: str, device: str, memory: str) -> dict[str, Any]:
    """Measure a case; a failure is returned as a result."""
    if device == "cpu":
        return in_own_process(case, model, device, memory)
    try:
        return measured(case, model, device)
    except torch.OutOfMemoryError as error:
        return {"failed": str(error)[:200]}
    finally:
        torch.cuda.empty_cache()


def in_own_process(case: dict[str, Any], model: str, device: str, memory: str) -> dict[str, Any]:
    """Measure a case in a process with a memory limit."""
    words = [sys.executable, __file__, "--case", json.dumps(case), "--model", model]
    words += ["--device", device]

    def limited() -> None:
        limit = int(bytes_of(memory))
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    done = subprocess.run(
        words,
        preexec_fn=limited,
        capture_output=True,
        text=True,
    )
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return {"failed": last[0][:200]}


def key_of(case: dict[str, Any]) -> str:
    return " ".join(f"{name}={value:g}" for name, value in case.items())


def tables(found: dict[str, Any]) -> str:
    """The series as tables."""
    titles = {
        "nodes": "full batch; nodes and edges double",
        "edges": "full batch; edges double",
        "width": "full batch; the width doubles",
        "papers": "sampled neighbors, the shape of ogbn-papers100M; nodes and edges double",
    }
    parts = []
    for device in ("cpu", "cuda"):
        for series, title in titles.items():
            rows = found.get(f"{device} {series}", {})
            if not rows:
                continue
            lines = [
                "| nodes | in-edges | width | UniMP, s per epoch | GiB | PyG, s per epoch | GiB |",
                "|---|---|---|---|---|---|---|",
            ]
            for row in rows.values():
                own, other = row["unimp"], row["pyg"]
                sizes = own if "nodes" in own else other
                given = [sizes.get(name) for name in ("nodes", "in_edges", "width")]
                text = [f"{number:,}" if number else "" for number in given]
                for side in (own, other):
                    fails = "failed" in side
                    text += ["fails", ""] if fails else [side["seconds_per_epoch"], side["gib"]]
                lines.append("| " + " | ".join(map(str, text)) + " |")
            where = next(iter(rows.values()))
            limit = f", at most {where['memory']} per process" if device == "cpu" else ""
            lines.append(f"\n`{where['command']}` on {where['hardware']}{limit}.")
            name = {"cpu": "CPU", "cuda": "GPU"}[device]
            parts.append(f"**{name}, {title}.**\n\n" + "\n".join(lines))
    return "\n\n".join(parts) or "Not measured yet."


def write_page(found: dict[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, marker, rest = text.partition("<!-- growth -->")
    _, end, after = rest.partition("<!-- end -->")
    write_atomically(PAGE, f"{before}{marker}\n{tables(found)}\n{end}{after}".encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("series", nargs="*", help="nodes, edges, width, papers; default: all")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--memory", default="8G")
    parser.add_argument("--most", type=int, default=5, help="Sizes per series, smallest first.")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        device = choose_device(given.device)
        print(json.dumps(measured(json.loads(given.case), given.model, device)))
        return
    path = given.out / "growth.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if given.page:
        write_page(found)
        return
    device = choose_device(given.device)
    for series, sizes in cases(given.device).items():
        if given.series and series not in given.series:
            continue
        rows = found[f"{given.device} {series}"] = {}
        for case in sizes[: given.most]:
            row = {"memory": given.memory, **place()}
            for model in ("unimp", "pyg"):
                row[model] = tried(case, model, device, given.memory)
                print(series, key_of(case), model, json.dumps(row[model]), flush=True)
            rows[key_of(case)] = row
            write_atomically(path, (json.dumps(found, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()

"""Time epochs on a graph with a tenth of the size of ogbn-papers100M, for each place of the graph.

    python benchmarks/store_gpu.py --out benchmarks/results/store_gpu.json
    python benchmarks/store_gpu.py --device cpu --scale 0.0005 --out FILE       a short form

A UniMP of 3 layers and 128 numbers per node (2 heads of 64) is trained with batches of 1,024 hidden
nodes and 10, 10 and 10 sampled in-neighbors. An epoch is measured twice: with the default mask,
which hides 37.5 % of the train labels, and with all train labels hidden, so that every train node
is a seed. Places: everything on the GPU; features in pinned main memory, in 32 and in 16 bits, and
in 32 bits with a fifth of the rows on the GPU as well (hot rows); and everything in main memory,
where the CPU samples. The graph is generated on the GPU.

PyG's NeighborLoader is tried on a small graph, because it needs another package. PyG's
TransformerConv is then compared with UniMP on the same batches, which unimp sampled.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from measure import Figures, wait
from papers import CLASSES, WIDTH, papers_task
from unimp.config.options import BatchOptions
from unimp.config.recipe import Recipe
from unimp.data.store.task import StoredTask
from unimp.model.registry import build_model
from unimp.ops import native, pinned
from unimp.ops.allocator import keep_freed_memory
from unimp.ops.pinned import hot_nodes
from unimp.runs.context import Experiment
from unimp.runs.estimate import estimate
from unimp.runs.fitting import fit_model
from unimp.runs.preparation import choose_device, seeded
from unimp.tasks.labels import mask_of
from unimp.training.batch import Batch
from unimp.training.batching import make_batches
from unimp.training.loop import Epoch
from unimp.training.masks import Masks
from unimp.training.step import Step

RECIPE = Recipe(name="papers").with_settings(
    {
        "model.layers": 3,
        "model.heads": 2,
        "model.width": 64,
        "batch.regime": "neighbors",
        "batch.fanout": [10],
        "batch.batch_size": 1024,
        "train.eval_neighbors": "sampled",
    }
)
BATCHES = 8  # on which both models are compared


def epoch_seconds(
    task: StoredTask, device: str, place: str, label_rate: float, epochs: int
) -> tuple[float, float]:
    """The median seconds of an epoch without scoring, and the GPU memory in GiB."""
    recipe = RECIPE.with_settings(
        {
            "batch.placement": place,
            "batch.workers": 1 if device == "cpu" else 8,
            "mask.label_rate": label_rate,
            "train.epochs": epochs,
            "train.eval_from": epochs,
        }
    )
    found: list[Epoch] = []
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    with seeded(0, device):
        model = build_model(recipe.model, task.sizes).to(device)
        experiment = Experiment(
            recipe, 0, device, on_epoch=found.append, placement=recipe.batch.placement
        )
        fit_model(experiment, model, task, data_hash="")
    peak = 0 if device == "cpu" else torch.cuda.max_memory_allocated() / 2**30
    return statistics.median(e.seconds for e in found[1:-1]), peak


HOT = {"pinned-hot": 0.2}  # the share of the rows that are on the GPU as well


def limit_hot_rows(share: float) -> None:
    """Limit hot rows to a share of all rows.

    All rows of this graph would fit on the GPU. With the limit, it behaves like a larger graph.
    """

    def limited(source: Tensor, num_nodes: int, count: int) -> Tensor:
        return hot_nodes(source, num_nodes, min(count, round(share * num_nodes)))

    pinned.hot_nodes = limited


def places(figures: Figures, task: StoredTask, device: str, epochs: int, wanted: list[str]) -> None:
    taken: dict[str, float] = {}
    graph = task.graph
    what = f"{graph.num_nodes:,} nodes, {graph.num_edges:,} in-edges, 3 × 128, batches of 1,024"
    half = StoredTask(
        **{name: getattr(task, name) for name in ("name", "labels", "split", "metric")},
        graph=type(graph)(graph.indptr, graph.source, None, graph.x.half()),
        num_classes=task.num_classes,
    )
    cases = {
        "gpu": task,
        "pinned": task,
        "pinned-f16": half,
        "pinned-hot": task,
        "memory": task,
    }
    for name, own in cases.items() if device != "cpu" else [("memory", task)]:
        if wanted and name not in wanted:
            continue
        place = name.partition("-")[0]
        limit_hot_rows(HOT.get(name, 0.0))
        for seeds, rate in (("hidden", RECIPE.mask.label_rate), ("train", 0.0)):
            if name == "memory" and seeds == "train" and not native.available():
                continue  # sampling with torch on CPU takes too long
            seconds, peak = epoch_seconds(own, device, place, rate, epochs)
            taken[f"{name}-{seeds}"] = seconds
            which = "37.5 % of the train nodes" if seeds == "hidden" else "all train nodes"
            aim = "≤ 1.5" if name == "gpu" else ""
            figures.add(
                f"epoch-{name}-{seeds}-seconds", seconds, f"{what}, {name}, {which}, s", aim
            )
            figures.add(f"epoch-{name}-{seeds}-gib", peak, f"{what}, {name}, GPU memory, GiB")
            if place == "pinned" and f"gpu-{seeds}" in taken:
                rate = taken[f"gpu-{seeds}"] / seconds
                text = f"{what}, {name}, {which}, speed relative to everything on the GPU"
                figures.add(f"{name}-{seeds}-rate", rate, text, "≥ 0.8")
        torch.cuda.empty_cache() if device != "cpu" else None


def compare(figures: Figures, task: StoredTask, device: str) -> None:
    """Time steps of both models on the same batches."""
    from pyg_model import PyGModel, edges_of

    masks = Masks(mask_of(task.split.train, len(task.labels)), 0.625, redraw="epoch", seed=0)
    made = make_batches(
        task.graph,
        task.labels,
        masks,
        BatchOptions(
            regime="neighbors",
            fanout=[10],
            batch_size=1024,
            placement="gpu" if device != "cpu" else "memory",
        ),
        num_layers=3,
        device=device,
    )
    batches = [batch.to(device) for batch, _ in zip(made.epoch(1), range(BATCHES), strict=False)]
    labels = task.labels.to(device)
    with seeded(0, device):
        own = build_model(RECIPE.model, task.sizes).to(device)
        step = Step(own, torch.optim.Adam(own.parameters()), labels, "fp32")
        own.train()
        other = PyGModel(WIDTH, CLASSES, width=64, heads=2).to(device)
        optimizer = torch.optim.Adam(other.parameters())

    def pyg(batch: Batch) -> None:
        optimizer.zero_grad(set_to_none=True)
        wanted = labels[batch.seeds[batch.hidden]]
        nn.functional.cross_entropy(other(batch, edges_of(batch))[batch.hidden], wanted).backward()
        optimizer.step()

    calls: dict[str, Callable[[Batch], object]] = {"unimp": step, "pyg": pyg}
    taken = {}
    rows = statistics.mean(len(batch.nodes) for batch in batches)
    what = f"a step on a sampled batch of {rows:,.0f} nodes, forward, backward and Adam"
    for name, call in calls.items():
        if device != "cpu":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        for batch in batches[:2]:
            call(batch)
        wait(device)
        began = time.perf_counter()
        for batch in batches:
            call(batch)
        wait(device)
        taken[name] = (time.perf_counter() - began) / len(batches)
        figures.add(f"step-{name}-ms", 1e3 * taken[name], f"{name}, {what}, ms")
        if device != "cpu":
            peak = (torch.cuda.max_memory_allocated() - before) / 2**30
            figures.add(f"step-{name}-gib", peak, f"{name}, {what}, GiB")
    figures.add("step-speedup", taken["pyg"] / taken["unimp"], f"{what}, PyG ÷ unimp")


def neighbor_loader() -> str:
    """Try PyG's own loader of sampled batches; return its error, or "works"."""
    try:
        from torch_geometric.data import Data
        from torch_geometric.loader import NeighborLoader

        edges = torch.randint(50, (2, 300))
        loader = NeighborLoader(Data(x=torch.rand(50, 4), edge_index=edges), num_neighbors=[2, 2])
        next(iter(loader))
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "works"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--places", nargs="*", default=[], help="Only these; default: all.")
    parser.add_argument("--out", type=Path, required=True, help="The JSON file to write.")
    given = parser.parse_args()
    keep_freed_memory()
    device = choose_device(given.device)
    figures = Figures(given.out.stem, given.out.parent)
    began = time.perf_counter()
    task = papers_task(given.scale, device)
    if device != "cpu":
        torch.cuda.empty_cache()
    figures.add("generated-seconds", time.perf_counter() - began, "generating the graph, s")
    with seeded(0, device):
        model = build_model(RECIPE.model, task.sizes).to(device)
        expected = estimate(RECIPE, model, task, device)
    print(expected.in_words(), flush=True)
    figures.add("estimated-epoch-seconds", expected.seconds_per_epoch or 0.0, expected.in_words())
    loader = neighbor_loader()
    print(f"PyG's NeighborLoader: {loader}", flush=True)
    figures.add("pyg-neighbor-loader", float(loader == "works"), f"PyG's NeighborLoader: {loader}")
    try:
        compare(figures, task, device)
    except ImportError as error:
        print(f"PyG is not installed: {error}", flush=True)
    places(figures, task, device, given.epochs, given.places)


if __name__ == "__main__":
    main()

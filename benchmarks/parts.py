"""Time a training epoch over random parts of a graph of the size of ogbn-proteins, on a GPU.

    python benchmarks/parts.py     → results/parts.json

The model and the parts are those of the recipe proteins-paper: 7 layers, 9 parts, labels of half of
the nodes hidden. Parts are cut on CPU, by one worker during training, or on the GPU, which then
holds the graph. The kernels of a step are launched every time, or recorded once and replayed.
Prints a line `figure NAME VALUE` for each.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch

from measure import FOLDER, Figures, hop_of_size, seconds
from unimp.config.choices import Precision
from unimp.config.options import BatchOptions
from unimp.config.recipe import load_recipe
from unimp.graph.graph import Graph
from unimp.model.registry import build_model
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.task import Sizes
from unimp.training.batching import make_batches
from unimp.training.masks import Masks
from unimp.training.precision import matmuls_in
from unimp.training.step import ReplayedStep, Step

TASKS = 112
SIZE = {"num_nodes": 132_534, "num_edges": 79_122_504, "edge_features": 8, "skew": 1.0}
WAYS = {
    "cut on CPU, launched every step": ("cpu", False),
    "cut on GPU, launched every step": ("cuda", False),
    "cut on GPU, replayed": ("cuda", True),
}


def epochs_of(graph: Graph, precision: Precision) -> dict[str, Callable[[], None]]:
    """For each way, a function that trains one more epoch."""
    recipe = load_recipe("proteins-paper")
    labels = torch.randint(2, (graph.num_nodes, TASKS), dtype=torch.int8)
    known = torch.ones(graph.num_nodes, dtype=torch.bool)
    masks = Masks(known, recipe.mask.label_rate, redraw=recipe.mask.redraw, seed=0)
    sizes = Sizes(features=8, classes=TASKS, edge_features=8, multilabel=True)

    def one_way(place: str, replay: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        model = build_model(recipe.model, sizes).cuda()
        optimizer = torch.optim.Adam(model.parameters(), fused=True, capturable=True)
        step = Step(model, optimizer, labels.cuda(), precision)
        take = ReplayedStep(step) if replay else step
        batches = make_batches(
            graph.to(place),
            labels,
            masks,
            BatchOptions(regime="partition", parts=recipe.batch.parts),
            num_layers=model.num_layers,
            device="cuda",
        )
        numbers = iter(range(1, 10**6))

        def epoch() -> None:
            with matmuls_in(precision):
                for batch in batches.epoch(next(numbers)):
                    take(batch.to("cuda"))

        return epoch

    return {name: one_way(*way) for name, way in WAYS.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="Share of the nodes; degrees stay the same."
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    keep_freed_memory()
    figures = Figures("parts", arguments.out)
    nodes, edges = (int(arguments.scale * SIZE[name]) for name in ("num_nodes", "num_edges"))
    hop = hop_of_size(nodes, edges, edge_features=8, skew=1.0, device="cuda").to("cpu")
    own = torch.arange(edges, dtype=hop.source.dtype)
    graph = Graph(hop.indptr, hop.source, own, torch.randn(nodes, 8), hop.edge_attr)
    precisions: tuple[Precision, ...] = ("tf32", "bf16")
    for precision in precisions:
        took = seconds(epochs_of(graph, precision), repeats=arguments.repeats, device="cuda")
        card = torch.cuda.get_device_name().removeprefix("NVIDIA ")
        size = (
            "proteins size" if arguments.scale == 1 else f"{arguments.scale:g} of proteins' nodes"
        )
        what = f"{card}, {size}, 9 random parts, 7 layers, {precision}, training epoch"
        slow, *others = WAYS
        for way in WAYS:
            name = way.replace(",", "").replace(" ", "-").lower()
            figures.add(f"gpu-parts-{precision}-{name}", took[way], f"{what}, seconds, {way}")
        for way in others:
            name = way.replace(",", "").replace(" ", "-").lower()
            over = f"{what}, {way}, speedup over {slow}"
            figures.add(f"gpu-parts-{precision}-{name}-over", took[slow] / took[way], over)


if __name__ == "__main__":
    main()

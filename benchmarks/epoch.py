"""Compare a training epoch of the recipe `arxiv-paper` with the same model on PyG's layers.

    python benchmarks/epoch.py                 on CPU, two threads, half of arxiv's size
    python benchmarks/epoch.py --device cuda   on GPU, all of arxiv's size, fp32 and bf16
    python benchmarks/epoch.py --profile       print the most expensive operations instead

Forward, loss, backward and Adam's step in the full-batch regime, with the masks of the recipe, on a
random graph with random features and labels. The other model is UniMP with PyG's TransformerConv as
graph layers. PyG stores several rows per edge and layer: three layers of arxiv's full size need
more memory than many machines have, so that on CPU both are compared at `--scale`. "Whole" is our
model with every layer on the whole graph, as PyG's. "Pruned" is our model as the recipe runs on
CPU: it computes only nodes from which hidden nodes can be reached (same loss and gradients), and
its time includes finding them.

Prints a line `figure NAME VALUE` for each ratio and amount, and writes them with hardware and
command to results/epoch.json. A speedup over PyG is PyG's time divided by ours: more is better.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import ModuleList
from torch.profiler import ProfilerActivity, profile
from torch_geometric.nn import TransformerConv as PyGConv

from measure import FOLDER, Figures, edge_index_of, gpu_gib, hop_of_size, seconds
from unimp.config.recipe import load_recipe
from unimp.data.memory import peak_memory, resident_memory
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import GraphTransformerLayer
from unimp.model.registry import build_model
from unimp.model.unimp import UniMP
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.task import Sizes
from unimp.training.batching import FullBatch
from unimp.training.masks import Masks
from unimp.training.objective import masked_label_loss

NODES, EDGES, KNOWN = (
    169_343,
    2_484_941,
    90_941,
)  # both directions and self-loops; KNOWN: training nodes
FEATURES, CLASSES = 128, 40
RECIPE = load_recipe("arxiv-paper")
DEFAULT_SCALE = 0.5  # the largest at which PyG's layers fit 24 GiB


class PyGLayer(nn.Module):
    """PyG's layer in place of one of ours, with the same widths, heads and residual."""

    def __init__(self, ours: GraphTransformerLayer, edges: Tensor) -> None:
        super().__init__()
        self.edges = edges
        self.conv = PyGConv(
            ours.query.in_features,
            ours.width,
            ours.heads,
            concat=ours.concat,
            beta=ours.gate is not None,
        )

    def forward(self, h: Tensor, hop: Hop, norm: nn.LayerNorm | None = None) -> Tensor:
        out: Tensor = self.conv(h, self.edges)
        return out if norm is None else norm(out).relu()


class Setting:
    """A graph of arxiv's size or a share of it, and the epochs of models on it."""

    def __init__(self, scale: float, device: str) -> None:
        nodes = round(scale * NODES)
        hop = hop_of_size(nodes, round(scale * EDGES), device=device)
        torch.manual_seed(2)
        self.device = device
        self.labels = torch.randint(CLASSES, (nodes,))
        x = torch.randn(nodes, FEATURES).to(device)
        # Edges have no features, so that their ids are not used.
        self.graph = Graph(hop.indptr, hop.source, edge_id=hop.source, x=x)
        known = torch.zeros(nodes, dtype=torch.bool)
        known[torch.randperm(nodes)[: round(scale * KNOWN)]] = True
        self.masks = Masks(known, RECIPE.mask.label_rate, redraw=RECIPE.mask.redraw, seed=0)
        _ = self.graph.hop.transpose  # belongs to the graph and is computed once
        if device == "cuda":
            _ = self.graph.hop.schedule, self.graph.hop.source_schedule

    def model(self, *, pyg: bool = False) -> UniMP:
        torch.manual_seed(3)
        sizes = Sizes(features=FEATURES, edge_features=0, classes=CLASSES, multilabel=False)
        model = build_model(RECIPE.model, sizes)
        assert isinstance(model, UniMP)
        if pyg:
            edges = edge_index_of(self.graph.hop)
            layers = [PyGLayer(layer, edges) for layer in model.layers]  # type: ignore[arg-type]
            model.layers = ModuleList(layers)
        return model.to(self.device)

    def epoch_of(
        self, model: UniMP, *, prune: bool = False, half: bool = False
    ) -> Callable[[], None]:
        """Train the model for one more epoch; the n-th epoch has the same masks in every model."""
        batches = FullBatch(self.graph, self.labels, self.masks, model.num_layers, prune)
        options = RECIPE.train
        optimizer = torch.optim.Adam(
            model.parameters(), lr=options.lr, weight_decay=options.weight_decay
        )
        labels, numbers = self.labels.to(self.device), itertools.count(1)

        def epoch() -> None:  # as training/loop.py
            model.train()
            for batch in batches.epoch(next(numbers)):
                with torch.autocast(self.device, dtype=torch.bfloat16, enabled=half):
                    logits = model(batch.x, batch.observed, batch.hops)
                loss = masked_label_loss(logits.float(), labels[batch.seeds], batch.hidden)
                if self.device == "cpu":
                    loss.item()
                optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()

        return epoch


def on_cpu(figures: Figures, scale: float, repeats: int) -> None:
    setting = Setting(scale, "cpu")
    epochs = {
        "whole": setting.epoch_of(setting.model()),
        "pruned": setting.epoch_of(setting.model(), prune=True),
        "pyg": setting.epoch_of(setting.model(pyg=True)),
    }
    took = settled_seconds(epochs, repeats)
    what = f"CPU, {scale:g} of arxiv's size, recipe arxiv-paper, fp32, whole epoch"
    over = {who: took["pyg"] / took[who] for who in ("whole", "pruned")}
    runs = "as the recipe runs (pruned)"
    label = f"cpu-epoch-{scale:g}"
    figures.add(f"{label}-over-pyg", over["pruned"], f"{what}, {runs}, speedup over PyG", "≥ 3.5")
    figures.add(
        f"{label}-whole-over-pyg", over["whole"], f"{what}, on all nodes, speedup over PyG", "≥ 3.5"
    )
    for who, value in took.items():
        figures.add(f"{label}-seconds-{who}", value, f"{what}, seconds, {who}")
    del setting, epochs
    add_memory(figures, scale)
    if scale < DEFAULT_SCALE:
        return
    full = Setting(1.0, "cpu")
    epochs = {"ours": full.epoch_of(full.model(), prune=True)}
    took = settled_seconds(epochs, repeats)
    what = "CPU, arxiv size, recipe arxiv-paper, fp32, whole epoch"
    figures.add("cpu-epoch-seconds", took["ours"], f"{what}, seconds")


def add_memory(figures: Figures, scale: float) -> None:
    what = f"CPU, {scale:g} of arxiv's size, recipe arxiv-paper, fp32, whole epoch"
    for who in ("whole", "pyg"):
        gib = gib_of(who, scale)
        figures.add(f"cpu-epoch-{scale:g}-gib-{who}", gib, f"{what}, extra peak GiB, {who}")


def gib_of(who: str, scale: float) -> float:
    """The peak memory of two epochs beyond the graph and the features, in a separate process."""
    command = [sys.executable, __file__, "--memory-of", who, "--scale", str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_memory(who: str, scale: float) -> None:
    setting = Setting(scale, "cpu")
    before = resident_memory()
    epoch = setting.epoch_of(setting.model(pyg=who == "pyg"))
    epoch()
    epoch()
    print((peak_memory() - before) / 2**30)


def settled_seconds(epochs: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """The median time of each, after two epochs that touch all memory pages for the first time."""
    for epoch in epochs.values():
        epoch()
    return seconds(epochs, repeats=repeats, device="cpu")


def on_gpu(figures: Figures, scale: float, repeats: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    setting = Setting(scale, "cuda")
    size = "arxiv size" if scale == 1 else f"{scale:g} of arxiv's size"
    for short, half in (("fp32", False), ("bf16", True)):
        epochs = {
            who: setting.epoch_of(setting.model(pyg=who == "pyg"), half=half)
            for who in ("ours", "pyg")
        }
        took = seconds(epochs, repeats=repeats, device="cuda")
        what = f"GPU, {size}, recipe arxiv-paper, {short}, whole epoch"
        ratio = took["pyg"] / took["ours"]
        figures.add(f"gpu-epoch-{short}-over-pyg", ratio, f"{what}, speedup over PyG eager")
        for who, epoch in epochs.items():
            figures.add(f"gpu-epoch-{short}-ms-{who}", 1e3 * took[who], f"{what}, ms, {who}")
            figures.add(f"gpu-epoch-{short}-gib-{who}", gpu_gib(epoch), f"{what}, extra GiB, {who}")


def print_profile(scale: float, device: str) -> None:
    setting = Setting(scale, device)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for who in ("ours", "pyg"):
        epoch = setting.epoch_of(setting.model(pyg=who == "pyg"))
        epoch()
        with profile(activities=activities) as found:
            epoch()
        key = "self_cuda_time_total" if device == "cuda" else "self_cpu_time_total"
        print(who, found.key_averages().table(sort_by=key, row_limit=12), sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--scale", type=float, help="Share of arxiv's size; default 0.5 on CPU, 1 on GPU."
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--profile", action="store_true", help="Print the most expensive operations and exit."
    )
    parser.add_argument("--memory", action="store_true", help="Measure only the memory on CPU.")
    parser.add_argument("--memory-of", choices=["whole", "pyg"], help="Print the peak in GiB.")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    keep_freed_memory()
    on_device = arguments.device == "cuda"
    scale = arguments.scale or (1.0 if on_device else DEFAULT_SCALE)
    if not on_device:
        torch.set_num_threads(2)
    if arguments.profile:
        print_profile(scale, arguments.device)
        return
    if arguments.memory_of:
        print_memory(arguments.memory_of, scale)
        return
    if arguments.memory:
        add_memory(Figures("epoch", arguments.out), scale)
        return
    measure = on_gpu if on_device else on_cpu
    measure(Figures("epoch", arguments.out), scale, arguments.repeats)


if __name__ == "__main__":
    main()

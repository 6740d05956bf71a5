"""Compare a training epoch of the recipe `arxiv-paper` with the same model on PyG's layers.

    python benchmarks/epoch.py                 on CPU, two threads, 0.5 and 0.25 of arxiv's size
    python benchmarks/epoch.py --device cuda   on GPU, all of arxiv's size, fp32 and bf16
    python benchmarks/epoch.py --profile       print the most expensive operations instead

Forward, loss, backward and Adam's step in the full-batch regime, with the masks of the recipe, on a
random graph with random features and labels. The other model is UniMP with PyG's TransformerConv as
graph layers. PyG stores several rows per edge and layer: three layers of arxiv's full size need
more memory than many machines have, so that on CPU both are compared at `--scale`. "Whole" is our
model with every layer on the whole graph, as PyG's. "Pruned" is our model as the recipe runs on
CPU: it computes only nodes from which hidden nodes can be reached (same loss and gradients), and
its time includes finding them. Each precision is compared with PyG in the same precision; bf16 is
also compared with fp32, and PyG's layers are also compiled by `torch.compile`. "Products" computes
only the matrix products of our epoch on all nodes, and "gathers" only reads the rows that our
attention reads. Their sum is a lower limit for an implementation that computes the same products
and reads the same rows. Peak memory is measured in a separate process for each.

Prints a line `figure NAME VALUE` for each ratio and amount, and writes them with hardware and
command to results/epoch.json. A speedup over PyG is PyG's time divided by ours: more is better.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import ModuleList
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch_geometric.nn import TransformerConv as PyGConv

from measure import FOLDER, Figures, cpu_gib, edge_index_of, gpu_gib, hop_of_size, seconds
from unimp.config.recipe import load_recipe
from unimp.graph.graph import Graph
from unimp.graph.hop import Hop
from unimp.model.layers import GraphTransformerLayer
from unimp.model.registry import build_model
from unimp.model.unimp import UniMP
from unimp.ops import absorbed, native
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
CPU_SCALES = (0.5, 0.25)  # 0.5 is the largest at which PyG's layers fit 24 GiB
AIMS = {("fp32", 0.5): 7, ("fp32", 0.25): 3.5, ("bf16", 0.5): 9, ("bf16", 0.25): 5}
MEMORY_AIM = "≤ 0.2"


class PyGLayer(nn.Module):
    """PyG's layer in place of one of ours, with the same widths, heads and residual."""

    def __init__(self, ours: GraphTransformerLayer, edges: Tensor, compiled: bool = False) -> None:
        super().__init__()
        self.edges = edges
        conv = PyGConv(
            ours.query.in_features,
            ours.width,
            ours.heads,
            concat=ours.concat,
            beta=ours.gate is not None,
        )
        self.conv: Any = torch.compile(conv) if compiled else conv

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

    def model(self, *, pyg: bool = False, compiled: bool = False) -> UniMP:
        torch.manual_seed(3)
        sizes = Sizes(features=FEATURES, edge_features=0, classes=CLASSES, multilabel=False)
        model = build_model(RECIPE.model, sizes)
        assert isinstance(model, UniMP)
        if pyg:
            edges = edge_index_of(self.graph.hop)
            model.layers = ModuleList(
                PyGLayer(layer, edges, compiled)  # type: ignore[arg-type]
                for layer in model.layers
            )
        return model.to(self.device)

    def epoch_of(
        self, model: UniMP, *, prune: bool = False, half: bool = False
    ) -> Callable[[], None]:
        """Train the model for one more epoch; the n-th epoch has the same masks in every model."""
        batches = FullBatch(self.graph, self.labels, self.masks, model.num_layers, prune)
        options = RECIPE.train
        optimizer = torch.optim.Adam(
            model.parameters(), lr=options.lr, weight_decay=options.weight_decay, fused=True
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


class Products(TorchDispatchMode):
    """Record the sizes of all matrix products that are computed in a context."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[
            tuple[Any, list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]]
        ] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in ("aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", ONEDNN):
            matrices = [value for value in args if isinstance(value, Tensor)]
            matrices = matrices[:2] if name == ONEDNN else matrices[-2:]
            kinds = [(tuple(m.shape), m.stride(), m.dtype) for m in matrices]
            self.found.append((_by_onednn if name == ONEDNN else torch.matmul, kinds))
        return func(*args, **(kwargs or {}))


ONEDNN = "mkldnn::_linear_pointwise"


def _by_onednn(h: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise.default(h, weight, None, "none", [], "")
    return out


def products_of(epoch: Callable[[], None]) -> Callable[[], None]:
    """Compute only the matrix products of an epoch, with the same sizes, strides and precision."""
    with Products() as products:
        epoch()
    kinds = {kind for _, pair in products.found for kind in pair}
    matrices = {
        kind: torch.empty_strided(kind[0], kind[1], dtype=kind[2]).normal_() for kind in kinds
    }

    def compute() -> None:
        for multiply, (first, second) in products.found:
            multiply(matrices[first], matrices[second])

    return compute


def gathers_of(setting: Setting, model: UniMP, half: bool) -> Callable[[], None]:
    """Only read the rows that attention reads in an epoch on all nodes, in both passes."""
    hop, dtype = setting.graph.hop, torch.bfloat16 if half else torch.float32
    transpose = hop.transpose
    by_target, by_source = (hop.indptr, hop.source), (transpose.indptr, transpose.target)
    wanted = []
    for layer in model.layers:
        assert isinstance(layer, GraphTransformerLayer)
        inputs, heads = layer.query.in_features, layer.heads
        # Forward: keys and values. Backward: queries and gradients by source, then keys by target.
        widths = [heads * layer.width] * 5
        if absorbed.pays(hop, inputs, layer.width):
            widths = [inputs, 0, heads * inputs, heads * inputs, inputs]
        wanted += list(zip([by_target] * 2 + [by_source] * 2 + [by_target], widths, strict=True))
    rows = {width: torch.randn(len(hop.indptr) - 1, width).to(dtype) for _, width in wanted}

    def read() -> None:
        for (indptr, column), width in wanted:
            if width:
                F.embedding_bag(column, rows[width], indptr[:-1], mode="sum")

    return read


def precisions() -> list[str]:
    """The precisions that are measured on this CPU."""
    return ["fp32", "bf16"] if native.multiplies_bf16() else ["fp32"]


def on_cpu(figures: Figures, scales: Sequence[float], repeats: int) -> None:
    for scale in scales:
        times_at(figures, scale, repeats)
        add_memory(figures, scale)
    if max(scales) < max(CPU_SCALES):
        return
    full = Setting(1.0, "cpu")
    epochs = {
        name: full.epoch_of(full.model(), prune=True, half=name == "bf16") for name in precisions()
    }
    for name, value in settled_seconds(epochs, repeats).items():
        what = f"CPU, arxiv size, recipe arxiv-paper, {name}, whole epoch"
        figures.add(f"{label(name)}-seconds", value, f"{what}, seconds")
    del full, epochs
    for name in precisions():
        what = f"CPU, arxiv size, recipe arxiv-paper, {name}, whole epoch"
        figures.add(f"{label(name)}-gib", gib_of("whole", 1.0, name), f"{what}, extra peak GiB")


def label(precision: str, scale: float | None = None) -> str:
    """The beginning of a figure's name."""
    size = "" if scale is None else f"-{scale:g}"
    return f"cpu-epoch{size}" + ("" if precision == "fp32" else f"-{precision}")


def times_at(figures: Figures, scale: float, repeats: int) -> None:
    setting, over = Setting(scale, "cpu"), {}
    for name in precisions():
        half = name == "bf16"
        epochs = {
            "whole": setting.epoch_of(setting.model(), half=half),
            "pruned": setting.epoch_of(setting.model(), prune=True, half=half),
            "pyg": setting.epoch_of(setting.model(pyg=True), half=half),
            "compiled": setting.epoch_of(setting.model(pyg=True, compiled=True), half=half),
        }
        if half:
            epochs["fp32"] = setting.epoch_of(setting.model())
        took = settled_seconds(epochs, repeats)
        limits = {
            "products": products_of(epochs["whole"]),
            "gathers": gathers_of(setting, setting.model(), half),
        }
        epochs.clear()
        took |= settled_seconds(limits, repeats)
        took["limit"] = took["products"] + took["gathers"]
        return_memory()  # otherwise that of one precision of PyG is kept beside that of the other
        what = f"CPU, {scale:g} of arxiv's size, recipe arxiv-paper, {name}, whole epoch"
        aim = f"≥ {AIMS[name, scale]}" if (name, scale) in AIMS else ""
        begin = label(name, scale)
        for who, how, key in (
            ("pruned", "as the recipe runs (pruned)", "over-pyg"),
            ("whole", "on all nodes", "whole-over-pyg"),
            ("products", "our matrix products alone", "products-over-pyg"),
            ("limit", "our matrix products and the reading of rows alone", "limit-over-pyg"),
        ):
            over[name, who] = took["pyg"] / took[who]
            words, aimed = (
                f"{what}, {how}, speedup over PyG",
                "" if who in (*limits, "limit") else aim,
            )
            figures.add(f"{begin}-{key}", over[name, who], f"{words} in {name}", aimed)
            value = took["compiled"] / took[who]
            figures.add(f"{begin}-{key}-compiled", value, f"{words} compiled, in {name}", aimed)
        for who, value in took.items():
            if who != "fp32":
                figures.add(f"{begin}-seconds-{who}", value, f"{what}, seconds, {who}")
        if half:
            faster = took["fp32"] / took["whole"]
            words = f"{what}, on all nodes, speedup over"
            figures.add(f"{begin}-over-fp32", faster, f"{words} our fp32")
            value = faster * over["fp32", "whole"]
            figures.add(f"{begin}-over-pyg-fp32", value, f"{words} PyG in fp32", aim)


def return_memory() -> None:
    """Return freed memory to the operating system."""
    ctypes.CDLL(None).malloc_trim(0)


def add_memory(figures: Figures, scale: float) -> None:
    for name in precisions():
        what = f"CPU, {scale:g} of arxiv's size, recipe arxiv-paper, {name}, whole epoch"
        gib = {who: gib_of(who, scale, name) for who in ("whole", "pyg")}
        for who, value in gib.items():
            figures.add(f"{label(name, scale)}-gib-{who}", value, f"{what}, extra peak GiB, {who}")
        share = gib["whole"] / gib["pyg"]
        words = f"{what}, on all nodes, extra peak memory relative to PyG's in {name}"
        figures.add(f"{label(name, scale)}-memory-share", share, words, MEMORY_AIM)


def gib_of(who: str, scale: float, precision: str) -> float:
    """The peak memory of an epoch beyond the graph and the features, in a separate process."""
    command = [sys.executable, __file__, "--memory-of", who, "--precision", precision]
    command += ["--scale", str(scale)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def print_memory(who: str, scale: float, precision: str) -> None:
    setting = Setting(scale, "cpu")
    epoch = setting.epoch_of(setting.model(pyg=who == "pyg"), half=precision == "bf16")
    print(cpu_gib(epoch))


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


def print_profile(scale: float, device: str, precision: str) -> None:
    setting = Setting(scale, device)
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for who in ("ours", "pyg"):
        epoch = setting.epoch_of(setting.model(pyg=who == "pyg"), half=precision == "bf16")
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
        "--scale",
        type=float,
        help="Share of arxiv's size; default 0.5 and then 0.25 on CPU, 1 on GPU.",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--profile", action="store_true", help="Print the most expensive operations and exit."
    )
    parser.add_argument("--memory", action="store_true", help="Measure only the memory on CPU.")
    parser.add_argument("--memory-of", choices=["whole", "pyg"], help="Print the peak in GiB.")
    parser.add_argument(
        "--precision",
        choices=["fp32", "bf16"],
        default="fp32",
        help="Precision of --profile and --memory-of.",
    )
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    keep_freed_memory()
    on_device = arguments.device == "cuda"
    scales = [arguments.scale] if arguments.scale else [1.0] if on_device else list(CPU_SCALES)
    if not on_device:
        torch.set_num_threads(2)
    if arguments.profile:
        print_profile(scales[0], arguments.device, arguments.precision)
        return
    if arguments.memory_of:
        print_memory(arguments.memory_of, scales[0], arguments.precision)
        return
    figures = Figures("epoch", arguments.out)
    if arguments.memory:
        for scale in scales:
            add_memory(figures, scale)
    elif on_device:
        on_gpu(figures, scales[0], arguments.repeats)
    else:
        on_cpu(figures, scales, arguments.repeats)


if __name__ == "__main__":
    main()

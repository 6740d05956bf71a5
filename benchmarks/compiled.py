"""Time a training step of a model with TransformerConv that a script compiles with torch.compile.

    python benchmarks/compiled.py                   on CPU
    python benchmarks/compiled.py --device cuda     on a GPU

The model has three layers with 4 heads of 64. A norm, ReLU and dropout, which the compiler fuses,
follow each layer. "One operator" is our layer within the compiled graph. "A graph break" is the
same model, except that the compiler calls the layer between two graphs; on a GPU, such calls are
recorded and replayed. "Eager" is not compiled. All are measured in turn, in one process.

Prints a line `figure NAME VALUE` for each ratio and time, and writes them with hardware and command
to results/compiled.json. A speedup is the other side's time divided by that of our layer as one
operator: more is better.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import TransformerConv as PyGConv

from measure import FOLDER, Figures, edge_index_of, hop_of_size, seconds
from unimp.model.transformer_conv import TransformerConv
from unimp.ops.allocator import keep_freed_memory

SIZES = {
    "a quarter of arxiv's size": {"num_nodes": 42_336, "num_edges": 621_235},
    "1,000 nodes": {"num_nodes": 1000, "num_edges": 10_000},
}
FEATURES, HEADS, WIDTH, CLASSES, LAYERS = 128, 4, 64, 40, 3

WORDS = {
    "ours, one operator": "our layer as one operator",
    "ours, a graph break": "our layer with a graph break",
    "ours, eager": "our layer, not compiled",
    "PyG, eager": "PyG's layer, not compiled",
    "PyG, compiled": "PyG's layer, compiled",
}


class AfterBreak(TransformerConv):
    """Our layer, which the compiler does not trace."""

    def _can_trace(self, *given: Any) -> bool:
        return False


class Net(nn.Module):
    """A model as in a script that was written for PyG."""

    def __init__(self, conv: Callable[..., nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = [FEATURES, *[HEADS * WIDTH] * LAYERS]
        self.convs = nn.ModuleList(conv(w, WIDTH, heads=HEADS, beta=True) for w in widths[:-1])
        self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:])
        self.last = nn.Linear(widths[-1], CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.dropout(F.relu(norm(conv(x, edges))), 0.3, self.training)
        return self.last(x)  # type: ignore[no-any-return]


def step_of(model: Any, x: Tensor, edges: Tensor, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        loss = F.cross_entropy(model(x, edges), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        for weight in model.parameters():
            weight.grad = None

    return step


def compare(figures: Figures, name: str, size: dict[str, int], device: str, repeats: int) -> None:
    hop = hop_of_size(**size, device=device)  # type: ignore[arg-type]
    edges = edge_index_of(hop)
    x = torch.randn(hop.num_targets, FEATURES, device=device)
    labels = torch.randint(CLASSES, (hop.num_targets,), device=device)
    ours, after_break, pyg = (Net(c).to(device) for c in (TransformerConv, AfterBreak, PyGConv))
    traced = copy.deepcopy(ours)
    for conv in traced.convs:
        conv.replay = False
    models: dict[str, Any] = {
        "ours, one operator": torch.compile(traced, fullgraph=True, dynamic=False),
        "ours, a graph break": torch.compile(after_break, dynamic=False),
        "ours, eager": ours,
        "PyG, eager": pyg,
        "PyG, compiled": torch.compile(copy.deepcopy(pyg), dynamic=False),
    }
    steps = {who: step_of(model, x, edges, labels) for who, model in models.items()}
    for step in steps.values():  # compiled, and recorded on a GPU
        for _ in range(5):
            step()
    took = seconds(steps, repeats=repeats, device=device, settle=True)
    where = "H200" if device == "cuda" else "CPU"
    for who, value in took.items():
        label = f"compiled-{device}-{size['num_nodes']}-{who.replace(', ', '-').replace(' ', '-')}"
        figures.add(f"{label}-ms", 1e3 * value, f"{where}, {name}, {WORDS[who]}, ms per step")
        if not who.endswith("one operator"):
            ratio = value / took["ours, one operator"]
            what = f"{WORDS['ours, one operator']}, speedup over {WORDS[who]}"
            figures.add(label, ratio, f"{where}, {name}, {what}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    keep_freed_memory()
    torch.set_float32_matmul_precision("high")
    figures = Figures("compiled", arguments.out)
    for name, size in SIZES.items():
        compare(figures, name, size, arguments.device, arguments.repeats)


if __name__ == "__main__":
    main()

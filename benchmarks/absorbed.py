"""Time a training step on sampled neighbors on CPU, with and without absorbing W_k and W_v.

    python benchmarks/absorbed.py

The recipe `products-paper` (three layers, four heads of 128, 10, 10 and 10 neighbors) on a random
graph of a tenth of the size of ogbn-products with 100 random features. A batch of 150 is the share
of this graph that the recipe's 1,500 are of products, so that its hops overlap in the same way. A
batch of 1,500 reaches nearly all nodes of this graph, which leaves less to save. "First layer" is
its forward and backward pass only; "step" is the whole model, loss, backward and Adam's step.
"Absorbed" is the choice of `ops/absorbed.py`; "plain" disables it. Times are CPU times of one
thread, which other programs on the machine hardly change.

Prints a line `figure NAME VALUE` for each ratio and time, and writes them with hardware and command
to results/absorbed.json. A ratio is the plain time divided by the absorbed time: more is better.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from measure import FOLDER, Figures, cpu_gib, seconds
from sampler import PRODUCTS, graph_of_size
from unimp.config.recipe import load_recipe
from unimp.model.registry import build_model
from unimp.model.unimp import UniMP
from unimp.ops import absorbed, native
from unimp.ops.allocator import keep_freed_memory
from unimp.tasks.labels import LabelMask
from unimp.tasks.task import Sizes
from unimp.training.batch import Batch
from unimp.training.batching import sampled_batch
from unimp.training.objective import masked_label_loss

TENTH = {name: number // 10 for name, number in PRODUCTS.items()}
FEATURES, CLASSES = 100, 47
KNOWN = 0.08  # the share of nodes with a label
RECIPE = load_recipe("products-paper")


def batch_of(size: int) -> tuple[Batch, Tensor]:
    """A batch, and the labels of its seeds."""
    graph = graph_of_size(**TENTH)
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(CLASSES, (graph.num_nodes,), generator=generator)
    graph = graph.with_features(torch.randn(graph.num_nodes, FEATURES, generator=generator))
    seeds = torch.randperm(graph.num_nodes, generator=generator)[:size]
    observed = torch.rand(graph.num_nodes, generator=generator) < KNOWN
    hidden = torch.zeros_like(observed)
    hidden[seeds] = True
    mask = LabelMask(observed & ~hidden, hidden)
    fanout = RECIPE.batch.fanout
    return sampled_batch(graph, labels, mask, seeds, fanout, seed=1), labels[seeds]


def without_absorbing(call: Callable[[], None]) -> Callable[[], None]:
    """The same call without absorbed weights."""

    def plain() -> None:
        chosen, absorbed.pays = absorbed.pays, lambda *given: False
        try:
            call()
        finally:
            absorbed.pays = chosen

    return plain


def first_layer(model: UniMP, batch: Batch) -> Callable[[], None]:
    hop, norm = batch.hops[0], model.norms[0]
    assert isinstance(norm, nn.LayerNorm)
    h = torch.randn(hop.num_sources, FEATURES, requires_grad=True)
    direction = torch.randn(hop.num_targets, len(norm.weight))

    def call() -> None:
        h.grad = None
        model.zero_grad()
        model.layers[0](h, hop, norm).backward(direction)

    return call


def whole_step(model: UniMP, batch: Batch, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=RECIPE.train.lr)

    def call() -> None:  # as training/loop.py
        model.train()
        logits = model(batch.x, batch.observed, batch.hops)
        loss = masked_label_loss(logits, labels, batch.hidden)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return call


def compare(figures: Figures, size: int, repeats: int, *, memory: bool) -> None:
    batch, labels = batch_of(size)
    torch.manual_seed(0)
    model = build_model(
        RECIPE.model, Sizes(features=FEATURES, edge_features=0, classes=CLASSES, multilabel=False)
    )
    assert isinstance(model, UniMP)
    hop = batch.hops[0]
    shape = f"first hop {hop.num_sources:,} sources, {hop.num_targets:,} targets"
    what = f"one core, recipe products-paper, a tenth of its graph, batch {size:,} ({shape})"
    for part, call in (
        ("first-layer", first_layer(model, batch)),
        ("step", whole_step(model, batch, labels)),
    ):
        label, of = f"absorbed-{part}-batch-{size}", part.replace("-", " ")
        calls = {"absorbed": call, "plain": without_absorbing(call)}
        if memory:
            for who, each in calls.items():
                figures.add(f"{label}-gib-{who}", cpu_gib(each), f"{what}, {of}, extra GiB, {who}")
            continue
        took = seconds(calls, repeats=repeats, device="cpu", clock=time.process_time)
        ratio = took["plain"] / took["absorbed"]
        figures.add(f"{label}-over-plain", ratio, f"{what}, {of}, speedup over plain")
        for who, value in took.items():
            figures.add(f"{label}-ms-{who}", 1e3 * value, f"{what}, {of}, ms, {who}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[150, 1500])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if not native.available():
        raise SystemExit("The native core is not built. Without it nothing is absorbed.")
    torch.set_num_threads(1)
    figures = Figures("absorbed", arguments.out)
    for size in arguments.batches:
        compare(figures, size, arguments.repeats, memory=True)
    keep_freed_memory()  # after measuring memory: from here on no call returns memory to the system
    for size in arguments.batches:
        compare(figures, size, arguments.repeats, memory=False)


if __name__ == "__main__":
    main()

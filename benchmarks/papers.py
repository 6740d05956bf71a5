"""A task with the shape of ogbn-papers100M at any scale, generated in memory on CPU or GPU.

The shape is that of proofs/store.py: at scale 1, 111 million nodes and 1.6 billion edges, 128
features and 172 classes. The ends of edges are drawn with power-law weights, and the reverse edges
are added. 1.4 % of the nodes have labels, and 78 % of these are for training.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.data.store.task import StoredTask
from unimp.graph.graph import Graph
from unimp.tasks.labels import Split

NODES, EDGES, WIDTH, CLASSES = 111_059_956, 1_615_685_872, 128, 172
KNOWN, SHARES = 0.0139, (0.78, 0.86)
CHUNK = 1 << 22  # rows of features that are drawn at a time


def papers_task(
    scale: float, device: str = "cpu", dtype: torch.dtype = torch.float32
) -> StoredTask:
    """Generate a task on `device`; its arrays are in main memory, as if it were mapped."""
    nodes, edges = max(1000, round(NODES * scale)), max(5000, round(EDGES * scale))
    generator = torch.Generator(device).manual_seed(0)
    indptr, source = in_edges(nodes, edges, generator, device)
    labels = torch.randint(CLASSES, (nodes,), generator=generator, device=device)
    centers = torch.randn(CLASSES, WIDTH, generator=generator, device=device)
    x = torch.empty(nodes, WIDTH, dtype=dtype)
    for begin in range(0, nodes, CHUNK):
        own = labels[begin : begin + CHUNK]
        noise = torch.randn(len(own), WIDTH, generator=generator, device=device)
        x[begin : begin + CHUNK] = (noise + centers[own]).to(dtype).cpu()
    known = torch.rand(nodes, generator=generator, device=device) < KNOWN
    drawn = torch.rand(nodes, generator=generator, device=device)
    parts = torch.bucketize(drawn, torch.tensor(SHARES, device=device))
    split = Split(**{
        name: torch.nonzero(known & (parts == part)).squeeze(1).cpu()
        for part, name in enumerate(("train", "val", "test"))
    })  # fmt: skip
    return StoredTask(
        name=f"papers-{scale:g}",
        graph=Graph(indptr.cpu(), source.cpu(), None, x),
        labels=torch.where(known, labels, -1).cpu(),
        split=split,
        metric="accuracy",
        num_classes=CLASSES,
    )


def in_edges(
    nodes: int, edges: int, generator: torch.Generator, device: str
) -> tuple[Tensor, Tensor]:
    """Edges and their reverses without duplicates, sorted by target and source."""
    shuffled = torch.randperm(nodes, generator=generator, device=device)  # hubs have random numbers

    def ends() -> Tensor:
        rank = torch.rand(edges, generator=generator, device=device, dtype=torch.float64)
        return shuffled[(rank.pow_(1 / 0.6) * nodes).long().clamp_(max=nodes - 1)]

    source, target = ends(), ends()
    pairs = torch.cat((target * nodes + source, source * nodes + target))
    del source, target
    pairs = torch.unique_consecutive(pairs.sort().values)
    counts = torch.bincount(pairs // nodes, minlength=nodes)
    indptr = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
    torch.cumsum(counts, 0, out=indptr[1:])
    return indptr, (pairs % nodes).int()

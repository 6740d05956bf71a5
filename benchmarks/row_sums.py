"""Measure sums over in-edges and products with sparse features.

    python benchmarks/row_sums.py      on a CPU

Random graphs and features have the sizes of data sets. "Convolution" is a GCN layer, forward and
backward, compared with PyG's GCNConv with stored weights (cached=True), and with the same layer
without the native core, by torch.sparse. "Sparse features" are multiplied by a weight matrix,
forward and backward, compared with torch's embedding_bag.

Prints a line `figure NAME VALUE` for each ratio, and writes them with hardware and command to
results/row_sums.json. Higher is better.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric.nn import GCNConv

from measure import FOLDER, Figures, edge_index_of, hop_of_size, seconds
from unimp.graph.graph import Graph
from unimp.model.gcn import GCNLayer, with_convolution_weights
from unimp.ops import native
from unimp.ops.weighted_sum import sparse_product

GRAPHS = {"debian": (63_620, 680_392), "arxiv": (169_343, 2_315_598)}
FEATURES = {"amazon-computers": (13_752, 767, 0.348), "coauthor-physics": (34_493, 8_415, 0.0039)}
WIDTH = 128


def compare_layers(figures: Figures, name: str, repeats: int) -> None:
    nodes, edges = GRAPHS[name]
    hop = hop_of_size(nodes, edges, device="cpu")
    edge_index = edge_index_of(hop)
    weighted = with_convolution_weights(Graph.from_edges(edge_index, num_nodes=nodes)).hop
    ours, theirs = GCNLayer(WIDTH, WIDTH), GCNConv(WIDTH, WIDTH, cached=True)
    h = torch.randn(nodes, WIDTH, requires_grad=True)

    def train(layer: Callable[[], Tensor]) -> None:
        layer().sum().backward()

    def without_core() -> None:
        with mock.patch.object(native, "available", return_value=False):
            train(lambda: ours(h, weighted))

    calls = {
        "ours": lambda: train(lambda: ours(h, weighted)),
        "torch": without_core,
        "pyg": lambda: train(lambda: theirs(h, edge_index)),
    }
    found = seconds(calls, repeats=repeats, device="cpu")
    what = f"CPU, {name} size, a convolution of width {WIDTH}, training"
    figures.add(f"{name}_pyg", found["pyg"] / found["ours"], f"{what}, speedup over PyG's GCNConv")
    figures.add(
        f"{name}_torch", found["torch"] / found["ours"], f"{what}, speedup over torch.sparse"
    )


def compare_products(figures: Figures, name: str, repeats: int) -> None:
    rows, columns, filled = FEATURES[name]
    draw = torch.Generator().manual_seed(0)
    each = round(columns * filled)
    column = torch.randint(columns, (rows * each,), generator=draw)
    indptr, value = torch.arange(rows + 1) * each, torch.rand(rows * each, generator=draw)
    table = torch.randn(columns, WIDTH, requires_grad=True)
    given = {"mode": "sum", "per_sample_weights": value, "include_last_offset": True}
    calls = {
        "ours": lambda: sparse_product(indptr, column, value, table).sum().backward(),
        "torch": lambda: F.embedding_bag(column, table, indptr, **given).sum().backward(),  # type: ignore[arg-type]
    }
    found = seconds(calls, repeats=repeats, device="cpu")
    what = f"CPU, features of {name}'s size, product with {WIDTH} columns, forward + backward"
    figures.add(
        f"{name}_product", found["torch"] / found["ours"], f"{what}, speedup over embedding_bag"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    figures = Figures("row_sums", options.out)
    for name in GRAPHS:
        compare_layers(figures, name, options.repeats)
    for name in FEATURES:
        compare_products(figures, name, options.repeats)


if __name__ == "__main__":
    main()

"""Time the preparation of batches on one core or on a GPU: sampled neighbors and induced parts.

    python benchmarks/sampler.py
    python benchmarks/sampler.py --device cuda     sample neighbors on the GPU that holds the graph

Neighbors: 1,024 seeds with 10, 10 and 10 in-neighbors on a graph of the size of ogbn-products, with
a complete call of `sample_hops`; then the same without the native core. Induced parts: the edges
among a random tenth of a graph of a quarter of the size of ogbn-proteins. Prints a line
`figure NAME VALUE` for each rate, and writes them with hardware and command to
results/sampler.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from measure import FOLDER, Figures, hop_of_size
from unimp.graph.csr import group, index_dtype, row_of_entry
from unimp.graph.graph import Graph
from unimp.ops import native
from unimp.ops.sampling import induced_hop, sample_hops
from unimp.training.batching import random_parts

PRODUCTS = {"num_nodes": 2_400_000, "num_edges": 122_000_000}
PROTEINS_QUARTER = {"num_nodes": 33_134, "num_edges": 19_780_626, "skew": 1.0}
SEEDS, FANOUT = 1024, (10, 10, 10)
CHUNK = 2**23  # edges drawn at a time


def graph_of_size(num_nodes: int, num_edges: int, *, skew: float = 1.5) -> Graph:
    """Like `measure.hop_of_size`, within 3 GiB for 122 million edges, with rows sorted by source.

    Edges are created in the order of their sources, so that one stable counting sort by target
    keeps this order in each row.
    """
    generator = torch.Generator().manual_seed(0)
    dtype = index_dtype(max(num_nodes, num_edges))
    order = torch.randperm(num_nodes, generator=generator).to(dtype)

    def ends() -> Iterator[Tensor]:
        for begin in range(0, num_edges, CHUNK):
            count = min(CHUNK, num_edges - begin)
            rank = torch.rand(count, generator=generator, dtype=torch.float64)
            yield order[(rank**skew * num_nodes).long().clamp_(max=num_nodes - 1)]

    out_degree = torch.zeros(num_nodes, dtype=torch.int64)
    for part in ends():
        out_degree += torch.bincount(part, minlength=num_nodes)
    indptr, slots = group(torch.cat(list(ends())), num_nodes)
    by_source = torch.zeros(num_nodes + 1, dtype=dtype)
    by_source[1:] = out_degree.cumsum(0)
    source = row_of_entry(by_source).index_select(0, slots)
    return Graph(indptr, source, edge_id=slots)


def rate(call: Callable[[int], int], *, repeats: int) -> tuple[float, float]:
    """Median edges per second and seconds per call, over calls 1, 2, …; call 0 warms up."""
    taken: list[tuple[float, float]] = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        edges = call(number)
        passed = time.perf_counter() - began
        if number:
            taken.append((edges / passed, passed))
    rates, times = zip(*taken, strict=True)
    return statistics.median(rates), statistics.median(times)


@contextmanager
def without_native() -> Iterator[None]:
    kept, native.available = native.available, lambda: False  # type: ignore[assignment]
    try:
        yield
    finally:
        native.available = kept  # type: ignore[assignment]


def neighbors(figures: Figures, repeats: int) -> None:
    graph = graph_of_size(**PRODUCTS)

    generator = torch.Generator().manual_seed(1)
    seeds = torch.randperm(graph.num_nodes, generator=generator).split(SEEDS)

    def batch(number: int) -> int:
        _, hops = sample_hops(graph, seeds[number], FANOUT, seed=number)
        return sum(hop.num_edges for hop in hops)

    what = "one core, 1,024 seeds × fanout 10, 10, 10 on 2.4 M nodes and 122 M edges"
    drawn, took = rate(batch, repeats=repeats)
    figures.add(
        "sampler-million-edges-per-second", drawn / 1e6, f"{what}, million edges per second", "≥ 30"
    )
    figures.add("sampler-ms-per-batch", 1e3 * took, f"{what}, ms per batch")
    with without_native():
        drawn, _ = rate(batch, repeats=min(repeats, 5))
    figures.add(
        "sampler-million-edges-per-second-numpy",
        drawn / 1e6,
        f"{what}, without the native core, million edges per second",
    )


def neighbors_on_gpu(figures: Figures, repeats: int) -> None:
    """Like `neighbors`, until the GPU has finished."""
    hop = hop_of_size(**PRODUCTS, device="cuda")
    slots = torch.arange(hop.num_edges, dtype=hop.source.dtype, device="cuda")
    graph = Graph(hop.indptr, hop.source, edge_id=slots)
    generator = torch.Generator().manual_seed(1)
    seeds = torch.randperm(graph.num_nodes, generator=generator).cuda().split(SEEDS)

    def batch(number: int) -> int:
        _, hops = sample_hops(graph, seeds[number], FANOUT, seed=number)
        torch.cuda.synchronize()
        return sum(hop.num_edges for hop in hops)

    what = "1,024 seeds × fanout 10, 10, 10 on 2.4 M nodes and 122 M edges"
    what = f"{torch.cuda.get_device_name()}, {what}"
    drawn, took = rate(batch, repeats=repeats)
    figures.add(
        "sampler-gpu-million-edges-per-second", drawn / 1e6, f"{what}, million edges per second"
    )
    figures.add("sampler-gpu-ms-per-batch", 1e3 * took, f"{what}, ms per batch")


def induced(figures: Figures, repeats: int) -> None:
    graph = graph_of_size(**PROTEINS_QUARTER)  # type: ignore[arg-type]

    rng = np.random.default_rng(1)
    parts = [random_parts(graph.num_nodes, 10, rng=rng)[0] for _ in range(repeats + 1)]
    scans = [int(graph.in_degree[nodes].sum()) for nodes in parts]

    def part(number: int) -> int:
        induced_hop(graph, parts[number])
        return scans[number]

    what = "one core, the edges among a tenth of 33,134 nodes with 19.8 M edges, edges scanned"
    scanned, _ = rate(part, repeats=repeats)
    figures.add("induce-million-edges-per-second", scanned / 1e6, f"{what}, millions per second")
    with without_native():
        scanned, _ = rate(part, repeats=min(repeats, 5))
    figures.add(
        "induce-million-edges-per-second-numpy",
        scanned / 1e6,
        f"{what}, without the native core, millions per second",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if arguments.device == "cuda":
        neighbors_on_gpu(Figures("sampler", arguments.out), arguments.repeats)
        return
    if not native.available():
        raise SystemExit("The native core is not built: there is nothing to compare.")
    torch.set_num_threads(1)
    figures = Figures("sampler", arguments.out)
    induced(figures, arguments.repeats)
    neighbors(figures, arguments.repeats)


if __name__ == "__main__":
    main()

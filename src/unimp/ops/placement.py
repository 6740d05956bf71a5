"""The policy for device placement: which data is on the GPU and which stays in main memory.

    model, optimizer, current batch   always on the device that trains
    graph of a run                    on the device if inference uses it there as a whole:
                                      exact inference in one chunk, or inference in parts on a GPU
                                      with enough free memory
    graph that batches are cut from   the first of these places that fits:
        gpu        edges and features on the GPU, which cuts and samples many times faster than a
                   CPU
        pinned     edges on the GPU; features in pinned main memory, from which the GPU reads the
                   rows of a batch; the rows that batches need most often are also on the GPU
        features   features on the GPU; batches are cut on CPU, and their node numbers and edges are
                   copied
        memory     everything in main memory; batches are cut on CPU and copied
        disk       like memory, but arrays are mapped from a store
    logits, states between layers     in main memory

16-bit features stay 16-bit numbers in every place; the rows of a batch are converted to float32. A
GPU has enough free memory for data if this data and a step of training fit. If the memory of a step
is not known, `GPU_HEADROOM` times the size of the data must be free. On CPU, everything is in main
memory or mapped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from unimp.config.choices import Placement
from unimp.data.memory import available_memory
from unimp.graph.features import SparseFeatures
from unimp.graph.graph import Graph
from unimp.ops.pinned import PinnedRows, pinned_bytes

GPU_HEADROOM = 4
"""Free GPU memory that is required to place data there, as a multiple of its size."""


SHARE = 0.9
"""The part of the free GPU memory that data and a step of training may use together."""
PINNED_SHARE = 0.7
"""The part of the free main memory that pinned features may use."""


def fits_gpu(size: int, device: torch.device | str, step: int | None = None) -> bool:
    """Whether data of `size` bytes leaves enough of the free memory of a GPU to training.

    step: bytes that a step of training needs; None: not known.
    """
    free = available_memory(str(device))
    return GPU_HEADROOM * size <= free if step is None else size + step <= SHARE * free


def fits_one_chunk(graph: Graph, chunk_edges: int) -> bool:
    """Whether exact inference processes all nodes and edges of the graph at once."""
    return graph.num_edges + graph.num_nodes <= chunk_edges


def place_graph(graph: Graph, device: torch.device | str, *, chunk_edges: int | None) -> Graph:
    """Place the graph of a run; training cuts batches from it and inference predicts on it.

    chunk_edges: the limit of exact inference; None means that inference predicts in parts.
    """
    if chunk_edges is not None:
        belongs_there = fits_one_chunk(graph, chunk_edges)
    else:
        belongs_there = _is_gpu(device) and fits_gpu(graph.nbytes, device)
    return graph.to(device) if belongs_there else graph


def choose_placement(
    graph: Graph, device: torch.device | str, *, step: int | None = None, is_mapped: bool = False
) -> Placement:
    """Choose the first place that fits for the graph from which batches are cut.

    step: bytes that a step of training needs on the GPU; is_mapped: the graph is from a store.
    """
    if _is_gpu(device):
        if graph.device.type == "cuda" or fits_gpu(graph.nbytes, device, step):
            return "gpu"
        x = graph.x
        size = 0 if x is None else x.nbytes
        edges = graph.nbytes - size
        if isinstance(x, Tensor) and fits_gpu(edges, device, step) and _can_be_pinned(x):
            return "pinned"
        if x is not None and fits_gpu(size, device, step):
            return "features"
    return "disk" if is_mapped else "memory"


def place_for_batches(
    graph: Graph, device: torch.device | str, placement: Placement
) -> tuple[Graph, Tensor | SparseFeatures | PinnedRows | None]:
    """Place the graph from which batches are cut.

    Returns the graph and, if features are gathered after a batch is cut, the features of all nodes
    in the form that the GPU reads. The graph then has no features.
    """
    x = graph.x
    if placement == "gpu":
        return graph.to(device), None
    if placement == "pinned" and isinstance(x, Tensor) and x.device.type == "cpu":
        edges = graph.with_features(None).to(device)
        return edges, PinnedRows(x, device, source=edges.source)
    if placement == "features" and x is not None and graph.device.type == "cpu":
        return graph.with_features(None), x.to(device)
    return graph, None


def _can_be_pinned(x: Tensor) -> bool:
    return pinned_bytes(x) <= PINNED_SHARE * available_memory("cpu")


def _is_gpu(device: torch.device | str) -> bool:
    return torch.device(device).type == "cuda"
